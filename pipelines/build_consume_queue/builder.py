"""The state of the builder, without Spark and Kafka: each change is one WriteBatch, with the operations it dispatches.

Stored beside the values of each queue (broker_state/consume_queue):

    queues   <queue>              the record of the queue; its end is the offset up to which the partition is read
    meta     built                the epoch of this store, and the number of its WriteBatches
    meta     audited <queue>      of a queue that is read again: units below this offset are in Delta already
             dedup i <queue> hash of an id  the last accepted unit with it: queue offset, store time, number
             dedup o <queue> queue offset   the same by offset: hash of the id, store time, number
             dedup n <queue>                the number of the last accepted unit, and how many were forgotten early
    outbox   dispatches           an operation for the ops topic, until the job has answered it
             unit spans           the units of a WriteBatch, until they are in Delta

`<queue>` is encoded as in the state (keys.py). The end of a queue moves in the same WriteBatch as its units are added:
a micro-batch that is read again is recognised, and a restarted builder continues at that end. What is known of ids
follows from the units of the queue within the window, and is made from them again when the queue is truncated. The
last `dedup_ids_max` accepted units are known, and until they are forgotten in steps some more.
"""

import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import NamedTuple, Self

import msgspec
import numpy as np
import structlog

from broker_state.consume_queue import (
    NO_DUPLICATE,
    Accepted,
    ConsumeQueue,
    Get,
    Place,
    Revision,
    Scan,
    Units,
    accepted_units,
    append,
    dispatches_of,
    first_unit_since,
    latest_time_ms,
    mark_duplicates,
    move_start,
    number_messages,
    place_key,
    skips_of,
    truncate,
    units_between,
)
from broker_state.store.keys import end_of_prefix, queue_prefix
from broker_state.store.overlay import Change
from broker_state.store.rocks_store import META, QUEUES, UNITS, Erasure, RocksStore
from broker_state.store.value_format import FORMAT_1, read_stored
from pipelines.apply_ops.outbox import Outbox
from pipelines.decide_ops.entry import Entry, EntryKind
from popstream.topics.message_topics import MessageTopic
from popstream.wire.base_errors import Invalid
from popstream.wire.command import Command, Declare, Dispatch, QueueType, encode_command
from popstream.wire.dedup_id import DEDUP_IDS_MAX_DEFAULT, DEDUP_WINDOW_MS_DEFAULT

__all__ = [
    "Builder",
    "Built",
    "IdCounts",
    "Queue",
    "UnitSpan",
    "UnitsInDelta",
    "declare_of",
    "read_id_counts",
    "read_queues",
    "read_spans",
    "reader_of",
]

_log = structlog.get_logger(__name__)

BUILT_KEY = b"built"
DELTA_END_KEY = b"audited "
BY_ID_KEY = b"dedup i "
BY_OFFSET_KEY = b"dedup o "
COUNTS_KEY = b"dedup n "
FORGOTTEN_MIN = 1_000
"""Ids that a WriteBatch can forget at least, or twice as many as it adds to the queue."""
WARNING_PAUSE_S = 60.0

_ACCEPTED = struct.Struct(">Qqq")
_COUNTS = struct.Struct(">qQ")
SPAN_OFFSETS_MAX = 100_000
"""Offsets of one span after a restore, which reads the units of a span at once."""

Queue = tuple[str, int]
"""(topic, queue id)."""


class Built(msgspec.Struct, frozen=True, kw_only=True):
    """`build_seq` counts the WriteBatches of the store; `state_epoch` is new when it is created or restored."""

    state_epoch: str
    build_seq: int = 0

    def encode(self) -> bytes:
        """Return the format byte and MessagePack."""
        return FORMAT_1 + msgspec.msgpack.encode(self)

    @classmethod
    def decode(cls, value: bytes) -> Self:
        """Decode the stored value; raise CorruptValueError for another format byte or other fields."""
        return read_stored("built", FORMAT_1, value, lambda data: msgspec.msgpack.decode(data, type=cls))


class UnitSpan(msgspec.Struct, array_like=True, frozen=True):
    """The units of [first_offset, end_offset) of a queue, which are to be written to Delta."""

    topic: str
    queue_id: int
    topic_id: str
    queue_type: QueueType
    first_offset: int
    end_offset: int
    message_base: int
    """Message base of the first unit."""
    unit_count: int


