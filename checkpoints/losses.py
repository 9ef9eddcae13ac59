"""The losses of continuing from a state: none, or losses that an operator must accept.

```
state                     situation                                loss
present state, snapshot   its next records are not in the log      they are never decided
                          Delta has lost rows of it                they are never written again
empty state               the log begins later, or is another one  everything that was decided before
```

`popstream restore` continues from a state without losses; one with losses needs `--lossy`.
"""

from collections.abc import Mapping

import msgspec

from checkpoints.applied import Applied
from checkpoints.reconcile import LogFound, lost_ranges, lost_records, missing_rows, require_same_log
from checkpoints.replay import NO_REPLAY, Replay

__all__ = ["Continuable", "Losses", "losses_of"]


class Continuable(msgspec.Struct, frozen=True, kw_only=True):
    """What a candidate state stores about itself.

    Attributes:
        applied: How far the log is decided; None: the state is empty.
        noted: By table, the apply_seq up to which it has seen its rows in Delta.
        replay: The record of the restore that it came from.
    """

    applied: Applied | None = None
    noted: Mapping[str, int] = {}
    replay: Replay = NO_REPLAY

    def is_of_another(self, log: LogFound) -> bool:
        """Return whether it has decided an earlier topic of the same name."""
        return self.applied is not None and self.applied.ops_topic_id != log.topic_id


class Losses(msgspec.Struct, frozen=True, kw_only=True):
    """The losses, one line each.

    Attributes:
        records: Records that are never decided. If there are any, the generation rises.
        rows: Rows that are never written again.
        offsets: Number of offsets of this log that are lost undecided.
    """

    records: list[str] = []
    rows: list[str] = []
    offsets: int = 0

    @property
    def lines(self) -> list[str]:
        """All of them."""
        return [*self.records, *self.rows]


def losses_of(
    state: Continuable, log: LogFound, whole: Mapping[str, Mapping[str, int]], *, was_more: bool = False
) -> Losses:
    """Return the losses of continuing from `state`.

    Args:
        state: A candidate.
        log: The ops topic.
        whole: By table, the last apply_seq of each state epoch up to which the table has all rows.
        was_more: Decisions were made that this log does not lead to: of another topic, or of records that it lost.

    Raises:
        Corrupt: The state cannot be continued even with losses: the log has lost its end, or has more partitions.
    """
    if state.applied is None:
        records = lost_records({}, log)
        if was_more:
            records.append(f"{log.topic} does not lead to what was decided before: its leases and positions are gone")
        return Losses(records=records, offsets=_gone({}, log))
    offsets = 0
    if state.is_of_another(log):
        records = [f"{log.topic} was deleted and made again: what had been in it is gone"]
    else:
        require_same_log(state.applied, log)
        records = lost_records(state.applied.next_offset, log)
        offsets = _gone(state.applied.next_offset, log)
    rows = [
        f"{name} has lost rows that it counts on: they end at apply_seq "
        + "; at ".join(f"{end}, not {required}, of epoch {epoch}" for epoch, end, required in missing)
        for name, missing in missing_rows(state.applied, state.noted, state.replay, whole)
    ]
    return Losses(records=records, rows=rows, offsets=offsets)


def _gone(next_offset: Mapping[int, int], log: LogFound) -> int:
    return sum(end - first for _, first, end in lost_ranges(next_offset, log))
