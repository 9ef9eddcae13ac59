"""An ack of neighbours in one page that share a delivery: the operation that comes most.

It is decided as `ack_change_reject` decides any entry, with the same functions for what changes; only the looking is
shorter. Whatever is not plainly good is left to the general way: nothing has changed by then.
"""

from broker_state.audit import OperationOutcome
from broker_state.kernel.context.op_context import OpContext
from broker_state.kernel.lanes.concurrent_lane import ack_run, judge
from broker_state.kernel.lanes.skip_catch_up import begin_on_lane, catch_up
from broker_state.store.pages import PAGE_SHIFT
from popstream.wire.answer import Run
from popstream.wire.command import Ack
from popstream.wire.handle import REVIVE_QUEUE_ID_ORDERLY, read_handle
from popstream.wire.reason import Reason

__all__ = ["decide_lone_ack"]


def decide_lone_ack(op: OpContext, command: Ack, offsets_max: int) -> bool:
    """Decide an ack with one handle, one entry and one range, if it is good; return whether it was decided.

    `offsets_max`: what a record may name.
    """
    entries, handles = command.entries, command.handles
    if len(entries) != 1 or len(handles) != 1 or op.record.forged:
        return False
    entry, ref, queue = entries[0], handles[0], op.queue
    if entry.handle or len(entry.offsets) != 1:
        return False
    first, last = entry.offsets[0]
    page_no = first >> PAGE_SHIFT
    if not queue.record.min_offset <= first <= last < queue.written.floor:
        return False
    if last >> PAGE_SHIFT != page_no or last - first >= offsets_max:
        return False
    lane = queue.lane(ref.group)
    if lane is None or lane.record.orderly or lane.has_lost_messages or lane.record.paused_until_ms:
        return False  # such a lane first ends or releases deliveries, which may be those of the ack
    handle = read_handle(ref.handle)
    if handle is None or not lane.gave_out(handle) or handle.revive_queue_id == REVIVE_QUEUE_ID_ORDERLY:
        return False
    page = lane.page(page_no)
    before = None if page is None else page.shared_by(first, last + 1)
    if page is None or before is None or judge(lane, entry, handle, before) is not Reason.OK:
        return False
    if queue.record.holes:  # in two calls, as for any entry: the second passes what the first may have left
        catch_up(op, lane)
    begin_on_lane(op, lane)
    ack_run(op, lane, entry, first, last + 1, before)
    page.replace(first, last + 1, None)
    lane.settle_acked(page, before)
    lane.acked.mark(first, last + 1)
    outcome = OperationOutcome(Reason.OK, 0, True, None, before.deadline_ms or None, None, before.attempt)
    op.audit.operation_ranges(ref.group, [(0, first, last)], outcome, handle_before=ref.handle, detail=entry.cause)
    run = Run(entry=0, first=first, last=last, code=0, reason=Reason.OK, applied=True)
    op.respond(Reason.OK, applied=True, runs=[run], handles=[], commit_offsets={ref.group: lane.acked.floor})
    return True
