"""How leases of a concurrent lane end without an ack: release, back-off, attempt limit, dead letter.

docs/semantics.md has the rules.
"""

from broker_state.audit import DeliveryStep
from broker_state.kernel.context.op_context import OpContext
from broker_state.kernel.context.queue_state import LaneState
from broker_state.store.facts import Delivery, DeliveryState
from broker_state.store.span import Span, append_span

__all__ = ["ack_range", "end_lease", "release", "release_client"]

_LEASED = DeliveryState.LEASED
_PAGE_COST, _RUN_COST = 3, 3
"""What it costs to release leases of a page of 64 offsets, besides half of its runs, and each run of them."""


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


def release(
    op: OpContext,
    lane: LaneState,
    first: int,
    end: int,
    delivery: Delivery,
    cause: str,
    *,
    counted: bool = True,
) -> Delivery | None:
    """Release the lease of [first, end) now: see `end_lease`."""
    return end_lease(
        op,
        lane,
        first,
        end,
        delivery,
        step=DeliveryStep.RELEASED,
        cause=cause,
        at_ms=op.now_ms,
        counted=counted,
    )


def release_client(op: OpContext, lane: LaneState, client: int) -> tuple[list[Span], bool]:
    """Release the leases of a client, as many as one record may; return them, and whether these were all."""
    released: list[Span] = []
    page_no = lane.client_pages(client).first()
    while page_no is not None:
        if op.work_left <= 0:
            return released, False
        page = lane.page(page_no)
        assert page is not None, "a page in the tree of a client exists"
        changed: list[tuple[int, int, Delivery | None]] = []
        for first, end, delivery in page.runs:
            if delivery.client == client and delivery.state == _LEASED:
                changed.append((first, end, release(op, lane, first, end, delivery, "return_client")))
                append_span(released, first, end)
        op.work_left -= _PAGE_COST + (len(page.runs) >> 1) + _RUN_COST * len(changed)
        page.replace_each(changed)
        page.clients.remove(client)  # the next record does not look here again
        lane.discard_client_page(client, page_no)
        lane.settle(page)
        page_no = lane.client_pages(client).first(page_no + 1)
    return released, True
