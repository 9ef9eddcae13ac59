"""The rows of a table in pieces, read without Spark from the files of its newest version.

```
log ── live files ── row groups: pieces ── by source: first and end offset of its rows
```

A *source* is what numbers the rows: a partition of the ops topic, or a queue. A piece has rows of several sources, each
in a stretch of its offsets, because a commit has the rows of whole micro-batches.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING
from urllib.parse import unquote

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from connectors.delta.damage import damaged_data_file
from connectors.delta.history_start import first_ms_of
from connectors.delta.log.table_log import read_data_files, require_readable
from connectors.delta.rows import with_lacking
from connectors.delta.schemas import arrow_schema
from popstream.wire.base_errors import Corrupt

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from connectors.delta.log.table_log import DataFile
    from connectors.delta.tables import Table

__all__ = [
    "PiecedTable",
    "Span",
    "TablePiece",
    "each_batch",
    "find_pieces",
    "read_piece",
    "rows_between",
    "rows_since",
    "spans_of",
]

Span = tuple[int, int]
"""[first offset, end offset) of a source."""


class TablePiece(msgspec.Struct, frozen=True, array_like=True):
    """A row group of a file.

    Attributes:
        path: The file, below the folder of the table.
        row_group: Its number in the file.
        spans: By source, the offsets of its rows. Rows of other sources are ignored.
    """

    path: str
    row_group: int
    spans: dict[str, Span]


class PiecedTable(msgspec.Struct, frozen=True):
    """A table at one version.

    Attributes:
        version: The version; -1: there is no table.
        schema: JSON of Spark's StructType.
        pieces: In the order in which their rows were written.
        first_ms: Retention may have deleted rows of earlier times, ms since 1970; None: it has deleted none.
    """

    version: int
    schema: str
    pieces: list[TablePiece]
    first_ms: int | None = None

    @property
    def ends(self) -> dict[str, int]:
        """By source, the offset after its last row."""
        ends: dict[str, int] = {}
        for piece in self.pieces:
            for source, (_, end) in piece.spans.items():
                ends[source] = max(ends.get(source, 0), end)
        return ends


def find_pieces(
    table: Path, columns: Sequence[str], offset: str, sources: Callable[[pa.Table], pa.Array | pa.ChunkedArray]
) -> PiecedTable:
    """Return the pieces of a table at its newest version.

    Args:
        table: Its folder.
        columns: The columns that `sources` reads.
        offset: The column with the offset of a row.
        sources: Returns the source of each row, as text; null: the row is ignored.

    Raises:
        Corrupt: A file of the log or with rows is damaged or missing.
        Invalid: The table uses a feature of Delta that this reader does not know.
    """
    found = read_data_files(table)
    if found is None:
        return PiecedTable(-1, "", [])
    require_readable(table, found)
    pieces = []
    for file in sorted(found.files, key=lambda file: (file.modification_ms, file.path)):
        path = unquote(file.path)
        with _open(table, path, file) as source:
            for number in range(source.num_row_groups):
                rows = _rows_of(table, path, source, number, [*columns, offset])
                if spans := spans_of(sources(rows), rows[offset]):
                    pieces.append(TablePiece(path, number, spans))
    return PiecedTable(found.version, found.schema, pieces, first_ms_of(found.txns))


def spans_of(sources: pa.Array | pa.ChunkedArray, offsets: pa.Array | pa.ChunkedArray) -> dict[str, Span]:
    """Return the first and end offset of each source.

    >>> spans_of(pa.array(["0", "1", "0", None]), pa.array([7, 3, 5, 9]))
    {'0': (5, 8), '1': (3, 4)}
    """
    groups = pa.table({"source": sources, "offset": offsets}).drop_null().group_by("source")
    found = groups.aggregate([("offset", "min"), ("offset", "max")]).to_pylist()
    return {row["source"]: (row["offset_min"], row["offset_max"] + 1) for row in found}


def read_piece(table: Path, piece: TablePiece, schema: pa.Schema, *, may_lack: Collection[str] = ()) -> pa.Table:
    """Return the rows of a piece with the columns of `schema`; those of `may_lack` are null if the file lacks them.

    Raises:
        Corrupt: The file is damaged or missing.
    """
    with _open(table, piece.path, None) as source:
        rows = _rows_of(table, piece.path, source, piece.row_group, schema.names)
    try:
        return _as_in(schema, rows, may_lack)
    except (pa.ArrowException, KeyError) as error:
        raise _damaged(table, piece.path, error) from error


def each_batch(path: Path, version: int, table: Table, *, since: dt.date | None = None) -> Iterator[pa.Table]:
    """Yield all rows of a table at a version with all its columns, some thousand rows at a time, in no order.

    Args:
        path: Folder of the table.
        version: The version.
        table: Its columns.
        since: Leave out the files of earlier dates.

    Raises:
        Corrupt: As in `find_pieces`, or a file has other columns.
        Invalid: Likewise.
    """
    found = read_data_files(path, version)
    if found is None:
        return
    require_readable(path, found)
    schema = arrow_schema(table)
    for file in found.files:
        of_file = {
            name: None if value is None else dt.date.fromisoformat(value)
            for name, value in file.partition_values.items()
        }
        if since is not None and any(day is not None and day < since for day in of_file.values()):
            continue
        stored = pa.schema([field for field in schema if field.name not in of_file])
        with _open(path, unquote(file.path), file) as source:
            try:
                for batch in source.iter_batches(use_threads=False):
                    rows = _as_in(stored, pa.Table.from_batches([batch]), table.optional_columns)
                    for name, value in of_file.items():
                        rows = rows.append_column(name, pa.repeat(pa.scalar(value, pa.date32()), len(batch)))
                    yield rows.select(schema.names)
            except (pa.ArrowException, OSError, ValueError, KeyError) as error:
                raise _damaged(path, unquote(file.path), error) from error


def _as_in(schema: pa.Schema, rows: pa.Table, may_lack: Collection[str]) -> pa.Table:
    return with_lacking(rows, schema, may_lack).select(schema.names).cast(schema)


def rows_between(rows: pa.Table, source: str, offset: str, spans: Mapping[int, Span]) -> pa.Table:
    """Return the rows whose offset is in the span of their source.

    Args:
        rows: The rows.
        source: The column with the source.
        offset: The column with the offset.
        spans: By source; rows of other sources are left out.
    """
    offsets = rows[offset].to_numpy()
    within = np.zeros(len(offsets), np.bool_)
    for name, (first, end) in spans.items():
        is_of = pc.equal(rows[source], name).combine_chunks().to_numpy(zero_copy_only=False).astype(np.bool_)
        within |= is_of & (offsets >= first) & (offsets < end)
    return rows if within.all() else rows.filter(pa.array(within))


def rows_since(rows: pa.Table, time_ms: str, first_ms: int | None) -> pa.Table:
    """Return the rows whose time in the column `time_ms` is `first_ms` or later; all of them if that is None."""
    return rows if first_ms is None else rows.filter(pc.greater_equal(rows[time_ms], first_ms))


class _Opened:
    """An open file of a table, of which every error names table and file."""

    def __init__(self, table: Path, path: str) -> None:
        self._table, self._path = table, path
        self._file: pq.ParquetFile | None = None

    def __enter__(self) -> pq.ParquetFile:
        try:
            self._file = pq.ParquetFile(
                self._table / self._path, coerce_int96_timestamp_unit="us", page_checksum_verification=True
            )
        except (pa.ArrowException, OSError, ValueError) as error:
            raise _damaged(self._table, self._path, error) from error
        return self._file

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()


def _open(table: Path, path: str, file: DataFile | None) -> _Opened:
    """Open a file; with its entry in the log its size is compared, too."""
    try:
        size = (table / path).stat().st_size
    except OSError as error:
        raise _damaged(table, path, error) from error
    if file is not None and size != file.size:
        raise _damaged(table, path, f"it has {size} bytes, and {file.size} by the log")
    return _Opened(table, path)


def _rows_of(table: Path, path: str, source: pq.ParquetFile, number: int, columns: Iterable[str]) -> pa.Table:
    try:
        return source.read_row_group(number, columns=list(dict.fromkeys(columns)), use_threads=False)
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        raise _damaged(table, path, error) from error


def _damaged(table: Path, path: str, problem: object) -> Corrupt:
    first, *_ = str(problem).splitlines() or [type(problem).__name__]
    what = "is missing" if isinstance(problem, FileNotFoundError) else f"cannot be read: {first}"
    return damaged_data_file(table, table / path, what)
