"""Which rows an audit table has, whatever was done to it: asked when a state is restored beside it."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as f

from broker_state.store.generation import generation_of
from connectors.delta.commits import commits_back_from, read_commit
from connectors.delta.table_log import read_table_log
from connectors.delta.tables import (
    AUDIT_TABLES,
    CONSUME_QUEUE,
    DELIVERIES,
    KEY_COLUMNS,
    REJECTED,
    arrow_schema,
    table_path,
)
from connectors.delta.transactions import known_versions, versions_by_epoch
from popstream.wire.failures import Corrupt

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "Covered",
    "covered_offsets",
    "generation_used",
    "has_rows_of_others",
    "quarantined",
    "unit_ends",
    "whole_versions",
]

NOT_COMPARED = ("apply_seq", "state_epoch", "op_date", "ops_topic_id")
"""What differs from run to run, what follows from another column, and what is the same in every row."""

_KEY = [name for name in KEY_COLUMNS if name not in NOT_COMPARED]


def covered_offsets(spark: SparkSession, root: Path, ops_topic_id: str) -> dict[str, dict[int, int]]:
    """By audit table and partition of an ops topic, the Kafka offset after the last one of which the table has a row.

    A commit has all rows of whole micro-batches, so whatever lies below is there, or never had a row.
    """
    covered = {}
    for table in AUDIT_TABLES:
        rows = _rows_of(spark, table_path(root, table), ops_topic_id)
        ends = rows.groupBy("partition").agg((f.max("kafka_offset") + 1).alias("end")).collect()
        covered[table] = {int(row["partition"]): int(row["end"]) for row in ends}
    return covered


def unit_ends(spark: SparkSession, root: Path) -> dict[tuple[str, int, str], int]:
    """By topic, queue and topic id, the offset after the last unit that the table has; empty when there is no table."""
    path = table_path(root, CONSUME_QUEUE.name)
    if read_table_log(path) is None:
        return {}
    groups = spark.read.format("delta").load(str(path)).groupBy("topic", "queue_id", "topic_id")
    ends = groups.agg((f.max("queue_offset") + 1).alias("end")).collect()
    return {(row["topic"], row["queue_id"], row["topic_id"]): int(row["end"]) for row in ends}


def whole_versions(root: Path, table: str, pipeline: str) -> dict[str, int]:
    """The last apply_seq of each state epoch up to which no row of it was taken away.

    That is what Delta says, but for a table that was RESTOREd: there it says what had been before. One to a timestamp
    does not say how far it went: of the epochs below it nothing is known.

    Raises:
        Corrupt: An epoch that a RESTORE took rows from has committed on top of it: there is a hole in its rows.
    """
    path = table_path(root, table)
    at, known = known_versions(root, table, pipeline)
    whole: dict[str, int] = {}
    was_restored = False
    while (commit := read_commit(path, at)) is not None:
        if commit.operation == "RESTORE":
            was_restored = True
            back_to = -1 if commit.restored_version is None else commit.restored_version
            # Epochs follow each other: the newest below a RESTORE is the only one that may be above it as well.
            taken = itertools.islice(commits_back_from(path, at - 1), at - 1 - back_to)
            if any(epoch in whole for one in taken for epoch in versions_by_epoch(one.txns, pipeline, table)):
                message = (
                    f"{table} was RESTOREd while a job wrote to it, whose next rows lie on top of the hole: take them"
                    f" off by `RESTORE TABLE delta.`{path}` TO VERSION AS OF {at}`, then run `popstream restore`"
                )
                raise Corrupt(message, subject=table)
            at = back_to
            continue
        for epoch, version in versions_by_epoch(commit.txns, pipeline, table).items():
            whole.setdefault(epoch, version)
        at -= 1
    # Delta removes what a checkpoint covers: what is older is what it says.
    return whole if was_restored else {**known, **whole}


def quarantined(spark: SparkSession, root: Path, ops_topic_id: str) -> list[tuple[int, int, str]]:
    """(partition, Kafka offset, why) of the records that were quarantined: a replay must not decide them either."""
    rows = _rows_of(spark, table_path(root, REJECTED.name), ops_topic_id).where(f.col("reason") == "QUARANTINED")
    found = rows.select("partition", "kafka_offset", "detail").collect()
    return [(row["partition"], row["kafka_offset"], row["detail"]) for row in found]


def generation_used(spark: SparkSession, root: Path) -> int:
    """The highest generation of which a handle was ever given out."""
    rows = spark.read.format("delta").load(str(table_path(root, DELIVERIES.name)))
    highest = rows.agg(f.max("epoch")).first()
    return 0 if highest is None or highest[0] is None else generation_of(highest[0])


def has_rows_of_others(spark: SparkSession, root: Path, ops_topic_id: str) -> bool:
    """Whether an audit table has rows of another ops topic."""
    frames = (spark.read.format("delta").load(str(table_path(root, table))) for table in AUDIT_TABLES)
    return any(not rows.where(f.col("ops_topic_id") != ops_topic_id).limit(1).isEmpty() for rows in frames)


class Covered:
    """Compares recomputed rows with those that a table has.

    Args:
        spark: The session.
        root: Folder of the tables.
        table: Name of an audit table.
        ops_topic_id: Rows of other ops topics are none of ours.
        ends: By partition, as `covered_offsets` gave them when the state was restored.
        compared_from: By partition, the Kafka offset below which the table's rows come from what has been lost.
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
        """(rows that the table must have just so, rows that are new); those of neither kind are left as they are."""
        if not self._ends:
            return rows.slice(0, 0), rows
        places = list(zip(rows["partition"].to_pylist(), rows["kafka_offset"].to_pylist(), strict=True))
        known = _below(self._ends, places)
        compared = pc.and_not(known, _below(self._compared_from, places))
        return rows.filter(compared), rows.filter(pc.invert(known))

    def verify(self, recomputed: pa.Table) -> None:
        """Check that the table has exactly these rows between the first and the last of them, in each partition.

        Raises:
            Corrupt: It has others.
        """
        wanted = _comparable(self._table, recomputed)
        found = _comparable(self._table, self._between(wanted).toArrow())
        if not wanted.equals(found):
            message = (
                f"{self._table} has other rows than its log leads to: either the table or the restored state is not"
                " what was written: stop the job and run `popstream verify`, or restore an older snapshot"
            )
            raise Corrupt(message, subject=self._table, details=_differences(wanted, found))
        self.verified_rows += wanted.num_rows

    def rows_from(self, first_offset: Mapping[int, int]) -> int:
        """How many rows that are to be compared the table has, of the records from `first_offset` on."""
        loose = self._compared_from
        spans = ((p, max(first_offset.get(p, 0), loose.get(p, 0)), end) for p, end in self._ends.items())
        return self._within(spans).count()

    def _between(self, rows: pa.Table) -> DataFrame:
        ends = rows.group_by("partition").aggregate([("kafka_offset", "min"), ("kafka_offset", "max")]).to_pylist()
        spans = ((end["partition"], end["kafka_offset_min"], end["kafka_offset_max"] + 1) for end in ends)
        return self._within(spans)

    def _within(self, spans: Iterable[tuple[int, int, int]]) -> DataFrame:
        """The rows whose cause is in one of (partition, first offset, end offset)."""
        within = f.lit(False)
        for partition, first, end in spans:
            within = within | ((f.col("partition") == partition) & f.col("kafka_offset").between(first, end - 1))
        return _rows_of(self._spark, self._path, self._ops_topic_id).where(within)


