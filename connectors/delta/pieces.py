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

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from connectors.delta.history_start import first_ms_of
from connectors.delta.log.table_log import read_data_files, require_readable
from connectors.delta.opened_file import OpenedFile
from connectors.delta.schemas import arrow_schema, columns_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from connectors.delta.tables import Table

__all__ = [
    "PiecedTable",
    "Span",
    "TablePiece",
    "each_table_part",
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
    path: Path,
    table: Table,
    columns: Sequence[str],
    offset: str,
    sources: Callable[[pa.Table], pa.Array | pa.ChunkedArray],
) -> PiecedTable:
    """Return the pieces of a table at its newest version.

    Args:
        path: Its folder.
        table: Its columns.
        columns: Those that `sources` reads.
        offset: The column with the offset of a row.
        sources: Returns the source of each row, as text; null: the row is ignored.

    Raises:
        Corrupt: A file of the log or with rows is damaged or missing.
        Invalid: The table uses a feature of Delta that this reader does not know.
    """
    found = read_data_files(path)
    if found is None:
        return PiecedTable(-1, "", [])
    require_readable(path, found)
    schema = columns_of(table, [*columns, offset])
    pieces = []
    for file in sorted(found.files, key=lambda file: (file.modification_ms, file.path)):
        with OpenedFile.of(path, file) as opened:
            for number, rows in enumerate(opened.each_row_group(schema, table.optional_columns)):
                if spans := spans_of(sources(rows), rows[offset]):
                    pieces.append(TablePiece(file.relative_path, number, spans))
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
    with OpenedFile(table, piece.path) as opened:
        return opened.row_group(piece.row_group, schema, may_lack)


def each_table_part(path: Path, version: int, table: Table, *, since: dt.date | None = None) -> Iterator[pa.Table]:
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
        with OpenedFile.of(path, file) as opened:
            for rows in opened.in_parts(stored, table.optional_columns):
                complete = rows
                for name, value in of_file.items():
                    complete = complete.append_column(name, pa.repeat(pa.scalar(value, pa.date32()), rows.num_rows))
                yield complete.select(schema.names)


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
