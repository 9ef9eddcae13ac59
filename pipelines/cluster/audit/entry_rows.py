"""The rows that entries of the audit topic stand for, with all columns of their table."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from connectors.delta.erased_values import RejectedHeads
from connectors.delta.rows import Slice, completed_rows
from connectors.delta.tables import AUDIT_TABLES, CONSUME_QUEUE, Table
from pipelines.cluster.audit.unit_entries import UNIT_TABLE, completed_units
from pipelines.decide_ops.entries import read_slice
from pipelines.decide_ops.entry import LogPlace

__all__ = ["EntryRows", "rows_from"]


class EntryRows(NamedTuple):
    """Completes the rows of entries. It travels to tasks."""

    state_epoch: str
    """Identity of the state that decided them."""
    ops_topic_id: str
    """Kafka's id of the ops topic."""
    rejected_heads: RejectedHeads
    """What is kept of the values in `rejected`."""

    def of(self, entries: Iterable[tuple[bytes, bytes, LogPlace | None]]) -> Iterator[tuple[Table, pa.Table]]:
        """Yield the rows of entries with their table, those of each table in their order.

        Args:
            entries: (key, value, the place from which on its rows are wanted; None: all) of each. They are in memory
                until the last one.

        Raises:
            Corrupt: An entry cannot be read.
        """
        slices = defaultdict[str, list[Slice]](list)
        for key, value, begin in entries:
            if value[0] == UNIT_TABLE:
                yield CONSUME_QUEUE, completed_units(key, value, self.state_epoch, begin)
                continue
            name, data = read_slice(value)
            if begin is None:
                slices[name].append((None, data))
                continue
            yield from self._completed(name, slices.pop(name, []))
            for table, rows in self._completed(name, [(None, data)]):
                yield table, rows_from(rows, begin)
        for name, waiting in slices.items():
            yield from self._completed(name, waiting)

    def _completed(self, name: str, slices: Iterable[Slice]) -> Iterator[tuple[Table, pa.Table]]:
        for rows in completed_rows(name, slices, self.state_epoch, self.ops_topic_id, self.rejected_heads):
            yield AUDIT_TABLES[name], rows


def rows_from(rows: pa.Table, begin: LogPlace) -> pa.Table:
    """Return the rows of a slice from a place on."""
    offsets, ordinals = rows["kafka_offset"], rows["ordinal"]
    is_of_later_record = pc.greater(offsets, begin.kafka_offset)
    is_later_row = pc.and_(pc.equal(offsets, begin.kafka_offset), pc.greater_equal(ordinals, begin.ordinal))
    return rows.filter(pc.or_(is_of_later_record, is_later_row))
