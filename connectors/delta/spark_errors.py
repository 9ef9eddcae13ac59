"""Errors of Spark: their text, which is lost with the JVM, and the damaged file of a table that is behind some.

Spark reports a missing or damaged data file in as many ways as it reads files, and not always by name. So after any
error the files of the table are looked at: whether each is there, has its size, and can be read.
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Final

from pyspark.errors import PySparkException

from connectors.delta.table_damage import damage_in
from connectors.java_errors import JVM_ERRORS, first_line, java_text
from popstream.wire.base_errors import PopstreamError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["SPARK_ERRORS", "SparkError", "require_undamaged", "spark_errors_kept", "spark_text"]

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
