"""What the tables have, also after RESTORE or VACUUM: asked when a state is restored or begins anew."""

from __future__ import annotations

import contextlib
import itertools
from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from broker_state.audit import RejectReason
from broker_state.store.generation import generation_of
from connectors.delta.history_start import deleted_epoch_max
from connectors.delta.log.commits import commits_back_from, read_commit
from connectors.delta.log.table_log import read_table_log, require_table_log
from connectors.delta.log.transactions import known_versions, versions_by_epoch
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
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "covered_offsets",
    "generation_used",
    "has_rows_of_others",
    "message_base_in_units",
    "quarantined",
    "rows_of_ops_topic",
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
            rows = rows_of_ops_topic(spark, table_path(root, table), ops_topic_id)
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
        rows = rows_of_ops_topic(spark, path, ops_topic_id).where(f.col("reason") == RejectReason.QUARANTINED.value)
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


def rows_of_ops_topic(spark: SparkSession, path: Path, ops_topic_id: str) -> DataFrame:
    """Return the rows of the audit table at `path` that come from an ops topic. Reads nothing yet."""
    return spark.read.format("delta").load(str(path)).where(f.col("ops_topic_id") == ops_topic_id)
