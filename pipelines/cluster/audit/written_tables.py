"""Writes the rows of a micro-batch of the audit query to the tables: one commit for each table that gets some.

    tables in a folder of all nodes   entries ──> tasks: rows, Parquet files and their totals ──> a commit of the files
    other tables                      entries ──> tasks: rows ──> Spark: files and a commit of them, table by table

A task has the rows as Arrow, and writes them for a tenth of what that costs in Spark, which makes rows of its own of
them first (docs/scale.md). But Spark reaches every file system that Hadoop knows, and knows all that Delta asks of the
writer of a table, such as constraints that somebody has added to it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from connectors.delta.log.transactions import app_id
from connectors.delta.log.uncommitted_files import deleted_unless_committed
from connectors.delta.row_totals import RowTotal, Totals, appended_totals, sum_of, totals_by_day
from connectors.delta.session import join_pool
from connectors.delta.spark_append import More, SparkAppend
from connectors.delta.spark_schemas import spark_schema
from connectors.delta.store import require_appendable
from connectors.delta.tables import AUDIT_TABLES, CONSUME_QUEUE, Table, table_path
from pipelines.cluster.audit.entry_rows import EntryRows
from pipelines.cluster.audit.intact_table import require_intact
from pipelines.cluster.audit.table_locations import TableLocations
from pipelines.cluster.audit.unit_entries import UNIT_TABLE
from pipelines.cluster.audit.written_files import AuditOffset, Written, rows_of_entries, write_files
from pipelines.cluster.committed import micro_batches_in
from pipelines.decide_ops.entries import TABLE_NUMBERS
from pipelines.decide_ops.entry import EntryKind, LogPlace
from popstream.wire.base_errors import Corrupt, Invalid

__all__ = ["PIPELINE", "WrittenTables", "require_tables"]

PIPELINE = "cluster"
"""Of the transaction ids: their versions count micro-batches of the audit query."""

_HAS_ROWS = (bytes((EntryKind.AUDIT,)), bytes((EntryKind.UNITS,)))
_TABLES = {number: AUDIT_TABLES[name] for name, number in TABLE_NUMBERS.items()} | {UNIT_TABLE: CONSUME_QUEUE}

_AFTER_WRITES = "delta.autoOptimize."
"""Of the names of properties by which Delta's writer makes larger files."""