class UnitsInDelta(NamedTuple):
    """The units that the Delta table has.

    Attributes:
        ends: By topic, queue id and topic id, the offset below which all units are in the table.
        topic_ids: Present topic ids by name; deleted topics are missing.
    """

    ends: Mapping[tuple[str, int, str], int]
    topic_ids: Mapping[str, str]


class IdCounts(NamedTuple):
    """What is counted of the deduplication ids of a queue.

    Attributes:
        accepted: The number of the last accepted unit with an id.
        forgotten_early: Ids that were forgotten within the window, because more than `dedup_ids_max` were accepted.
    """

    accepted: int
    forgotten_early: int


MessageBaseInDelta = Callable[[str, int, str, int], int | None]
"""Returns the message base at (topic, queue id, topic id, queue offset) by the Delta table; None: it has no units."""


class Builder:
    """The only writer of the builder's store. Safe for use by several threads: each change holds `lock`.

    Args:
        store: A store with the builder's families.
        outbox: The outbox in it.
        state_epoch: The epoch of the store, if it is new.
        message_base_in_delta: Where a batch queue goes on to count, of which only the table still has units.
        dedup_window_ms: How long a unit of a simple queue makes later ones with its deduplication id duplicates; 0: it
            does not.
        dedup_ids_max: How many accepted units with an id it is at most the last one of, as long as it does so.
    """

    def __init__(
        self,
        store: RocksStore,
        outbox: Outbox,
        state_epoch: str,
        message_base_in_delta: MessageBaseInDelta = lambda *_: None,
        *,
        dedup_window_ms: int = DEDUP_WINDOW_MS_DEFAULT,
        dedup_ids_max: int = DEDUP_IDS_MAX_DEFAULT,
    ) -> None:
        self.lock = threading.RLock()
        self._store = store
        self._outbox = outbox
        self._message_base_in_delta = message_base_in_delta
        self._dedup_window_ms = dedup_window_ms
        self._dedup_ids_max = dedup_ids_max
        self._warned_s = -WARNING_PAUSE_S
        stored = store.get(META, BUILT_KEY)
        self.is_new = stored is None
        """The store was empty."""
        self.built = Built(state_epoch=state_epoch) if stored is None else Built.decode(stored)
        self._stored_epoch = self.built.state_epoch
        self.queues = dict(read_queues(store))
        """Every known queue, including those of topics that were deleted or are no longer chosen."""
        self._id_counts = {queue: read_id_counts(store, queue) for queue in self.queues}

    def update_topics(self, topics: Mapping[str, MessageTopic], queue_types: Mapping[str, QueueType]) -> list[Entry]:
        """Declare queues of new and recreated topics, and skip offsets that retention removed.

        Args:
            topics: The chosen topics by name, as Kafka describes them now.
            queue_types: Types of topics that are not simple.

        Raises:
            Invalid: A queue exists with another type; the type of a queue never changes.
        """
        with self.lock:
            write_batch = _WriteBatch()
            for topic in topics.values():
                for queue_id, start in sorted(topic.starts.items()):
                    queue_type = queue_types.get(topic.name, "simple")
                    self._update_queue(write_batch, (topic.name, queue_id), topic.topic_id, queue_type, start)
            return self._write(write_batch)

    def append(self, scans: Mapping[Queue, Scan]) -> list[Entry]:
        """Add units at the ends of queues.

        Args:
            scans: By queue. A scan may start below the end of its queue, with units that were added before.

        Raises:
            ContradictionError: Units below the end differ from those that were added before.
        """
        with self.lock:
            write_batch = _WriteBatch()
            for (topic, queue_id), scan in scans.items():
                queue = self.queues[topic, queue_id]
                get = self.get((topic, queue_id))
                numbered = self._with_duplicates(
                    write_batch, (topic, queue_id), queue, number_messages(queue, get, scan)
                )
                write_batch.revise((topic, queue_id), append(queue, get, numbered))
                fresh = numbered.cut(queue.end_offset, numbered.end_offset)
                write_batch.dispatch(queue, dispatches_of(topic, queue_id, fresh))
                delta_end = self._delta_end((topic, queue_id))
                first_offset = max(fresh.first_offset, delta_end)
                if delta_end and fresh.end_offset >= delta_end:
                    write_batch.changes.append((META, _delta_end_key((topic, queue_id)), None))
                units = fresh.units.between(first_offset, fresh.end_offset)
                write_batch.add_span((topic, queue_id), queue, first_offset, fresh.end_offset, units)
            return self._write(write_batch)

    def truncate(self, queue: Queue, end_offset: int, *, is_same_log: bool = True) -> int:
        """Remove the units of `end_offset` and after, so that they are read again; return the new end of the queue.

        Args:
            queue: The queue.
            end_offset: The first offset to remove.
            is_same_log: The log still has the same records, so that units in Delta are not written there again.

        Raises:
            Invalid: There is no such queue.
        """
        with self.lock:
            known = self.queues.get(queue)
            if known is None:
                message = f"there is no queue {queue[0]}/{queue[1]}"
                raise Invalid(message, subject=f"{queue[0]}/{queue[1]}")
            write_batch = _WriteBatch()
            revision = truncate(known, self.get(queue), end_offset)
            if revision.queue != known:
                write_batch.revise(queue, revision)
                self._remember_again(write_batch, queue, revision)
                delta_end = max(known.end_offset, self._delta_end(queue)) if is_same_log else 0
                write_batch.changes.append((META, _delta_end_key(queue), delta_end.to_bytes(8, "big")))
                self._write(write_batch)
            return revision.queue.end_offset

    def begin_epoch(self, state_epoch: str, in_delta: UnitsInDelta) -> None:
        """Begin a new epoch after a restore: make store and Delta table agree, whichever of them is ahead.

        Units that only the store has will be written to Delta. Units that only Delta has will be read again from the
        log, and not written twice.

        Args:
            state_epoch: The new epoch.
            in_delta: The units that the table has.
        """
        with self.lock:
            write_batch = _WriteBatch()
            present = {
                (topic, queue_id): end
                for (topic, queue_id, topic_id), end in in_delta.ends.items()
                if in_delta.topic_ids.get(topic) == topic_id
            }
            for queue, known in list(self.queues.items()):
                if queue in present and in_delta.topic_ids[queue[0]] != known.topic_id:
                    write_batch.remove_queue(queue)
                    del self.queues[queue]
                    continue
                start = max(known.start_offset, in_delta.ends.get((*queue, known.topic_id), 0))
                for first_offset in range(start, known.end_offset, SPAN_OFFSETS_MAX):
                    end_offset = min(first_offset + SPAN_OFFSETS_MAX, known.end_offset)
                    units = units_between(known, self.get(queue), first_offset, end_offset)
                    write_batch.add_span(queue, known, first_offset, end_offset, units)
            for queue, end in present.items():
                write_batch.changes.append((META, _delta_end_key(queue), end.to_bytes(8, "big")))
            self._outbox.delivered([entry.key for entry in self._outbox.undelivered(EntryKind.UNIT_SPANS)])
            self.built = msgspec.structs.replace(self.built, state_epoch=state_epoch)
            self._write(write_batch)

    @property
    def forgotten_ids(self) -> int:
        """Number of deduplication ids that were forgotten within the window, of all queues; also when it has ended."""
        return sum(counts.forgotten_early for counts in list(self._id_counts.values()))

    def get(self, queue: Queue) -> Get:
        """Return a reader of the values of one queue."""
        return reader_of(self._store, queue)

    def _update_queue(
        self, write_batch: "_WriteBatch", queue: Queue, topic_id: str, queue_type: QueueType, start: int
    ) -> None:
        known = self.queues.get(queue)
        if known is None or known.topic_id != topic_id:
            if known is not None:
                _log.warning("topic_recreated", topic=queue[0], queue_id=queue[1], topic_id=topic_id)
                write_batch.remove_units(queue)
            base = self._message_base(queue, topic_id, queue_type, start)
            write_batch.put_queue(queue, ConsumeQueue.new(topic_id, queue_type, start, base))
            write_batch.commands.append(declare_of(queue, write_batch.queues[queue]))
        elif known.queue_type != queue_type:
            message = f"{queue[0]}/{queue[1]} exists as a {known.queue_type} queue, and cannot become {queue_type}"
            raise Invalid(message, subject=queue[0])
        elif start > known.start_offset:
            write_batch.revise(queue, move_start(known, self.get(queue), start))
            write_batch.dispatch(known, skips_of(*queue, known.start_offset, start))

    def _with_duplicates(self, write_batch: "_WriteBatch", queue: Queue, record: ConsumeQueue, scan: Scan) -> Scan:
        """Return the scan with its duplicates marked, and let the WriteBatch remember the ids that it has accepted.

        What was scanned before keeps what was said of it.
        """
        units = scan.units
        if record.queue_type != "simple":  # a repeat is inside a unit, or may be all that compaction leaves
            none = np.zeros(len(units), np.uint64)
            return replace(scan, units=replace(units, dedup_high=none, dedup_low=none))
        known, fresh = (
            units.between(scan.first_offset, record.end_offset),
            units.between(record.end_offset, scan.end_offset),
        )
        if len(known):
            stored = units_between(record, self.get(queue), scan.first_offset, record.end_offset)
            said = dict(zip(stored.queue_offset.tolist(), stored.duplicate_of.tolist(), strict=True))
            marks = [said.get(at, NO_DUPLICATE) for at in known.queue_offset.tolist()]
            known = replace(known, duplicate_of=np.array(marks, np.int64))
        if self._dedup_window_ms and len(fresh):
            clock_ms = latest_time_ms(record, self.get(queue))
            found: dict[bytes, Accepted] = {}

            def find(hashes: Sequence[bytes]) -> list[Accepted | None]:
                values = self._store.get_many(META, [_by_id_key(queue, hashed) for hashed in hashes])
                for hashed, value in zip(hashes, values, strict=True):
                    if value is not None:
                        found[hashed] = Accepted(*_ACCEPTED.unpack(value))
                return [found.get(hashed) for hashed in hashes]

            counts = self._id_counts.get(queue, IdCounts(0, 0))
            fresh, accepted = mark_duplicates(
                fresh,
                clock_ms,
                self._dedup_window_ms,
                find,
                accepted_count=counts.accepted,
                ids_max=self._dedup_ids_max,
            )
            for hashed, last in accepted.items():
                if hashed in found:
                    write_batch.changes.append((META, _by_offset_key(queue, found[hashed].queue_offset), None))
                write_batch.remember(queue, hashed, last)
            fresh_ms = int(fresh.store_time_ms.max())
            latest_ms = fresh_ms if clock_ms is None else max(fresh_ms, clock_ms)
            self._forget(write_batch, queue, latest_ms - self._dedup_window_ms, counts, accepted)
        return replace(scan, units=Units.joined([known, fresh]))

    def _forget(
        self,
        write_batch: "_WriteBatch",
        queue: Queue,
        until_ms: int,
        counts: IdCounts,
        accepted: Mapping[bytes, Accepted],
    ) -> None:
        """Forget units that make no more duplicates: those stored until then, and all but the last `dedup_ids_max`."""
        accepted_count = max((last.number for last in accepted.values()), default=counts.accepted)
        early_count = 0
        first = BY_OFFSET_KEY + queue_prefix(*queue)
        oldest = self._store.scan(META, first, end_of_prefix(first))
        for key, value in islice(oldest, max(FORGOTTEN_MIN, 2 * len(accepted))):
            hashed, last = value[: -_ACCEPTED.size], Accepted(*_ACCEPTED.unpack(value[-_ACCEPTED.size :]))
            is_over, is_early = last.store_time_ms <= until_ms, accepted_count - last.number >= self._dedup_ids_max
            if hashed not in accepted and (is_over or is_early):
                write_batch.changes.append((META, key, None))
                write_batch.changes.append((META, _by_id_key(queue, hashed), None))
                early_count += not is_over
        if accepted or early_count:
            write_batch.put_id_counts(queue, IdCounts(accepted_count, counts.forgotten_early + early_count))
        if early_count and time.monotonic() - self._warned_s >= WARNING_PAUSE_S:
            self._warned_s = time.monotonic()
            _log.warning(
                "deduplication_ids_forgotten_early",
                topic=queue[0],
                queue_id=queue[1],
                count=early_count,
                dedup_ids_max=self._dedup_ids_max,
                hint="repeats of their messages are delivered: raise dedup_ids_max, or lower dedup_window_s",
            )

    def _remember_again(self, write_batch: "_WriteBatch", queue: Queue, revision: Revision) -> None:
        """Remember the ids of a truncated queue as when it was read up to its new end."""
        write_batch.forget_all(queue)
        stored = self.get(queue)

        def get(place: Place) -> bytes | None:
            return revision.writes[place] if place in revision.writes else stored(place)

        record = revision.queue
        latest_ms = latest_time_ms(record, get)
        if latest_ms is None or not self._dedup_window_ms:
            return
        since = first_unit_since(record, get, latest_ms - self._dedup_window_ms + 1)
        start = since.queue_offset if since else record.end_offset
        accepted: dict[bytes, Accepted] = {}
        number = self._dedup_ids_max
        for end in range(record.end_offset, start, -SPAN_OFFSETS_MAX):
            if not number:
                break
            units = units_between(record, get, max(start, end - SPAN_OFFSETS_MAX), end)
            for hashed, last in islice(accepted_units(units, number), number):
                accepted.setdefault(hashed, last)
                number = last.number - 1
        for hashed, last in accepted.items():
            write_batch.remember(queue, hashed, last)
        counts = self._id_counts.get(queue, IdCounts(0, 0))
        write_batch.put_id_counts(queue, IdCounts(self._dedup_ids_max, counts.forgotten_early))

    def _message_base(self, queue: Queue, topic_id: str, queue_type: QueueType, start: int) -> int | None:
        """Return the anchor of a new queue, or None to count from 0: this store may be new, and the queue not."""
        if queue_type != "batch" or not self._delta_end(queue):
            return None
        return self._message_base_in_delta(*queue, topic_id, start)

    def _delta_end(self, queue: Queue) -> int:
        stored = self._store.get(META, _delta_end_key(queue))
        return 0 if stored is None else int.from_bytes(stored, "big")

    def _write(self, write_batch: "_WriteBatch") -> list[Entry]:
        if write_batch.is_empty and self._stored_epoch == self.built.state_epoch:
            return []
        built = msgspec.structs.replace(self.built, build_seq=self.built.build_seq + 1)
        entries = [
            Entry(EntryKind.DISPATCH, built.build_seq, number, encode_command(command))
            for number, command in enumerate(write_batch.commands)
        ]
        if write_batch.spans:
            entries.append(Entry(EntryKind.UNIT_SPANS, built.build_seq, 0, msgspec.msgpack.encode(write_batch.spans)))
        own = (META, BUILT_KEY, built.encode())
        self._store.write_changes([*write_batch.changes, own, *self._outbox.changes(entries)], write_batch.erasures)
        self._outbox.written(entries)
        self.built, self._stored_epoch = built, built.state_epoch
        self.queues.update(write_batch.queues)
        self._id_counts.update(write_batch.id_counts)
        return entries


