"""What a builder knows and does, without Spark and Kafka: each step is one WriteBatch, and what it dispatches with it.

Stored beside the values of each queue (broker_state/consume_queue):

    queues   <queue>              the record of the queue: its end is how far this builder has read the partition
    meta     built                the life of this store, and how many WriteBatches it saw
    meta     audited <queue>      of a queue that is read again: its rows below this offset are in Delta already
    outbox   dispatches           an operation for the ops topic, until the job has answered it
             unit spans           which units a WriteBatch brought, until their rows are in Delta

`<queue>` is that of the state (keys.py). The end of a queue moves in the WriteBatch with its units, so a micro-batch
that is read again is known, and whoever continues continues there.
"""

import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, Self

import msgspec
import structlog

from broker_state.consume_queue import (
    ConsumeQueue,
    Get,
    Place,
    Revision,
    Scan,
    append,
    dispatches_of,
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
from broker_state.store.stored import FORMAT_1, read_stored
from pipelines.apply_ops.outbox import Entry, EntryKind, Outbox
from popstream.topics.message_topics import MessageTopic
from popstream.wire.command import Command, Declare, Dispatch, QueueType, encode_command
from popstream.wire.failures import Invalid

__all__ = ["Audited", "Builder", "Built", "Queue", "UnitSpan", "declare_of", "read_queues", "read_spans", "reader_of"]

_log = structlog.get_logger(__name__)

BUILT_KEY = b"built"
AUDITED_KEY = b"audited "
SPAN_OFFSETS = 100_000

Queue = tuple[str, int]
"""(topic, queue id)."""


class Built(msgspec.Struct, frozen=True, kw_only=True):
    """`build_seq` counts the WriteBatches of this store; `state_epoch` is its life, new when it is made or restored."""

    state_epoch: str
    build_seq: int = 0

    def encode(self) -> bytes:
        """Format byte and MessagePack."""
        return FORMAT_1 + msgspec.msgpack.encode(self)

    @classmethod
    def decode(cls, value: bytes) -> Self:
        """Raises CorruptValueError for another format byte or other fields."""
        return read_stored("built", FORMAT_1, value, lambda data: msgspec.msgpack.decode(data, type=cls))


class UnitSpan(msgspec.Struct, array_like=True, frozen=True):
    """The units of [first_offset, end_offset) of a queue are to be written to Delta."""

    topic: str
    queue_id: int
    topic_id: str
    queue_type: QueueType
    first_offset: int
    end_offset: int
    message_base: int
    """Of the first unit."""
    unit_count: int


class Audited(NamedTuple):
    """What the table has.

    Attributes:
        ends: By topic, queue id and topic id, the offset below which its rows are there.
        topic_ids: By topic, the id of the one that there is now; a topic that was deleted has none.
    """

    ends: Mapping[tuple[str, int, str], int]
    topic_ids: Mapping[str, str]


class Builder:
    """The only writer of the builder's store. Safe for use by many threads: each step holds `lock`.

    Args:
        store: With the families of a builder.
        outbox: In that store.
        state_epoch: For a store that is new.
    """

    def __init__(self, store: RocksStore, outbox: Outbox, state_epoch: str) -> None:
        self.lock = threading.RLock()
        self._store = store
        self._outbox = outbox
        stored = store.get(META, BUILT_KEY)
        self.is_new = stored is None
        """Nothing was ever built here."""
        self.built = Built(state_epoch=state_epoch) if stored is None else Built.decode(stored)
        self._stored_epoch = self.built.state_epoch
        self.queues = dict(read_queues(store))
        """Every queue that is known, also of topics that are gone or no longer chosen."""

    def adopt(self, topics: Mapping[str, MessageTopic], queue_types: Mapping[str, QueueType]) -> list[Entry]:
        """Take note of what Kafka says: queues that are new or of a recreated topic, and starts that retention moved.

        Args:
            topics: By name.
            queue_types: Of topics that are not simple; a queue keeps the type that it was made with.

        Raises:
            Invalid: A queue exists with another type.
        """
        with self.lock:
            step = _Step()
            for topic in topics.values():
                for queue_id, start in sorted(topic.starts.items()):
                    queue_type = queue_types.get(topic.name, "simple")
                    self._adopt(step, (topic.name, queue_id), topic.topic_id, queue_type, start)
            return self._write(step)

    def append(self, scans: Mapping[Queue, Scan]) -> list[Entry]:
        """Add what was found at the ends of queues. What a scan has below the end of its queue must be known.

        Raises:
            ContradictionError: The log says something else of offsets that were scanned before.
        """
        with self.lock:
            step = _Step()
            for (topic, queue_id), scan in scans.items():
                queue = self.queues[topic, queue_id]
                get = self.get((topic, queue_id))
                numbered = number_messages(queue, get, scan)
                step.revise((topic, queue_id), append(queue, get, numbered))
                fresh = numbered.cut(queue.end_offset, numbered.end_offset)
                step.dispatch(queue, dispatches_of(topic, queue_id, fresh))
                audited_end = self._audited_end((topic, queue_id))
                first_offset = max(fresh.first_offset, audited_end)
                if audited_end and fresh.end_offset >= audited_end:
                    step.changes.append((META, _audited_key((topic, queue_id)), None))
                rows = fresh.units.between(first_offset, fresh.end_offset)
                if len(rows):
                    step.spans.append(
                        UnitSpan(
                            topic,
                            queue_id,
                            queue.topic_id,
                            queue.queue_type,
                            first_offset,
                            fresh.end_offset,
                            int(rows.message_base[0]),
                            len(rows),
                        )
                    )
            return self._write(step)

    def truncate(self, queue: Queue, end_offset: int, *, is_same_log: bool = True) -> int:
        """Forget what is known of `end_offset` and after, so that it is read again; its end from now on.

        Args:
            queue: Which.
            end_offset: From where on.
            is_same_log: The log still has what is forgotten, so that its rows need not be told again.

        Raises:
            Invalid: There is no such queue.
        """
        with self.lock:
            known = self.queues.get(queue)
            if known is None:
                message = f"there is no queue {queue[0]}/{queue[1]}"
                raise Invalid(message, subject=f"{queue[0]}/{queue[1]}")
            step = _Step()
            revision = truncate(known, self.get(queue), end_offset)
            if revision.queue != known:
                step.revise(queue, revision)
                audited_end = max(known.end_offset, self._audited_end(queue)) if is_same_log else 0
                step.changes.append((META, _audited_key(queue), audited_end.to_bytes(8, "big")))
                self._write(step)
            return revision.queue.end_offset

    def begin_epoch(self, state_epoch: str, audited: Audited) -> None:
        """Go on as another life of this store, after a restore: nothing is known of it but which rows the table has.

        What was built beyond them is told again from here; what is not known here is not told twice when it is read.

        Args:
            state_epoch: New.
            audited: The rows that the table has.
        """
        with self.lock:
            step = _Step()
            present = {
                (topic, queue_id): end
                for (topic, queue_id, topic_id), end in audited.ends.items()
                if audited.topic_ids.get(topic) == topic_id
            }
            for queue, known in list(self.queues.items()):
                if queue in present and audited.topic_ids[queue[0]] != known.topic_id:
                    step.forget(queue)
                    del self.queues[queue]
                    continue
                first = max(known.start_offset, audited.ends.get((*queue, known.topic_id), 0))
                for at in range(first, known.end_offset, SPAN_OFFSETS):
                    step.tell(queue, known, self.get(queue), at, min(at + SPAN_OFFSETS, known.end_offset))
            for queue, end in present.items():
                step.changes.append((META, _audited_key(queue), end.to_bytes(8, "big")))
            self._outbox.delivered([entry.key for entry in self._outbox.undelivered(EntryKind.UNIT_SPANS)])
            self.built = msgspec.structs.replace(self.built, state_epoch=state_epoch)
            self._write(step)

    def get(self, queue: Queue) -> Get:
        """Reads the values of one queue."""
        return reader_of(self._store, queue)

    def _adopt(self, step: "_Step", queue: Queue, topic_id: str, queue_type: QueueType, start: int) -> None:
        known = self.queues.get(queue)
        if known is None or known.topic_id != topic_id:
            if known is not None:
                _log.warning("topic_recreated", topic=queue[0], queue_id=queue[1], topic_id=topic_id)
                step.erase(queue)
            step.start(queue, ConsumeQueue.new(topic_id, queue_type, start))
            step.commands.append(declare_of(queue, step.queues[queue]))
        elif known.queue_type != queue_type:
            message = f"{queue[0]}/{queue[1]} was made as a {known.queue_type} queue, and cannot become {queue_type}"
            raise Invalid(message, subject=queue[0])
        elif start > known.start_offset:
            step.revise(queue, move_start(known, self.get(queue), start))
            step.dispatch(known, skips_of(*queue, known.start_offset, start))

    def _audited_end(self, queue: Queue) -> int:
        stored = self._store.get(META, _audited_key(queue))
        return 0 if stored is None else int.from_bytes(stored, "big")

    def _write(self, step: "_Step") -> list[Entry]:
        if step.is_empty and self._stored_epoch == self.built.state_epoch:
            return []
        built = msgspec.structs.replace(self.built, build_seq=self.built.build_seq + 1)
        entries = [
            Entry(EntryKind.DISPATCH, built.build_seq, number, encode_command(command))
            for number, command in enumerate(step.commands)
        ]
        if step.spans:
            entries.append(Entry(EntryKind.UNIT_SPANS, built.build_seq, 0, msgspec.msgpack.encode(step.spans)))
        own = (META, BUILT_KEY, built.encode())
        self._store.write_changes([*step.changes, own, *self._outbox.changes(entries)], step.erasures)
        self._outbox.written(entries)
        self.built, self._stored_epoch = built, built.state_epoch
        self.queues.update(step.queues)
        return entries


class _Step:
    """What one WriteBatch of a builder will hold."""

    def __init__(self) -> None:
        self.queues: dict[Queue, ConsumeQueue] = {}
        self.changes: list[Change] = []
        self.erasures: list[Erasure] = []
        self.commands: list[Command] = []
        self.spans: list[UnitSpan] = []

    @property
    def is_empty(self) -> bool:
        return not (self.changes or self.erasures or self.commands or self.spans)

    def start(self, queue: Queue, record: ConsumeQueue) -> None:
        self.queues[queue] = record
        self.changes.append((QUEUES, queue_prefix(*queue), record.encode()))

    def dispatch(self, record: ConsumeQueue, commands: Iterable[Dispatch]) -> None:
        self.commands += [msgspec.structs.replace(command, topic_id=record.topic_id) for command in commands]

    def revise(self, queue: Queue, revision: Revision) -> None:
        prefix = queue_prefix(*queue)
        self.start(queue, revision.queue)
        for kind, numbers in revision.deletes:
            first, end = (place_key(prefix, Place(kind, number)) for number in (numbers.start, numbers.stop))
            self.erasures.append((UNITS, first, end))
        self.changes += [(UNITS, place_key(prefix, place), value) for place, value in revision.writes.items()]

    def tell(self, queue: Queue, record: ConsumeQueue, get: Get, first_offset: int, end_offset: int) -> None:
        """The units of this span, which are stored, are to go to Delta."""
        rows = units_between(record, get, first_offset, end_offset)
        if not len(rows):
            return
        base, count = int(rows.message_base[0]), len(rows)
        kind = record.queue_type
        self.spans.append(UnitSpan(*queue, record.topic_id, kind, first_offset, end_offset, base, count))

    def forget(self, queue: Queue) -> None:
        """The queue is as if it had never been."""
        self.erase(queue)
        self.changes.append((QUEUES, queue_prefix(*queue), None))

    def erase(self, queue: Queue) -> None:
        prefix = queue_prefix(*queue)
        self.erasures.append((UNITS, prefix, end_of_prefix(prefix)))
        self.changes.append((META, _audited_key(queue), None))


def declare_of(queue: Queue, record: ConsumeQueue) -> Declare:
    """What tells the job of a queue."""
    return Declare(
        v=1,
        topic=queue[0],
        queue_id=queue[1],
        topic_id=record.topic_id,
        queue_type=record.queue_type,
        min_offset=record.start_offset,
    )


def reader_of(store: RocksStore, queue: Queue) -> Get:
    """Reads the values of one queue."""
    prefix = queue_prefix(*queue)
    return lambda place: store.get(UNITS, place_key(prefix, place))


def read_queues(store: RocksStore) -> Iterator[tuple[Queue, ConsumeQueue]]:
    """Every queue of a builder's store, in the order of their keys."""
    for key, value in store.scan(QUEUES, b""):
        yield (key[1:-4].decode(), int.from_bytes(key[-4:], "big")), ConsumeQueue.decode(value)


def read_spans(entry: Entry) -> list[UnitSpan]:
    """The spans of an outbox entry."""
    return msgspec.msgpack.decode(entry.value, type=list[UnitSpan])


def _audited_key(queue: Queue) -> bytes:
    return AUDITED_KEY + queue_prefix(*queue)
