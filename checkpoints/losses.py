"""What is given up by going on with a state: nothing, or what its owner has to consent to.

```
present state, snapshot   its next records are not in the log      they are never decided
                          it had rows in Delta that are gone       they are never written again
empty state               a log that begins later, or is another   all that was decided before
```

A state that gives up nothing is continued without a question (`popstream restore`), any other with `--lossy`.
"""

from collections.abc import Mapping

import msgspec

from checkpoints.applied import Applied
from checkpoints.reconcile import LogFound, lost_ranges, lost_records, missing_rows, require_same_log
from checkpoints.replay import NO_REPLAY, Replay

__all__ = ["Continuable", "Losses", "losses_of"]


class Continuable(msgspec.Struct, frozen=True, kw_only=True):
    """What a state knows of itself; without `applied` it is empty.

    Attributes:
        applied: How far the log is decided.
        noted: By table, the apply_seq up to which it has seen its rows in Delta.
        replay: Of the restore that it came from.
    """

    applied: Applied | None = None
    noted: Mapping[str, int] = {}
    replay: Replay = NO_REPLAY

    def is_of_another(self, log: LogFound) -> bool:
        """Whether it has decided an earlier topic of the same name."""
        return self.applied is not None and self.applied.ops_topic_id != log.topic_id


class Losses(msgspec.Struct, frozen=True, kw_only=True):
    """One line for each loss.

    Attributes:
        records: What of the log is never decided; if there is any, the generation rises.
        rows: What the tables do not get again.
        offsets: How many offsets of this log they are: not decided, and gone.
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
    """What going on with `state` gives up.

    Args:
        state: A candidate.
        log: The ops topic.
        whole: By table, the last apply_seq of each state epoch up to which all its rows are there.
        was_more: Something was decided that this log does not lead to: it was another topic, or had lost records.

    Raises:
        Corrupt: No consent helps: the log has lost its end, or has other partitions.
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
        f"{name} has lost rows that it counts on: they end at apply_seq {last}, not {seq}"
        for name, last, seq in missing_rows(state.applied, state.noted, state.replay, whole)
    ]
    return Losses(records=records, rows=rows, offsets=offsets)


def _gone(next_offset: Mapping[int, int], log: LogFound) -> int:
    return sum(end - first for _, first, end in lost_ranges(next_offset, log))
