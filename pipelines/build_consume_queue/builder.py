"""The state of the builder, without Spark and Kafka: each change is one WriteBatch, with the operations it dispatches.

Stored beside the values of each queue (broker_state/consume_queue):

    queues   <queue>              the record of the queue; its end is the offset up to which the partition is read
    meta     built                the epoch of this store, and the number of its WriteBatches
    meta     audited <queue>      of a queue that is read again: units below this offset are in Delta already
             dedup ...        the ids of accepted units (stored_ids.py)
    outbox   dispatches           an operation for the ops topic, until the job has answered it
             unit spans           the units of a WriteBatch, until they are in Delta

`<queue>` is encoded as in the state (keys.py). The end of a queue moves in the same WriteBatch as its units are added:
a micro-batch that is read again is recognised, and a restarted builder continues at that end. What is known of ids
follows from the units of the queue within the window, and is made from them again when the queue is truncated.
"""

import threading
import time
from collections.abc import Callable, Mapping

import msgspec
import structlog

from broker_state.consume_queue import (
    Get,
    Place,
    Revision,
    Scan,
    truncate,
    units_between,
)
from broker_state.store.rocks_store import META, RocksStore
from pipelines.apply_ops.outbox import Outbox
from pipelines.build_consume_queue.builder_records import (
    BUILT_KEY,
    Built,
    UnitsInDelta,
    built_of,
    delta_end_key,
    read_queues,
    reader_of,
)
from pipelines.build_consume_queue.builder_write_batch import BuilderWriteBatch
from pipelines.build_consume_queue.stored_ids import NO_IDS, StoredIds, read_id_counts
from pipelines.build_units.accepted_ids import DedupRule, IdCounts, accepted_ids
from pipelines.build_units.queue_change import LogFacts, appended, updated
from pipelines.decide_ops.entry import Entry, EntryKind
from popstream.topics.message_topics import MessageTopic
from popstream.wire.base_errors import Invalid
from popstream.wire.command import QueueType, encode_command
from popstream.wire.dedup_id import DEDUP_IDS_MAX_DEFAULT, DEDUP_WINDOW_MS_DEFAULT
from popstream.wire.queue_name import QueueName

__all__ = ["Builder"]

_log = structlog.get_logger(__name__)

WARNING_PAUSE_S = 60.0

