"""Step 2, order: decoded records in the order of the log, and the turns in which its partitions are decided."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby
from operator import itemgetter
from typing import NamedTuple

from broker_state.kernel.context.decision import OpRecord
from pipelines.decide_ops.decode import Rejected

__all__ = ["Ordered", "Turn", "TurnLength", "in_one_turn", "in_turns", "order"]

TURN_S = 0.05
"""How long a turn of the partitions takes, about: then the clock is looked at."""
TURN_RECORDS_MAX = 512
"""Records of one partition in a turn."""


class Ordered(NamedTuple):
    """Records that are not applied yet, each list by (partition, Kafka offset)."""

    operations: list[OpRecord]
    rejected: list[Rejected]


class Turn(NamedTuple):
    """Records that are decided before the clock is looked at, and the offset after the last one, by partition."""

    operations: list[OpRecord]
    rejected: list[Rejected]
    ends: dict[int, int]


class TurnLength:
    """How many records of a partition are decided before those of the next: as many as take about `TURN_S` in all.

    A thousand light operations, or one with ten thousand entries. Where a turn ends has no effect on decisions.

    >>> length = TurnLength(64)
    >>> length.took(0.004); length.records
    128
    >>> length.took(0.2); length.took(0.2); length.records
    32
    """

    __slots__ = ("records",)

    def __init__(self, records: int = 64) -> None:
        self.records = records

    def took(self, seconds: float) -> None:
        """Learn how long the last turn has taken."""
        if seconds > TURN_S:
            self.records = max(1, self.records // 2)
        elif seconds < TURN_S / 4:
            self.records = min(TURN_RECORDS_MAX, self.records * 2)


# Of either kind of record: its partition, and that with its Kafka offset.
_partition = itemgetter(0)
_place = itemgetter(0, 1)


def order(decoded: Iterable[OpRecord | Rejected], next_offset: Mapping[int, int]) -> Ordered:
    """Sort decoded records by (partition, Kafka offset), and drop those below `next_offset` of their partition.

    Args:
        decoded: In any order.
        next_offset: By partition, the offset up to which the log is applied; 0 for partitions that are missing.
    """
    applied_up_to = next_offset.get
    records = [record for record in decoded if record[1] >= applied_up_to(record[0], 0)]
    records.sort(key=_place)
    return _apart(records)


def in_turns(ordered: Ordered, length: TurnLength) -> Iterator[Turn]:
    """Yield the records in turns, in the order of each partition, and as far of one partition as of the others.

    Decided in this order, the records of a partition do not wait for all those of another one.

    Args:
        ordered: A micro-batch, or a slice of it.
        length: Records of one partition in a turn; looked at before each turn, so that it may change meanwhile.
    """
    operations, rejected = ordered
    records: list[OpRecord | Rejected] = [*operations, *rejected]
    if rejected:
        records.sort(key=_place)
    partitions = [list(each) for _, each in groupby(records, key=_partition)]
    begin, longest = 0, max(map(len, partitions), default=0)
    while begin < longest:
        end = begin + length.records
        shares = [share for partition in partitions if (share := partition[begin:end])]
        begin = end
        yield Turn(*_apart([*chain.from_iterable(shares)]), {share[-1][0]: share[-1][1] + 1 for share in shares})


def in_one_turn(ordered: Ordered) -> Turn:
    """Return all records as one turn, for a runner that need not look at the clock."""
    operations, rejected = ordered
    ends: dict[int, int] = {}
    records: Iterable[OpRecord | Rejected] = chain(operations, rejected)
    for record in records:
        ends[record.partition] = max(ends.get(record.partition, 0), record.kafka_offset + 1)
    return Turn(operations, rejected, ends)


def _apart(records: Sequence[OpRecord | Rejected]) -> Ordered:
    rejected = [record for record in records if isinstance(record, Rejected)]
    return Ordered([record for record in records if not isinstance(record, Rejected)], rejected)
