"""Sends operations to the ops topic and returns their answers; each client has a transport, or several share one.

```
caller ── submit ──> PendingOperations.add, Link.send ──> ops topic
background thread:   results topic, one partition ──> Link.receive ──> PendingOperations.accept ──> Future
                     PendingOperations.due ──> Link.send (the same bytes again)
```
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Protocol, Self

import msgspec

from popstream.errors import ClientClosed
from popstream.exchange.broker_clock import BrokerClock
from popstream.exchange.kafka_link import KafkaLink
from popstream.exchange.partitioner import ops_key
from popstream.exchange.pending_operations import PendingOperation, PendingOperations
from popstream.exchange.send_window import SendWindow
from popstream.history.recorder import HistoryRecorder
from popstream.wire.base_errors import Invalid, Unavailable
from popstream.wire.command import AdminCommand, Command, Pop, encode_command
from popstream.wire.signing import sign_operation

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from popstream.settings import ClientSettings
    from popstream.wire.answer import Answer

__all__ = ["Link", "Transport", "new_op_id"]

LOG = logging.getLogger(__name__)

OP_ID_BYTES = 15
RECEIVE_S_MAX = 0.25
RETRY_AFTER_S = 0.25
RECEIVE_RETRY_PAUSE_S = 0.5


def new_op_id() -> str:
    """Return a name for one operation: 120 random bits in 20 characters, unique and impossible to guess.

    >>> len(new_op_id()), new_op_id() == new_op_id()
    (20, False)
    """
    return secrets.token_urlsafe(OP_ID_BYTES)


class Link(Protocol):
    """Carries bytes: over Kafka (`KafkaLink`), or in memory for tests (`MemoryLink`).

    `open` is called first; `receive` by one thread only, `send` by any.
    """

    def open(self) -> int:
        """Receive from now on; return the partition to which answers are to be sent."""

    def send(self, key: bytes, value: bytes, on_sent: Callable[[Exception | None], None]) -> None:
        """Write one record; `on_sent` is called with None once it is confirmed, or with the error."""

    def receive(self, timeout_s: float) -> list[bytes]:
        """Return the frames that have arrived; wait for the first one up to `timeout_s`."""

    def close(self, timeout_s: float) -> None:
        """Wait for operations in flight, at most for the time-out, and disconnect; not called during `receive`."""


class Transport:
    """Requests and answers. Safe for use by many threads.

    Callbacks of the futures run on the background thread: they must be short, and must not wait for another answer.

    Args:
        settings: Names and time-outs.
        link: A link other than Kafka, for tests.
        clock: Returns monotonic seconds.
        broker_clock: Estimates the broker's clock from the answers; default: a `BrokerClock`.

    Attributes:
        settings: As given.
        broker_clock: As given, or the default.

    Raises:
        Unavailable: Kafka does not answer.
        Invalid: The topics of the job do not exist, the history file cannot be opened, or the admin key cannot be read.
    """

    def __init__(
        self,
        settings: ClientSettings,
        *,
        link: Link | None = None,
        clock: Callable[[], float] = time.monotonic,
        broker_clock: BrokerClock | None = None,
    ) -> None:
        """Connect, seek to the end of a partition of answers, and start the background thread."""
        self.settings = settings
        self._clock = clock
        self._admin_key = settings.find_admin_key()
        self._link: Link = KafkaLink(settings) if link is None else link
        self.broker_clock = broker_clock or BrokerClock()
        self._pending = PendingOperations(settings.client_id, settings.resend_after_ms_max / 1000, self.broker_clock)
        self._window = SendWindow()
        self._on_answered: list[Callable[[str, float], None]] = []
        self._history = (
            None if settings.history_file is None else HistoryRecorder(settings.history_file, settings.client_id)
        )
        try:
            self._reply_to = self._link.open()
        except BaseException:
            self._close_history()
            raise
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"{settings.client_id}-answers", daemon=True)
        self._thread.start()

    @property
    def reply_to(self) -> int:
        """The partition of the results topic that is read here."""
        return self._reply_to

    @property
    def waiting_count(self) -> int:
        """Number of operations in flight."""
        return len(self._pending)

    def submit(self, command: Command, *, timeout_ms: int | None = None) -> Future[Answer]:
        """Send an operation; its future returns the answer, or raises `AnswerTimeout` or `ClientClosed`.

        Waits while Kafka has not confirmed 10,000 operations, or 8 MiB, that were sent before. A command without an
        op_id gets one; `reply_to` is always set to this transport's partition.

        Args:
            command: The operation.
            timeout_ms: How long to wait for the answer (a pop: beyond its poll time); default: `answer_timeout_ms`.

        Raises:
            ClientClosed: The transport is closed.
            Invalid: The record would be larger than the job accepts.
            ValueError: The name of the queue is malformed, or an operation with the same op_id is in flight.
            OSError: The history file cannot be written; nothing was sent.
        """
        op_id = command.op_id or new_op_id()
        addressed = msgspec.structs.replace(command, op_id=op_id, reply_to=self._reply_to)
        key, value = ops_key(command.topic, command.queue_id), self._encode(addressed)
        now_s = self._clock()
        # While a pop is parked no answer is due.
        parked_s = command.poll_time_ms / 1000 if isinstance(command, Pop) else 0.0
        wait_ms = self.settings.answer_timeout_ms if timeout_ms is None else timeout_ms
        resend_after_s = self.settings.resend_after_ms / 1000
        pending = PendingOperation(
            op_id=op_id,
            what=f"{type(command).__name__} {op_id} on {command.topic}/{command.queue_id}",
            key=key,
            value=value,
            future=Future(),
            first_sent_s=now_s,
            next_send_s=now_s + parked_s + resend_after_s,
            resend_after_s=resend_after_s,
            deadline_s=now_s + parked_s + wait_ms / 1000,
            parts={},
        )
        if self._history is not None:
            self._history.follow(addressed, pending.future)
        if self._on_answered:
            pending.future.add_done_callback(partial(self._answered, now_s))
        self._pending.add(pending)
        self._send(pending, waits=True)
        return pending.future

    def request(self, command: Command, *, timeout_ms: int | None = None) -> Answer:
        """Send an operation and wait for its answer, whatever its reason.

        Raises:
            AnswerTimeout: No answer came; the outcome is unknown.
            ClientClosed: The transport was closed, before the call or during it.
        """
        return self.submit(command, timeout_ms=timeout_ms).result()

    def on_answered(self, listener: Callable[[str, float], None]) -> Callable[[], None]:
        """Call `listener` with the type of each operation that is answered, and the seconds since it was sent.

        Returns:
            An unsubscribe callable.
        """
        self._on_answered.append(listener)
        return lambda: self._on_answered.remove(listener)

    def post(self, command: Command) -> None:
        """Send an operation that is neither answered nor sent again. Waits for Kafka as `submit` does.

        Raises:
            ClientClosed: The transport is closed, or was closed meanwhile; nothing was sent.
            Invalid: The operation is too large.
            Unavailable: Kafka has not confirmed earlier operations for `delivery_timeout_ms`; nothing was sent.
        """
        self._require_open()
        unanswered = msgspec.structs.replace(command, op_id=command.op_id or new_op_id(), reply_to=None)

        def on_sent(error: Exception | None) -> None:
            if error is not None:
                LOG.warning("%s on %s/%s was lost: %s", type(command).__name__, command.topic, command.queue_id, error)

        value = self._encode(unanswered)
        has_room = self._window.wait_for_room(len(value), self.settings.delivery_timeout_ms / 1000)
        self._require_open()
        if not has_room:
            raise self._without_room()
        if self._history is not None:
            self._history.post(unanswered)
        self._hand_over(ops_key(command.topic, command.queue_id), value, on_sent)

    def close(self, timeout_s: float | None = None) -> None:
        """Disconnect; calls that wait raise `ClientClosed`. More calls do nothing.

        Args:
            timeout_s: How long operations in flight may take to be written; default: `delivery_timeout_ms`.
        """
        if self._is_closing.is_set():
            return
        self._is_closing.set()
        self._window.close()
        self._pending.close()
        if threading.current_thread() is not self._thread:
            self._thread.join()
        self._link.close(self.settings.delivery_timeout_ms / 1000 if timeout_s is None else timeout_s)
        self._close_history()

    def __enter__(self) -> Self:
        """Return the open transport."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()

    def _answered(self, first_sent_s: float, answered: Future[Answer]) -> None:
        if answered.exception() is None:
            for listener in list(self._on_answered):
                listener(answered.result().type, self._clock() - first_sent_s)

    def _encode(self, command: Command) -> bytes:
        value = encode_command(command)
        if self._admin_key is not None and isinstance(command, AdminCommand):
            now_ms = int(time.time() * 1000)
            value = sign_operation(value, self._admin_key, ops_topic=self.settings.operations, at_ms=now_ms)
        if len(value) > self.settings.ops_bytes_max:
            name = type(command).__name__
            message = f"{name} takes {len(value)} bytes, more than the {self.settings.ops_bytes_max} allowed"
            raise Invalid(message, subject=f"{command.topic}/{command.queue_id}")
        return value

    def _close_history(self) -> None:
        if self._history is not None:
            self._history.close()

    def _send(self, pending: PendingOperation, *, waits: bool) -> None:
        def on_sent(error: Exception | None) -> None:
            self._pending.sent(pending.op_id, error, self._clock(), RETRY_AFTER_S)

        timeout_s = self.settings.delivery_timeout_ms / 1000 if waits else 0.0
        if self._window.wait_for_room(len(pending.value), timeout_s):
            self._hand_over(pending.key, pending.value, on_sent)
        else:
            on_sent(self._without_room())

    def _without_room(self) -> Unavailable:
        message = "Kafka has not confirmed what was sent before: check the brokers, then try again"
        return Unavailable(message, subject=self.settings.bootstrap_servers)

    def _require_open(self) -> None:
        if self._is_closing.is_set():
            raise ClientClosed.of("transport", self.settings.client_id)

    def _hand_over(self, key: bytes, value: bytes, on_sent: Callable[[Exception | None], None]) -> None:
        """Hand a record to the link, which calls `on_sent`."""
        confirm = self._window.enter(len(value), on_sent)
        try:
            self._link.send(key, value, confirm)
        except Exception as error:  # noqa: BLE001 - an operation is sent again until its deadline; a post is lost
            confirm(error)

    def _run(self) -> None:
        while not self._is_closing.is_set():
            try:
                for frame in self._link.receive(self._pending.wait_s(self._clock(), RECEIVE_S_MAX)):
                    self._pending.accept(frame, self._clock())
            except Exception:
                # The operations in flight keep their deadlines.
                LOG.exception("cannot read answers, retrying")
                self._is_closing.wait(RECEIVE_RETRY_PAUSE_S)
            for pending in self._pending.due(self._clock()):
                LOG.info("sending %s again: send number %d", pending.what, pending.sent_count)
                self._send(pending, waits=False)
