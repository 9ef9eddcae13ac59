"""`popstream query`: SQL on the audit tables. Works while the job is running."""

from contextlib import AbstractContextManager
from pathlib import Path

from pipelines.cli.exits import say
from pipelines.cli.printing import counted
from pipelines.cli.tables.query_options import Engine, QueryOptions
from pipelines.cli.tables.query_result import QueryResult, print_result, write_parquet
from popstream.wire.base_errors import Invalid

__all__ = ["run_query"]


def run_query(delta_root: Path, sql: str, options: QueryOptions) -> None:
    """Run one statement, and print or write its rows.

    Raises:
        Invalid: The statement is no query, is not valid SQL, or names tables, columns or versions that there are not.
        Corrupt: A file of a table is damaged or missing.
        Unavailable: A file cannot be read for another reason.
    """
    if options.parquet is not None and options.parquet.exists():
        message = f"{options.parquet} exists: name another file"
        raise Invalid(message, subject=str(options.parquet))
    has_result = False
    try:
        with _result(delta_root, sql, options) as result:
            has_result = True
            if options.parquet is None:
                print_result(result, options.output, rows_max=options.rows_max)
            else:
                say(f"{counted(write_parquet(result, options.parquet), 'row')} written to {options.parquet}")
    except KeyboardInterrupt as interrupted:
        if not has_result:
            interrupted.add_note("no row was printed")
        raise


def _result(delta_root: Path, sql: str, options: QueryOptions) -> AbstractContextManager[QueryResult]:
    # Each import takes a part of a second, or more: only that of the chosen engine.
    if options.engine is Engine.DUCKDB:
        from pipelines.cli.tables.duckdb_query import duckdb_result  # noqa: PLC0415

        return duckdb_result(delta_root, sql, versions=options.versions, at_ms=options.at_ms)
    if options.versions or options.at_ms is not None:
        message = "with --engine spark the SQL names versions itself: VERSION AS OF 3, TIMESTAMP AS OF '2030-01-31'"
        raise Invalid(message)
    from pipelines.cli.tables.spark_query import spark_result  # noqa: PLC0415

    return spark_result(delta_root, sql, var=options.var, rows_max=options.rows_max)
