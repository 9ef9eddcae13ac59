"""Read-only views of the policies in the stored state, for `popstream policy` and `popstream group policy`."""

from collections.abc import Iterator
from enum import StrEnum
from itertools import islice

import msgspec

from broker_state.kernel.context.queue_state import QueueState, load_queue
from broker_state.store.overlay import Overlay
from broker_state.store.rocks_store import RocksStore
from broker_state.store.state_records import LanePolicy
from pipelines.control.lane_views import quotas_of, quotas_of_queue, scan_queues

__all__ = ["Origin", "PolicyView", "policies_in"]


class Origin(StrEnum):
    """Whose rules hold."""

    GROUP = "group"
    QUEUE = "queue"
    CONSUMERS = "consumers"


class PolicyView(msgspec.Struct, frozen=True, kw_only=True):
    """The rules that hold in a lane, or (without `group`) those of a queue.

    Attributes:
        topic: Message topic.
        queue_id: Queue within it.
        group: The group of the lane; None: the rules of the queue.
        origin: `group`: a policy of its own; `queue`: that of the queue; `consumers`: that with the retries that pops
            declare.
        max_attempts: Deliveries of a message; 0: no limit, and of a queue what its consumers declare.
        back_off_ms: After the first, second, ... failed delivery; empty: none, and of a queue what consumers declare.
        parked_max: Pops that may wait.
        in_flight_max: Messages that may be leased; 0: no limit.
        window_max: Of a queue, the offsets between the first hole and the last one written.
        quotas: Those that are set, by their names in a `Policy`.
    """

    topic: str
    queue_id: int
    group: str | None
    origin: Origin
    max_attempts: int
    back_off_ms: list[int]
    parked_max: int
    in_flight_max: int
    window_max: int | None = None
    quotas: dict[str, int] = {}


def policies_in(
    store: RocksStore, topic: str | None, group: str | None, limit: int | None = None, skip: int = 0
) -> tuple[list[PolicyView], bool]:
    """Return the rules of each queue and of its lanes, by key, and whether the limit left some out.

    Args:
        store: The state.
        topic: Only queues of this topic.
        group: Only lanes of this group, and no queues.
        limit: Rules at most; None: all.
        skip: Rules before those.
    """
    found = list(islice(_every_policy(store, topic, group), skip, None if limit is None else skip + limit + 1))
    return found[:limit], limit is not None and len(found) > limit


def _every_policy(store: RocksStore, topic: str | None, group: str | None) -> Iterator[PolicyView]:
    frozen = Overlay(store.frozen())
    for stored in scan_queues(store):
        queue = load_queue(frozen, stored.topic, stored.queue_id) if topic in (None, stored.topic) else None
        if queue is not None:
            groups = sorted(lane.group for lane in stored.lanes if group in (None, lane.group))
            yield from _policies_of(queue, groups, with_queue=group is None)


def _policies_of(queue: QueueState, groups: list[str], *, with_queue: bool) -> Iterator[PolicyView]:
    record = queue.record
    if with_queue:
        quotas = quotas_of_queue(queue)
        yield _view(queue, None, Origin.QUEUE, record.policy, quotas, window_max=record.window_max)
    for group in groups:
        lane = queue.lane(group)
        if lane is not None:
            policy = lane.policy
            declared = Origin.QUEUE if policy == record.policy else Origin.CONSUMERS
            origin = declared if lane.record.policy is None else Origin.GROUP
            yield _view(queue, group, origin, policy, quotas_of(lane))


def _view(
    queue: QueueState,
    group: str | None,
    origin: Origin,
    policy: LanePolicy,
    quotas: dict[str, int],
    window_max: int | None = None,
) -> PolicyView:
    return PolicyView(
        topic=queue.topic,
        queue_id=queue.queue_id,
        group=group,
        origin=origin,
        max_attempts=policy.max_attempts,
        back_off_ms=list(policy.back_off_ms),
        parked_max=policy.parked_max,
        in_flight_max=policy.in_flight_max,
        window_max=window_max,
        quotas=quotas,
    )
