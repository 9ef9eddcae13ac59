"""Divides the queues of a table into ranges of neighbours with about as many rows each, for a file of each range.

Queues advance at their own pace: a file with all queues has offsets from those of the slowest to those of the fastest,
and no reader can leave it out. One with few queues is left out by look-ups of others, and has narrow offsets.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from connectors.delta.opened_file import OpenedFile
from connectors.delta.schemas import columns_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from connectors.delta.log.table_log import DataFile
    from connectors.delta.tables import Table

__all__ = ["QueueRanges"]

_QUEUE: Final = ("topic", "queue_id")

Queue = tuple[str | None, int | None]


class QueueRanges:
    """Ranges of queues, in order of topic and queue.

    Args:
        rows: By queue, its number of rows.
        count_max: Ranges at most; each has a queue at least.

    Attributes:
        count: The number of ranges.
    """

    def __init__(self, rows: Counter[Queue], count_max: int) -> None:
        shares: dict[Queue, int] = {}
        seen = 0
        for queue in sorted(rows, key=lambda each: (each[0] or "", each[1] or 0)):
            shares[queue] = seen * max(1, count_max) // rows.total()
            seen += rows[queue]
        numbers = {share: number for number, share in enumerate(sorted(set(shares.values())))}
        self._range_of = {queue: numbers[share] for queue, share in shares.items()}
        self.count = len(numbers)

    @classmethod
    def of(cls, path: Path, table: Table, files: Iterable[DataFile], count_max: int) -> QueueRanges:
        """Return ranges for the rows of some files of a table, which is in the folder `path`."""
        rows: Counter[Queue] = Counter()
        schema = columns_of(table, _QUEUE)
        for file in files:
            with OpenedFile.of(path, file) as opened:
                for part in opened.in_parts(schema, table.optional_columns):
                    for row in part.group_by([*_QUEUE]).aggregate([([], "count_all")]).to_pylist():
                        rows[row["topic"], row["queue_id"]] += row["count_all"]
        return cls(rows, count_max)

    def split(self, rows: pa.Table) -> Iterator[tuple[int, pa.Table]]:
        """Yield the rows of each range, in their order."""
        names = pc.binary_join_element_wise(rows["queue_id"].cast(pa.string()), rows["topic"], "/").combine_chunks()
        known = names.dictionary_encode()
        ranges = [self._range_of[_queue(name)] for name in known.dictionary.to_pylist()]
        of_row = pa.array(ranges, pa.int32()).take(known.indices)
        for number in sorted(set(ranges)):
            yield number, rows.filter(pc.equal(of_row, number))


def _queue(name: str) -> Queue:
    number, _, topic = name.partition("/")
    return topic, int(number)