class _WriteBatch:
    """The contents of one WriteBatch."""

    def __init__(self) -> None:
        self.queues: dict[Queue, ConsumeQueue] = {}
        self.changes: list[Change] = []
        self.erasures: list[Erasure] = []
        self.commands: list[Command] = []
        self.spans: list[UnitSpan] = []
        self.id_counts: dict[Queue, IdCounts] = {}

    @property
    def is_empty(self) -> bool:
        return not (self.changes or self.erasures or self.commands or self.spans)

    def put_queue(self, queue: Queue, record: ConsumeQueue) -> None:
        self.queues[queue] = record
        self.changes.append((QUEUES, queue_prefix(*queue), record.encode()))

    def dispatch(self, record: ConsumeQueue, commands: Iterable[Dispatch]) -> None:
        self.commands += [msgspec.structs.replace(command, topic_id=record.topic_id) for command in commands]

    def revise(self, queue: Queue, revision: Revision) -> None:
        prefix = queue_prefix(*queue)
        self.put_queue(queue, revision.queue)
        for kind, numbers in revision.deletes:
            first, end = (place_key(prefix, Place(kind, number)) for number in (numbers.start, numbers.stop))
            self.erasures.append((UNITS, first, end))
        self.changes += [(UNITS, place_key(prefix, place), value) for place, value in revision.writes.items()]

    def add_span(self, queue: Queue, record: ConsumeQueue, first_offset: int, end_offset: int, units: Units) -> None:
        """Let the units of [first_offset, end_offset), if there are any, be written to Delta."""
        if not len(units):
            return
        base, count = int(units.message_base[0]), len(units)
        kind = record.queue_type
        self.spans.append(UnitSpan(*queue, record.topic_id, kind, first_offset, end_offset, base, count))

    def remove_queue(self, queue: Queue) -> None:
        """Remove a queue with its units."""
        self.remove_units(queue)
        self.changes.append((QUEUES, queue_prefix(*queue), None))

    def remember(self, queue: Queue, hashed: bytes, last: Accepted) -> None:
        """Remember the last accepted unit with an id."""
        packed = _ACCEPTED.pack(*last)
        self.changes.append((META, _by_id_key(queue, hashed), packed))
        self.changes.append((META, _by_offset_key(queue, last.queue_offset), hashed + packed))

    def put_id_counts(self, queue: Queue, counts: IdCounts) -> None:
        self.id_counts[queue] = counts
        self.changes.append((META, _counts_key(queue), _COUNTS.pack(*counts)))

    def forget_all(self, queue: Queue) -> None:
        """Forget the ids of a queue."""
        for kind in (BY_ID_KEY, BY_OFFSET_KEY):
            prefix = kind + queue_prefix(*queue)
            self.erasures.append((META, prefix, end_of_prefix(prefix)))
        self.id_counts[queue] = IdCounts(0, 0)
        self.changes.append((META, _counts_key(queue), None))

    def remove_units(self, queue: Queue) -> None:
        self.forget_all(queue)
        prefix = queue_prefix(*queue)
        self.erasures.append((UNITS, prefix, end_of_prefix(prefix)))
        self.changes.append((META, _delta_end_key(queue), None))