SPAN_OFFSETS_MAX = 100_000
"""Offsets of one span after a restore, which reads the units of a span at once."""


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
        self._dedup_rule = DedupRule(dedup_window_ms, dedup_ids_max)
        self._warned_s = -WARNING_PAUSE_S
        stored = built_of(store)
        self.is_new = stored is None
        """The store was empty."""
        self.built = Built(state_epoch=state_epoch) if stored is None else stored
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
            write_batch = BuilderWriteBatch()
            for topic in topics.values():
                for queue_id, start in sorted(topic.starts.items()):
                    queue_type = queue_types.get(topic.name, "simple")
                    self._update_queue(write_batch, (topic.name, queue_id), topic.topic_id, queue_type, start)
            return self._write(write_batch)

    def append(self, scans: Mapping[QueueName, Scan]) -> list[Entry]:
        """Add units at the ends of queues.

        Args:
            scans: By queue. A scan may start below the end of its queue, with units that were added before.

        Raises:
            ContradictionError: Units below the end differ from those that were added before.
        """
        with self.lock:
            write_batch = BuilderWriteBatch()
            for queue, scan in scans.items():
                known, ids = self.queues[queue], self._ids_of(queue)
                early_count = ids.counts.forgotten_early
                change = appended(queue, known, self.get(queue), scan, ids, self._dedup_rule)
                write_batch.put_ids(queue, ids)
                write_batch.take(queue, change)
                self._warn_of_early(queue, ids.counts.forgotten_early - early_count)
                fresh, delta_end = change.fresh, self._delta_end(queue)
                first_offset = max(fresh.first_offset, delta_end)
                if delta_end and fresh.end_offset >= delta_end:
                    write_batch.changes.append((META, delta_end_key(queue), None))
                units = fresh.units.between(first_offset, fresh.end_offset)
                write_batch.add_span(queue, known, first_offset, fresh.end_offset, units)
            return self._write(write_batch)

    def truncate(self, queue: QueueName, end_offset: int, *, is_same_log: bool = True) -> int:
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
            write_batch = BuilderWriteBatch()
            revision = truncate(known, self.get(queue), end_offset)
            if revision.queue != known:
                write_batch.revise(queue, revision)
                self._remember_again(write_batch, queue, revision)
                delta_end = max(known.end_offset, self._delta_end(queue)) if is_same_log else 0
                write_batch.changes.append((META, delta_end_key(queue), delta_end.to_bytes(8, "big")))
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
            write_batch = BuilderWriteBatch()
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
                write_batch.changes.append((META, delta_end_key(queue), end.to_bytes(8, "big")))
            self._outbox.delivered([entry.key for entry in self._outbox.undelivered(EntryKind.UNIT_SPANS)])
            self.built = msgspec.structs.replace(self.built, state_epoch=state_epoch)
            self._write(write_batch)

    @property
    def forgotten_ids(self) -> int:
        """Number of deduplication ids that were forgotten within the window, of all queues; also when it has ended."""
        return sum(counts.forgotten_early for counts in list(self._id_counts.values()))

    def get(self, queue: QueueName) -> Get:
        """Return a reader of the values of one queue."""
        return reader_of(self._store, queue)

    def _update_queue(
        self, write_batch: BuilderWriteBatch, queue: QueueName, topic_id: str, queue_type: QueueType, start: int
    ) -> None:
        known = self.queues.get(queue)
        if known is not None and known.topic_id != topic_id:
            _log.warning("topic_recreated", topic=queue[0], queue_id=queue[1], topic_id=topic_id)
            write_batch.remove_units(queue)
        is_new = known is None or known.topic_id != topic_id
        base = self._message_base(queue, topic_id, queue_type, start) if is_new else None
        change = updated(queue, known, self.get(queue), LogFacts(topic_id, queue_type, start, base))
        if change is not None:
            write_batch.take(queue, change)

    def _ids_of(self, queue: QueueName) -> StoredIds:
        return StoredIds(self._store, queue, self._id_counts.get(queue, NO_IDS))

    def _warn_of_early(self, queue: QueueName, count: int) -> None:
        if count and time.monotonic() - self._warned_s >= WARNING_PAUSE_S:
            self._warned_s = time.monotonic()
            _log.warning(
                "deduplication_ids_forgotten_early",
                topic=queue[0],
                queue_id=queue[1],
                count=count,
                dedup_ids_max=self._dedup_rule.ids_max,
                hint="repeats of their messages are delivered: raise dedup_ids_max, or lower dedup_window_s",
            )

    def _remember_again(self, write_batch: BuilderWriteBatch, queue: QueueName, revision: Revision) -> None:
        """Remember the ids of a truncated queue as when it was read up to its new end."""
        write_batch.forget_all(queue)
        stored = self.get(queue)

        def get(place: Place) -> bytes | None:
            return revision.writes[place] if place in revision.writes else stored(place)

        accepted = accepted_ids(revision.queue, get, self._dedup_rule)
        ids = StoredIds(self._store, queue, NO_IDS)
        forgotten_early = self._id_counts.get(queue, NO_IDS).forgotten_early
        if accepted or forgotten_early:
            ids.update((), accepted, IdCounts(self._dedup_rule.ids_max, forgotten_early))
            write_batch.put_ids(queue, ids)

    def _message_base(self, queue: QueueName, topic_id: str, queue_type: QueueType, start: int) -> int | None:
        """Return the anchor of a new queue, or None to count from 0: this store may be new, and the queue not."""
        if queue_type != "batch" or not self._delta_end(queue):
            return None
        return self._message_base_in_delta(*queue, topic_id, start)

    def _delta_end(self, queue: QueueName) -> int:
        stored = self._store.get(META, delta_end_key(queue))
        return 0 if stored is None else int.from_bytes(stored, "big")

    def _write(self, write_batch: BuilderWriteBatch) -> list[Entry]:
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
