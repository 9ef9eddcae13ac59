"""What an error of DuckDB means to who asked: too much at once, something that may not be read, or a damaged file."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import duckdb

from connectors.delta.duckdb_tables import MEMORY, SPILLED_MAX, described_error
from popstream.wire.base_errors import Invalid, PopstreamError, Unavailable

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator
    from pathlib import Path

__all__ = ["query_error", "query_errors"]


@contextlib.contextmanager
def query_errors(tables: Collection[Path]) -> Iterator[None]:
    """Turn an error of DuckDB in the block, which reads the tables in these folders, into one of this project.

    Raises:
        Corrupt: A file of a table is damaged or missing.
        Unavailable: One cannot be read for another reason.
        Invalid: Otherwise.
    """
    try:
        yield
    except duckdb.Error as error:
        raise query_error(error, tables) from error


def query_error(error: duckdb.Error, tables: Iterable[Path]) -> PopstreamError:
    """Return the error to raise for one of DuckDB, which read the tables in these folders.

    It is Corrupt if a file of a table is damaged or missing, Unavailable if one cannot be read for another reason, and
    otherwise Invalid.
    """
    text = described_error(error)
    if isinstance(error, duckdb.OutOfMemoryException):
        message = f"the query takes more than {MEMORY} of memory, or {SPILLED_MAX} of disk: ask for less at a time"
        return Invalid(message)
    if isinstance(error, duckdb.PermissionException):
        message = "queries can read only the tables of the job, and no other file"
        return Invalid(message)
    if _may_be_of_a_file(error):
        # It imports Spark's classes, which takes a while.
        from connectors.delta.table_damage import damage_in  # noqa: PLC0415

        damage = next(filter(None, map(damage_in, tables)), None)
        return damage or (Unavailable(text) if isinstance(error, duckdb.IOException) else Invalid(text))
    return Invalid(text)


def _may_be_of_a_file(error: duckdb.Error) -> bool:
    """Return whether a damaged file may be behind an error; those of the decoder of Parquet have no class."""
    if isinstance(error, duckdb.InvalidInputException):
        return "file" in str(error)
    return type(error) is duckdb.Error or isinstance(error, duckdb.IOException)
