"""A shard processor whose worker ends whenever it decides a record with a certain op_id."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pipelines.cluster.decide.shard_processor import ShardProcessor
from pipelines.decide_ops import ops_decider

if TYPE_CHECKING:
    from collections.abc import Iterable

    from broker_state.kernel.context.decision import Decision, OpRecord
    from broker_state.kernel.context.queue_state import QueueState
    from broker_state.store.overlay import Overlay

__all__ = ["POISON", "DyingProcessor"]

POISON = "poison"

_fold = ops_decider.fold  # type: ignore[attr-defined]


def _fold_or_die(overlay: Overlay, records: Iterable[OpRecord], decision: Decision) -> set[QueueState]:
    records = list(records)
    if any(record.command.op_id == POISON for record in records):
        os._exit(9)
    touched: set[QueueState] = _fold(overlay, records, decision)
    return touched


class DyingProcessor(ShardProcessor):
    """Does so in the workers that it reaches."""

    def init(self, handle: object) -> None:
        ops_decider.__dict__["fold"] = _fold_or_die
        super().init(handle)  # type: ignore[arg-type]
