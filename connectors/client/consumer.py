"""Pops messages, and says what became of them: the consumer side of the public API."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from typing import TYPE_CHECKING, Any, Self

from broker_state.command import Cancel, Pop, ReturnClient
from broker_state.reason import Reason
from connectors.client.entry_sender import EntrySender
from connectors.client.errors import ClientClosed, NotDeclared, PayloadMissing, Refused
from connectors.client.fetcher import KafkaPayloads
from connectors.client.held import Held
from connectors.client.message import Message, Outcome, PopResult, Receipt, ReceiptHandle
from connectors.client.settings import ClientSettings, new_client_id
from connectors.client.tags import tag_hash
from connectors.client.transport import Transport, new_op_id
from connectors.errors import PopstreamError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence
    from concurrent.futures import Future
    from types import TracebackType

    from broker_state.answer import Answer
    from broker_state.command import Cause, Command, Init
    from connectors.client.fetcher import Fetched, Payloads
    from connectors.client.message import QueueKey

__all__ = ["Consumer"]

LOG = logging.getLogger(__name__)

# Answers to a pop that are results and no errors; with all but the first nothing was leased.
POP_RESULTS = frozenset((Reason.OK, Reason.NO_MESSAGE, Reason.POLLING_TIMEOUT, Reason.POLLING_FULL, Reason.CANCELLED))
LATE_INVISIBLE_TIME_MS = 1_000
CLOSE_TIMEOUT_MS = 30_000
FETCH_TIMEOUT_MS = 10_000


class Consumer:
    """Pops messages of one group and acks them.

    Safe for use by many threads; a single message should be in the hands of one of them at a time. Calls wait for the
    job's answer, which takes as long as a micro-batch; `ack_async` does not wait. What one thread asks for on one queue
    reaches the job in the order of the calls.

    Args:
        bootstrap_servers: `host:port` of one or more brokers, separated by commas.
        group: The consumer group; every group gets every message.
        client_id: Unique name of this consumer, for the audit and for `return_client`; by default a random one.
        prefix: Names the job, see `ClientSettings`.
        ack_delay_ms: Acks wait so long for others of the same queue. Longer: fewer records; shorter: sooner done.
        fetch_timeout_ms: How long the records of a pop may take to come before they are given back.
        transport: Share the one of another client instead of making one; it is not closed here.
        payloads: Take payloads from elsewhere than Kafka, as tests do.
        **settings: Further fields of `ClientSettings`.

    Raises:
        Unavailable: Kafka does not answer.
        Invalid: The job's topics do not exist, or a setting is wrong.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        group: str,
        client_id: str | None = None,
        prefix: str = "popstream",
        ack_delay_ms: float = 5.0,
        fetch_timeout_ms: int = FETCH_TIMEOUT_MS,
        transport: Transport | None = None,
        payloads: Payloads | None = None,
        **settings: Any,  # noqa: ANN401 - ClientSettings checks them
    ) -> None:
        self.settings = ClientSettings(
            bootstrap_servers=bootstrap_servers, client_id=client_id or new_client_id(), prefix=prefix, **settings
        )
        self.group = group
        self._owns_transport = transport is None
        self._transport = transport or Transport(self.settings)
        self._payloads: Payloads = payloads or KafkaPayloads(self.settings)
        self._fetch_timeout_ms = fetch_timeout_ms
        self._held = Held()
        self._entries = EntrySender(
            self._transport, group=group, client_id=self.client_id, ack_delay_ms=ack_delay_ms, held=self._held
        )
        self._state = threading.Condition()
        self._pops: dict[str, QueueKey] = {}
        self._is_closed = False

    @property
    def client_id(self) -> str:
        """Name of this consumer."""
        return self.settings.client_id

    @property
    def held_count(self) -> int:
        """Count the messages popped here that were neither finished nor given back."""
        return len(self._held)

    def pop(
        self,
        topic: str,
        queue_id: int,
        max_messages: int = 32,
        invisible_time_ms: int = 60_000,
        poll_time_ms: int = 0,
        *,
        order: bool = False,
        attempt_id: str | None = None,
        init: Init = "min",
        tags: Sequence[str] | None = None,
        op_id: str | None = None,
        timeout_ms: int | None = None,
    ) -> PopResult:
        """Lease messages of one queue and bring their payloads.

        Leased offsets whose record no longer exists are acked with cause GONE; they are counted, not returned.

        Args:
            topic: Message topic.
            queue_id: Its partition.
            max_messages: At most so many, 1..10,000.
            invisible_time_ms: Nobody else gets them for so long, counted by the broker from its decision on. Less than
                about 2,000 can be over before the messages arrive here.
            poll_time_ms: Wait so long at the broker for a first message.
            order: Orderly consumption: nothing else of the queue is handed out while one of these is in flight.
            attempt_id: For orderly consumption: the same id again gets the same messages again.
            init: Where a lane that does not exist yet begins: at the queue's first message, or behind its last ("max").
            tags: Only messages with one of these tags; the others are passed over for the group.
            op_id: Name for this pop (`new_op_id`), so that another thread can `cancel` it while it waits.
            timeout_ms: How long to wait for the answer beyond the poll time; by default as the settings say.

        Raises:
            NotDeclared: The job does not know the queue yet.
            Refused: A parameter is out of range, or the lane is used in the other mode.
            AnswerTimeout: The job does not answer. What the pop may still lease is given back by a `cancel` sent for
            it. PayloadMissing: No record of what was leased could be read; it was given back.
            ClientClosed: The consumer was closed.
        """
        op_id = op_id or new_op_id()
        command = Pop(
            v=1,
            topic=topic,
            queue_id=queue_id,
            op_id=op_id,
            group=self.group,
            max_messages=max_messages,
            invisible_time_ms=invisible_time_ms,
            order=order,
            attempt_id=attempt_id,
            poll_time_ms=poll_time_ms,
            init=init,
            client_id=self.client_id,
            tags=None if tags is None else [tag_hash(tag) for tag in tags],
        )
        with self._under_way(command, op_id, timeout_ms) as answered:
            try:
                return self._collect(_require(answered.result(), POP_RESULTS))
            except (Refused, NotDeclared, ClientClosed):
                raise
            except BaseException:
                # Nobody will work on what this pop leases: not after a time-out, nor an interrupt, nor a failed fetch.
                self._take_back(topic, queue_id, op_id)
                raise

    def ack(self, messages: Iterable[Receipt], *, cause: Cause | None = None) -> list[Outcome]:
        """Say that messages are done, and wait for the outcome of each, in the order given.

        Args:
            messages: Messages or receipts, of any queues.
            cause: Why they are done, when they were not processed: GONE or UNREADABLE.

        Raises:
            AnswerTimeout: Some outcomes are unknown; the error holds the known ones.
            ClientClosed: The consumer was closed.
        """
        return self.ack_async(messages, cause=cause).result()

    def ack_async(self, messages: Iterable[Receipt], *, cause: Cause | None = None) -> Future[list[Outcome]]:
        """As `ack`, without waiting. Acks of all threads that come within `ack_delay_ms` travel together, as ranges.

        The future's callbacks run on a background thread: they must be short, and must not wait for another answer.
        """
        self._require_open()
        return self._entries.ack(messages, cause)

    def change_invisible(
        self, messages: Iterable[Receipt], invisible_time_ms: int, *, suspend: bool = False
    ) -> list[Outcome]:
        """Make messages visible `invisible_time_ms` from now, 0: at once. The handles in the messages are replaced.

        Args:
            messages: Messages or receipts, of any queues.
            invisible_time_ms: 0..43,200,000.
            suspend: The next delivery does not count as a further attempt.

        Returns:
            The outcome of each, in the order given. SUPERSEDED: somebody changed it since; the message now has the
            current handle.

        Raises:
            AnswerTimeout: Some outcomes are unknown; the error holds the known ones.
            ClientClosed: The consumer was closed.
        """
        self._require_open()
        return self._entries.change(messages, invisible_time_ms, suspend=suspend).result()

    def reject(self, messages: Iterable[Receipt], cause: str | None = None) -> list[Outcome]:
        """Send messages to the dead-letter topic now; `cause` is kept with them.

        Raises:
            AnswerTimeout: Some outcomes are unknown; the error holds the known ones.
            ClientClosed: The consumer was closed.
        """
        self._require_open()
        return self._entries.reject(messages, cause).result()

    def cancel(self, topic: str, queue_id: int, op_id: str) -> Outcome:
        """Take back a pop: one that waits ends with CANCELLED, one that was answered loses its leases.

        For those the attempt does not count.

        Raises:
            AnswerTimeout: The job does not answer.
            ClientClosed: The consumer was closed.
        """
        answer = self.request(Cancel(v=1, topic=topic, queue_id=queue_id, target_op_id=op_id))
        return Outcome(answer.applied, answer.reason, answer.code)

    def return_client(self, topic: str, queue_id: int, client_id: str | None = None) -> list[tuple[int, int]]:
        """Give back all that a client holds of a queue in this group, and cancel its waiting pops.

        Args:
            topic: Message topic.
            queue_id: Its partition.
            client_id: By default this consumer.

        Returns:
            The ranges of queue offsets that were released.

        Raises:
            NotDeclared: The job does not know the queue.
            Refused: A parameter is out of range.
            AnswerTimeout: The job does not answer.
            ClientClosed: The consumer was closed.
        """
        command = ReturnClient(
            v=1, topic=topic, queue_id=queue_id, group=self.group, client_id=client_id or self.client_id
        )
        return _require(self.request(command), {Reason.OK}).released

    def request(self, command: Command, *, timeout_ms: int | None = None) -> Answer:
        """Send any operation and wait for its answer, whatever it says.

        Raises:
            AnswerTimeout: The job does not answer.
            ClientClosed: The consumer was closed.
        """
        self._require_open()
        self._entries.send_waiting()
        return self._transport.request(command, timeout_ms=timeout_ms)

    def flush(self, timeout_ms: int = CLOSE_TIMEOUT_MS) -> None:
        """Send the acks that wait for company, and wait until everything about messages is answered.

        Raises:
            AnswerTimeout: Some is not, within the time.
        """
        self._entries.flush(timeout_ms / 1000)

    def close(self, *, release: bool = True, timeout_ms: int = CLOSE_TIMEOUT_MS) -> None:
        """Cancel pops that wait, finish the acks, give back what is held, and disconnect. More calls do nothing.

        What cannot be done in time is logged: the leases then end by themselves.

        Args:
            release: Make held messages visible at once, by one operation a queue; they have had an attempt. Otherwise
                their leases run on, and receipts stay good.
            timeout_ms: Bound for the whole.
        """
        with self._state:
            if self._is_closed:
                return
            self._is_closed = True
            pops = dict(self._pops)
        deadline_s = time.monotonic() + timeout_ms / 1000
        try:
            self._finish(pops, deadline_s, release=release)
        except (PopstreamError, TimeoutError) as error:
            LOG.warning("%s could not finish what it had under way: %s", self.client_id, error)
        finally:
            self._entries.close()
            if self._owns_transport:
                self._transport.close()
            self._payloads.close()

    def __enter__(self) -> Self:
        """Give the open consumer."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()

    def _finish(self, pops: dict[str, QueueKey], deadline_s: float, *, release: bool) -> None:
        for op_id, (topic, queue_id) in pops.items():
            self._transport.submit(Cancel(v=1, topic=topic, queue_id=queue_id, target_op_id=op_id))
        with self._state:
            self._state.wait_for(lambda: not self._pops, _left_s(deadline_s))
        self._entries.close()
        self._entries.flush(_left_s(deadline_s))
        held = self._held.take_all(time.monotonic())
        if held and release:
            left_ms = int(_left_s(deadline_s) * 1000)
            changed = self._entries.change(held, 0, suspend=False, timeout_ms=left_ms).result()
            released_count = sum(outcome.applied for outcome in changed)
            LOG.info("%s gave back %d of %d held messages", self.client_id, released_count, len(held))

    @contextlib.contextmanager
    def _under_way(self, command: Pop, op_id: str, timeout_ms: int | None) -> Iterator[Future[Answer]]:
        """Send a pop; while it is under way `close` knows of it."""
        with self._state:
            self._require_open()
            answered = self._transport.submit(command, timeout_ms=timeout_ms)
            self._pops[op_id] = (command.topic, command.queue_id)
        try:
            yield answered
        finally:
            with self._state:
                del self._pops[op_id]
                self._state.notify_all()

    def _collect(self, answer: Answer) -> PopResult:
        """Turn leased ranges into messages; see to those that have no record."""
        if not answer.messages:
            return PopResult(op_id=answer.op_id, reason=answer.reason, code=answer.code)
        received_s = time.monotonic()
        invisible_time_ms = answer.invisible_time_ms or 0
        ranges = [(leased.first, leased.last) for leased in answer.messages]
        timeout_s = min(self._fetch_timeout_ms, invisible_time_ms) / 1000
        fetched = self._payloads.fetch(answer.topic, answer.queue_id, ranges, timeout_s)
        if not fetched.payloads and fetched.late:
            message = f"records {fetched.late} were leased, and cannot be read within {timeout_s} s"
            raise PayloadMissing(message, subject=f"{answer.topic}/{answer.queue_id}")
        messages = _messages(answer, fetched)
        self._held.hold(messages, received_s + invisible_time_ms / 1000, received_s)
        gone, late = _receipts(answer, fetched.gone), _receipts(answer, fetched.late)
        if gone:
            LOG.info("%d leased messages of %s/%d no longer exist", len(gone), answer.topic, answer.queue_id)
            self._entries.ack(gone, "GONE")
        if late:
            LOG.warning("%d leased messages of %s/%d cannot be read yet", len(late), answer.topic, answer.queue_id)
            self._entries.change(late, LATE_INVISIBLE_TIME_MS, suspend=True)
        return PopResult(
            op_id=answer.op_id,
            reason=answer.reason,
            code=answer.code,
            messages=messages,
            gone_count=len(gone),
            late_count=len(late),
        )

    def _take_back(self, topic: str, queue_id: int, op_id: str) -> None:
        try:
            self._transport.post(Cancel(v=1, topic=topic, queue_id=queue_id, target_op_id=op_id))
        except Exception:
            LOG.warning("pop %s on %s/%d could not be taken back", op_id, topic, queue_id, exc_info=True)

    def _require_open(self) -> None:
        if self._is_closed:
            message = f"consumer {self.client_id} is closed"
            raise ClientClosed(message, subject=self.client_id)


def _messages(answer: Answer, fetched: Fetched) -> list[Message]:
    attempts = {offset: leased.attempt for leased in answer.messages for offset in range(leased.first, leased.last + 1)}
    handle = ReceiptHandle(answer.handle or "")
    pop_time_ms = answer.pop_time_ms or 0
    return [
        Message(
            topic=answer.topic,
            queue_id=answer.queue_id,
            queue_offset=offset,
            handle=handle,
            attempt=attempts[offset],
            key=payload.key,
            value=payload.value,
            headers=payload.headers,
            timestamp_ms=payload.timestamp_ms,
            pop_time_ms=pop_time_ms,
            next_visible_time_ms=pop_time_ms + (answer.invisible_time_ms or 0),
        )
        for offset, payload in sorted(fetched.payloads.items())
    ]


def _receipts(answer: Answer, ranges: Iterable[tuple[int, int]]) -> list[Receipt]:
    handle = ReceiptHandle(answer.handle or "")
    return [
        Receipt(topic=answer.topic, queue_id=answer.queue_id, queue_offset=offset, handle=handle)
        for first, last in ranges
        for offset in range(first, last + 1)
    ]


def _require(answer: Answer, expected: Collection[Reason]) -> Answer:
    if answer.reason in expected:
        return answer
    if answer.reason is Reason.TOPIC_NOT_EXIST:
        message = f"the job does not know {answer.topic}/{answer.queue_id}: nobody has declared this queue yet"
        raise NotDeclared(message, subject=f"{answer.topic}/{answer.queue_id}")
    raise Refused(answer)


def _left_s(deadline_s: float) -> float:
    return max(0.0, deadline_s - time.monotonic())
