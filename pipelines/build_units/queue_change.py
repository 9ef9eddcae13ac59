"""Changes of one consume queue, with the operations that tell the job of them."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from broker_state.consume_queue import (
    ConsumeQueue,
    Get,
    Revision,
    Scan,
    Units,
    append,
    dispatches_of,
    move_start,
    number_messages,
    skips_of,
)
from pipelines.build_units.accepted_ids import AcceptedIds, DedupRule, with_duplicates
from popstream.wire.base_errors import Invalid
from popstream.wire.command import Command, Declare, Dispatch, QueueType
from popstream.wire.queue_name import QueueName

__all__ = ["LogFacts", "QueueChange", "appended", "declare_of", "updated"]


class LogFacts(NamedTuple):
    """What Kafka and the settings say of the partition of a queue.

    Attributes:
        topic_id: Kafka's id of the topic.
        queue_type: Type of the queue.
        start: First offset of the log.
        message_base: The anchor of a new batch queue; None: 0.
    """

    topic_id: str
    queue_type: QueueType
    start: int
    message_base: int | None = None


@dataclass(frozen=True, slots=True)
class QueueChange:
    """A change of one queue, to be stored as a whole.

    Attributes:
        revision: The record, and the values to delete and to write.
        commands: The operations that tell the job of it, in order.
        fresh: What was appended: its units are new.
        is_new: The queue begins; whatever is stored under its name belongs to an earlier topic, and is removed first.
    """

    revision: Revision
    commands: list[Command] = field(default_factory=list)
    fresh: Scan = field(default_factory=lambda: Scan(0, 0, Units.of([])))
    is_new: bool = False

    @property
    def record(self) -> ConsumeQueue:
        """The record of the queue after the change."""
        return self.revision.queue


def updated(queue: QueueName, known: ConsumeQueue | None, get: Get, facts: LogFacts) -> QueueChange | None:
    """Return what follows from the facts of a queue's log: it begins, or loses its start; None: nothing.

    Args:
        queue: The queue.
        known: Its record; None: there is none.
        get: Reads its values.
        facts: Those of its log now.

    Raises:
        Invalid: The queue exists with another type; the type of a queue never changes.
    """
    if known is None or known.topic_id != facts.topic_id:
        record = ConsumeQueue.new(facts.topic_id, facts.queue_type, facts.start, facts.message_base)
        return QueueChange(Revision(record), [declare_of(queue, record)], is_new=True)
    require_type(queue, known, facts.queue_type)
    if facts.start <= known.start_offset:
        return None
    return QueueChange(
        move_start(known, get, facts.start),
        _about(known, skips_of(*queue, known.start_offset, facts.start)),
    )


def appended(
    queue: QueueName, known: ConsumeQueue, get: Get, scan: Scan, ids: AcceptedIds, rule: DedupRule
) -> QueueChange:
    """Return the queue with the units of a scan, whose duplicates are marked; what was scanned before is left out.

    Args:
        queue: The queue.
        known: Its record.
        get: Reads its values.
        scan: It begins at or below the end of the queue.
        ids: The ids of its accepted units; the new ones are added.
        rule: Which repeats are duplicates.

    Raises:
        ContradictionError: Units below the end differ from those that were added before.
        ValueError: The scan begins above the end.
    """
    numbered = with_duplicates(known, get, number_messages(known, get, scan), ids, rule)
    revision = append(known, get, numbered)
    fresh = numbered.cut(known.end_offset, numbered.end_offset)
    return QueueChange(revision, _about(known, dispatches_of(*queue, fresh)), fresh)


def require_type(queue: QueueName, known: ConsumeQueue, queue_type: QueueType) -> None:
    """Raise Invalid if a queue exists with another type."""
    if known.queue_type != queue_type:
        message = f"{queue[0]}/{queue[1]} exists as a {known.queue_type} queue, and cannot become {queue_type}"
        raise Invalid(message, subject=queue[0])


def declare_of(queue: QueueName, record: ConsumeQueue) -> Declare:
    """Return the operation that declares a queue to the job."""
    return Declare(
        v=1,
        topic=queue[0],
        queue_id=queue[1],
        topic_id=record.topic_id,
        queue_type=record.queue_type,
        min_offset=record.start_offset,
    )


def _about(record: ConsumeQueue, commands: Iterable[Dispatch]) -> list[Command]:
    return [msgspec.structs.replace(command, topic_id=record.topic_id) for command in commands]
