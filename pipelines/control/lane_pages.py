"""Pages of lanes and queues: their order is that of the watch, and their rows are read from the state."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING, NamedTuple

from broker_state.kernel.context.queue_state import load_queue
from broker_state.store.overlay import Overlay
from pipelines.control.page_messages import LanePage, LaneRow, QueuePage, QueueRow
from popstream.wire.queue_name import QueueName

if TYPE_CHECKING:
    from broker_state.kernel.context.lane_state import LaneState
    from broker_state.store.rocks_store import RocksStore
    from pipelines.build_consume_queue.service import BuilderService
    from pipelines.control.lane_watch import LaneWatch
    from pipelines.control.page_messages import LanesRequest, QueuesRequest

__all__ = ["lane_page", "queue_page"]

CLIENTS_SHOWN = 5
POPS_READ = 50


def lane_page(store: RocksStore, watch: LaneWatch, request: LanesRequest) -> LanePage:
    """Return a page of the lanes."""
    found, total = watch.lanes(request.search, request.order, request.skip, request.limit)
    overlay, now_ms = Overlay(store.frozen()), round(time.time() * 1000)
    rows = []
    for (topic, queue_id, group), oldest_at_ms in found:
        queue = load_queue(overlay, topic, queue_id)
        lane = None if queue is None else queue.lane(group)
        if lane is not None:  # it may have been deleted since
            rows.append(_lane_row(lane, oldest_at_ms, now_ms))
    return LanePage(lanes=rows, total=total)


def _lane_row(lane: LaneState, oldest_at_ms: int, now_ms: int) -> LaneRow:
    record, queue = lane.record, lane.queue
    lag = queue.record.commit_position - record.commit_offset
    clients = (pop.client_id or "" for pop in itertools.islice(lane.parked_pops(), POPS_READ if record.parked else 0))
    hold = _hold_of(lane, now_ms)
    return LaneRow(
        topic=queue.topic,
        queue_id=queue.queue_id,
        group=record.group,
        is_orderly=record.orderly,
        commit_offset=record.commit_offset,
        lag=lag,
        in_flight=record.leased,
        available=record.available,
        dead_lettered=record.dead_lettered,
        oldest_at_ms=oldest_at_ms if lag else 0,
        waiting=record.parked,
        waiting_clients=list(dict.fromkeys(clients))[:CLIENTS_SHOWN],
        held_by=hold.by,
        held_since_ms=hold.since_ms,
        held_until_ms=hold.until_ms,
    )


class _Hold(NamedTuple):
    by: str
    since_ms: int | None = None
    until_ms: int | None = None


def _hold_of(lane: LaneState, now_ms: int) -> _Hold:
    """Return what keeps pops from getting the next message."""
    record, limit = lane.record, lane.limits.in_flight_max
    if record.paused_until_ms > now_ms:
        return _Hold("pause", None, record.paused_until_ms)
    if record.orderly:
        head = lane.order_info.head
        if head.member_count > head.acked_count and head.due_ms > now_ms:
            return _Hold("batch", head.pop_time_ms, head.due_ms)
        return _Hold("")
    return _Hold("in_flight_max") if limit and record.leased >= limit else _Hold("")


def queue_page(
    store: RocksStore, watch: LaneWatch, builder: BuilderService | None, request: QueuesRequest
) -> QueuePage:
    """Return a page of the queues that the job or its builder knows."""
    lanes = dict(watch.queues(request.search))
    built = {} if builder is None else {name for name in builder.builder.queues.copy() if request.search in name[0]}
    names = sorted({*lanes, *built})
    overlay = Overlay(store.frozen())
    rows = [
        _queue_row(overlay, name, lanes.get(name, 0), builder)
        for name in names[request.skip : request.skip + request.limit]
    ]
    return QueuePage(queues=rows, total=len(names))


def _queue_row(overlay: Overlay, name: QueueName, lanes: int, builder: BuilderService | None) -> QueueRow:
    decided = load_queue(overlay, *name)
    built = None if builder is None else builder.builder.queues.get(name)
    record = None if decided is None else decided.record
    return QueueRow(
        topic=name[0],
        queue_id=name[1],
        queue_type=record.queue_type if record is not None else built.queue_type if built is not None else "",
        min_offset=0 if record is None else record.min_offset,
        commit_position=0 if record is None else record.commit_position,
        lanes=lanes,
        built_to=None if built is None else built.end_offset,
        log_end=None if builder is None else builder.log_end(name),
        messages=None if built is None else built.message_count,
        problem=None if builder is None else builder.sender.refused.get(name),
    )
