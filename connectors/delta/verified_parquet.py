"""Opens Parquet so that the checksum of each page is compared.

Spark, delta-rs and this package write them; a page without one is read as it is. They do not cover the footer: one with
a flipped bit may name other columns, and pyarrow passes over a column that is asked for and not there. So a reader says
which columns it needs.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

__all__ = ["verified_parquet"]


def verified_parquet(source: Path | pa.NativeFile) -> pq.ParquetFile:
    """Open a file, or bytes, of Parquet. Spark writes timestamps as INT96 of nanoseconds, without a zone: as UTC."""
    return pq.ParquetFile(source, coerce_int96_timestamp_unit="us", page_checksum_verification=True)
