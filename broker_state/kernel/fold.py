"""A micro-batch of records, folded over one overlay (docs/design.md: step 4, decide)."""

from collections.abc import Iterable

from broker_state.kernel.context.decision import Decision, OpRecord
from broker_state.kernel.context.queue_state import QueueState
from broker_state.kernel.decide import decide
from broker_state.store.overlay import Overlay

__all__ = ["fold"]


def fold(overlay: Overlay, records: Iterable[OpRecord], decision: Decision) -> set[QueueState]:
    """Decide `records` in order: change state in `overlay`, and add answers, rows and letters to `decision`.

    Returns the queues that were touched. The result does not depend on how the log was cut into micro-batches.
    """
    touched: set[QueueState] = set()
    for record in records:
        queue = decide(overlay, record, decision)
        if queue is not None:
            touched.add(queue)
    for queue in touched:
        queue.settle()
    overlay.encode_changed()
    return touched
