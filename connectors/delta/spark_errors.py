"""Errors of Spark: their text, which is lost with the JVM, and the damaged file of a table that is behind some.

Spark reports a missing or damaged data file in as many ways as it reads files, and not always by name. So after any
error the files of the table are looked at: whether each is there, has its size, and can be read.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import PySparkException

from connectors.delta.damage import damaged_data_file, size_problem
from connectors.delta.log.table_log import checkpoint_damage, read_data_files
from connectors.java_errors import JVM_ERRORS, first_line, java_text
from popstream.wire.base_errors import Corrupt, PopstreamError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["SPARK_ERRORS", "SparkError", "damage_in", "require_undamaged", "spark_errors_kept", "spark_text"]

SPARK_ERRORS: Final = (PySparkException, *JVM_ERRORS)

_FILE_ERROR: Final = re.compile(r"READ_FILE|FileNotFound|no such file|parquet|checksum|corrupt|compress", re.IGNORECASE)
"""In the text of an error that may come from the content of a file."""


class SparkError(PopstreamError):
    """Spark failed for a reason that is not known here. It has the text, which Spark's own errors read from the JVM."""


@contextlib.contextmanager
def require_undamaged(*tables: Path) -> Iterator[None]:
    """Read tables with Spark in the block.

    Raises:
        Corrupt: Spark failed, and a file of a table is damaged or missing.
    """
    try:
        yield
    except SPARK_ERRORS as error:
        is_of_file = _FILE_ERROR.search(java_text(error)) is not None
        for table in tables:
            if (damage := damage_in(table, read_all=is_of_file)) is not None:
                raise damage from error
        raise


@contextlib.contextmanager
def spark_errors_kept() -> Iterator[None]:
    """Turn an error of Spark in the block into `SparkError`, while the JVM that knows its text still runs."""
    try:
        yield
    except SPARK_ERRORS as error:
        raise SparkError(spark_text(error)) from error


def spark_text(error: BaseException) -> str:
    """Return the first line of an error of Spark."""
    return f"Spark failed ({type(error).__name__}): {first_line(error)}"


def damage_in(table: Path, *, read_all: bool = True) -> Corrupt | None:
    """Return what is damaged in a table, or None. Without `read_all` only the names and sizes of files count."""
    try:
        found = read_data_files(table)
        damage = checkpoint_damage(table)
    except Corrupt as error:
        return error
    except OSError:  # the folder is not there: no damage
        return None
    if damage is not None:
        return damage
    files = [] if found is None else found.files
    # Reading everything takes long: it comes last.
    checks = itertools.chain(
        ((file, size_problem(table / unquote(file.path), file.size)) for file in files),
        ((file, _inner_damage(table / unquote(file.path))) for file in files if read_all),
    )
    for file, problem in checks:
        if problem is not None:
            return damaged_data_file(table, table / unquote(file.path), problem)
    return None


def _inner_damage(path: Path) -> str | None:
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as source:
            for _ in source.iter_batches():
                pass
    except (pa.ArrowException, OSError, ValueError) as error:
        first, *_ = str(error).splitlines() or [type(error).__name__]
        return f"cannot be read: {first}"
    return None
