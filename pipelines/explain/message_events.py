"""What happened to one message, in order: events from rows of the tables."""

import enum
from collections.abc import Iterator, Sequence
from datetime import date
from typing import NamedTuple

import msgspec

from broker_state.audit import (
    ERA_ENDING_KINDS,
    CommitPositionRow,
    DeliveryRow,
    DeliveryStep,
    OperationRow,
    is_release_cause,
)
from popstream.wire.handle import read_handle
from popstream.wire.reason import Reason

__all__ = ["Event", "EventKind", "MessageRows", "UnitRow", "events_of", "groups_of", "of_present_topic"]


class UnitRow(NamedTuple):
    """Columns of the table `consume_queue`."""

    topic_id: str
    queue_type: str
    queue_offset: int
    message_base: int
    inner_count: int
    store_time_ms: int
    size_bytes: int
    tag_hash: int
    is_readable: bool
    deliver_at_ms: int | None
    duplicate_of: int | None


class MessageRows(msgspec.Struct, frozen=True, kw_only=True):
    """The rows about one message, in the order of the log.

    Attributes:
        topic: Its topic.
        queue_id: Its queue.
        queue_offset: Its queue offset.
        unit: Its row of `consume_queue`, if the job builds the queue.
        operations: Rows of `operations` whose range has it.
        deliveries: Rows of `deliveries` whose range has it.
        positions: Rows of `commit_positions` in which a position moved past it, or back before it.
        first_days: By table of which retention has deleted rows, the first date that is left.
    """

    topic: str
    queue_id: int
    queue_offset: int
    unit: UnitRow | None = None
    operations: Sequence[OperationRow] = ()
    deliveries: Sequence[DeliveryRow] = ()
    positions: Sequence[CommitPositionRow] = ()
    first_days: dict[str, date] = {}


def of_present_topic(rows: MessageRows) -> MessageRows:
    """Return the rows since the last dispatch of the offset: those of a topic that was recreated since are left out."""
    dispatches = [row.kafka_offset for row in rows.operations if row.kind == "dispatch" and row.applied]
    began = max(dispatches, default=0)
    return msgspec.structs.replace(
        rows,
        operations=[row for row in rows.operations if row.kafka_offset >= began],
        deliveries=[row for row in rows.deliveries if row.kafka_offset >= began],
        positions=[row for row in rows.positions if row.kafka_offset >= began],
    )


