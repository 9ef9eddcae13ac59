"""Creates Delta tables, checks those that exist, and lets Spark write checkpoints of their logs."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import structlog
from delta.tables import DeltaTable
from pyspark.errors import PySparkException
from pyspark.sql.types import StructType

from connectors.delta.damage import how_to_repair
from connectors.delta.log.table_log import read_table_log, require_readable, require_table_log
from connectors.delta.spark_schemas import spark_schema
from connectors.delta.tables import Column, Table, table_path
from popstream.wire.base_errors import Corrupt, Invalid

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from pyspark.sql import SparkSession

    from connectors.delta.log.table_log import DataFiles, TableLog

__all__ = [
    "TABLE_CHECKPOINT_INTERVAL",
    "column_differences",
    "create_table",
    "ensure_table",
    "require_appendable",
    "require_columns",
    "require_rewritable",
    "types_of",
    "write_table_checkpoint",
]

TABLE_CHECKPOINT_INTERVAL: Final = 50
"""Commits after which a checkpoint of the log is due."""

_PROPERTIES: Final = {
    "delta.checkpointInterval": str(TABLE_CHECKPOINT_INTERVAL),
    "delta.logRetentionDuration": "interval 7 days",
}
_CHANGE_DATA_FEED: Final = {"delta.enableChangeDataFeed": "true"}
"""Readers follow a table by its changes. It costs a writer nothing that only adds and removes whole files."""
_FORGETS_TRANSACTIONS: Final = "delta.setTransactionRetentionDuration"
"""After this time Delta forgets a transaction, and accepts the same rows again (measured)."""

_WRITER_MAX: Final = 2
_WITH_FEATURES: Final = 7
_FEATURES: Final = {
    "appendOnly",
    "invariants",
    "changeDataFeed",
    "deletionVectors",
    "v2Checkpoint",
    "vacuumProtocolCheck",
}
"""Features of Delta tables with which an append is what it is without them."""

_log = structlog.get_logger(__name__)

_CHECKED_COLUMNS: Final = ("delta.invariants", "delta.generationExpression", "delta.identity")
_CONSTRAINT: Final = "delta.constraints."


def ensure_table(spark: SparkSession, root: Path, table: Table) -> None:
    """Create the table if it is missing; bring one that an older version made up to date.

    It gets the optional columns that it lacks, the comments of this version and the change data feed. The property that
    would let Delta accept rows twice is removed.

    Raises:
        Invalid: The table exists with other columns, or rows cannot be appended without Spark.
    """
    path = table_path(root, table.name)
    log = read_table_log(path)
    if log is None:
        create_table(spark, str(path), table)
        return
    require_columns(path, table, log.schema, may_lack=table.optional_columns)
    for change in _changes(table, log):
        spark.sql(f"ALTER TABLE delta.`{path}` {change}")
        _log.info("table_altered", table=table.name, change=change)
    require_appendable(path, table)


def _changes(table: Table, log: TableLog) -> Iterator[str]:
    """Yield what an older table lacks, each as the rest of an ALTER TABLE: nothing for a table of this version."""
    comments = _comments(log.schema)
    added = [
        f"`{column.name}` {column.kind} COMMENT {_text(column.comment)} {_place(table, column)}"
        for column in table.columns
        if column.name not in comments
    ]
    if added:
        yield f"ADD COLUMNS ({', '.join(added)})"
    changed = [
        f"`{column.name}` COMMENT {_text(column.comment)}"
        for column in table.columns
        if comments.get(column.name, column.comment) != column.comment
    ]
    if changed:
        yield f"ALTER COLUMN {', '.join(changed)}"
    if log.properties.items().isdisjoint(_CHANGE_DATA_FEED.items()):
        yield "SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')"
    if _FORGETS_TRANSACTIONS in log.properties:
        yield f"UNSET TBLPROPERTIES ('{_FORGETS_TRANSACTIONS}')"


def require_appendable(path: Path | str, table: Table, log: TableLog | None = None) -> None:
    """Refuse a table to which rows of `table` cannot be appended without Spark.

    Args:
        path: Its folder; a URL if the log is given.
        table: Its columns.
        log: Its log at the newest version; None: it is read.

    Raises:
        Invalid: It has other columns, or a feature of Delta with which a writer has more to do.
        Corrupt: Its log cannot be read.
    """
    log = log or require_table_log(Path(path))
    require_columns(path, table, log.schema)
    writer = log.protocol.min_writer_version
    features = set(log.protocol.writer_features or ()) - _FEATURES if writer == _WITH_FEATURES else set()
    if _WRITER_MAX < writer < _WITH_FEATURES and log.protocol.min_reader_version > 1:
        features = {"columnMapping"}
    features |= {"checkConstraints" for name in log.properties if name.startswith(_CONSTRAINT)}
    features |= {name for name in _CHECKED_COLUMNS if name in log.schema}
    features |= {"NOT NULL columns" for field in json.loads(log.schema)["fields"] if not field["nullable"]}
    if features or writer > _WITH_FEATURES:
        wanted = ", ".join(sorted(features)) or f"writer version {writer}"
        message = (
            f"the Delta table at {path} has {wanted}, with which popstream cannot append rows: remove it with ALTER"
            f" TABLE, or run `popstream restore --rebuild {table.name}`"
        )
        raise Invalid(message, subject=table.name)


def require_rewritable(path: Path, table: Table, found: DataFiles) -> None:
    """Refuse a table of which no file can be replaced or removed without Spark.

    Raises:
        Invalid: As in `require_appendable`; or rows of its files may be none of the table; or it belongs to a user who
            could not read files of this process.
        Corrupt: Its log cannot be read.
    """
    require_readable(path, found)
    require_appendable(path, table)
    owner = path.stat().st_uid
    if os.geteuid() == 0 and owner != 0:
        message = f"{path} belongs to user {owner}, who could not read files of root: do it as that user"
        raise Invalid(message, subject=table.name)


def write_table_checkpoint(spark: SparkSession, path: Path) -> None:
    """Let Delta write the checkpoint of a table's newest version, and delete commits that it need not keep any more."""
    jvm: Any = spark._jvm  # noqa: SLF001 - PySpark has no API for it
    log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, str(path))  # noqa: SLF001
    none = jvm.scala.Option.empty()
    log.update(False, none, none)
    log.checkpoint()


