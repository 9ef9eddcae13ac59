"""The contents of one WriteBatch of the builder's store."""

from broker_state.consume_queue import ConsumeQueue, Place, Revision, Units, place_key
from broker_state.store.keys import end_of_prefix, queue_prefix
from broker_state.store.overlay import Change
from broker_state.store.rocks_store import META, QUEUES, UNITS, Erasure
from pipelines.build_consume_queue.builder_records import UnitSpan, delta_end_key
from pipelines.build_consume_queue.stored_ids import NO_IDS, StoredIds, erasures_of
from pipelines.build_units.accepted_ids import IdCounts
from pipelines.build_units.queue_change import QueueChange
from popstream.wire.command import Command
from popstream.wire.queue_name import QueueName

__all__ = ["BuilderWriteBatch"]


class BuilderWriteBatch:
    """Collects what one WriteBatch changes."""

    def __init__(self) -> None:
        self.queues: dict[QueueName, ConsumeQueue] = {}
        self.changes: list[Change] = []
        self.erasures: list[Erasure] = []
        self.commands: list[Command] = []
        self.spans: list[UnitSpan] = []
        self.id_counts: dict[QueueName, IdCounts] = {}

    @property
    def is_empty(self) -> bool:
        """Whether nothing is to be written."""
        return not (self.changes or self.erasures or self.commands or self.spans)

    def take(self, queue: QueueName, change: QueueChange) -> None:
        """Put what has become of a queue, and the operations for the ops topic."""
        self.revise(queue, change.revision)
        self.commands += change.commands

    def revise(self, queue: QueueName, revision: Revision) -> None:
        """Put the record of a queue, with the values of it that change."""
        prefix = queue_prefix(*queue)
        self.queues[queue] = revision.queue
        self.changes.append((QUEUES, prefix, revision.queue.encode()))
        for kind, numbers in revision.deletes:
            first, end = (place_key(prefix, Place(kind, number)) for number in (numbers.start, numbers.stop))
            self.erasures.append((UNITS, first, end))
        self.changes += [(UNITS, place_key(prefix, place), value) for place, value in revision.writes.items()]

    def add_span(
        self, queue: QueueName, record: ConsumeQueue, first_offset: int, end_offset: int, units: Units
    ) -> None:
        """Let the units of [first_offset, end_offset), if there are any, be written to Delta."""
        if not len(units):
            return
        base, count = int(units.message_base[0]), len(units)
        kind = record.queue_type
        self.spans.append(UnitSpan(*queue, record.topic_id, kind, first_offset, end_offset, base, count))

    def remove_queue(self, queue: QueueName) -> None:
        """Remove a queue with its units."""
        self.remove_units(queue)
        self.changes.append((QUEUES, queue_prefix(*queue), None))

    def put_ids(self, queue: QueueName, ids: StoredIds) -> None:
        """Put what has changed of the ids of a queue."""
        self.id_counts[queue] = ids.counts
        self.changes += ids.changes

    def forget_all(self, queue: QueueName) -> None:
        """Forget the ids of a queue."""
        self.erasures += erasures_of(queue)
        self.id_counts[queue] = NO_IDS

    def remove_units(self, queue: QueueName) -> None:
        """Remove the units of a queue, with their ids."""
        self.forget_all(queue)
        prefix = queue_prefix(*queue)
        self.erasures.append((UNITS, prefix, end_of_prefix(prefix)))
        self.changes.append((META, delta_end_key(queue), None))
