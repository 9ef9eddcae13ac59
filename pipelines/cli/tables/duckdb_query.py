"""A query on the tables by DuckDB."""

import contextlib
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

from connectors.delta.duckdb_errors import query_errors
from connectors.delta.duckdb_tables import DuckDbTables, require_reading, tables_in
from connectors.delta.history_start import HISTORY_BEGINS
from connectors.delta.snapshot import open_snapshot
from connectors.delta.tables import TABLES, table_path
from connectors.delta.views import VIEWS
from pipelines.cli.tables.query_options import EVERY_TABLE
from pipelines.cli.tables.query_result import QueryResult
from pipelines.process.signals import interrupted_by_signals
from popstream.wire.base_errors import Invalid

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
    with (
        query_errors([table_path(delta_root, name) for name in names]),
        DuckDbTables(snapshots) as tables,
        interrupted_by_signals(tables.interrupt),
    ):
        views = [name for name, view in VIEWS.items() if set(existing).issuperset(view.tables)]
        names_of_all = [*existing, *views, HISTORY_BEGINS]
        yield QueryResult(tables.columns(sql), tables.rows(sql), names_of_all, lambda: tables.arrow_reader(sql))


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