def _below(ends: Mapping[int, int], places: Iterable[tuple[int, int]]) -> pa.Array:
    return pa.array([offset < ends.get(partition, 0) for partition, offset in places], pa.bool_())


def _rows_of(spark: SparkSession, path: Path, ops_topic_id: str) -> DataFrame:
    return spark.read.format("delta").load(str(path)).where(f.col("ops_topic_id") == ops_topic_id)


def _comparable(table: str, rows: pa.Table) -> pa.Table:
    schema = arrow_schema(AUDIT_TABLES[table])
    names = [name for name in schema.names if name not in NOT_COMPARED]
    kept = rows.select(names).cast(pa.schema([schema.field(name) for name in names]))
    return kept.sort_by([(name, "ascending") for name in _KEY]).combine_chunks()


def _differences(wanted: pa.Table, found: pa.Table) -> list[str]:
    """The first few rows that are in one and not in the other."""
    by_key: dict[Any, list[Any]] = {}
    for place, rows in enumerate((wanted, found)):
        for row in rows.to_pylist():
            by_key.setdefault(tuple(row[name] for name in _KEY), [None, None])[place] = row
    odd = [(key, pair) for key, pair in sorted(by_key.items()) if pair[0] != pair[1]]
    shown = [f"(partition, offset, ordinal) {key}: log {pair[0]}, table {pair[1]}" for key, pair in odd[:3]]
    return [*shown, f"{len(odd)} rows in all"]
