"""Read-only views of queues and lanes in the stored state, for `popstream status` and `queue`."""

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from broker_state.kernel.context.lane_state import LaneState
from broker_state.kernel.context.queue_state import QueueState, load_queue
from broker_state.store.keys import QueueTag, end_of_prefix, queue_of_key, read_queue_prefix
from broker_state.store.overlay import STATE, Overlay
from broker_state.store.rocks_store import RocksStore
from broker_state.store.state_records import LaneRecord, QueueRecord

__all__ = [
    "LANES_SHOWN",
    "BatchView",
    "LaneDetail",
    "LaneView",
    "MemberView",
    "ParkedPopView",
    "QueueView",
    "StoredQueue",
    "lane_detail",
    "queues_in",
    "quotas_of",
    "quotas_of_queue",
    "scan_queues",
    "selected_queues",
]

_OF_QUEUE = {"pops_per_s_max": "queue_pops_per_s_max", "parked_max": "queue_parked_max"}
"""Names of quotas of a queue that lanes have, too."""

LANES_SHOWN = 1000
RUNS_SHOWN = 100


class MemberView(msgspec.Struct, frozen=True):
    """A run of unacked members of an orderly lane's batch; `next_visible_ms`: when they are redelivered."""

    first: int
    last: int
    next_visible_ms: int
    attempt: int
    suspended: bool


class BatchView(msgspec.Struct, frozen=True):
    """The batch in flight of an orderly lane. `free_at_ms` None: the lane is free. `unacked`: at most 100 runs."""

    epoch: int
    pop_time_ms: int
    invisible_time_ms: int
    attempt_id: str | None
    first: int
    last: int
    members: int
    acked: int
    free_at_ms: int | None
    unacked: list[MemberView]


class ParkedPopView(msgspec.Struct, frozen=True):
    """A parked pop, in arrival order."""

    op_id: str | None
    client_id: str | None
    attempt_id: str | None
    max_messages: int
    until_ms: int


class LaneDetail(msgspec.Struct, frozen=True):
    """The batch in flight of an orderly lane, its parked pops, at most 100, and what holds pops back.

    `paused_until_ms` 0: it is not paused. `in_flight_max` 0: no limit. `quotas`: those that are set, by name.
    """

    batch: BatchView | None
    waiting: list[ParkedPopView]
    paused_until_ms: int = 0
    in_flight_max: int = 0
    quotas: dict[str, int] = {}


class LaneView(msgspec.Struct, frozen=True):
    """One lane as `popstream status` shows it."""

    group: str
    commit_offset: int
    next_offset: int
    lag: int
    leased: int
    available: int
    parked: int
    acked: int
    dead_lettered: int
    epoch: int
    orderly: bool | None
    detail: LaneDetail | None = None


class QueueView(msgspec.Struct, frozen=True):
    """One queue as `popstream status` shows it."""

    topic: str
    queue_id: int
    topic_id: str
    queue_type: str
    now_ms: int
    min_offset: int
    commit_position: int
    holes: int
    lanes: list[LaneView]


class StoredQueue(NamedTuple):
    """One queue of the state, with its lanes by group."""

    topic: str
    queue_id: int
    record: QueueRecord
    lanes: list[LaneRecord]


def scan_queues(store: RocksStore) -> Iterator[StoredQueue]:
    """Yield every queue of the state, by key.

    The keys of a queue share a prefix, so only its record and the records of its lanes are read.
    """
    at = b""
    while True:
        first = next(iter(store.scan(STATE, at)), None)
        if first is None:
            return
        prefix = queue_of_key(first[0])
        stored = store.get(STATE, prefix + QueueTag.RECORD)
        if stored is not None:
            topic, queue_id = read_queue_prefix(prefix)
            yield StoredQueue(
                topic=topic,
                queue_id=queue_id,
                record=QueueRecord.decode(stored),
                lanes=[LaneRecord.decode(value) for _, value in _lanes(store, prefix)],
            )
        at = prefix + b"\xff"


