"""Sends operations from the builder's outbox to the ops topic, until the job has answered each of them.

A dispatch is idempotent, so an operation without an answer is sent again. So is one that is refused because the queue's
window is not there yet (AHEAD_OF_WINDOW), because the queue is not declared (TOPIC_NOT_EXIST), which is declared
first, or because it was signed with an admin key that is not one any more (NO_PERMISSION): it gets a new signature.
"""

import contextlib
import heapq
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from itertools import islice

import msgspec
import structlog

from broker_state.consume_queue import skips_of
from pipelines.apply_ops.outbox import Outbox
from pipelines.decide_ops.entry import Entry
from popstream.back_off import back_off_s
from popstream.errors import ClientClosed
from popstream.exchange.transport import Transport
from popstream.send.dispatch_requests import SETTLED, TRY_AGAIN
from popstream.wire.answer import Answer
from popstream.wire.command import Command, Declare, Dispatch
from popstream.wire.queue_name import QueueName
from popstream.wire.reason import Reason

__all__ = ["DispatchSender"]

_log = structlog.get_logger(__name__)

_SEND_AGAIN = TRY_AGAIN | {Reason.NO_PERMISSION}

OPEN_MAX = 512
"""Open operations at which the builder stops reading."""

RETRY_AFTER_S_MIN = 0.05
RETRY_AFTER_S_MAX = 10.0

_decode = msgspec.json.Decoder(Command).decode


class _OpenOperation(msgspec.Struct, eq=False):
    """An operation without a final answer; `key` is that of its outbox entry."""

    key: bytes
    command: Declare | Dispatch
    failures: int = 0


