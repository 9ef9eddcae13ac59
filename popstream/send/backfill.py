"""Backfill: dispatches the messages that a topic already holds, for example those of plain Kafka producers."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

import msgspec
from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError

from popstream.back_off import back_off_s
from popstream.errors import Refused
from popstream.exchange.coalescer import ranges_by_label, ranges_of
from popstream.exchange.transport import Transport
from popstream.payload.inner_batch import inner_count
from popstream.send.dispatch_requests import RANGES_MAX, declare_of
from popstream.settings import ClientSettings, new_client_id
from popstream.topics.describe import describe_topic
from popstream.topics.message_topics import TopicReader
from popstream.wire.base_errors import Invalid, Unavailable
from popstream.wire.command import Dispatch, QueueType, WrittenRange
from popstream.wire.deliver_at import deliver_at_ms_of
from popstream.wire.limits import RANGE_OFFSETS_MAX
from popstream.wire.reason import Reason
from popstream.wire.tag import tag_hash, tag_value

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from popstream.topics.message_topics import MessageTopic
    from popstream.wire.answer import Answer

__all__ = ["DispatchReport", "declare_queue", "dispatch_existing", "dispatch_records"]

LOG = logging.getLogger(__name__)

BLOCK_RECORDS = 5_000
POLL_MS = 500
NO_PROGRESS_S_MAX = 60.0
COMMITTED_S_MAX = 30.0
COMMITTED_PAUSE_S = 0.05
AHEAD_PAUSE_S_MIN = 0.1
AHEAD_PAUSE_S_MAX = 5.0


class DispatchReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result for one queue: each of its offsets `first..end - 1` was dispatched as written or as a hole."""

    topic: str
    queue_id: int
    first: int
    end: int
    written_count: int
    hole_count: int
    commit_position: int


def dispatch_existing(
    bootstrap_servers: str,
    topic: str,
    *,
    queue_ids: Sequence[int] | None = None,
    queue_type: QueueType = "simple",
    prefix: str = "popstream",
    transport: Transport | None = None,
    **settings: Any,  # noqa: ANN401 - ClientSettings checks them
) -> list[DispatchReport]:
    """Declare the queues of a message topic, and dispatch all messages that they hold.

    Offsets without a message (control records, aborted transactions, compacted records) are dispatched as holes. The
    topic is read once, for its offsets, tags and times of delivery. Calling this again is harmless.

    Args:
        bootstrap_servers: `host:port` of one or more brokers, separated by commas.
        topic: The message topic.
        queue_ids: Only these partitions of the topic.
        queue_type: Type of its queues; in a queue of the type `batch` a record may carry several messages.
        prefix: Name of the job, see `ClientSettings`.
        transport: Share the transport of another client.
        **settings: Other fields of `ClientSettings`.

    Raises:
        Invalid: The topic or one of the queues does not exist.
        Refused: The job refused a declaration or a dispatch.
        AnswerTimeout: The job does not answer.
        Unavailable: Kafka does not answer, or one of the queues has no leader.
    """
    client = ClientSettings(
        bootstrap_servers=bootstrap_servers,
        prefix=prefix,
        **{"client_id": transport.settings.client_id if transport else new_client_id(), **settings},
    )
    if transport is None:
        with Transport(client) as own:
            return _dispatch_all(client, own, topic, queue_ids, queue_type)
    return _dispatch_all(client, transport, topic, queue_ids, queue_type)


def declare_queue(settings: ClientSettings, transport: Transport, topic: str, queue_id: int) -> None:
    """Declare a queue unless it is declared, of whatever type.

    Raises:
        Invalid: There is no such queue, or Kafka does not allow describing its topic.
        Refused: The job refuses it.
        AnswerTimeout: The job does not answer.
        Unavailable: Kafka does not answer, or the queue has no leader.
    """
    described = describe_topic(settings, topic)
    if queue_id not in described.bounds([queue_id]):
        message = f"topic {topic} has no partition {queue_id}"
        raise Invalid(message, subject=topic)
    answer = transport.request(declare_of(described, queue_id))
    if answer.reason is not Reason.INVALID_PARAMETER:  # it is declared, with another type
        _require_ok(answer)


