"""Fetches the records of leased messages, and decides which of the messages are handed out.

```
fetch ─┬─> unwrap, deserialize, filter ─> messages to hand out
       ├─> gone: acked
       ├─> unreadable: rejected
       ├─> a redelivery for another group, or for later: acked, or released until then
       ├─> late: released for a second
       ├─> not to be deserialized: released for the back-off of the group
       └─> left: beyond the byte bound
```
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

import msgspec

from popstream.errors import PayloadMissing
from popstream.exchange.coalescer import ranges_of
from popstream.lease.entries import Change
from popstream.message import FilterVerdict, LeasedUnit, Message
from popstream.payload.inner_batch import unwrap_payload
from popstream.payload.message_id import message_id_of
from popstream.payload.redelivery import Redelivery
from popstream.wire.base_errors import Corrupt, PopstreamError
from popstream.wire.deliver_at import deliver_at_ms_of
from popstream.wire.headers import without_own_headers
from popstream.wire.limits import INVISIBLE_TIME_MS_MAX
from popstream.wire.tag import tag_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from popstream.exchange.broker_clock import BrokerClock
    from popstream.lease.leases import Leases
    from popstream.message import MessageFilter
    from popstream.payload.inner_batch import TypeOf
    from popstream.payload.payloads import Fetched, Payload, Payloads

__all__ = ["Filled", "RecordFiller", "release_after"]

LOG = logging.getLogger(__name__)

LATE = Change(1_000, suspend=True, release="after")
"""For a record that did not come in time: it may come soon, so the delivery does not count as an attempt."""
UNREADABLE = Change(1_000, release="after")
"""For a record that cannot be read: the attempt counts, so that a lane with an attempt limit gives the message up."""
FILTERED = Change(1_000, release="after")
"""For a message that the filter returns: released at once it would come here again (RocketMQ's proxy: 1 s as well)."""


class Filled(msgspec.Struct, frozen=True):
    """Messages with their records, by queue offset.

    Attributes:
        messages: To hand out.
        left: Leased, but their records do not fit into the byte bound.
        gone_count: Messages that were settled because they have no readable record.
        late_count: Messages that were released because their records did not come, or could not be deserialized.
        longest_bytes: Size of the largest record.
    """

    messages: list[Message]
    left: list[Message]
    gone_count: int
    late_count: int
    longest_bytes: int = 0


class RecordFiller:
    """Gives leased messages their records. Safe for use by many threads.

    Args:
        payloads: Fetches the records.
        leases: The leases of the consumer.
        broker_clock: The clock by which leases end.
        group: The consumer group, for redeliveries.
        fetch_timeout_ms: How long to wait for the records of a pop, in milliseconds.
        message_filter: Called for each message before it is handed out.
        type_of: Returns the type of a topic, as in `unwrap_payload`.
        value_deserializer: Makes the body of a message of its value; None: it is the value.
    """

    def __init__(
        self,
        payloads: Payloads,
        leases: Leases,
        broker_clock: BrokerClock,
        *,
        group: str,
        fetch_timeout_ms: int,
        message_filter: MessageFilter | None,
        type_of: TypeOf,
        value_deserializer: Callable[[bytes], object] | None = None,
    ) -> None:
        self._payloads = payloads
        self._held = leases.held
        self._settlement = leases.settlement
        self._broker_clock = broker_clock
        self._group = group
        self._fetch_timeout_ms = fetch_timeout_ms
        self._filter = message_filter
        self._type_of = type_of
        self._deserialize = value_deserializer or bytes

    def expect(self, messages: Sequence[Message]) -> None:
        """Have the records of leased messages read ahead of `fill`.

        Args:
            messages: At least one, all of one queue.
        """
        ranges = ranges_of([message.queue_offset for message in messages])
        self._payloads.expect(messages[0].topic, messages[0].queue_id, ranges)

    def fill(self, messages: Sequence[Message], bytes_max: int | None = None) -> Filled:
        """Fetch the records of leased messages, and settle the messages that are not to be handed out.

        Args:
            messages: At least one, all of one queue.
            bytes_max: Maximum size of all records, in bytes; at least one record is fetched.

        Raises:
            PayloadMissing: None of the records could be read in time.
            Unavailable: Kafka does not answer.
            Corrupt: No record can be read.
        """
        try:
            return self._fill(messages, bytes_max)
        except Corrupt as error:
            if len(messages) == 1:
                raise
            return self._fill_halves(messages, bytes_max, error)

    def _fill_halves(self, messages: Sequence[Message], bytes_max: int | None, error: Corrupt) -> Filled:
        """Fetch each half by itself, so that a record that cannot be read does not keep back others."""
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
        broker_ms = self._broker_clock.now_ms(time.monotonic()) or 0
        left_ms = max(message.next_visible_time_ms for message in messages) - broker_ms
        timeout_s = max(0, min(self._fetch_timeout_ms, left_ms)) / 1000
        fetched = self._payloads.fetch(topic, queue_id, ranges_of(by_offset), timeout_s, bytes_max)
        if fetched.late and not fetched.payloads:
            message = f"records {fetched.late} were leased, but cannot be read within {timeout_s} s"
            raise PayloadMissing(message, subject=f"{topic}/{queue_id}")
        for queue_offset, payload in fetched.payloads.items():
            self._take_payload(by_offset[queue_offset], payload)
        gone, late = _at(by_offset, fetched.gone), _at(by_offset, fetched.late)
        if gone:
            LOG.info("%d leased messages of %s/%d no longer exist", len(gone), topic, queue_id)
            self._settlement.ack(gone, "GONE")
        if late:
            LOG.warning("%d leased messages of %s/%d cannot be read yet", len(late), topic, queue_id)
            self._settlement.change(((message, LATE) for message in late), keeps=False)
        found, malformed = self._unwrap(by_offset, fetched, broker_ms)
        longest_bytes = max((payload.size_bytes for payload in fetched.payloads.values()), default=0)
        deserialized = self._deserialized(found)
        gone_count, late_count = len(gone) + len(malformed), len(late) + len(found) - len(deserialized)
        return Filled(self._filtered(deserialized), _at(by_offset, fetched.left), gone_count, late_count, longest_bytes)

    def _unwrap(
        self, by_offset: dict[int, Message], fetched: Fetched, broker_ms: int
    ) -> tuple[list[Message], list[Message]]:
        """Return the messages that the records carry, and those whose record is malformed, which are rejected."""
        found: list[Message] = []
        malformed: list[Message] = []
        for queue_offset in sorted(fetched.payloads):
            message, payload = by_offset[queue_offset], fetched.payloads[queue_offset]
            try:
                unwrapped = unwrap_payload(message.topic, payload, self._type_of)
            except Corrupt as error:
                LOG.warning(
                    "offset %d of %s/%d is unreadable: %s", queue_offset, message.topic, message.queue_id, error
                )
                malformed.append(message)
                continue
            if unwrapped is not None:
                found += LeasedUnit(message, unwrapped).messages
            elif self._is_for_now(message, Redelivery.parse(payload.headers), broker_ms):
                found.append(message)
        if malformed:
            self._settlement.reject(malformed, "UNREADABLE")
        return found, malformed

    def _is_for_now(self, message: Message, redelivery: Redelivery | None, broker_ms: int) -> bool:
        """Tell whether to hand out a message; settle a redelivery that is for another group, or for later."""
        if redelivery is None:
            return True
        if redelivery.group != self._group:
            self._settlement.ack([message], None)
        elif redelivery.reject is not None:
            self._settlement.reject([message], redelivery.reject or None)
        elif redelivery.not_before_ms > broker_ms:
            wait_ms = min(redelivery.not_before_ms - broker_ms, INVISIBLE_TIME_MS_MAX)
            self._settlement.change([(message, Change(wait_ms, suspend=True, release="after"))], keeps=False)
        else:
            message.attempt += redelivery.attempts
            return True
        return False

    def _take_payload(self, message: Message, payload: Payload) -> None:
        message.key, message.value = payload.key, payload.value
        message.headers, message.timestamp_ms = without_own_headers(payload.headers), payload.timestamp_ms
        message.tag, message.message_id = tag_text(payload.headers), message_id_of(payload.headers)
        message.deliver_at_ms = deliver_at_ms_of(payload.headers)
        self._held.filled(message, payload.size_bytes)

    def _deserialized(self, messages: list[Message]) -> list[Message]:
        """Give messages their bodies; settle those whose values cannot be deserialized, and return the others."""
        failed: list[tuple[Message, Exception]] = []
        for message in messages:
            if message.value is not None:
                try:
                    message.body = self._deserialize(message.value)
                except Exception as error:  # noqa: BLE001 - whatever the function of the user raises
                    failed.append((message, error))
        if not failed:
            return messages
        last, last_error = failed[-1]
        where = (last.topic, last.queue_id, last.queue_offset)
        text = "%d values cannot be deserialized, the last one at %s/%d offset %d"
        LOG.warning(text, len(failed), *where, exc_info=last_error)
        self._settlement.fail_all(failed)
        return [message for message in messages if not message.is_settled]

    def _filtered(self, messages: list[Message]) -> list[Message]:
        """Return the messages that the filter lets through; settle the others, by one request for each verdict."""
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
        if found[FilterVerdict.RELEASE]:
            self._settlement.change(((message, FILTERED) for message in found[FilterVerdict.RELEASE]), keeps=False)
        if found[FilterVerdict.REJECT]:
            self._settlement.reject(found[FilterVerdict.REJECT], "filtered")
        # When the filter has released one message of a unit, the others are redelivered with it.
        return [message for message in found[FilterVerdict.CONSUME] if not message.is_settled]


def _at(by_offset: dict[int, Message], ranges: Iterable[tuple[int, int]]) -> list[Message]:
    return [by_offset[offset] for first, last in ranges for offset in range(first, last + 1)]


def release_after(error: PopstreamError) -> Change:
    """Return how to release messages when `RecordFiller.fill` has raised."""
    return UNREADABLE if isinstance(error, Corrupt) else LATE