class WrittenTables:
    """The tables of a job, for the query that writes them.

    Args:
        spark: The session.
        locations: Where the tables are; they exist.
        rows: Makes the rows of entries.
        pool: Name of the query, whose jobs Spark runs beside those of others.
    """

    def __init__(self, spark: SparkSession, locations: TableLocations, rows: EntryRows, pool: str) -> None:
        self._spark = spark
        self._locations = locations
        self._rows = rows
        self._pool = pool
        self._seen: dict[str, int] = {}
        """The version of each table up to which its rows are known to be whole."""

    def append(
        self,
        entries: DataFrame,
        numbers: Iterable[int],
        partly: Mapping[AuditOffset, LogPlace],
        version: int,
        *,
        files_tasks: int | None = None,
    ) -> None:
        """Commit the rows of entries. A table that has those of this version is left as it is.

        Args:
            entries: partition, offset, key and value of entries; those of other kinds than rows and units are ignored.
            numbers: The numbers of the tables that get rows.
            partly: Of these entries the rows from a place on.
            version: Number of the micro-batch.
            files_tasks: Tasks that write files at most; None: one for each partition of `entries`.

        Raises:
            Unavailable: The place of the tables cannot be reached.
            Corrupt: The log of a table is damaged, or rows are missing since somebody has RESTOREd it.
            PySparkException: A task has failed.
            Py4JJavaError: Spark or Delta failed.
        """
        join_pool(self._spark, self._pool)
        tables = [_TABLES[number] for number in sorted(numbers)]
        slices = entries.where(f.substring("key", -1, 1).isin(*_HAS_ROWS)).select("partition", "offset", "key", "value")
        folder = self._locations.folder(self._spark)
        # A commit is some small jobs of Spark one after the other; those of several tables need not wait.
        with ThreadPoolExecutor(len(_TABLES), "audit-commit", lambda: join_pool(self._spark, self._pool)) as pool:
            begun = list(pool.map(partial(self._begun, version=version, folder=folder), tables))
            due = [each for each in begun if not each.commit.is_done]
            by_tasks = [each for each in due if folder is not None and _takes_files(each)]
            by_spark = [each for each in due if each not in by_tasks]
            commits = [
                pool.submit(self._append_by_spark, each, _of_tables(slices, [each]), partly) for each in by_spark
            ]
            if folder is not None and by_tasks:
                of_tasks = _of_tables(slices, by_tasks)
                of_tasks = of_tasks if files_tasks is None else of_tasks.coalesce(files_tasks)
                written = write_files(of_tasks, self._rows, partly, folder)
                commits += [
                    pool.submit(self._append_files, each, written[each.table.name], folder)
                    for each in by_tasks
                    if each.table.name in written
                ]
        for commit in commits:
            commit.result()

    def _begun(self, table: Table, version: int, folder: Path | None) -> "_Begun":
        commit = _begin(self._spark, self._locations, table, self._rows.state_epoch, version, folder)
        if commit.read_version != self._seen.get(table.name):
            _require_intact(self._spark, self._locations, table, commit)
            self._seen[table.name] = commit.read_version
        return _Begun(table, commit)

    def _append_files(self, begun: "_Begun", written: Sequence[Written], folder: Path) -> None:
        files = [file for each in written for file in each.files]
        path = table_path(folder, begun.table.name)
        with deleted_unless_committed(path, begun.commit.read_version, [file.path for file in files]):
            begun.commit.commit_files(files, self._totals(begun.table, (each.totals for each in written)))
        self._seen[begun.table.name] = begun.commit.committed

    def _append_by_spark(self, begun: "_Begun", slices: DataFrame, partly: Mapping[AuditOffset, LogPlace]) -> None:
        table = begun.table
        entry_rows = self._rows

        def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for _, found in rows_of_entries(entry_rows, batches, partly):
                yield from found.to_batches()

        def totals(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for _, found in rows_of_entries(entry_rows, batches, partly):
                by_day = totals_by_day(found, table.day)
                yield pa.RecordBatch.from_pylist([{"day": date, **total._asdict()} for date, total in by_day.items()])

        counted = slices.mapInArrow(totals, "day date, rows long, digest long").toArrow().to_pylist()
        begun.commit.commit_rows(
            slices.mapInArrow(rows, spark_schema(table)),
            self._totals(table, ({each.pop("day"): RowTotal(**each)} for each in counted)),
        )
        self._seen[table.name] = begun.commit.committed

    def _totals(self, table: Table, found: Iterable[Totals]) -> More:
        """Return what sets the totals of the rows that a commit adds."""
        epoch = self._rows.state_epoch
        app = app_id(PIPELINE, table.name, epoch)
        added = sum_of(found)
        return lambda last: appended_totals(epoch, added, last, is_first=last(app) is None)


def require_tables(spark: SparkSession, locations: TableLocations, state_epoch: str, audit_checkpoint: str) -> None:
    """Refuse tables that are not those which the checkpoint of the audit query has written.

    Args:
        spark: A session.
        locations: Where the tables are; they exist.
        state_epoch: Identity of the state.
        audit_checkpoint: Path or URL of the checkpoint.

    Raises:
        Corrupt: A table has rows of micro-batches that the checkpoint has not begun: those with the same numbers would
            be taken for repeated ones. Or rows are missing since somebody has RESTOREd it.
        Unavailable: The place cannot be reached.
        Py4JJavaError: Spark or Delta failed.
    """
    begun = max(micro_batches_in(spark, f"{audit_checkpoint}/offsets"), default=-1)
    folder = locations.folder(spark)

    def require(table: Table) -> None:
        commit = _begin(spark, locations, table, state_epoch, begun, folder)
        if commit.last_version is not None and commit.last_version > begun:
            message = (
                f"{table.name} has rows of micro-batch {commit.last_version}, and the checkpoint has begun none after"
                f" {begun}: it is an older copy. Put the newest one back, or begin a new checkpoint with tables of its"
                " own"
            )
            raise Corrupt(message, subject=table.name)
        _require_intact(spark, locations, table, commit)

    with ThreadPoolExecutor(len(_TABLES), "tables-known") as pool:
        list(pool.map(require, _TABLES.values()))


def _begin(
    spark: SparkSession,
    locations: TableLocations,
    table: Table,
    state_epoch: str,
    version: int,
    folder: Path | None,
) -> SparkAppend:
    return SparkAppend(
        spark,
        locations.of(table.name),
        app_id=app_id(PIPELINE, table.name, state_epoch),
        version=version,
        folder=None if folder is None else table_path(folder, table.name),
    )


def _require_intact(spark: SparkSession, locations: TableLocations, table: Table, commit: SparkAppend) -> None:
    if commit.last_version is not None:
        require_intact(spark, locations.of(table.name), table.name, commit.app_id, commit.read_version)


class _Begun(NamedTuple):
    """A table that gets rows, and the commit that adds them."""

    table: Table
    commit: SparkAppend


def _takes_files(begun: _Begun) -> bool:
    """Return whether files that tasks have written can be added: nobody asks for what only Delta's writer does."""
    log = begun.commit.log
    if any(name.startswith(_AFTER_WRITES) and value != "false" for name, value in log.properties.items()):
        return False
    try:
        require_appendable(begun.table.name, begun.table, log)
    except Invalid:
        return False
    return True


def _of_tables(slices: DataFrame, begun: Iterable[_Begun]) -> DataFrame:
    names = {each.table.name for each in begun}
    numbers = [bytes((number,)) for number, table in _TABLES.items() if table.name in names]
    return slices.where(f.substring("value", 1, 1).isin(*numbers))
