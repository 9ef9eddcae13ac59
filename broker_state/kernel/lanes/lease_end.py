"""How leases end without an ack: release, back-off, attempt limit, dead letter (docs/semantics.md)."""

from typing import Final

from broker_state.audit import DeliveryStep, is_handler_cause
from broker_state.kernel.context.lane_state import LaneState
from broker_state.kernel.context.op_context import OpContext
from broker_state.store.facts import Delivery, DeliveryState
from broker_state.store.span import Span, append_span
from popstream.wire.command import ChangeEntry

__all__ = ["ack_range", "end_lease", "is_release", "release", "release_client", "wait_of_release_ms"]

_LEASED: Final = DeliveryState.LEASED
_PAGE_COST: Final = 3
_RUN_COST: Final = 3
"""What it costs to release leases of a page of 64 offsets, besides half of its runs, and each run of them."""


def is_release(entry: ChangeEntry) -> bool:
    """Whether the entry ends leases: they are not only changed."""
    return entry.release is not None or not entry.invisible_time_ms


def wait_of_release_ms(lane: LaneState, entry: ChangeEntry, attempt: int) -> int:
    """Return after what time the entry offers a message again whose delivery had this number.

    With "back_off" that is the back-off of the lane; the entry's own time counts where the lane has none.
    """
    policy = lane.policy if entry.release == "back_off" else None
    return policy.back_off_after_ms(attempt) if policy and policy.back_off_ms else entry.invisible_time_ms


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
    wait_ms: int | None = None,
    client_id: str | None = None,
) -> Delivery | None:
    """End the lease of [first, end) in a concurrent lane without an ack; return the delivery that the page gets.

    The message is offered again after `wait_ms`, if None after its back-off; at its attempt limit it goes to the
    dead-letter topic, and the function returns None. With `counted` False the delivery does not count as an attempt, as
    after `suspend`. `client_id` is who ends it, if that is a client.
    """
    record = lane.record
    policy = lane.policy
    count = end - first
    suspended = delivery.suspended or not counted
    record.leased -= count
    op.audit.step(lane, step, first, end, delivery, cause=cause, at_ms=at_ms, client_id=client_id)
    if not suspended and policy.max_attempts and delivery.attempt >= policy.max_attempts:
        ack_range(lane, first, end)
        record.dead_lettered += count
        op.audit.step(lane, DeliveryStep.DEAD_LETTERED, first, end, delivery, cause="attempt_limit", at_ms=at_ms)
        failed = cause if is_handler_cause(cause) else None
        op.dead_letter(lane, first, end, delivery, reason="attempt_limit", at_ms=at_ms, cause=failed)
        return None
    record.available += count
    if wait_ms is None:
        wait_ms = 0 if suspended else policy.back_off_after_ms(delivery.attempt)
    again_ms = at_ms + wait_ms
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
