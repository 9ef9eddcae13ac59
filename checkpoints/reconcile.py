"""What a start finds in four places, compared before anything is decided: state, log, tables and their notes.

```
RocksDB  applied   up to here the log is decided            the truth
         noted     so much of it is in Delta for good
Kafka    log       topic id, first and last offsets         must continue the state
Delta    tables    the last apply_seq of each state epoch   between noted and applied
```

Spark's checkpoint is not among them: each start begins a new one at the state's own offsets (ADR 4), so one that is
lost, damaged, older or newer is the same case. What can be healed by deciding or publishing again is healed without a
word. What cannot is refused, with the command that heals it. Each row: docs/reliability.md, "Divergences".
"""

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from checkpoints.applied import Applied
from checkpoints.replay import NO_REPLAY, Replay
from popstream.wire.failures import RESTORE, Corrupt

__all__ = [
    "RESTORE_LOSSY",
    "LogFound",
    "TableFound",
    "lost_ranges",
    "lost_records",
    "missing_rows",
    "reconcile",
    "require_end",
    "require_same_log",
    "require_same_topic",
]

RESTORE_LOSSY = (
    "bring the log back, or accept that what it lost is never decided: stop the job and run `popstream restore --lossy`"
)


class LogFound(msgspec.Struct, frozen=True, kw_only=True):
    """The ops topic as Kafka has it; offsets are by partition, `end_offset` is the one after the last record."""

    topic: str
    topic_id: str
    first_offset: Mapping[int, int]
    end_offset: Mapping[int, int]


class TableFound(msgspec.Struct, frozen=True, kw_only=True):
    """An audit table: the last apply_seq that Delta knows of each state epoch, and whether rows were taken away."""

    name: str
    delivered: Mapping[str, int]
    was_restored: bool = False


def reconcile(
    applied: Applied | None,
    noted: Mapping[str, int],
    log: LogFound,
    tables: Iterable[TableFound],
    replay: Replay = NO_REPLAY,
) -> None:
    """Refuse what deciding and publishing again cannot heal.

    Args:
        applied: How far the state has decided the log; None: there is no state.
        noted: By table, the apply_seq up to which the state had seen its rows in Delta, before it forgot them.
        log: The ops topic.
        tables: The audit tables.
        replay: Of the restore that the state comes from.

    Raises:
        Corrupt: The state is lost or older than the tables, the log does not continue it, or tables lost rows.
    """
    tables = list(tables)
    if applied is None:
        _refuse_lost_state(log, tables)
    else:
        require_same_log(applied, log)
        _refuse_other_tables(applied, tables)
        _refuse_missing_rows(applied, noted, replay, tables)
    if lost := lost_records({} if applied is None else applied.next_offset, log):
        message = f"{log.topic} has lost records that are to be decided: {RESTORE_LOSSY}"
        raise Corrupt(message, subject=log.topic, details=lost)


def lost_records(next_offset: Mapping[int, int], log: LogFound) -> list[str]:
    """What a log does not have any more of the records from `next_offset` on: one line for each partition.

    >>> log = LogFound(topic="t", topic_id="", first_offset={0: 8, 1: 0}, end_offset={0: 9, 1: 3})
    >>> lost_records({0: 5, 1: 3}, log)
    ['partition 0 starts at 8, but is decided only up to 5']
    """
    return [
        f"partition {partition} starts at {first}, but is decided only up to {decided}"
        for partition, decided, first in lost_ranges(next_offset, log)
    ]


def lost_ranges(next_offset: Mapping[int, int], log: LogFound) -> list[tuple[int, int, int]]:
    """What a log does not have any more of the records from `next_offset` on, as (partition, first, end).

    >>> log = LogFound(topic="t", topic_id="", first_offset={0: 8, 1: 0}, end_offset={0: 9, 1: 3})
    >>> lost_ranges({0: 5, 1: 3}, log)
    [(0, 5, 8)]
    """
    return [
        (partition, decided, first)
        for partition, first in sorted(log.first_offset.items())
        if first > (decided := next_offset.get(partition, 0))
    ]


def require_same_log(applied: Applied, log: LogFound) -> None:
    """Refuse a log of which the state cannot be what was decided.

    Raises:
        Corrupt: It was made again, has more partitions, or lost its end.
    """
    before, now = (applied.ops_topic_id, len(applied.next_offset)), (log.topic_id, len(log.end_offset))
    require_same_topic(log.topic, before, now)
    require_end(log, applied.next_offset)


