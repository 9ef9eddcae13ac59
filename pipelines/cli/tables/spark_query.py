"""A query on the tables by Spark."""

import contextlib
import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession

from connectors.delta.spark_errors import require_undamaged
from connectors.delta.spark_tables import register_tables
from connectors.delta.tables import TABLES, table_path
from pipelines.cli.spark_tools import reading_session, working
from pipelines.cli.tables.query_result import QueryResult
from popstream.wire.base_errors import Invalid

__all__ = ["require_reading", "spark_result"]

READING = frozenset(("SELECT", "WITH", "DESCRIBE", "DESC", "SHOW", "EXPLAIN", "VALUES", "TABLE"))


@contextlib.contextmanager
def spark_result(delta_root: Path, sql: str, *, var: Path, rows_max: int) -> Iterator[QueryResult]:
    """Run one query in the block, for `rows_max` rows and one more; 0: for all.

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
                rows = _rows(frame.limit(rows_max + 1) if rows_max else frame)
                yield QueryResult(frame.columns, rows, names, lambda: frame.toArrow().to_reader())
        except (PySparkException, Py4JJavaError) as error:
            raise Invalid(_first_lines(error)) from error


def _rows(frame: DataFrame) -> Iterator[Sequence[Any]]:
    for row in frame.collect():
        yield [_plain(value) for value in row]


def _plain(value: Any) -> Any:  # noqa: ANN401 - any value of Spark
    return value.asDict(recursive=True) if isinstance(value, Row) else value


def require_reading(sql: str) -> None:
    r"""Refuse a statement that is not a query: only the job writes to its tables.

    >>> require_reading("(select 1)")
    >>> require_reading("-- how many?\nselect 1")

    Raises:
        Invalid: The statement does not start like a query.
    """
    words = re.sub(r"^(\s|\(|--[^\n]*\n|/\*.*?\*/)*", "", sql, flags=re.DOTALL).split(maxsplit=1)
    if not words or words[0].upper() not in READING:
        message = f"only queries can be run here; start with one of {', '.join(sorted(READING))}"
        raise Invalid(message)


def _require_no_insert(spark: SparkSession, sql: str) -> None:
    """Refuse `WITH ... INSERT INTO` and `EXPLAIN ... INSERT`, which start like a query."""
    plan = spark._jsparkSession.sessionState().sqlParser().parsePlan(sql)  # noqa: SLF001 - no public parser
    if "InsertInto" in plan.treeString():
        message = "only queries can be run here; this one writes"
        raise Invalid(message)


def _first_lines(error: Exception) -> str:
    """Return the message of an error without its query plan and stack trace."""
    text = str(error.java_exception.getMessage() if isinstance(error, Py4JJavaError) else error)
    kept = itertools.takewhile(lambda line: not line.startswith(("'", "JVM stacktrace", "\tat ")), text.splitlines())
    return "\n".join(line for line in kept if line.strip()) or type(error).__name__
