"""Quotas: how many pops, parked pops, new lanes and resets the policies of a queue and its lanes allow.

They bound what one client or group can cost the others. Counts are of the second or minute of the queue's clock in
which the record was appended, so that a replay refuses the same operations. Each quota is checked before anything
changes, and what a quota refuses counts for none. docs/semantics.md, "Quotas".
"""

from typing import Final

from broker_state.kernel.context.lane_state import LaneState
from broker_state.kernel.context.op_context import OpContext
from broker_state.kernel.context.queue_state import QueueState
from broker_state.store.facts import client_hash
from broker_state.store.state_records import QUOTA_CLIENTS_MAX, LaneQuota, LaneUsage, QueueQuota, QueueUsage
from popstream.wire.command import Policy
from popstream.wire.reason import Reason

__all__ = [
    "count_new_lane",
    "count_pop",
    "count_reset",
    "exceeded_by_new_lane",
    "exceeded_by_parking",
    "exceeded_by_pop",
    "exceeded_by_reset",
    "is_refused",
    "set_lane_quota",
    "set_queue_quota",
]

PARKED_LOOKED_AT_MAX = 1_024
"""The newest parked pops of a lane among which those of one client are counted."""

_NO_LANE_QUOTA: Final = LaneQuota()
_NO_CLIENT: Final = 0


def set_queue_quota(queue: QueueState, command: Policy) -> None:
    """Set the quotas of a queue, and those of its lanes without a policy of their own."""
    quota = QueueQuota(
        command.queue_pops_per_s_max,
        command.queue_parked_max,
        command.new_lanes_per_min_max,
        command.resets_per_min_max,
    )
    lane_quota = _lane_quota(command)
    usage = queue.usage
    if quota == QueueQuota() and lane_quota == _NO_LANE_QUOTA:
        if usage is not None:
            queue.overlay.delete(queue.usage_key)
        return
    if usage is None:
        usage = QueueUsage(quota, lane_quota)
    usage.quota, usage.lane_quota = quota, lane_quota
    queue.overlay.put(queue.usage_key, usage)


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


def is_refused(op: OpContext, exceeded: str | None, group: str) -> bool:
    """Refuse the operation if it exceeds a quota, and return whether it does."""
    if exceeded is None:
        return False
    op.refuse(Reason.QUOTA_EXCEEDED, exceeded, group)
    return True


def exceeded_by_new_lane(op: OpContext) -> str | None:
    """Return the quota that another new lane would exceed, if there is one."""
    usage = op.queue.usage
    if usage is None or usage.minute != _minute(op):
        return None
    return _exceeded("new_lanes_per_min_max", usage.quota.new_lanes_per_min_max, usage.new_lanes)


def exceeded_by_reset(op: OpContext) -> str | None:
    """Return the quota that another reset_offset or forget_lane would exceed, if there is one."""
    usage = op.queue.usage
    if usage is None or usage.minute != _minute(op):
        return None
    return _exceeded("resets_per_min_max", usage.quota.resets_per_min_max, usage.resets)


def exceeded_by_pop(op: OpContext, lane: LaneState | None, client_id: str | None) -> str | None:
    """Return the quota that another pop of the client would exceed, if there is one; without a lane it makes one."""
    of_queue = op.queue.usage
    if of_queue is None and (lane is None or lane.record.policy is None):
        return None
    exceeded = exceeded_by_new_lane(op) if lane is None else None
    if exceeded is None and of_queue is not None and of_queue.second == _second(op):
        exceeded = _exceeded("queue_pops_per_s_max", of_queue.quota.pops_per_s_max, of_queue.pops)
    if exceeded is not None or lane is None:
        return exceeded
    of_lane = _quota_of(lane)
    usage = None if of_lane is None else lane.usage
    if of_lane is None or usage is None or usage.second != _second(op):
        return None
    of_client = usage.clients.get(_counted_client(usage, client_id), 0)
    return _exceeded("pops_per_s_max", of_lane.pops_per_s_max, usage.pops) or _exceeded(
        "client_pops_per_s_max", of_lane.client_pops_per_s_max, of_client
    )


def exceeded_by_parking(lane: LaneState, client_id: str | None) -> str | None:
    """Return the quota that another parked pop of the client would exceed, if there is one."""
    of_queue, of_lane = lane.queue.usage, _quota_of(lane)
    exceeded = None
    if of_queue is not None:
        exceeded = _exceeded("queue_parked_max", of_queue.quota.parked_max, lane.queue.record.parked)
    if exceeded is None and of_lane is not None and of_lane.client_parked_max and client_id is not None:
        parked = lane.count_newest_parked(client_id, looked_at=PARKED_LOOKED_AT_MAX)
        exceeded = _exceeded("client_parked_max", of_lane.client_parked_max, parked)
    return exceeded


def count_pop(op: OpContext, lane: LaneState, client_id: str | None) -> None:
    """Count a pop that no quota refuses."""
    of_queue = op.queue.usage
    if of_queue is None and lane.record.policy is None:
        return
    overlay, second = op.queue.overlay, _second(op)
    of_lane = _quota_of(lane)
    if of_queue is not None:
        of_queue.pops = 1 + (of_queue.pops if of_queue.second == second else 0)
        of_queue.second = second
        overlay.put(op.queue.usage_key, of_queue)
    if of_lane is not None:
        usage = lane.usage or LaneUsage(None)
        if usage.second != second:
            usage.second, usage.pops, usage.clients = second, 0, {}
        usage.pops += 1
        client = _counted_client(usage, client_id)
        is_counted = of_lane.client_pops_per_s_max > 0
        usage.clients = {**usage.clients, client: usage.clients.get(client, 0) + 1} if is_counted else {}
        overlay.put(lane.usage_key, usage)


def count_new_lane(op: OpContext) -> None:
    """Count a lane that is made."""
    usage = _usage_of_this_minute(op)
    if usage is not None:
        usage.new_lanes += 1


def count_reset(op: OpContext) -> None:
    """Count a reset_offset or forget_lane."""
    usage = _usage_of_this_minute(op)
    if usage is not None:
        usage.resets += 1


def _usage_of_this_minute(op: OpContext) -> QueueUsage | None:
    usage = op.queue.usage
    if usage is not None:
        if usage.minute != _minute(op):
            usage.minute, usage.new_lanes, usage.resets = _minute(op), 0, 0
        op.queue.overlay.put(op.queue.usage_key, usage)
    return usage


def _lane_quota(command: Policy) -> LaneQuota:
    return LaneQuota(command.pops_per_s_max, command.client_pops_per_s_max, command.client_parked_max)


def _quota_of(lane: LaneState) -> LaneQuota | None:
    """Return the quotas that hold for a lane; None: there are none."""
    if lane.record.policy is not None:
        usage = lane.usage
        return None if usage is None else usage.quota
    of_queue = lane.queue.usage
    return None if of_queue is None or of_queue.lane_quota == _NO_LANE_QUOTA else of_queue.lane_quota


def _counted_client(usage: LaneUsage, client_id: str | None) -> int:
    """Return the key under which a client is counted: clients beyond the first 64 of a second share one."""
    client = _NO_CLIENT if client_id is None else client_hash(client_id)
    return client if client in usage.clients or len(usage.clients) < QUOTA_CLIENTS_MAX else _NO_CLIENT


def _exceeded(name: str, limit: int, count: int) -> str | None:
    return f"{name} is {limit}" if 0 < limit <= count else None


def _second(op: OpContext) -> int:
    return op.now_ms // 1_000


def _minute(op: OpContext) -> int:
    return op.now_ms // 60_000