class EventKind(enum.StrEnum):
    """What happened."""

    WRITTEN = "written"
    DISPATCHED = "dispatched"
    POPPABLE = "poppable"
    LEASED = "leased"
    EXTENDED = "extended"
    RELEASED_BY_CLIENT = "given_back"
    RELEASED = "released"
    EXPIRED = "expired"
    ACKED = "acked"
    DEAD_LETTERED = "dead_lettered"
    REDRIVE_ANNOUNCED = "redrive_announced"
    EXPIRED_FROM_LOG = "expired_from_log"
    REFUSED = "refused"
    REPEATED = "repeated"
    RESET = "reset"
    PASSED = "passed"
    MOVED_BACK = "moved_back"


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One event in the history of a message.

    Attributes:
        kind: What happened.
        at_ms: When it took effect, ms since 1970.
        group: The consumer group; None: it concerns all.
        client_id: The client that did it, if it named itself; of a lease that ended by itself, who held it.
        attempt: Number of the delivery, 1 for the first.
        epoch: Number of the pop; of a refused operation that of its handle, None: its handle is unreadable.
        until_ms: Deadline of the lease; of one that its client released the time from which it can be popped.
        cause: Why, as in the table; of a redrive to whom, by whom and why.
        operation: Type of the operation that was refused or repeated.
        reason: Why it was refused.
        first: First offset of the range that shares the event; of a position that moved the one before.
        last: Last offset of that range; of a position the one after.
    """

    kind: EventKind
    at_ms: int
    group: str | None = None
    client_id: str | None = None
    attempt: int | None = None
    epoch: int | None = None
    until_ms: int | None = None
    cause: str | None = None
    operation: str | None = None
    reason: str | None = None
    first: int | None = None
    last: int | None = None


_KINDS = {
    DeliveryStep.LEASED: EventKind.LEASED,
    DeliveryStep.CHANGED: EventKind.EXTENDED,
    DeliveryStep.EXPIRED: EventKind.EXPIRED,
    DeliveryStep.ACKED: EventKind.ACKED,
    DeliveryStep.DEAD_LETTERED: EventKind.DEAD_LETTERED,
    DeliveryStep.EXPIRED_FROM_LOG: EventKind.EXPIRED_FROM_LOG,
}
_WITH_OPERATION = (EventKind.REFUSED, EventKind.REPEATED)
_BY_CLIENT = ("ack", "change_invisible", "reject")

# Within one record: first what was due, then the command, then what it grants, then the positions.
_DUE, _COMMAND, _GRANT, _POSITION = range(4)


def groups_of(rows: MessageRows) -> list[str]:
    """Return the groups that had to do with the message, in the order of their first row."""
    named = [
        *(row.group for row in rows.deliveries),
        *(row.group for row in rows.operations),
        *(row.group for row in rows.positions),
    ]
    return list(dict.fromkeys(group for group in named if group is not None))


def events_of(rows: MessageRows, group: str | None) -> list[Event]:
    """Return the events of a message for one group; None: those that concern all groups."""
    placed = [
        *_of_deliveries([row for row in rows.deliveries if row.group == group]),
        *(found for row in rows.operations if row.group == group for found in _of_operations(row)),
        *(_of_positions(row, rows.queue_offset) for row in rows.positions if row.group == group),
    ]
    events = [event for _, event in sorted(placed, key=lambda each: each[0])]
    if group is None and (unit := rows.unit) is not None:
        events.insert(0, Event(kind=EventKind.WRITTEN, at_ms=unit.store_time_ms))
    return events


_Place = tuple[int, int, int, int]


def _of_deliveries(rows: Sequence[DeliveryRow]) -> Iterator[tuple[_Place, Event]]:
    rank = _DUE
    for row in rows:
        kind = _kind_of(row)
        if row.cause != "attempt_limit":  # which is of the step before it
            rank = _DUE if kind is EventKind.EXPIRED else _GRANT if kind is EventKind.LEASED else _COMMAND
        event = Event(
            kind=kind,
            at_ms=row.at_ms,
            group=row.group,
            client_id=row.client_id,
            attempt=row.attempt,
            epoch=row.epoch,
            until_ms=row.deadline_ms,
            cause=row.cause,
            first=row.first_offset,
            last=row.last_offset,
        )
        yield (row.now_ms, row.kafka_offset, rank, row.ordinal), event


def _kind_of(row: DeliveryRow) -> EventKind:
    if row.step != DeliveryStep.RELEASED:
        return _KINDS[DeliveryStep(row.step)]
    if row.cause in ERA_ENDING_KINDS:
        return EventKind.RESET
    return EventKind.RELEASED_BY_CLIENT if is_release_cause(row.cause) else EventKind.RELEASED


def _of_operations(row: OperationRow) -> Iterator[tuple[_Place, Event]]:
    """Yield what `deliveries` does not tell: refusals, repetitions, redrives, and the dispatch."""
    if row.repeated:
        kind = EventKind.REPEATED
    elif row.kind == "dispatch" and row.applied:
        kind = EventKind.DISPATCHED
    elif row.kind == "redrive" and row.reason == Reason.OK:
        kind = EventKind.REDRIVE_ANNOUNCED
    elif row.kind in _BY_CLIENT and not row.applied:
        kind = EventKind.REFUSED
    else:
        return
    handle = None if row.handle_before is None else read_handle(row.handle_before)
    event = Event(
        kind=kind,
        at_ms=row.now_ms,
        group=row.group,
        client_id=row.client_id,
        epoch=None if handle is None else handle.epoch,
        cause=row.detail if kind is EventKind.REDRIVE_ANNOUNCED else None,
        operation=row.kind if kind in _WITH_OPERATION else None,
        reason=row.reason if kind in _WITH_OPERATION else None,
        first=row.first_offset,
        last=row.last_offset,
    )
    yield (row.now_ms, row.kafka_offset, _COMMAND, row.ordinal), event


def _of_positions(row: CommitPositionRow, queue_offset: int) -> tuple[_Place, Event]:
    if row.to_offset <= queue_offset:
        kind = EventKind.MOVED_BACK
    else:
        kind = EventKind.POPPABLE if row.group is None else EventKind.PASSED
    event = Event(kind=kind, at_ms=row.now_ms, group=row.group, first=row.from_offset, last=row.to_offset)
    return (row.now_ms, row.kafka_offset, _POSITION, row.ordinal), event