def dispatch_records(
    settings: ClientSettings, transport: Transport, topic: str, queue_id: int, ranges: Sequence[tuple[int, int]]
) -> None:
    """Dispatch records of a queue, and as holes the offsets without a record that hold them back.

    These lie among them and right behind them, and before them after a transaction that was aborted. Other records are
    left to those that wrote them. If the records are gone, because their topic was deleted or made again since, nothing
    is dispatched.

    Args:
        settings: Where Kafka is.
        transport: Sends the operations.
        topic: The message topic.
        queue_id: Its partition.
        ranges: Inclusive ranges of queue offsets, ascending, that are committed or about to be.

    Raises:
        Invalid: Kafka does not allow describing the topic.
        Refused: The job refused the declaration or a dispatch.
        AnswerTimeout: The job does not answer.
        Unavailable: Kafka does not answer, or does not commit the records.
    """
    first, last = ranges[0][0], ranges[-1][1]
    end = _committed_end(settings, topic, queue_id, last)
    if end is None:
        LOG.warning(
            "%s/%d has no offset %d any more: what was sent to it is gone, and not dispatched", topic, queue_id, last
        )
        return
    declare_queue(settings, transport, topic, queue_id)  # the job may have lost its state since they were written
    wanted = {offset for low, high in ranges for offset in range(low, high + 1)}
    partition = TopicPartition(topic, queue_id)
    commit_position = None
    for block_first, block_end, labels in _blocks(settings, partition, first, end):
        own = {offset: label for offset, label in labels.items() if offset in wanted}
        holes = _holes(sorted(labels), block_first, block_end)
        found = _dispatch_block(transport, topic, queue_id, _written_ranges(own, counts_inner=True), holes)
        commit_position = found or commit_position
    if commit_position is not None and commit_position < first:
        for block_first, block_end, labels in _blocks(settings, partition, commit_position, first):
            _dispatch_block(transport, topic, queue_id, [], _holes(sorted(labels), block_first, block_end))


def _committed_end(settings: ClientSettings, topic: str, queue_id: int, last: int) -> int | None:
    """Return where the committed part of a queue ends, once that is beyond an offset; None: it will never be.

    Kafka confirms a transaction before it has written the control records that end it.
    """
    deadline_s = time.monotonic() + COMMITTED_S_MAX
    with TopicReader(settings.connection, client_id=f"{settings.client_id}-admin") as reader:
        while True:
            found = reader.read([topic]).get(topic)
            if found is None:
                return None
            end = found.ends.get(queue_id)
            if end is not None and end > last:
                return end
            if queue_id not in found.leaderless and (end is None or reader.written_end(topic, queue_id) <= last):
                return None
            if time.monotonic() > deadline_s:
                message = f"{topic}/{queue_id} is not committed up to offset {last} within {COMMITTED_S_MAX:.0f} s"
                raise Unavailable(message, subject=topic)
            time.sleep(COMMITTED_PAUSE_S)


def _dispatch_all(
    settings: ClientSettings,
    transport: Transport,
    name: str,
    queue_ids: Sequence[int] | None,
    queue_type: QueueType,
) -> list[DispatchReport]:
    topic = describe_topic(settings, name)
    bounds = topic.bounds(queue_ids)
    wanted = sorted(bounds if queue_ids is None else queue_ids)
    unknown = [queue_id for queue_id in wanted if queue_id not in bounds]
    if unknown:
        message = f"topic {name} has no partitions {unknown}"
        raise Invalid(message, subject=name)
    return [_dispatch_queue(settings, transport, topic, queue_id, queue_type) for queue_id in wanted]


def _dispatch_queue(
    settings: ClientSettings, transport: Transport, topic: MessageTopic, queue_id: int, queue_type: QueueType
) -> DispatchReport:
    declared = _require_ok(transport.request(declare_of(topic, queue_id, queue_type)))
    first, end = topic.starts[queue_id], topic.ends[queue_id]
    written_count = 0
    commit_position = declared.commit_position or first
    for block_first, block_end, labels in _blocks(settings, TopicPartition(topic.name, queue_id), first, end):
        written_count += len(labels)
        ranges = _written_ranges(labels, counts_inner=queue_type == "batch")
        holes = _holes(sorted(labels), block_first, block_end)
        found = _dispatch_block(transport, topic.name, queue_id, ranges, holes)
        commit_position = found or commit_position
    LOG.info("%s/%d: dispatched %d written offsets below %d", topic.name, queue_id, written_count, end)
    return DispatchReport(
        topic=topic.name,
        queue_id=queue_id,
        first=first,
        end=end,
        written_count=written_count,
        hole_count=max(0, end - first) - written_count,
        commit_position=commit_position,
    )


