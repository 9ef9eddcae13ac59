"""Which records of the ops log are decided once more, and from which state on."""

from collections.abc import Mapping, Sequence

import msgspec

from checkpoints.reconcile import LogFound, lost_records
from checkpoints.snapshot_store import Snapshot
from pipelines.tuning.share import PartitionRange
from popstream.wire.base_errors import Invalid

__all__ = ["PARTITION_RECORDS_MAX", "LogRange", "find_range"]

PARTITION_RECORDS_MAX = 1_000_000
"""Records of a partition in a range: they are kept in memory, in about 1 kB each, by each process."""


class LogRange(msgspec.Struct, frozen=True, kw_only=True):
    """A range of the ops log.

    Attributes:
        base: The snapshot to begin with; None: an empty state.
        partitions: Those with records in the range.
    """

    base: Snapshot | None
    partitions: list[PartitionRange]


def find_range(
    log: LogFound, snapshots: Sequence[Snapshot], begin: Mapping[int, int] | None, end: Mapping[int, int]
) -> LogRange:
    """Return a range, after the newest state that precedes it and from which the log is complete.

    Args:
        log: The ops topic.
        snapshots: The snapshots, newest first.
        begin: Offsets by partition; None: as early as can be.
        end: Offsets by partition.

    Raises:
        Invalid: There is no such state, no record in the range, or too many.
    """
    whole = [each for each in snapshots if each.applied.ops_topic_id == log.topic_id]
    whole = [each for each in whole if not lost_records(each.applied.next_offset, log)]
    empty = dict.fromkeys(log.end_offset, 0)
    reaches_back = not lost_records(empty, log)
    base: Snapshot | None = None
    if begin is None:
        base = None if reaches_back or not whole else whole[-1]
        begin = empty if base is None else {**empty, **base.applied.next_offset}
    else:
        before = [each for each in whole if all(at <= begin.get(p, 0) for p, at in each.applied.next_offset.items())]
        base = before[0] if before else None
    if base is None and not reaches_back:
        raise _too_early(log, whole)
    first = empty if base is None else {**empty, **base.applied.next_offset}
    partitions = [
        PartitionRange(partition, first[partition], max(begin[partition], first[partition]), end[partition])
        for partition in sorted(log.end_offset)
        if max(begin[partition], first[partition]) < end[partition]
    ]
    if not partitions:
        message = f"{log.topic} has no record in this range"
        raise Invalid(message, subject=log.topic)
    longest = max(each.end - each.begin for each in partitions)
    if longest > PARTITION_RECORDS_MAX:
        message = (
            f"a partition of {log.topic} has {longest:,} records in this range, of which at most"
            f" {PARTITION_RECORDS_MAX:,} can be replayed: name a shorter range with --from and --until"
        )
        raise Invalid(message, subject=log.topic)
    return LogRange(base=base, partitions=partitions)


def _too_early(log: LogFound, whole: Sequence[Snapshot]) -> Invalid:
    if whole:
        known = f"the earliest begins after snapshot {whole[-1].id}: name a later time with --from"
    else:
        known = "no snapshot is recent enough either; run `popstream snapshot` now, to replay what comes from there on"
    message = f"{log.topic} has lost records that this range needs: {known}"
    return Invalid(message, subject=log.topic)