def declare_of(queue: Queue, record: ConsumeQueue) -> Declare:
    """Return the operation that declares a queue to the job."""
    return Declare(
        v=1,
        topic=queue[0],
        queue_id=queue[1],
        topic_id=record.topic_id,
        queue_type=record.queue_type,
        min_offset=record.start_offset,
    )


def reader_of(store: RocksStore, queue: Queue) -> Get:
    """Return a reader of the values of one queue."""
    prefix = queue_prefix(*queue)
    return lambda place: store.get(UNITS, place_key(prefix, place))


def read_queues(store: RocksStore) -> Iterator[tuple[Queue, ConsumeQueue]]:
    """Yield every queue of a builder's store, in the order of their keys."""
    for key, value in store.scan(QUEUES, b""):
        yield (key[1:-4].decode(), int.from_bytes(key[-4:], "big")), ConsumeQueue.decode(value)


def read_id_counts(store: RocksStore, queue: Queue) -> IdCounts:
    """Return what is counted of the deduplication ids of a queue."""
    stored = store.get(META, _counts_key(queue))
    return IdCounts(0, 0) if stored is None else IdCounts(*_COUNTS.unpack(stored))


def read_spans(entry: Entry) -> list[UnitSpan]:
    """Return the spans of an outbox entry of kind UNIT_SPANS."""
    return msgspec.msgpack.decode(entry.value, type=list[UnitSpan])


def _delta_end_key(queue: Queue) -> bytes:
    return DELTA_END_KEY + queue_prefix(*queue)


def _counts_key(queue: Queue) -> bytes:
    return COUNTS_KEY + queue_prefix(*queue)


def _by_id_key(queue: Queue, hashed: bytes) -> bytes:
    return BY_ID_KEY + queue_prefix(*queue) + hashed


def _by_offset_key(queue: Queue, queue_offset: int) -> bytes:
    return BY_OFFSET_KEY + queue_prefix(*queue) + queue_offset.to_bytes(8, "big")