def _written_ranges(labels: Mapping[int, tuple[int, int, int]], *, counts_inner: bool) -> list[WrittenRange]:
    return [
        WrittenRange(low, high, tag, count if counts_inner else 1, deliver_at_ms)
        for (tag, count, deliver_at_ms), found in ranges_by_label(labels.items()).items()
        for low, high in found
    ]


def _dispatch_block(
    transport: Transport,
    topic: str,
    queue_id: int,
    ranges: Sequence[WrittenRange],
    holes: Sequence[tuple[int, int]],
) -> int | None:
    """Dispatch ranges and holes, by several operations if they are many; return the commit position after the last."""
    commit_position = None
    for start in range(0, max(len(ranges), len(holes)), RANGES_MAX):
        command = Dispatch(
            v=1,
            topic=topic,
            queue_id=queue_id,
            ranges=list(ranges[start : start + RANGES_MAX]),
            skip=list(holes[start : start + RANGES_MAX]),
        )
        commit_position = _dispatch(transport, command).commit_position or commit_position
    return commit_position


def _dispatch(transport: Transport, command: Dispatch) -> Answer:
    """Dispatch; retry, within the answer time-out, while the offsets are ahead of the window of the queue."""
    failures = 0
    deadline_s = time.monotonic() + transport.settings.answer_timeout_ms / 1000
    while True:
        answer = transport.request(command)
        if answer.reason is not Reason.AHEAD_OF_WINDOW or time.monotonic() > deadline_s:
            return answer if answer.reason is Reason.BELOW_MIN else _require_ok(answer)
        failures += 1
        time.sleep(back_off_s(failures, first_s=AHEAD_PAUSE_S_MIN, max_s=AHEAD_PAUSE_S_MAX))


def _require_ok(answer: Answer) -> Answer:
    if answer.reason is not Reason.OK:
        raise Refused(answer)
    return answer


def _holes(offsets: list[int], first: int, end: int) -> list[tuple[int, int]]:
    """Return inclusive ranges of the offsets `first..end - 1` that are not in `offsets`, split at the job's limit.

    >>> _holes([2, 3, 6], 0, 8)
    [(0, 1), (4, 5), (7, 7)]
    >>> _holes([], 5, 5)
    []
    """
    holes: list[tuple[int, int]] = []
    at = first
    for low, high in [*ranges_of(offsets), (end, end)]:
        while at < low:
            holes.append((at, min(low, at + RANGE_OFFSETS_MAX) - 1))
            at = holes[-1][1] + 1
        at = high + 1
    return holes


def _blocks(
    settings: ClientSettings, partition: TopicPartition, first: int, end: int
) -> Iterator[tuple[int, int, dict[int, tuple[int, int, int]]]]:
    """Read a partition once, and yield adjacent blocks: (first, end, labels by offset).

    The label of a record is its tag hash, its number of messages, and when they can be popped.
    """
    if first >= end:
        return
    try:
        consumer = KafkaConsumer(
            client_id=f"{settings.client_id}-reader",
            enable_auto_commit=False,
            isolation_level="read_committed",
            # Retention may remove the first records meanwhile.
            auto_offset_reset="earliest",
            allow_auto_create_topics=False,
            **settings.connection.for_kafka_python(),
        )
        try:
            consumer.assign([partition])
            consumer.seek(partition, first)
            at, moved_s = first, time.monotonic()
            while at < end:
                records = consumer.poll(timeout_ms=POLL_MS, max_records=BLOCK_RECORDS).get(partition, ())
                position = min(end, consumer.position(partition))
                if position > at:
                    yield at, position, {record.offset: _label(record) for record in records if record.offset < end}
                    at, moved_s = position, time.monotonic()
                elif time.monotonic() - moved_s > NO_PROGRESS_S_MAX:
                    message = f"{partition.topic}/{partition.partition} cannot be read beyond offset {at}"
                    raise Unavailable(message, subject=partition.topic)
        finally:
            consumer.close(autocommit=False)
    except KafkaError as error:
        message = f"{partition.topic}/{partition.partition} cannot be read: {error!r}"
        raise Unavailable(message, subject=partition.topic) from error


def _label(record: Any) -> tuple[int, int, int]:  # noqa: ANN401 - kafka-python has no types
    headers = record.headers or ()
    count = inner_count(headers, len(record.value or b"")) or 1
    return tag_hash(tag_value(headers)), count, deliver_at_ms_of(headers)
