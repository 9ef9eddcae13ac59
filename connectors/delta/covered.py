"""The rows of an audit table, also after RESTORE or VACUUM: read when a state is restored."""

from __future__ import annotations

import contextlib
import itertools
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as f

from broker_state.store.generation import generation_of
from connectors.delta.history_start import deleted_epoch_max, first_ms_of
from connectors.delta.log.commits import commits_back_from, read_commit
from connectors.delta.log.table_log import read_table_log, require_table_log
from connectors.delta.log.transactions import known_versions, versions_by_epoch
from connectors.delta.pieces import rows_since
from connectors.delta.row_comparison import ROW_KEY, comparable_schema, compare_rows, described_row
from connectors.delta.spark_errors import require_undamaged
from connectors.delta.tables import (
    AUDIT_TABLES,
    CONSUME_QUEUE,
    DELIVERIES,
    REJECTED,
    table_path,
)
from popstream.wire.base_errors import Corrupt

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "Covered",
    "covered_offsets",
    "generation_used",
    "has_rows_of_others",
    "message_base_in_units",
    "quarantined",
    "unit_ends",
    "whole_versions",
]


def covered_offsets(spark: SparkSession, root: Path, ops_topic_id: str) -> dict[str, dict[int, int]]:
    """Return, by audit table and partition of an ops topic, the Kafka offset after the last one with a row.

    A commit holds all rows of whole micro-batches, so all rows below this offset are in the table.

    Raises:
        Corrupt: A file of a table is damaged or missing. All functions here that take a session raise this.
    """
    covered = {}
    for table in AUDIT_TABLES:
        with require_undamaged(table_path(root, table)):
            rows = _rows_of(spark, table_path(root, table), ops_topic_id)
            ends = rows.groupBy("partition").agg((f.max("kafka_offset") + 1).alias("end")).collect()
        covered[table] = {int(row["partition"]): int(row["end"]) for row in ends}
    return covered


def unit_ends(spark: SparkSession, root: Path) -> dict[tuple[str, int, str], int]:
    """Return, by topic, queue and topic id, the queue offset after the last unit in the table; empty: no table."""
    with _units(spark, root) as units:
        if units is None:
            return {}
        groups = units.groupBy("topic", "queue_id", "topic_id")
        ends = groups.agg((f.max("queue_offset") + 1).alias("end")).collect()
    return {(row["topic"], row["queue_id"], row["topic_id"]): int(row["end"]) for row in ends}


def message_base_in_units(
    spark: SparkSession, root: Path, topic: str, queue_id: int, topic_id: str, queue_offset: int
) -> int | None:
    """Return the message base at an offset of a queue by the units in the table; None: it has none of the queue.

    At an offset after the last unit it is the number of messages up to the end of that unit.
    """
    with _units(spark, root) as units:
        if units is None:
            return None
        of_queue = units.where(
            (f.col("topic") == topic) & (f.col("queue_id") == queue_id) & (f.col("topic_id") == topic_id)
        )
        found = of_queue.agg(
            f.min(f.when(f.col("queue_offset") >= queue_offset, f.col("message_base"))).alias("at_offset"),
            f.max(f.col("message_base") + f.col("inner_count")).alias("at_end"),
        ).first()
    if found is None or found["at_end"] is None:
        return None
    return int(found["at_end"] if found["at_offset"] is None else found["at_offset"])


@contextlib.contextmanager
def _units(spark: SparkSession, root: Path) -> Iterator[DataFrame | None]:
    """Lend the table of units, and take a damage that is met meanwhile for its own; None: there is no table."""
    path = table_path(root, CONSUME_QUEUE.name)
    if read_table_log(path) is None:
        yield None
        return
    with require_undamaged(path):
        yield spark.read.format("delta").load(str(path))


