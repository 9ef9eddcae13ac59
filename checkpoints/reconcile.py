"""Compares state, log and tables at a start, before anything is decided.

```
RocksDB  applied   how far the log is decided               the reference
         noted     how far its rows are in Delta
Kafka    log       topic id, first and last offsets         must continue the state
Delta    tables    the last apply_seq of each state epoch   between noted and applied
```

Spark's checkpoint is not compared: each start creates a new one at the state's own offsets (ADR 4), so a lost, damaged,
older or newer one makes no difference. A start repairs differences silently if deciding or publishing again suffices,
and refuses all others with the command that repairs them. docs/testing.md, "Divergences", lists them.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from checkpoints.applied import Applied
from checkpoints.replay import NO_REPLAY, Replay
from popstream.wire.base_errors import RESTORE, Corrupt

__all__ = [
    "RESTORE_LOSSY",
    "LogFound",
    "MissingRows",
    "TableFound",
    "lost_end",
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
    """The ops topic in Kafka. Offsets are by partition; `end_offset` is the offset after the last record."""

    topic: str
    topic_id: str
    first_offset: Mapping[int, int]
    end_offset: Mapping[int, int]


class TableFound(msgspec.Struct, frozen=True, kw_only=True):
    """An audit table.

    Attributes:
        name: Its name.
        delivered: The last apply_seq in Delta by state epoch.
        was_restored: It was RESTOREd.
        written_since: State epochs that have written rows after the restore that began the present one.
    """

    name: str
    delivered: Mapping[str, int]
    was_restored: bool = False
    written_since: Collection[str] = ()


class MissingRows(NamedTuple):
    """The rows of a state epoch that a table has lost: it ends at apply_seq `end`, and had them up to `required`."""

    epoch: str
    end: int
    required: int


def reconcile(
    applied: Applied | None,
    noted: Mapping[str, int],
    log: LogFound,
    tables: Iterable[TableFound],
    replay: Replay = NO_REPLAY,
) -> None:
    """Refuse differences that deciding and publishing again cannot repair.

    Args:
        applied: How far the state has decided the log; None: there is no state.
        noted: By table, the apply_seq up to which the state has seen its rows in Delta and deleted them.
        log: The ops topic.
        tables: The audit tables.
        replay: The record of the restore that the state comes from.

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
    """Return one line for each partition that has lost records from `next_offset` on.

    >>> log = LogFound(topic="t", topic_id="", first_offset={0: 8, 1: 0}, end_offset={0: 9, 1: 3})
    >>> lost_records({0: 5, 1: 3}, log)
    ['partition 0 starts at 8, but is decided only up to 5']
    """
    return [
        f"partition {partition} starts at {first}, but is decided only up to {decided}"
        for partition, decided, first in lost_ranges(next_offset, log)
    ]


