"""The rows that a replay recomputes, beside those that the table has of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as f

from connectors.delta.history_start import first_ms_of
from connectors.delta.log.table_log import require_table_log
from connectors.delta.pieces import rows_since
from connectors.delta.restore_queries import rows_of_ops_topic
from connectors.delta.row_comparison import ROW_KEY, comparable_schema, compare_rows, described_row
from connectors.delta.spark_errors import require_undamaged
from connectors.delta.tables import AUDIT_TABLES, table_path
from popstream.wire.base_errors import Corrupt

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Covered"]


class Covered:
    """Compares recomputed rows with those in a table.

    Args:
        spark: The session.
        root: Folder of the tables.
        table: Name of an audit table.
        ops_topic_id: Rows of other ops topics are ignored.
        ends: Kafka offset by partition, as `covered_offsets` returned it when the state was restored; None: it was not.
        compared_from: Kafka offset by partition, below which the table's rows come from lost operations.
    """

    def __init__(
        self,
        spark: SparkSession,
        root: Path,
        table: str,
        ops_topic_id: str,
        ends: Mapping[int, int] | None,
        compared_from: Mapping[int, int] | None = None,
    ) -> None:
        self._spark = spark
        self._path = table_path(root, table)
        self._table = table
        self._ops_topic_id = ops_topic_id
        self._ends = ends
        self._compared_from = dict(compared_from or {})
        self.verified_rows = 0

    def split(self, rows: pa.Table) -> tuple[pa.Table, pa.Table]:
        """Return (rows that the table must contain, new rows).

        In neither are rows below `compared_from`, and those of dates that retention has deleted.
        """
        if self._ends is None:
            return rows.slice(0, 0), rows
        rows = self._of_kept_dates(rows)
        places = list(zip(rows["partition"].to_pylist(), rows["kafka_offset"].to_pylist(), strict=True))
        known = _below(self._ends, places)
        compared = pc.and_not(known, _below(self._compared_from, places))
        return rows.filter(compared), rows.filter(pc.invert(known))

    def verify(self, recomputed: pa.Table) -> None:
        """Check that the table has exactly these rows between the first and the last of them, in each partition.

        Raises:
            Corrupt: It has other rows, or a file of it is damaged.
        """
        schema = comparable_schema(AUDIT_TABLES[self._table])
        with require_undamaged(self._path):
            found = self._of_kept_dates(self._between(recomputed).toArrow().select(schema.names).cast(schema))
        wanted = self._of_kept_dates(recomputed.select(schema.names).cast(schema))
        compared = compare_rows(wanted, found, ROW_KEY, described_row)
        if not compared.is_equal:
            message = (
                f"{self._table} has other rows than its log leads to: the table or the restored state was changed:"
                " stop the job and run `popstream verify`, which says how to repair it"
            )
            raise Corrupt(message, subject=self._table, details=compared.lines(f"rows of {self._table}"))
        self.verified_rows += wanted.num_rows

    def _of_kept_dates(self, rows: pa.Table) -> pa.Table:
        # As it is now: retention goes on during a replay.
        return rows_since(rows, "now_ms", first_ms_of(require_table_log(self._path).txns))

    def _between(self, rows: pa.Table) -> DataFrame:
        ends = rows.group_by("partition").aggregate([("kafka_offset", "min"), ("kafka_offset", "max")]).to_pylist()
        spans = ((end["partition"], end["kafka_offset_min"], end["kafka_offset_max"] + 1) for end in ends)
        return self._within(spans)

    def _within(self, spans: Iterable[tuple[int, int, int]]) -> DataFrame:
        """Return the rows whose record is in one of the spans (partition, first offset, end offset)."""
        within = f.lit(False)
        for partition, first, end in spans:
            within = within | ((f.col("partition") == partition) & f.col("kafka_offset").between(first, end - 1))
        return rows_of_ops_topic(self._spark, self._path, self._ops_topic_id).where(within)


def _below(ends: Mapping[int, int], places: Iterable[tuple[int, int]]) -> pa.Array:
    return pa.array([offset < ends.get(partition, 0) for partition, offset in places], pa.bool_())
