"""Quotas: how many pops, parked pops, new lanes and resets the policies of a queue and its lanes allow.

They bound what one client or group can cost the others. Counts are of the second or minute of the queue's clock in
which the record was appended, so that a replay refuses the same operations. A refused operation is not counted.
docs/semantics.md, "Quotas".
"""

from broker_state.kernel.context.op_context import OpContext
from broker_state.kernel.context.queue_state import LaneState, QueueState
from broker_state.store.pages import client_hash
from broker_state.store.state_records import QUOTA_CLIENTS_MAX, LaneQuota, LaneUsage, QueueQuota, QueueUsage
from popstream.wire.command import Policy

__all__ = ["count_new_lane", "count_pop", "count_reset", "exceeded_by_parking", "set_lane_quota", "set_queue_quota"]

PARKED_LOOKED_AT_MAX = 1_024
"""The newest parked pops of a lane among which those of one client are counted."""

_NO_LANE_QUOTA = LaneQuota()


def set_queue_quota(queue: QueueState, command: Policy) -> None:
    """Set the quotas of a queue, and those of its lanes without a policy of their own."""
    quota = QueueQuota(
        command.queue_pops_per_s_max,
        command.queue_parked_max,
        command.new_lanes_per_min_max,
        command.resets_per_min_max,
    )
    lane_quota = _lane_quota(command)
    before = queue.usage
    if quota == QueueQuota() and lane_quota == _NO_LANE_QUOTA:
        if before is not None:
            queue.overlay.delete(queue.usage_key)
        return
    if before is None:
        # A lane with parked pops is among those that wait for messages.
        before = QueueUsage(quota, lane_quota, parked=sum(lane.record.parked for lane in queue.watched_lanes()))
    before.quota, before.lane_quota = quota, lane_quota
    queue.overlay.put(queue.usage_key, before)


def set_lane_quota(lane: LaneState, command: Policy) -> None:
    """Set the quotas of a lane. Its own policy replaces those of the queue's policy, also by none."""
    overlay, usage = lane.queue.overlay, lane.usage
    quota = _lane_quota(command)
    if quota == _NO_LANE_QUOTA:
        if usage is not None:
            overlay.delete(lane.usage_key)
        return
    if usage is None:
        usage = LaneUsage(quota)
    usage.quota = quota
    overlay.put(lane.usage_key, usage)


def count_pop(op: OpContext, lane: LaneState, client_id: str | None) -> str | None:
    """Count a pop, unless it exceeds a quota; then return which one."""
    of_queue, of_lane = op.queue.usage, _quota_of(lane)
    if of_queue is None and of_lane is None:
        return None
    second, overlay = op.now_ms // 1000, op.queue.overlay
    queue_pops = of_queue.pops if of_queue is not None and of_queue.second == second else 0
    if of_queue is not None and _is_reached(of_queue.quota.pops_per_s_max, queue_pops):
        return f"queue_pops_per_s_max is {of_queue.quota.pops_per_s_max}"
    if of_lane is not None:
        usage = lane.usage or LaneUsage(None)
        is_same_second = usage.second == second
        pops, clients = (usage.pops, usage.clients) if is_same_second else (0, {})
        client = client_hash(client_id) if client_id is not None else 0
        if client not in clients and len(clients) >= QUOTA_CLIENTS_MAX:
            client = 0
        if _is_reached(of_lane.pops_per_s_max, pops):
            return f"pops_per_s_max is {of_lane.pops_per_s_max}"
        if _is_reached(of_lane.client_pops_per_s_max, clients.get(client, 0)):
            return f"client_pops_per_s_max is {of_lane.client_pops_per_s_max}"
        usage.second, usage.pops = second, pops + 1
        usage.clients = {**clients, client: clients.get(client, 0) + 1} if of_lane.client_pops_per_s_max else {}
        overlay.put(lane.usage_key, usage)
    if of_queue is not None:
        of_queue.second, of_queue.pops = second, queue_pops + 1
        overlay.put(op.queue.usage_key, of_queue)
    return None


def exceeded_by_parking(lane: LaneState, client_id: str | None) -> str | None:
    """Return the quota that another parked pop of the client would exceed, if there is one."""
    of_queue, of_lane = lane.queue.usage, _quota_of(lane)
    if of_queue is not None and _is_reached(of_queue.quota.parked_max, of_queue.parked):
        return f"queue_parked_max is {of_queue.quota.parked_max}"
    if of_lane is not None and of_lane.client_parked_max and client_id is not None:
        parked = lane.count_newest_parked(client_id, looked_at=PARKED_LOOKED_AT_MAX)
        if parked >= of_lane.client_parked_max:
            return f"client_parked_max is {of_lane.client_parked_max}"
    return None


def count_new_lane(op: OpContext) -> str | None:
    """Count a lane that is to be made, unless it exceeds a quota; then return which one."""
    usage = op.queue.usage
    if usage is None:
        return None
    _begin_minute(usage, op.now_ms)
    if _is_reached(usage.quota.new_lanes_per_min_max, usage.new_lanes):
        return f"new_lanes_per_min_max is {usage.quota.new_lanes_per_min_max}"
    usage.new_lanes += 1
    op.queue.overlay.put(op.queue.usage_key, usage)
    return None


def count_reset(op: OpContext) -> str | None:
    """Count a reset_offset, forget_lane or declare of another topic, unless it exceeds a quota; then return which."""
    usage = op.queue.usage
    if usage is None:
        return None
    _begin_minute(usage, op.now_ms)
    if _is_reached(usage.quota.resets_per_min_max, usage.resets):
        return f"resets_per_min_max is {usage.quota.resets_per_min_max}"
    usage.resets += 1
    op.queue.overlay.put(op.queue.usage_key, usage)
    return None


def _lane_quota(command: Policy) -> LaneQuota:
    return LaneQuota(command.pops_per_s_max, command.client_pops_per_s_max, command.client_parked_max)


def _quota_of(lane: LaneState) -> LaneQuota | None:
    """Return the quotas that hold for a lane; None: there are none."""
    if lane.record.policy is not None:
        usage = lane.usage
        return None if usage is None else usage.quota
    of_queue = lane.queue.usage
    return None if of_queue is None or of_queue.lane_quota == _NO_LANE_QUOTA else of_queue.lane_quota


def _begin_minute(usage: QueueUsage, now_ms: int) -> None:
    minute = now_ms // 60_000
    if usage.minute != minute:
        usage.minute, usage.new_lanes, usage.resets = minute, 0, 0


def _is_reached(limit: int, count: int) -> bool:
    return 0 < limit <= count