def missing_rows(
    applied: Applied, noted: Mapping[str, int], replay: Replay, found: Mapping[str, Mapping[str, int]]
) -> Iterator[tuple[str, int, int]]:
    """(table, its last apply_seq, the one counted on) of each state epoch whose rows have gone from a table.

    A state counts on the rows that it has seen in Delta, as it has them no more itself.

    Args:
        applied: Names the state epoch that noted.
        noted: By table, the apply_seq up to which it has seen its own rows.
        replay: Tells up to where those of the epochs before had been there.
        found: By table, the last apply_seq of each state epoch; a table that is not among them is not asked for.
    """
    for name, last in sorted(found.items()):
        counted_on = dict(replay.whole.get(name, {}))
        if name in noted:
            counted_on[applied.state_epoch] = noted[name]
        for epoch, seq in counted_on.items():
            if last.get(epoch, -1) < seq:
                yield name, last.get(epoch, -1), seq


def require_end(log: LogFound, next_offset: Mapping[int, int]) -> None:
    """Refuse a log whose end is gone: other records would come with offsets that are decided, and have rows, already.

    Raises:
        Corrupt: A partition ends before `next_offset`.
    """
    lost = [
        f"partition {partition} ends at {end}, but is decided up to {decided}"
        for partition, decided in sorted(next_offset.items())
        if (end := log.end_offset.get(partition, 0)) < decided
    ]
    if lost:
        message = (
            f"{log.topic} has lost its end, and would give offsets that are decided to other records: stop the job,"
            " delete the topic, let `popstream up` make it again, and accept by `popstream restore --lossy` that what"
            " it lost is never decided"
        )
        raise Corrupt(message, subject=log.topic, details=lost)


def require_same_topic(name: str, before: tuple[str, int], now: tuple[str, int]) -> None:
    """Refuse an ops topic that is not the one that was decided so far.

    Args:
        name: Of the topic.
        before: Its topic id, and how many partitions are decided; 0: none yet.
        now: Its topic id, and how many partitions it has.

    Raises:
        Corrupt: It was made again, or has more partitions.
    """
    if now[0] != before[0]:
        message = (
            f"{name} was deleted and made again: its records are not those that this state continues."
            f" Nothing of the old ones can be decided any more; {RESTORE_LOSSY}"
        )
        raise Corrupt(message, subject=name)
    if 0 < before[1] < now[1]:
        message = (
            f"{name} has {now[1]} partitions and had {before[1]}: keys of queues now lead to other partitions, which"
            " would break their order. A topic cannot lose partitions again: start a job with another prefix and"
            f" folder by `popstream up --prefix NAME --folder FOLDER --ops-partitions {now[1]}`"
        )
        raise Corrupt(message, subject=name)


def _refuse_lost_state(log: LogFound, tables: Iterable[TableFound]) -> None:
    if known := [f"{table.name}: {epoch} up to {seq}" for table in tables for epoch, seq in table.delivered.items()]:
        message = f"there is no state, but the audit tables have decisions of {log.topic}: {RESTORE}"
        raise Corrupt(message, subject=log.topic, details=known)


def _refuse_other_tables(applied: Applied, tables: Iterable[TableFound]) -> None:
    epoch = applied.state_epoch
    ours = {epoch, *applied.former_epochs}
    restored, ahead, strange = [], [], []
    for table in tables:
        delivered = table.delivered.get(epoch, -1)
        strange += [f"{table.name}: {other}" for other in sorted(table.delivered.keys() - ours)]
        if table.was_restored:
            restored.append(table.name)
        if delivered > applied.apply_seq:
            ahead.append(f"{table.name} ends at {delivered}")
    if restored:
        message = (
            f"{', '.join(restored)} was RESTOREd: rows are gone that Delta still counts as written, and it would skip"
            f" them in silence: {RESTORE}"
        )
        raise Corrupt(message, subject=restored[0])
    if strange:
        message = f"the audit tables have decisions of another state than this one: is the folder right? Else {RESTORE}"
        raise Corrupt(message, subject=epoch, details=strange)
    if ahead:
        message = f"Delta has rows of later decisions than the state, which ends at apply_seq {applied.apply_seq}"
        raise Corrupt(f"{message}: {RESTORE}", subject=epoch, details=ahead)


def _refuse_missing_rows(
    applied: Applied, noted: Mapping[str, int], replay: Replay, tables: Iterable[TableFound]
) -> None:
    missing = missing_rows(applied, noted, replay, {table.name: table.delivered for table in tables})
    if lines := [f"{name} ends at {last}, and had rows up to {seq}" for name, last, seq in missing]:
        message = f"Delta has lost commits whose rows are nowhere else: {RESTORE}"
        raise Corrupt(message, subject=applied.state_epoch, details=lines)