def lost_ranges(next_offset: Mapping[int, int], log: LogFound) -> list[tuple[int, int, int]]:
    """Return the lost records from `next_offset` on, as (partition, first offset, end offset).

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
    """Refuse a log that cannot have led to the state.

    Raises:
        Corrupt: The topic was recreated, has more partitions, or lost its end.
    """
    before, now = (applied.ops_topic_id, len(applied.next_offset)), (log.topic_id, len(log.end_offset))
    require_same_topic(log.topic, before, now)
    require_end(log, applied.next_offset)


def missing_rows(
    applied: Applied, noted: Mapping[str, int], replay: Replay, found: Mapping[str, Mapping[str, int]]
) -> Iterator[tuple[str, list[MissingRows]]]:
    """Yield each table with missing rows, and for each state epoch of them where its rows end.

    A state requires the rows that it has seen in Delta, because its outbox no longer has them.

    Args:
        applied: Names the present state epoch.
        noted: By table, the apply_seq up to which the state has seen its own rows.
        replay: Holds the required apply_seq of earlier epochs.
        found: By table, the last apply_seq of each state epoch. Other tables are not checked.
    """
    for name, last in sorted(found.items()):
        required = dict(replay.whole.get(name, {}))
        if name in noted:
            required[applied.state_epoch] = noted[name]
        missing = [
            MissingRows(epoch, last.get(epoch, -1), seq) for epoch, seq in required.items() if last.get(epoch, -1) < seq
        ]
        if missing:
            yield name, missing


def lost_end(next_offset: Mapping[int, int], log: LogFound) -> list[str]:
    """Return one line for each partition that ends before `next_offset`.

    >>> log = LogFound(topic="t", topic_id="", first_offset={0: 0, 1: 0}, end_offset={0: 9, 1: 3})
    >>> lost_end({0: 9, 1: 4}, log)
    ['partition 1 ends at 3, but is decided up to 4']
    """
    return [
        f"partition {partition} ends at {end}, but is decided up to {decided}"
        for partition, decided in sorted(next_offset.items())
        if (end := log.end_offset.get(partition, 0)) < decided
    ]


def require_end(log: LogFound, next_offset: Mapping[int, int]) -> None:
    """Refuse a log that lost its end: new records would get offsets that are decided already.

    Raises:
        Corrupt: A partition ends before `next_offset`.
    """
    if lost := lost_end(next_offset, log):
        message = (
            f"{log.topic} has lost its end, and would give offsets that are decided to other records: stop the job,"
            " delete the topic, let `popstream up` make it again, and accept by `popstream restore --lossy` that what"
            " it lost is never decided"
        )
        raise Corrupt(message, subject=log.topic, details=lost)


def require_same_topic(name: str, before: tuple[str, int], now: tuple[str, int]) -> None:
    """Refuse an ops topic that is not the decided one.

    Args:
        name: Name of the topic.
        before: Topic id and number of partitions that the state has decided; 0: none yet.
        now: Topic id and number of partitions in Kafka.

    Raises:
        Corrupt: The topic was recreated, or has more partitions.
    """
    if now[0] != before[0]:
        message = (
            f"{name} was deleted and made again: this state does not continue its records."
            f" The old records can no longer be decided; {RESTORE_LOSSY}"
        )
        raise Corrupt(message, subject=name)
    if 0 < before[1] < now[1]:
        message = (
            f"{name} has {now[1]} partitions and had {before[1]}: keys of queues now map to other partitions, which"
            " would break their order. Partitions cannot be removed: start a job with another prefix and folder:"
            f" `popstream up --prefix NAME --folder FOLDER --ops-partitions {now[1]}`"
        )
        raise Corrupt(message, subject=name)


def _refuse_lost_state(log: LogFound, tables: Iterable[TableFound]) -> None:
    if known := [f"{table.name}: {epoch} up to {seq}" for table in tables for epoch, seq in table.delivered.items()]:
        message = f"there is no state, but the audit tables have decisions of {log.topic}: {RESTORE}"
        raise Corrupt(message, subject=log.topic, details=known)


def _refuse_other_tables(applied: Applied, tables: Iterable[TableFound]) -> None:
    epoch = applied.state_epoch
    ours = {*applied.epochs}
    restored, ahead, strange = [], [], []
    for table in tables:
        delivered = table.delivered.get(epoch, -1)
        strange += [f"{table.name}: {other}" for other in sorted(table.delivered.keys() - ours)]
        strange += [f"{table.name}: {other}, after the restore" for other in sorted({*table.written_since} & ours)]
        if table.was_restored:
            restored.append(table.name)
        if delivered > applied.apply_seq:
            ahead.append(f"{table.name} ends at {delivered}")
    if restored:
        message = (
            f"{', '.join(restored)} was RESTOREd: rows are missing that Delta still counts as written, and would"
            f" silently skip: {RESTORE}"
        )
        raise Corrupt(message, subject=restored[0])
    if strange:
        message = (
            "the audit tables have decisions of another state than this one: check the folder; if it is right, "
            f"{RESTORE}"
        )
        raise Corrupt(message, subject=epoch, details=strange)
    if ahead:
        message = f"Delta has rows of later decisions than the state, which ends at apply_seq {applied.apply_seq}"
        raise Corrupt(f"{message}: {RESTORE}", subject=epoch, details=ahead)


def _refuse_missing_rows(
    applied: Applied, noted: Mapping[str, int], replay: Replay, tables: Iterable[TableFound]
) -> None:
    missing = missing_rows(applied, noted, replay, {table.name: table.delivered for table in tables})
    if lines := [
        f"{name} ends at "
        + "; at ".join(f"{end}, and had rows up to {seq} of epoch {epoch}" for epoch, end, seq in ends)
        for name, ends in missing
    ]:
        message = f"Delta has lost commits whose rows are nowhere else: {RESTORE}"
        raise Corrupt(message, subject=applied.state_epoch, details=lines)
