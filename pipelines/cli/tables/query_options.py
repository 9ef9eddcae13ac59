"""What a query may be told. Light: the command line imports it for its help."""

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

import msgspec

from pipelines.cli.number_text import is_offset
from popstream.wire.base_errors import Invalid

__all__ = ["EVERY_TABLE", "Engine", "Output", "QueryOptions", "versions_by_table"]

EVERY_TABLE = ""
"""Stands for a table that is not named."""


class Engine(StrEnum):
    """What runs the SQL, in its own dialect."""

    DUCKDB = "duckdb"
    SPARK = "spark"


class Output(StrEnum):
    """Format of the printed rows. `AUTO`: a table, or `VERTICAL` where the terminal is too narrow for it."""

    AUTO = "auto"
    VERTICAL = "vertical"
    JSON = "json"
    CSV = "csv"


class QueryOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How to run a query, and what to do with its rows.

    Attributes:
        engine: What runs it.
        var: The folder with Spark's jars.
        versions: Versions of tables, by its name; `EVERY_TABLE`: that of the only table in the query.
        at_ms: The moment to go back to, ms since 1970.
        output: Format of the printed rows.
        rows_max: Rows printed at most; 0: all.
        parquet: The file to write all rows to, instead of printing some.
    """

    engine: Engine
    var: Path
    versions: Mapping[str, int]
    at_ms: int | None
    output: Output
    rows_max: int
    parquet: Path | None


def versions_by_table(options: list[str]) -> dict[str, int]:
    """Return the versions of tables from options.

    >>> versions_by_table(["3"]), versions_by_table(["operations=3", "deliveries=4"])
    ({'': 3}, {'operations': 3, 'deliveries': 4})

    Raises:
        Invalid: An option is neither `N` nor `TABLE=N`.
    """
    versions = {}
    for option in options:
        table, _, number = option.rpartition("=")
        if not is_offset(number):
            message = f"{option!r} is not a version: write a number, or TABLE=NUMBER"
            raise Invalid(message)
        versions[table] = int(number)
    return versions
