"""A query on the tables by DuckDB."""

import contextlib
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

import duckdb

from connectors.delta.duckdb_tables import (
    MEMORY,
    SPILLED_MAX,
    DuckDbTables,
    described_error,
    require_reading,
    tables_in,
)
from connectors.delta.snapshot import open_snapshot
from connectors.delta.tables import TABLES, table_path
from connectors.delta.views import by_message_views
from pipelines.cli.tables.query_options import EVERY_TABLE
from pipelines.cli.tables.query_result import QueryResult
from pipelines.process.signals import interrupted_by_signals
from popstream.wire.base_errors import Invalid, PopstreamError, Unavailable

__all__ = ["duckdb_result"]


@contextlib.contextmanager
def duckdb_result(
    delta_root: Path, sql: str, *, versions: Mapping[str, int], at_ms: int | None
) -> Iterator[QueryResult]:
    """Run one query in the block.

    Args:
        delta_root: The folder of the tables.
        sql: The query.
        versions: The version by table; `EVERY_TABLE`: that of the only table in the query.
        at_ms: Read the tables as they were at this time; None: as they are, but for `versions`.

    Raises:
        Invalid: It is no query, names unknown tables or columns, asks for a version that there is not, or takes more
            memory than it may.
        Corrupt: A file of a table is damaged or missing.
        Unavailable: A file cannot be read for another reason.
    """
    require_reading(sql)
    existing = [name for name in TABLES if (table_path(delta_root, name) / "_delta_log").is_dir()]
    if not existing:
        message = f"there are no tables in {delta_root}: has the job run here?"
        raise Invalid(message, subject=str(delta_root))
    names = tables_in(sql, existing)
    chosen = _chosen_versions(versions, names)
    at = None if at_ms is None else datetime.fromtimestamp(at_ms / 1000, UTC)
    snapshots = [open_snapshot(table_path(delta_root, name), version=chosen.get(name), at=at) for name in names]
    try:
        with DuckDbTables(snapshots) as tables, interrupted_by_signals(tables.interrupt):
            names_of_all = [*existing, *by_message_views(existing)]
            yield QueryResult(tables.columns(sql), tables.rows(sql), names_of_all, lambda: tables.arrow_reader(sql))
    except duckdb.Error as error:
        raise _error_of(error, delta_root, names) from error


def _chosen_versions(versions: Mapping[str, int], names: list[str]) -> dict[str, int]:
    chosen = {name: version for name, version in versions.items() if name != EVERY_TABLE}
    if unknown := chosen.keys() - set(names):
        message = f"the query reads no table {', '.join(sorted(unknown))}"
        raise Invalid(message)
    if EVERY_TABLE in versions:
        if len(names) != 1:
            message = f"each table has versions of its own, and the query reads {', '.join(names)}: write TABLE=NUMBER"
            raise Invalid(message)
        chosen[names[0]] = versions[EVERY_TABLE]
    return chosen


def _error_of(error: duckdb.Error, delta_root: Path, names: list[str]) -> PopstreamError:
    text = described_error(error)
    if isinstance(error, duckdb.OutOfMemoryException):
        message = f"the query takes more than {MEMORY} of memory, or {SPILLED_MAX} of disk: ask for less at a time"
        return Invalid(message)
    if isinstance(error, duckdb.PermissionException):
        message = "queries read the tables of the job alone, and no other file"
        return Invalid(message)
    if _may_be_of_a_file(error):
        # It imports Spark's classes, which takes a while.
        from connectors.delta.spark_errors import damage_in  # noqa: PLC0415

        damage = next(filter(None, (damage_in(table_path(delta_root, name)) for name in names)), None)
        return damage or (Unavailable(text) if isinstance(error, duckdb.IOException) else Invalid(text))
    return Invalid(text)


def _may_be_of_a_file(error: duckdb.Error) -> bool:
    """Return whether a damaged file may be behind an error; those of the decoder of Parquet have no class."""
    if isinstance(error, duckdb.InvalidInputException):
        return "file" in str(error)
    return type(error) is duckdb.Error or isinstance(error, duckdb.IOException)
