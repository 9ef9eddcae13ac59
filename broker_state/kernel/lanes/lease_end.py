"""How leases of a concurrent lane end without an ack: back-off, attempt limit, dead letter (docs/semantics.md)."""

from broker_state.audit import DeliveryStep
from broker_state.kernel.context.op_context import OpContext
from broker_state.kernel.context.queue_state import LaneState
from broker_state.store.facts import Delivery

__all__ = ["ack_range", "end_lease"]


def end_lease(
    op: OpContext,
    lane: LaneState,
    first: int,
    end: int,
    delivery: Delivery,
    *,
    step: DeliveryStep,
    cause: str,
    at_ms: int,
    counted: bool = True,
) -> Delivery | None:
    """End the lease of [first, end) without an ack; return the delivery that the caller puts into the page.

    The message is offered again, after its back-off; at its attempt limit it goes to the dead-letter topic, and the
    function returns None. With `counted` False the delivery does not count as an attempt, as after `suspend`.
    """
    record = lane.record
    policy = lane.policy
    count = end - first
    suspended = delivery.suspended or not counted
    record.leased -= count
    op.audit.step(lane.record, step, first, end, delivery, cause=cause, at_ms=at_ms)
    if not suspended and policy.max_attempts and delivery.attempt >= policy.max_attempts:
        ack_range(lane, first, end)
        record.dead_lettered += count
        op.audit.step(lane.record, DeliveryStep.DEAD_LETTERED, first, end, delivery, cause="attempt_limit", at_ms=at_ms)
        op.dead_letter(lane, first, end, delivery, reason="attempt_limit", at_ms=at_ms)
        return None
    record.available += count
    again_ms = 0
    if policy.back_off_ms and not suspended:
        again_ms = at_ms + policy.back_off_ms[min(delivery.attempt, len(policy.back_off_ms)) - 1]
        if again_ms <= op.now_ms:
            again_ms = 0
    return delivery.offered_again(suspended=suspended, back_off_until_ms=again_ms)


def ack_range(lane: LaneState, first: int, end: int) -> None:
    """Mark offsets that were handed out as done."""
    lane.acked.mark(first, end)
    lane.record.acked += end - first
