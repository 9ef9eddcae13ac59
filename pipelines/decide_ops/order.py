"""Step 1, order: records in the order of the log, and the turns in which its partitions are decided."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby
from operator import itemgetter

from pipelines.decide_ops.decode import KafkaRecord

__all__ = ["TurnLength", "in_turns", "order"]

TURN_S = 0.05
"""How long a turn of the partitions takes at most, about: then the clock is looked at."""
TURN_RECORDS_MAX = 256
"""Records in a turn: what is decoded of more has left the processor's caches when it is decided."""


class TurnLength:
    """How many records are decoded and decided before the clock is looked at: as many as take about `TURN_S` at most.

    256 light operations, or one with ten thousand entries. Where a turn ends has no effect on decisions.

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


_place = itemgetter(0, 1)  # partition and Kafka offset


def order(records: Iterable[KafkaRecord], next_offset: Mapping[int, int]) -> list[KafkaRecord]:
    """Sort records by (partition, Kafka offset), and drop those below `next_offset` of their partition.

    Args:
        records: In any order.
        next_offset: By partition, the offset up to which the log is applied; 0 for partitions that are missing.
    """
    applied_up_to = next_offset.get
    return sorted((record for record in records if record[1] >= applied_up_to(record[0], 0)), key=_place)


def in_turns(ordered: Sequence[KafkaRecord], length: TurnLength) -> Iterator[list[KafkaRecord]]:
    """Yield the records in turns, in the order of each partition, and as far of one partition as of the others.

    Decided in this order, the records of a partition do not wait for all those of another one.

    Args:
        ordered: By (partition, Kafka offset): a micro-batch, or a slice of it.
        length: Looked at before each turn, so that it may change meanwhile. A turn has at least one record of each
            partition.
    """
    partitions = [list(each) for _, each in groupby(ordered, key=itemgetter(0))]
    begin = 0
    while partitions := [partition for partition in partitions if len(partition) > begin]:
        end = begin + max(1, length.records // len(partitions))
        yield [*chain.from_iterable(partition[begin:end] for partition in partitions)]
        begin = end