def _lanes(store: RocksStore, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
    first = prefix + QueueTag.LANE
    return store.scan(STATE, first, end_of_prefix(first))


def queues_in(store: RocksStore) -> Iterator[QueueView]:
    """Yield every queue of the state with its lanes, as they are shown."""
    for topic, queue_id, record, lanes in scan_queues(store):
        yield QueueView(
            topic=topic,
            queue_id=queue_id,
            topic_id=record.topic_id,
            queue_type=record.queue_type,
            now_ms=record.now_ms,
            min_offset=record.min_offset,
            commit_position=record.commit_position,
            holes=record.holes,
            lanes=[_lane(record, lane) for lane in lanes],
        )


def selected_queues(
    store: RocksStore, group: str | None, topic: str | None, limit: int, skip: int = 0
) -> tuple[list[QueueView], bool]:
    """Return the matching queues with at most `limit` lanes, and whether the limit left lanes out.

    Args:
        store: The state.
        group: Only lanes of this group, with their details.
        topic: Only queues of this topic.
        limit: A queue without lanes counts as one lane.
        skip: Lanes before those, likewise.
    """
    found: list[QueueView] = []
    left, to_skip = limit, skip
    for queue in queues_in(store):
        if topic not in (None, queue.topic):
            continue
        lanes = [lane for lane in queue.lanes if group in (None, lane.group)]
        if group is not None and not lanes:
            continue
        weight = max(1, len(lanes))
        if to_skip >= weight:
            to_skip -= weight
            continue
        lanes, to_skip = lanes[to_skip:], 0
        if left <= 0:
            return found, True
        if group is not None:
            detail = lane_detail(store, queue.topic, queue.queue_id, group)
            lanes = [msgspec.structs.replace(lane, detail=detail) for lane in lanes]
        found.append(msgspec.structs.replace(queue, lanes=lanes[:left]))
        if len(lanes) > left:
            return found, True
        left -= max(1, len(lanes))
    return found, False


def _lane(queue: QueueRecord, lane: LaneRecord) -> LaneView:
    return LaneView(
        group=lane.group,
        commit_offset=lane.commit_offset,
        next_offset=lane.next_offset,
        lag=queue.commit_position - lane.commit_offset,
        leased=lane.leased,
        available=lane.available,
        parked=lane.parked,
        acked=lane.acked,
        dead_lettered=lane.dead_lettered,
        epoch=lane.epoch,
        orderly=lane.orderly,
    )


def lane_detail(store: RocksStore, topic: str, queue_id: int, group: str) -> LaneDetail | None:
    """Return the batch of an orderly lane, and the parked pops, from one snapshot; None: the lane no longer exists."""
    queue = load_queue(Overlay(store.frozen()), topic, queue_id)
    lane = None if queue is None else queue.lane(group)
    if lane is None:
        return None
    waiting = [
        ParkedPopView(pop.op_id, pop.client_id, pop.attempt_id, pop.max_messages, pop.deadline_ms)
        for pop in itertools.islice(lane.parked_pops(), RUNS_SHOWN)
    ]
    info = lane.order_info
    head = info.head
    held_back = (lane.record.paused_until_ms, lane.limits.in_flight_max, quotas_of(lane))
    if not head.member_count:
        return LaneDetail(None, waiting, *held_back)
    unacked = [
        MemberView(first, end - 1, info.next_visible_ms(member), member.count + 1, member.suspended)
        for first, end, member in itertools.islice(info.unacked(), RUNS_SHOWN)
    ]
    batch = BatchView(
        epoch=head.epoch,
        pop_time_ms=head.pop_time_ms,
        invisible_time_ms=head.invisible_time_ms,
        attempt_id=head.attempt_id,
        first=head.first,
        last=head.end - 1,
        members=head.member_count,
        acked=head.acked_count,
        free_at_ms=head.due_ms or None,
        unacked=unacked,
    )
    return LaneDetail(batch, waiting, *held_back)


def quotas_of(lane: LaneState) -> dict[str, int]:
    """Return the quotas that hold in a lane, and those of its queue, by their names in a `Policy`."""
    of_lane, of_queue = lane.usage, lane.queue.usage
    own = None if of_lane is None else of_lane.quota
    inherited = None if of_queue is None or lane.record.policy is not None else of_queue.lane_quota
    return dict(_set_in(own or inherited)) | _of_whole_queue(lane.queue)


def quotas_of_queue(queue: QueueState) -> dict[str, int]:
    """Return the quotas that the policy of a queue has, likewise: for its lanes, and as a whole."""
    usage = queue.usage
    return dict(_set_in(None if usage is None else usage.lane_quota)) | _of_whole_queue(queue)


def _of_whole_queue(queue: QueueState) -> dict[str, int]:
    usage = queue.usage
    return {} if usage is None else {_OF_QUEUE.get(name, name): limit for name, limit in _set_in(usage.quota)}


def _set_in(quota: msgspec.Struct | None) -> Iterator[tuple[str, int]]:
    fields = {} if quota is None else msgspec.structs.asdict(quota)
    return ((name, limit) for name, limit in fields.items() if limit)
