"""The policies by which the kernel decides about lanes."""

from collections.abc import Iterator

from broker_state.kernel.context.lane_state import LaneState
from broker_state.kernel.context.queue_state import QueueState
from broker_state.store.state_records import LaneQuota
from popstream.wire.command import Policy

__all__ = ["lanes_of", "policy_of"]


def lanes_of(queue: QueueState) -> Iterator[LaneState]:
    """Yield the lanes of a queue."""
    for number in range(1, queue.record.next_lane_no):
        lane = queue.lane_by_no(number)
        if lane is not None and lane.record.lane_no == number:  # else an era of one
            yield lane


def policy_of(lane: LaneState) -> Policy:
    """Return a policy of the lane's own that changes nothing: where it has none, that of its queue and its pops."""
    retries, limits = lane.policy, lane.limits
    if lane.record.policy is not None:
        quota = None if lane.usage is None else lane.usage.quota
    else:
        quota = None if lane.queue.usage is None else lane.queue.usage.lane_quota
    quota = quota or LaneQuota()
    return Policy(
        v=1,
        topic=lane.queue.topic,
        queue_id=lane.queue.queue_id,
        group=lane.record.group,
        max_attempts=retries.max_attempts,
        back_off_ms=list(retries.back_off_ms),
        parked_max=limits.parked_max,
        in_flight_max=limits.in_flight_max,
        pops_per_s_max=quota.pops_per_s_max,
        client_pops_per_s_max=quota.client_pops_per_s_max,
        client_parked_max=quota.client_parked_max,
    )
