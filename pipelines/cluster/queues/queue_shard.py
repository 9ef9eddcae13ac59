"""Builds one consume queue from its part of the log of queues, over its state, in any order of micro-batches.

    meta    QueueMeta: the record, counts
    units   place (kind u8, number u64)  ->  blocks, filters and pages, as in the embedded job

What is known of deduplication ids follows from the units of the queue. It is in memory, and read again from them where
it is not; so the ids of units that leave the log are forgotten with them.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar

import msgspec
import structlog

from broker_state.consume_queue import ConsumeQueue, Place, Revision, Scan, Units, place_key, truncate
from broker_state.store.value_format import FORMAT_1, StoredRecord, read_stored
from pipelines.build_units.accepted_ids import DedupRule, IdCounts, MemoryIds, accepted_ids
from pipelines.build_units.queue_change import LogFacts, QueueChange, appended, updated
from pipelines.build_units.unit_tables import units_by_queue
from pipelines.cluster.arrow_slices import read_slice_rows
from pipelines.cluster.decide.extent import START
from pipelines.cluster.decide.shard_state import StoredMap
from pipelines.cluster.queues.queue_log import Began, LogRecord, Scanned, Truncated, made_anew
from pipelines.decide_ops.entry import LogPlace
from popstream.wire.base_errors import Invalid
from popstream.wire.command import Command
from popstream.wire.queue_name import QueueName

__all__ = ["BuiltQueue", "BuiltUnits", "QueueMeta", "QueueShard"]

_log = structlog.get_logger(__name__)

_FORMAT_2 = b"\x02"
REMOVED_SINGLY_MAX = 4_096
"""Places of a range that are removed without a look at which of them exist."""


class QueueMeta(StoredRecord, msgspec.Struct, array_like=True, frozen=True):
    """A queue as it is stored.

    Attributes:
        record: The record; None: it has not begun.
        build_seq: The offset after the last record of the log of queues that has changed it.
        forgotten_early: Ids that were forgotten within the window, because there were too many.
        is_behind: The log of queues went on above the end of the queue, or before it had begun, so records of it are
            lost: read them again.
        end: The place after the last unit that has left for the table (unit_entries.py).
    """

    STORED_AS: ClassVar[str] = "queue"

    record: ConsumeQueue | None = None
    build_seq: int = 0
    forgotten_early: int = 0
    is_behind: bool = False
    end: LogPlace = START


class BuiltQueue(msgspec.Struct, array_like=True, frozen=True):
    """A queue as a driver is told of it, in `<prefix>.cluster_queues`.

    Attributes:
        state_epoch: Identity of the state that has the queue; another one knows nothing of it.
        meta: The queue.
    """

    state_epoch: str
    meta: QueueMeta

    def encode(self) -> bytes:
        """Format byte and MessagePack."""
        return _FORMAT_2 + msgspec.msgpack.encode(self)

    @classmethod
    def decode(cls, value: bytes) -> "BuiltQueue | None":
        """Decode it; None: it is of the version before, which has states of its own.

        Raises:
            CorruptValueError: It has neither format, or other fields.
        """
        if value[:1] == FORMAT_1:
            return None
        return read_stored("built queue", _FORMAT_2, value, lambda data: msgspec.msgpack.decode(data, type=cls))


@dataclass(frozen=True, slots=True)
class BuiltUnits:
    """What a record of the log of queues has made of a queue.

    Attributes:
        log_offset: Offset of the record.
        commands: For the ops topic, in order.
        units: New units with the record of their queue, in order.
    """

    log_offset: int
    commands: list[Command] = field(default_factory=list)
    units: list[tuple[ConsumeQueue, Units]] = field(default_factory=list)


class QueueShard:
    """One queue, for one micro-batch.

    Args:
        queue: Its name.
        units: Its stored values.
        meta: As stored with them.
        rule: Which repeats are duplicates.
        ids: What is known of its ids, by the same meta; None: it is read from the units when it is needed.
    """

    def __init__(
        self, queue: QueueName, units: StoredMap, meta: QueueMeta, rule: DedupRule, ids: MemoryIds | None = None
    ) -> None:
        self.meta = meta
        self.ids = ids
        self._queue = queue
        self._units = units
        self._rule = rule
        self._changed: dict[bytes, bytes | None] = {}

    def apply(self, records: Iterable[tuple[int, LogRecord]]) -> list[BuiltUnits]:
        """Apply records in their order, store what changed, and return what leaves, by the record that led to it.

        Args:
            records: Each with its offset in the log of queues.

        Raises:
            Corrupt: An offset comes a second time, for another record.
        """
        all_built: list[BuiltUnits] = []
        for log_offset, record in records:
            # Spark begins a repeated micro-batch with the state before it.
            if log_offset < self.meta.build_seq:
                name = "/".join(map(str, self._queue))
                what = f"the log of queues has a record of {name} at {log_offset}, below {self.meta.build_seq}"
                raise made_anew(what, name)
            before, built = self.meta, BuiltUnits(log_offset)
            match record:
                case Began():
                    self._begin(record, built)
                case Scanned():
                    self._scan(record, built)
                case Truncated():
                    self._truncate(record)
            if self.meta != before:
                self._note_change(built)
                all_built.append(built)
        for key, value in self._changed.items():
            if value is None:
                self._units.remove(key)
            else:
                self._units.put(key, value)
        self._changed.clear()
        return all_built

    def get(self, place: Place) -> bytes | None:
        """Return a value of the queue."""
        key = place_key(b"", place)
        return self._changed[key] if key in self._changed else self._units.get(key)

    def _note_change(self, built: BuiltUnits) -> None:
        units = sum(len(found) for _, found in built.units)
        self.meta = msgspec.structs.replace(
            self.meta,
            build_seq=built.log_offset + 1,
            forgotten_early=self.meta.forgotten_early if self.ids is None else self.ids.counts.forgotten_early,
            end=LogPlace(built.log_offset, units) if units else self.meta.end,
        )

    def _begin(self, began: Began, built: BuiltUnits) -> None:
        facts = LogFacts(began.topic_id, began.queue_type, began.start)
        try:
            change = updated(self._queue, self.meta.record, self.get, facts)
        except Invalid as error:  # a driver that did not know the queue: it learns the type, and refuses another one
            _log.warning("queue_type_ignored", error=str(error))
            return
        if change is None:
            return
        self.ids = None
        if change.is_new:
            self._changed = {**dict.fromkeys(self._changed), **dict.fromkeys(self._units.keys())}
            self.meta = msgspec.structs.replace(self.meta, forgotten_early=0)
        self._take(change, built)

    def _scan(self, scanned: Scanned, built: BuiltUnits) -> None:
        known = self.meta.record
        if known is None:
            self.meta = msgspec.structs.replace(self.meta, is_behind=True)
            return
        if known.topic_id != scanned.topic_id or scanned.end_offset <= known.end_offset:
            return
        if scanned.first_offset > known.end_offset:
            self.meta = msgspec.structs.replace(self.meta, is_behind=True)
            return
        scan = Scan(scanned.first_offset, scanned.end_offset, self._units_of(scanned, known))
        scan = scan.cut(known.end_offset, scanned.end_offset)
        change = appended(self._queue, known, self.get, scan, self._ids_for(scan.units, known), self._rule)
        self._take(change, built)

    def _truncate(self, truncated: Truncated) -> None:
        known = self.meta.record
        if known is not None and known.topic_id == truncated.topic_id:
            self._revise(truncate(known, self.get, truncated.end_offset))
            self.ids = None

    def _take(self, change: QueueChange, built: BuiltUnits) -> None:
        self._revise(change.revision)
        built.commands.extend(change.commands)
        if len(change.fresh.units):
            built.units.append((change.record, change.fresh.units))

    def _revise(self, revision: Revision) -> None:
        for kind, numbers in revision.deletes:
            first, end = (place_key(b"", Place(kind, number)) for number in (numbers.start, numbers.stop))
            if len(numbers) <= REMOVED_SINGLY_MAX:
                gone = [place_key(b"", Place(kind, number)) for number in numbers]
            else:
                gone = [key for key in {*self._units.keys(), *self._changed} if first <= key < end]
            self._changed.update(dict.fromkeys(gone))
        self._changed.update({place_key(b"", place): value for place, value in revision.writes.items()})
        self.meta = msgspec.structs.replace(self.meta, record=revision.queue, is_behind=False)

    def _units_of(self, scanned: Scanned, known: ConsumeQueue) -> Units:
        if not scanned.rows:
            return Units.of([])
        of_batches = frozenset(self._queue[:1]) if known.queue_type == "batch" else frozenset()
        (found,) = units_by_queue(read_slice_rows(scanned.rows), batch_topics=of_batches)
        return found[1]

    def _ids_for(self, units: Units, known: ConsumeQueue) -> MemoryIds:
        """Return the ids of the queue, but nothing for units that have none: to read them takes time."""
        if not (units.dedup_high | units.dedup_low).any():
            return MemoryIds({}, IdCounts(0, 0))
        if self.ids is None:
            counts = IdCounts(self._rule.ids_max, self.meta.forgotten_early)
            self.ids = MemoryIds(accepted_ids(known, self.get, self._rule), counts)
        return self.ids