def whole_versions(root: Path, table: str, pipeline: str) -> dict[str, int]:
    """Return the last apply_seq of each state epoch up to which the table has all rows.

    Delta's transaction versions say this, except after a RESTORE, when they still count the removed rows. A RESTORE to
    a timestamp does not say to which version: then nothing is known about the epochs before it.

    Raises:
        Corrupt: A RESTORE removed rows of an epoch that committed more rows afterwards: rows in between are missing.
    """
    path = table_path(root, table)
    at, known = known_versions(root, table, pipeline)
    whole: dict[str, int] = {}
    was_restored = False
    while (commit := read_commit(path, at)) is not None:
        if commit.operation == "RESTORE":
            was_restored = True
            back_to = -1 if commit.restored_version is None else commit.restored_version
            # Epochs follow each other: only the newest one before a RESTORE may have commits after it.
            taken = itertools.islice(commits_back_from(path, at - 1), at - 1 - back_to)
            if any(epoch in whole for one in taken for epoch in versions_by_epoch(one.txns, pipeline, table)):
                message = (
                    f"{table} was RESTOREd while a job wrote to it, and the job has written more rows since: remove"
                    f" them with `RESTORE TABLE delta.`{path}` TO VERSION AS OF {at}`, then run `popstream restore`"
                )
                raise Corrupt(message, subject=table)
            at = back_to
            continue
        for epoch, version in versions_by_epoch(commit.txns, pipeline, table).items():
            whole.setdefault(epoch, version)
        at -= 1
    # Delta deletes commit files that a checkpoint covers: for older epochs its transaction versions hold.
    return whole if was_restored else {**known, **whole}


def quarantined(spark: SparkSession, root: Path, ops_topic_id: str) -> list[tuple[int, int, str]]:
    """Return (partition, Kafka offset, reason) of quarantined records: a replay must not decide them either."""
    path = table_path(root, REJECTED.name)
    with require_undamaged(path):
        rows = _rows_of(spark, path, ops_topic_id).where(f.col("reason") == "QUARANTINED")
        found = rows.select("partition", "kafka_offset", "detail").collect()
    return [(row["partition"], row["kafka_offset"], row["detail"]) for row in found]


def generation_used(spark: SparkSession, root: Path) -> int:
    """Return the highest generation of any handle that was issued."""
    path = table_path(root, DELIVERIES.name)
    with require_undamaged(path):
        highest = spark.read.format("delta").load(str(path)).agg(f.max("epoch")).first()
    in_table = 0 if highest is None or highest[0] is None else highest[0]
    return generation_of(max(in_table, deleted_epoch_max(require_table_log(path).txns)))


def has_rows_of_others(spark: SparkSession, root: Path, ops_topic_id: str) -> bool:
    """Return whether an audit table has rows of another ops topic."""
    for table in AUDIT_TABLES:
        with require_undamaged(table_path(root, table)):
            rows = spark.read.format("delta").load(str(table_path(root, table)))
            if not rows.where(f.col("ops_topic_id") != ops_topic_id).limit(1).isEmpty():
                return True
    return False


class Covered:
    """Compares recomputed rows with those in a table.

    Args:
        spark: The session.
        root: Folder of the tables.
        table: Name of an audit table.
        ops_topic_id: Rows of other ops topics are ignored.
        ends: Kafka offset by partition, as `covered_offsets` returned it when the state was restored.
        compared_from: Kafka offset by partition, below which the table's rows come from lost operations.
    """

    def __init__(
        self,
        spark: SparkSession,
        root: Path,
        table: str,
        ops_topic_id: str,
        ends: Mapping[int, int],
        compared_from: Mapping[int, int] | None = None,
    ) -> None:
        self._spark = spark
        self._path = table_path(root, table)
        self._table = table
        self._ops_topic_id = ops_topic_id
        self._ends = {partition: end for partition, end in ends.items() if end > 0}
        self._compared_from = dict(compared_from or {})
        self.verified_rows = 0

    def split(self, rows: pa.Table) -> tuple[pa.Table, pa.Table]:
        """Return (rows that the table must contain, new rows).

        In neither are rows below `compared_from`, and those of dates that retention has deleted.
        """
        if not self._ends:
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
        return _rows_of(self._spark, self._path, self._ops_topic_id).where(within)


def _below(ends: Mapping[int, int], places: Iterable[tuple[int, int]]) -> pa.Array:
    return pa.array([offset < ends.get(partition, 0) for partition, offset in places], pa.bool_())


def _rows_of(spark: SparkSession, path: Path, ops_topic_id: str) -> DataFrame:
    return spark.read.format("delta").load(str(path)).where(f.col("ops_topic_id") == ops_topic_id)
