"""The last pops of one lane, each with what became of its messages."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

from broker_state.audit import DeliveryRow, OperationRow
from connectors.delta.views import ENDS_ERA
from pipelines.explain.message_events import EventKind, MessageRows, events_of
from pipelines.report.report_data import LaneLeases, Pop
from pipelines.report.report_tables import IN_PERIOD, STEPS
from popstream.wire.base_errors import Invalid

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pipelines.explain.message_events import Event
    from pipelines.report.report_data import Lane
    from pipelines.report.report_tables import ReportTables

__all__ = ["read_lane_leases", "require_known"]

POPS_MAX: Final = 40
_ROWS_MAX: Final = 20_000
"""Of the pops drawn, the newest: a pop may have a row for each of thousands of messages."""

_IS_LANE: Final = '"group" = $lane_group AND topic = $lane_topic AND queue_id = $lane_queue'

_NEWEST: Final = f"""
    WITH {STEPS}
    SELECT epoch, count(*) OVER () FROM steps
    WHERE step = 'leased' AND {_IS_LANE} AND {IN_PERIOD} GROUP BY epoch ORDER BY epoch DESC LIMIT {POPS_MAX}
"""  # noqa: S608 - constants

_DELIVERIES: Final = f"""
    SELECT {{columns}} FROM deliveries
    WHERE {_IS_LANE} AND now_ms < $until_ms AND (epoch >= $first_epoch OR {ENDS_ERA})
    ORDER BY now_ms DESC, kafka_offset DESC, ordinal DESC LIMIT $rows_max
"""  # noqa: S608

_REFUSED: Final = f"""
    SELECT {{columns}} FROM operations
    WHERE {_IS_LANE} AND now_ms >= $since_ms AND now_ms < $until_ms AND NOT applied AND NOT repeated
    AND kind IN ('ack', 'change_invisible', 'reject') AND handle_before IS NOT NULL
    ORDER BY now_ms DESC LIMIT $rows_max
"""  # noqa: S608

_KNOWN: Final = """
    SELECT DISTINCT "group", topic, queue_id FROM (
        SELECT "group", topic, queue_id FROM commit_positions WHERE now_ms < $until_ms
        UNION ALL SELECT "group", topic, queue_id FROM deliveries WHERE now_ms < $until_ms
    )
"""


def read_lane_leases(tables: ReportTables, lane: Lane) -> LaneLeases:
    """Return the last pops of a lane within the period, with all that the tables know of them.

    Pops of which not all rows are read are left out: what became of their messages would look as if nothing had.
    """
    values = {"lane_group": lane.group, "lane_topic": lane.topic, "lane_queue": lane.queue_id}
    newest = tables.rows(_NEWEST, **values)
    if not newest:
        return LaneLeases(lane, [], 0)
    values |= {"rows_max": _ROWS_MAX, "first_epoch": min(epoch for epoch, _ in newest)}
    found = tables.rows(_DELIVERIES.format(columns=_columns(DeliveryRow)), **values)
    deliveries = [DeliveryRow(*row) for row in found]
    refused = [OperationRow(*row) for row in tables.rows(_REFUSED.format(columns=_columns(OperationRow)), **values)]
    read_since_ms = max(_read_since_ms(deliveries), _read_since_ms(refused))
    rows = MessageRows(
        topic=lane.topic,
        queue_id=lane.queue_id,
        queue_offset=0,
        deliveries=[row for row in deliveries if row.now_ms >= read_since_ms],
        operations=refused,
    )
    return LaneLeases(lane, pops_of(events_of(rows, lane.group)), newest[0][1])


def _read_since_ms(newest_first: Sequence[DeliveryRow | OperationRow]) -> int:
    """Return since when all rows are read: older ones may be missing, and some of the last moment."""
    return newest_first[-1].now_ms + 1 if len(newest_first) == _ROWS_MAX else 0


def pops_of(events: Sequence[Event]) -> list[Pop]:
    """Return the pops in the events of a lane, in order."""
    by_epoch: dict[int, list[Event]] = defaultdict(list)
    for event in events:
        if event.kind is EventKind.RESET:  # it ends what every pop has left
            for begun in by_epoch.values():
                begun.append(event)
        elif event.epoch is not None and (event.kind is EventKind.LEASED or event.epoch in by_epoch):
            by_epoch[event.epoch].append(event)
    return [_pop(epoch, found) for epoch, found in sorted(by_epoch.items())]


def _pop(epoch: int, events: Sequence[Event]) -> Pop:
    leased = [event for event in events if event.kind is EventKind.LEASED]
    until = [event.until_ms for event in events if event.kind in {EventKind.LEASED, EventKind.EXTENDED}]
    return Pop(
        epoch=epoch,
        client_id=leased[0].client_id,
        first_offset=min(event.first or 0 for event in leased),
        last_offset=max(event.last or 0 for event in leased),
        messages=sum(messages_of(event) for event in leased),
        attempt=max(event.attempt or 1 for event in leased),
        began_ms=leased[0].at_ms,
        until_ms=max([each for each in until if each is not None], default=leased[0].at_ms),
        events=[event for event in events if event.kind is not EventKind.LEASED],
    )


def require_known(tables: ReportTables) -> None:
    """Refuse a group, a topic or a lane of which the tables know nothing, and a lane of another group or topic.

    Raises:
        Invalid: It names those that they know.
    """
    scope = tables.scope
    if scope.group is None and scope.topic is None and scope.lane is None:
        return
    if scope.lane is not None:
        for kind, name, of_lane in (("group", scope.group, scope.lane.group), ("topic", scope.topic, scope.lane.topic)):
            if name not in (None, of_lane):
                message = f"the lane {scope.lane.group} {scope.lane.queue} is not one of the {kind} {name}"
                raise Invalid(message, subject=scope.lane.group)
    lanes = tables.rows(_KNOWN)
    groups = sorted({group for group, _, _ in lanes if group is not None})
    topics = sorted({topic for _, topic, _ in lanes})
    for kind, name, known in (("group", scope.group, groups), ("topic", scope.topic, topics)):
        if name is not None and name not in known:
            message = f"the tables have no {kind} {name}, only {_listed(known)}"
            raise Invalid(message, subject=name)
    lane = scope.lane
    if lane is None or (lane.group, lane.topic, lane.queue_id) in lanes:
        return
    of_queue = sorted({group for group, *queue in lanes if group is not None and queue == [lane.topic, lane.queue_id]})
    why = f"groups that have: {_listed(of_queue)}" if of_queue else "no group has"
    message = f"the group {lane.group} has never read {lane.queue}; {why}"
    raise Invalid(message, subject=lane.group)


def messages_of(event: Event) -> int:
    """Return how many messages an event is about."""
    return 1 if event.first is None or event.last is None else event.last - event.first + 1


def _columns(row_type: type[DeliveryRow | OperationRow]) -> str:
    return ", ".join(f'"{name}"' for name in row_type._fields)


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:10]) or "none"
    return shown if len(names) <= 10 else f"{shown} and {len(names) - 10:,} more"