class DispatchSender:
    """Sends operations at once and in order, and retries with exponential back-off. Safe for use by several threads.

    Retries need the thread, which runs from `start` to `stop`.

    Args:
        transport: Connection to the job; the caller closes it.
        outbox: Is notified of every operation that has its final answer.
        declare_of: Returns the declaration of a queue, or None if the builder does not know the queue.
    """

    def __init__(self, transport: Transport, outbox: Outbox, declare_of: Callable[[QueueName], Declare | None]) -> None:
        self._transport = transport
        self._outbox = outbox
        self._declare_of = declare_of
        self._changed = threading.Condition()
        self._open: dict[bytes, _OpenOperation] = {}
        self._retries: list[tuple[float, bytes]] = []
        self._is_stopped = False
        self.refused: dict[QueueName, str] = {}
        """By queue, the last operation that the job refused for good, and the reason."""
        self._thread = threading.Thread(target=self._run, name="dispatch", daemon=True)

    def start(self) -> None:
        """Start the thread that retries."""
        self._thread.start()

    def send(self, entries: Iterable[Entry]) -> None:
        """Send entries of kind DISPATCH.

        A declaration supersedes all earlier operations of its queue, which were about an earlier topic of that name.
        """
        operations = [_OpenOperation(entry.key, _decode(entry.value)) for entry in entries]
        declared = {
            _queue(operation.command): index
            for index, operation in enumerate(operations)
            if isinstance(operation.command, Declare)
        }
        superseded = [
            operation.key
            for index, operation in enumerate(operations)
            if index < declared.get(_queue(operation.command), 0)
        ]
        with self._changed:
            superseded += [earlier.key for earlier in self._open.values() if _queue(earlier.command) in declared]
            for key in superseded:
                self._open.pop(key, None)
            dropped = set(superseded)
            operations = [operation for operation in operations if operation.key not in dropped]
            self._open.update((operation.key, operation) for operation in operations)
        self._outbox.delivered(superseded)
        for operation in operations:
            self._send(operation)

    @property
    def open_count(self) -> int:
        """Number of operations without a final answer."""
        return len(self._open)

    def wait_for_room(self, timeout_s: float) -> bool:
        """Wait until fewer than `OPEN_MAX` operations are open; return False on timeout."""
        with self._changed:
            return self._changed.wait_for(lambda: len(self._open) < OPEN_MAX or self._is_stopped, timeout_s)

    def stop(self) -> None:
        """Stop sending; open operations stay in the outbox."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join()

    def _send(self, operation: _OpenOperation) -> None:
        # Never under the lock: without Kafka this waits for room until the delivery time-out.
        with contextlib.suppress(ClientClosed):  # the operation stays in the outbox
            future = self._transport.submit(operation.command)
            future.add_done_callback(lambda answered: self._on_answer(operation, answered))

    def _on_answer(self, operation: _OpenOperation, answered: "Future[Answer]") -> None:
        error = answered.exception()
        if isinstance(error, ClientClosed):
            return
        if error is not None:
            self._retry_later(operation, str(error))
            return
        answer = answered.result()
        reasons = {run.reason for run in answer.runs} or {answer.reason}
        if reasons & _SEND_AGAIN:
            self._retry_later(operation, str(answer.reason))
            return
        queue = _queue(operation.command)
        if (skip := _skip_to_start(operation.command, answer)) is not None:
            operation.command = skip
            self._send(operation)
            return
        if Reason.BELOW_MIN in reasons and (above := self._above_start(operation.command)) is not None:
            operation.command = above
            self._send(operation)
            return
        with self._changed:
            is_open = self._open.pop(operation.key, None) is not None
            if is_open and reasons - SETTLED:
                self.refused[queue] = f"{type(operation.command).__name__.lower()}: {answer.reason}"
                _log.error("dispatch_refused", topic=queue[0], queue_id=queue[1], reason=answer.reason)
            elif is_open and isinstance(operation.command, Declare):
                self.refused.pop(queue, None)
            self._changed.notify_all()
        if is_open:
            self._outbox.delivered([operation.key])

    def _above_start(self, command: Command) -> Dispatch | None:
        """Return a refused dispatch without offsets that left the log in the meantime; None if it has none."""
        declare = self._declare_of(_queue(command))
        if declare is None or not isinstance(command, Dispatch):
            return None
        start = declare.min_offset
        if not any(written.first < start <= written.last for written in command.ranges):
            return None
        ranges = [
            msgspec.structs.replace(written, first=max(written.first, start))
            for written in command.ranges
            if written.last >= start
        ]
        return msgspec.structs.replace(command, ranges=ranges)

    def _retry_later(self, operation: _OpenOperation, why: str) -> None:
        queue = _queue(operation.command)
        with self._changed:
            if operation.key not in self._open or self._is_stopped:
                return
            operation.failures += 1
            delay_s = back_off_s(operation.failures, first_s=RETRY_AFTER_S_MIN, max_s=RETRY_AFTER_S_MAX)
            heapq.heappush(self._retries, (time.monotonic() + delay_s, operation.key))
            self._changed.notify_all()
        if why == Reason.TOPIC_NOT_EXIST and (declare := self._declare_of(queue)) is not None:
            with contextlib.suppress(ClientClosed):
                self._transport.submit(declare)
        _log.info("dispatch_retried", topic=queue[0], queue_id=queue[1], after_s=delay_s, why=why)

    def _run(self) -> None:
        while (operation := self._next_retry()) is not None:
            self._send(operation)

    def _next_retry(self) -> _OpenOperation | None:
        """Wait until an operation is to be sent again, and return it; None: the sender has stopped."""
        with self._changed:
            while not self._is_stopped:
                now_s = time.monotonic()
                if not self._retries or self._retries[0][0] > now_s:
                    self._changed.wait(self._retries[0][0] - now_s if self._retries else None)
                    continue
                operation = self._open.get(heapq.heappop(self._retries)[1])
                if operation is not None:
                    return operation
        return None


def _skip_to_start(command: Command, answer: Answer) -> Dispatch | None:
    """Return the skip from a queue's commit position to the start of its log, if the job knew the queue before."""
    position = answer.commit_position
    if not isinstance(command, Declare) or answer.reason is not Reason.OK or answer.applied:
        return None
    if position is None or position >= command.min_offset:
        return None
    (skip,) = islice(skips_of(command.topic, command.queue_id, position, command.min_offset), 1)
    return msgspec.structs.replace(skip, topic_id=command.topic_id)


def _queue(command: Command) -> QueueName:
    return command.topic, command.queue_id