def require_columns(path: Path | str, table: Table, schema: str, *, may_lack: Collection[str] = ()) -> frozenset[str]:
    """Refuse a table with other columns than `table` has; return the names of those that it has.

    Args:
        path: Folder of the table.
        table: The expected table.
        schema: The schema in its log, as JSON.
        may_lack: Columns that it may be without.

    Raises:
        Invalid: It has other columns.
        Corrupt: The schema cannot be read.
    """
    try:
        found = types_of(StructType.fromJson(json.loads(schema)))
    except (ValueError, KeyError, TypeError, AttributeError, PySparkException) as error:
        problem = f"the log of {table.name} is damaged: its columns cannot be read: {error}"
        message = f"{problem}: {how_to_repair(table.name)}"
        raise Corrupt(message, subject=table.name) from error
    wanted = types_of(spark_schema(table))
    if {name: kind for name, kind in wanted.items() if name in found or name not in may_lack} != found:
        message = (
            f"the Delta table at {path} has other columns than this version writes: run the version that created it,"
            f" or run `popstream restore --rebuild {table.name}`"
        )
        raise Invalid(message, subject=table.name, details=column_differences(found, wanted))
    return frozenset(found)


def column_differences(found: Mapping[str, str], wanted: Mapping[str, str]) -> list[str]:
    """Say which columns differ, both given as `types_of` gives them.

    >>> column_differences({"id": "long", "old": "string"}, {"id": "long", "new": "date"})
    ['new: missing, expected date', 'old: string, expected none']
    """
    return [
        f"{name}: {found.get(name, 'missing')}, expected {wanted.get(name, 'none')}"
        for name in sorted(found.keys() | wanted.keys())
        if found.get(name) != wanted.get(name)
    ]


def _comments(schema: str) -> dict[str, str]:
    """Return the comment of each column of a table ("" if it has none)."""
    return {field["name"]: field.get("metadata", {}).get("comment", "") for field in json.loads(schema)["fields"]}


def _text(text: str) -> str:
    """Return a text as Spark's SQL."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _place(table: Table, column: Column) -> str:
    """Return where a column goes in SQL: where a new table has it."""
    index = table.columns.index(column)
    return f"AFTER `{table.columns[index - 1].name}`" if index else "FIRST"


def create_table(spark: SparkSession, path: str, table: Table) -> None:
    """Create a table with the properties of the audit tables at a path or URL, unless there is one."""
    builder = DeltaTable.createIfNotExists(spark).location(path).comment(table.comment)
    builder = builder.addColumns(spark_schema(table))
    if table.partitioned_by is not None:
        builder = builder.partitionedBy(table.partitioned_by)
    for key, value in {**_PROPERTIES, **_CHANGE_DATA_FEED}.items():
        builder = builder.property(key, value)
    builder.execute()


def types_of(schema: StructType) -> dict[str, str]:
    """Return the type of each column, as Spark writes it in short."""
    return {field.name: field.dataType.simpleString() for field in schema}
