"""Pops under way, and what they bring: leases first, then the records of what was leased.

```
send ─> answer ─> lease: units without their records, held ─> fill: records ─┬─> unwrap, filter ─> messages to hand out
                                                                              ├─> gone: acked
                                                                              ├─> unreadable: rejected
                                                                              ├─> sent again: for this group, and now?
                                                                              ├─> late: given back a moment
                                                                              └─> left: over the byte bound
```
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

import msgspec

from popstream.errors import ClientClosed, PayloadMissing
from popstream.exchange.coalescer import ranges_of
from popstream.exchange.transport import new_op_id
from popstream.lease.entries import Change
from popstream.message import FilterVerdict, LeasedUnit, Message
from popstream.outcome import ReceiptHandle
from popstream.payload.inner_batch import unwrap
from popstream.payload.message_id import message_id_of
from popstream.payload.redelivery import Redelivery
from popstream.wire.command import Cancel, ReturnClient
from popstream.wire.failures import Corrupt
from popstream.wire.limits import INVISIBLE_TIME_MS_MAX
from popstream.wire.reason import Reason

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from concurrent.futures import Future

    from popstream.exchange.transport import Transport
    from popstream.lease.held_messages import HeldMessages
    from popstream.lease.settlement import Settlement
    from popstream.message import MessageFilter, Settler
    from popstream.outcome import QueueKey
    from popstream.payload.payloads import Payload, Payloads
    from popstream.wire.answer import Answer
    from popstream.wire.command import Pop

__all__ = ["POP_RESULTS", "Filled", "Pops"]

LOG = logging.getLogger(__name__)

POP_RESULTS = frozenset((Reason.OK, Reason.NO_MESSAGE, Reason.POLLING_TIMEOUT, Reason.POLLING_FULL, Reason.CANCELLED))
"""Answers to a pop that are results and no errors; with all but the first nothing was leased."""
LATE = Change(1_000, suspend=True)
"""A record that does not come now may come soon; that is no attempt."""
UNREADABLE = Change(1_000)
"""Attempts at a record that nobody can read count, so that it ends in the dead letters where the lane has a limit."""
FILTERED = Change(1_000)
"""What a filter returns is for others; at once it would come here again (RocketMQ's proxy uses 1 s as well)."""


class Filled(msgspec.Struct, frozen=True):
    """Messages with their records, by queue offset; `left` are leased, but their records would be too many bytes."""

    messages: list[Message]
    left: list[Message]
    gone_count: int
    late_count: int
    longest_bytes: int = 0


class Pops:
    """Sends pops of one consumer, and turns their answers into messages. Safe for use by many threads.

    Args:
        transport: Carries the operations.
        payloads: Brings the records.
        held: Takes what is leased.
        settlement: Speaks about what is not handed out.
        group: The consumer group.
        settler: Goes into the messages.
        fetch_timeout_ms: How long the records of a pop may take to come.
        message_filter: Is asked about each message before it is handed out.
        returns_first: (group, client_id) whose earlier leases of a queue are given back before the first pop from it.
    """

    def __init__(
        self,
        transport: Transport,
        payloads: Payloads,
        held: HeldMessages,
        settlement: Settlement,
        *,
        group: str,
        settler: Settler,
        fetch_timeout_ms: int,
        message_filter: MessageFilter | None,
        returns_first: tuple[str, str] | None,
    ) -> None:
        self._transport = transport
        self._payloads = payloads
        self._held = held
        self._settlement = settlement
        self._group = group
        self._settler = settler
        self.fetch_timeout_ms = fetch_timeout_ms
        self._filter = message_filter
        self._returns_first = returns_first
        self._returned: set[QueueKey] = set()
        self._changed = threading.Condition()
        self._in_flight: dict[str, QueueKey] = {}
        self._is_closing = False

    def send(self, command: Pop, timeout_ms: int | None = None) -> Future[Answer]:
        """Send a pop; it is under way until `ended` is called for its op_id.

        Raises:
            ClientClosed: The consumer or its transport is closed.
        """
        op_id = command.op_id or new_op_id()
        queue = (command.topic, command.queue_id)
        with self._changed:
            if self._is_closing:
                message = "the consumer is closed"
                raise ClientClosed(message, subject=op_id)
            if self._returns_first is not None and queue not in self._returned:
                group, client_id = self._returns_first
                given_back = ReturnClient(v=1, topic=queue[0], queue_id=queue[1], group=group, client_id=client_id)
                self._transport.submit(given_back).add_done_callback(_log_return)
                self._returned.add(queue)
            answered = self._transport.submit(msgspec.structs.replace(command, op_id=op_id), timeout_ms=timeout_ms)
            self._in_flight[op_id] = queue
        return answered

    def ended(self, op_id: str) -> None:
        """A pop was answered and taken in, or given up."""
        with self._changed:
            self._in_flight.pop(op_id, None)
            self._changed.notify_all()

    def take_back(self, topic: str, queue_id: int, op_id: str) -> None:
        """Give back what a pop that nobody waits for leases, without waiting and without counting the attempt."""
        try:
            self._transport.post(Cancel(v=1, topic=topic, queue_id=queue_id, target_op_id=op_id))
        except Exception:
            LOG.warning("pop %s on %s/%d could not be taken back", op_id, topic, queue_id, exc_info=True)

    def cancel(self, op_ids: Iterable[str]) -> None:
        """Cancel pops that are under way; their answers come all the same."""
        with self._changed:
            under_way = [(op_id, self._in_flight[op_id]) for op_id in op_ids if op_id in self._in_flight]
        for op_id, (topic, queue_id) in under_way:
            self._transport.submit(Cancel(v=1, topic=topic, queue_id=queue_id, target_op_id=op_id))

    def close(self, timeout_s: float) -> None:
        """Send nothing more, cancel what is under way, and wait until all of it has ended."""
        with self._changed:
            self._is_closing = True
            op_ids = list(self._in_flight)
        self.cancel(op_ids)
        with self._changed:
            self._changed.wait_for(lambda: not self._in_flight, timeout_s)

    def lease(self, answer: Answer, *, is_renewed: bool) -> list[Message]:
        """What a pop was given, in hand from now on; the records are not here yet."""
        if not answer.messages:
            return []
        handle = ReceiptHandle(answer.handle or "")
        pop_time_ms = answer.pop_time_ms or 0
        next_visible_time_ms = pop_time_ms + (answer.invisible_time_ms or 0)
        messages = [
            Message(
                topic=answer.topic,
                queue_id=answer.queue_id,
                queue_offset=queue_offset,
                handle=handle,
                attempt=leased.attempt,
                pop_time_ms=pop_time_ms,
                next_visible_time_ms=next_visible_time_ms,
                settler=self._settler,
            )
            for leased in answer.messages
            for queue_offset in range(leased.first, leased.last + 1)
        ]
        now_s = time.monotonic()
        until_s = self._transport.broker_clock.local_s(next_visible_time_ms)
        self._held.hold(messages, until_s, now_s, is_renewed=is_renewed)
        return messages

    def fill(self, messages: Sequence[Message], bytes_max: int | None = None) -> Filled:
        """Bring the records of leased messages of one queue, and see to those that are not to be handed out.

        Args:
            messages: Of one queue; at least one.
            bytes_max: Bring no more than so many bytes of records, but at least one record.

        Raises:
            PayloadMissing: None of the records could be read in time.
            Unavailable: Kafka does not answer, or refuses.
            Corrupt: A record cannot be read.
        """
        try:
            return self._fill(messages, bytes_max)
        except Corrupt as error:
            if len(messages) == 1:
                raise
            return self._fill_around(messages, bytes_max, error)

    def _fill_around(self, messages: Sequence[Message], bytes_max: int | None, error: Corrupt) -> Filled:
        """Bring each half by itself, so that a record that cannot be read keeps back no other."""
        filled = Filled([], [], 0, 0)
        damaged: list[Message] = []
        for half in (messages[: len(messages) // 2], messages[len(messages) // 2 :]):
            if filled.left:
                filled.left.extend(half)
                continue
            try:
                part = self.fill(half, bytes_max)
            except Corrupt as found:
                error = found
                damaged += half
            else:
                filled = Filled(
                    filled.messages + part.messages,
                    filled.left + part.left,
                    filled.gone_count + part.gone_count,
                    filled.late_count + part.late_count,
                    max(filled.longest_bytes, part.longest_bytes),
                )
        if len(damaged) == len(messages):
            raise error
        if damaged:
            LOG.warning("%d leased messages cannot be read: %s", len(damaged), error)
            self._settlement.change(((message, UNREADABLE) for message in damaged), keeps=False)
        return msgspec.structs.replace(filled, late_count=filled.late_count + len(damaged))

    def _fill(self, messages: Sequence[Message], bytes_max: int | None) -> Filled:
        topic, queue_id = messages[0].topic, messages[0].queue_id
        by_offset = {message.queue_offset: message for message in messages}
        broker_ms = self._transport.broker_clock.now_ms(time.monotonic()) or 0
        left_ms = max(message.next_visible_time_ms for message in messages) - broker_ms
        timeout_s = max(0, min(self.fetch_timeout_ms, left_ms)) / 1000
        fetched = self._payloads.fetch(topic, queue_id, ranges_of(by_offset), timeout_s, bytes_max)
        if fetched.late and not fetched.payloads:
            text = f"records {fetched.late} were leased, and cannot be read within {timeout_s} s"
            raise PayloadMissing(text, subject=f"{topic}/{queue_id}")
        for queue_offset, payload in fetched.payloads.items():
            self._take_payload(by_offset[queue_offset], payload)
        gone, late = _at(by_offset, fetched.gone), _at(by_offset, fetched.late)
        if gone:
            LOG.info("%d leased messages of %s/%d no longer exist", len(gone), topic, queue_id)
            self._settlement.ack(gone, "GONE")
        if late:
            LOG.warning("%d leased messages of %s/%d cannot be read yet", len(late), topic, queue_id)
            self._settlement.change(((message, LATE) for message in late), keeps=False)
        found: list[Message] = []
        lying: list[Message] = []
        for queue_offset in sorted(fetched.payloads):
            message = by_offset[queue_offset]
            try:
                unwrapped = unwrap(message.value, message.headers)
            except Corrupt as error:
                LOG.warning("offset %d of %s/%d is unreadable: %s", queue_offset, topic, queue_id, error)
                lying.append(message)
                continue
            if unwrapped is not None:
                found += LeasedUnit(message, unwrapped).messages
            elif self._is_for_now(message, broker_ms):
                found.append(message)
        if lying:
            self._settlement.reject(lying, "UNREADABLE")
        longest_bytes = max((payload.size_bytes for payload in fetched.payloads.values()), default=0)
        gone_count = len(gone) + len(lying)
        return Filled(self._filtered(found), _at(by_offset, fetched.left), gone_count, len(late), longest_bytes)

    def _is_for_now(self, message: Message, broker_ms: int) -> bool:
        """Whether to hand out a message; one that was sent again for others, or for later, is seen to."""
        resent = Redelivery.parse(message.headers)
        if resent is None:
            return True
        if resent.group != self._group:
            self._settlement.ack([message], None)
        elif resent.reject is not None:
            self._settlement.reject([message], resent.reject or None)
        elif resent.not_before_ms > broker_ms:
            wait_ms = min(resent.not_before_ms - broker_ms, INVISIBLE_TIME_MS_MAX)
            self._settlement.change([(message, Change(wait_ms, suspend=True))], keeps=False)
        else:
            message.attempt += resent.attempts
            return True
        return False

    def _take_payload(self, message: Message, payload: Payload) -> None:
        message.key, message.value = payload.key, payload.value
        message.headers, message.timestamp_ms = payload.headers, payload.timestamp_ms
        message.message_id = message_id_of(payload.headers)
        self._held.filled(message, payload.size_bytes)

    def _filtered(self, messages: list[Message]) -> list[Message]:
        """Those that the filter lets through; the others go where it says, by one request each."""
        if self._filter is None:
            return messages
        found: dict[FilterVerdict, list[Message]] = {verdict: [] for verdict in FilterVerdict}
        for message in messages:
            try:
                verdict = FilterVerdict(self._filter(message))
            except Exception:
                LOG.exception(
                    "the filter failed on %s/%d offset %d", message.topic, message.queue_id, message.queue_offset
                )
                verdict = FilterVerdict.CONSUME
            found[verdict].append(message)
        if found[FilterVerdict.TO_RETURN]:
            self._settlement.change(((message, FILTERED) for message in found[FilterVerdict.TO_RETURN]), keeps=False)
        if found[FilterVerdict.TO_DEAD_LETTER]:
            self._settlement.reject(found[FilterVerdict.TO_DEAD_LETTER], "filtered")
        # What is left of a unit that was given back for one of its messages comes again with it.
        return [message for message in found[FilterVerdict.CONSUME] if not message.is_settled]


def _at(by_offset: dict[int, Message], ranges: Iterable[tuple[int, int]]) -> list[Message]:
    return [by_offset[offset] for first, last in ranges for offset in range(first, last + 1)]


def _log_return(answered: Future[Answer]) -> None:
    error = answered.exception()
    if error is not None:
        LOG.warning("what an earlier process held could not be given back: %s", error)
    elif answered.result().released:
        LOG.info("an earlier process held %s; it is given back", answered.result().released)
