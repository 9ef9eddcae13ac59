"""`popstream query`: SQL on the audit tables. Works while the job is running."""

import csv
import itertools
import re
import sys
from collections.abc import Iterable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from rich.console import Console
from rich.table import Table

from connectors.delta.spark_errors import require_undamaged
from connectors.delta.tables import TABLES, table_path
from connectors.delta.views import register_tables
from pipelines.cli.exits import say
from pipelines.cli.spark_tools import reading_session, working
from popstream.wire.base_errors import Invalid

__all__ = ["Output", "require_reading", "run_query"]

READING = frozenset(("SELECT", "WITH", "DESCRIBE", "DESC", "SHOW", "EXPLAIN", "VALUES", "TABLE"))


class Output(StrEnum):
    """Format of the printed rows."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


def run_query(delta_root: Path, sql: str, *, var: Path, output: Output, rows_max: int) -> None:
    """Run one statement and print its rows.

    Raises:
        Invalid: The statement is not valid SQL, writes, or names unknown tables or columns.
        Corrupt: A file of a table is damaged or missing.
    """
    require_reading(sql)
    if not delta_root.is_dir():
        message = f"there are no tables in {delta_root}: has the job run here?"
        raise Invalid(message, subject=str(delta_root))
    with reading_session(var) as spark:
        try:
            with working("reading"):
                names = register_tables(spark, delta_root)
                _require_no_insert(spark, sql)
                frame = spark.sql(sql)
                with require_undamaged(*(table_path(delta_root, name) for name in TABLES)):
                    rows = _rows(frame, rows_max)
        except (PySparkException, Py4JJavaError) as error:
            raise Invalid(_first_lines(error)) from error
        is_cut = bool(rows_max) and len(rows) > rows_max
        _print(frame.columns, rows[:rows_max] if is_cut else rows, output)
    if is_cut:
        say(f"only the first {rows_max} rows are shown; --max-rows 0 shows all")
    if not rows:
        say(f"no rows; there are {', '.join(names)}")


def require_reading(sql: str) -> None:
    r"""Refuse a statement that is not a query: only the job writes to its tables.

    >>> require_reading("(select 1)")
    >>> require_reading("-- how many?\nselect 1")

    Raises:
        Invalid: The statement does not start like a query.
    """
    words = re.sub(r"^(\s|\(|--[^\n]*\n|/\*.*?\*/)*", "", sql, flags=re.DOTALL).split(maxsplit=1)
    if not words or words[0].upper() not in READING:
        message = f"only queries are run here; start with one of {', '.join(sorted(READING))}"
        raise Invalid(message)


def _require_no_insert(spark: SparkSession, sql: str) -> None:
    """Refuse `WITH ... INSERT INTO` and `EXPLAIN ... INSERT`, which start like a query."""
    plan = spark._jsparkSession.sessionState().sqlParser().parsePlan(sql)  # noqa: SLF001 - no public parser
    if "InsertInto" in plan.treeString():
        message = "only queries are run here; this one writes"
        raise Invalid(message)


def _rows(frame: DataFrame, rows_max: int) -> list[Row]:
    return frame.limit(rows_max + 1).collect() if rows_max else frame.collect()


def _print(columns: Sequence[str], rows: Iterable[Row], output: Output) -> None:
    if output is Output.JSON:
        for row in rows:
            print(msgspec.json.encode(row.asDict(recursive=True), enc_hook=str).decode())
    elif output is Output.CSV:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerows(itertools.chain([columns], ([_text(value) for value in row] for row in rows)))
    else:
        table = Table(*columns)
        for row in rows:
            table.add_row(*(_text(value) for value in row))
        # In a file or pipe, lines are not wrapped: a pager shows whole rows.
        console = Console(highlight=False, markup=False)
        console.print(table, soft_wrap=not console.is_terminal)


def _text(value: Any) -> str:  # noqa: ANN401 - any value of Spark
    if value is None:
        return ""
    return bytes(value).hex() if isinstance(value, bytes | bytearray) else str(value)


def _first_lines(error: Exception) -> str:
    """Return the message of an error without its query plan and stack trace."""
    text = str(error.java_exception.getMessage() if isinstance(error, Py4JJavaError) else error)
    kept = itertools.takewhile(lambda line: not line.startswith(("'", "JVM stacktrace", "\tat ")), text.splitlines())
    return "\n".join(line for line in kept if line.strip()) or type(error).__name__
