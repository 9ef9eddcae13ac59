"""The rows that an entry of the audit topic stands for, with all columns of their table."""

from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from connectors.delta.erased_values import RejectedHeads
from connectors.delta.rows import completed_rows
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

    def of(self, key: bytes, value: bytes, begin: LogPlace | None) -> tuple[Table, pa.Table]:
        """Return the table of an entry, and its rows from a place on (None: all).

        Raises:
            Corrupt: The entry cannot be read.
        """
        if value[0] == UNIT_TABLE:
            return CONSUME_QUEUE, completed_units(key, value, self.state_epoch, begin)
        name, data = read_slice(value)
        rows = completed_rows(name, data, None, self.state_epoch, self.ops_topic_id, self.rejected_heads)
        return AUDIT_TABLES[name], rows if begin is None else rows_from(rows, begin)


def rows_from(rows: pa.Table, begin: LogPlace) -> pa.Table:
    """Return the rows of a slice from a place on."""
    offsets, ordinals = rows["kafka_offset"], rows["ordinal"]
    is_of_later_record = pc.greater(offsets, begin.kafka_offset)
    is_later_row = pc.and_(pc.equal(offsets, begin.kafka_offset), pc.greater_equal(ordinals, begin.ordinal))
    return rows.filter(pc.or_(is_of_later_record, is_later_row))
