"""Audit rows as Arrow slices: their form in the outbox, between a decision and its Delta commit.

A slice is a complete Arrow IPC stream (schema, dictionaries, one record batch), so it can be read without the
code that wrote it. `zip(*rows)` turns rows into columns in one C call for thousands of rows; Python code never handles
single values.
"""

from __future__ import annotations

import contextlib
import struct
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from broker_state.operation_rows import OperationRows
from connectors.arrow_stream import arrow_stream
from connectors.bounded_lists import bounded_lists
from connectors.delta.all_columns import with_all_columns
from connectors.delta.erased_values import RejectedHeads, kept_head
from connectors.delta.schemas import outbox_schema
from connectors.delta.tables import AUDIT_TABLES, REJECTED
from popstream.wire.base_errors import RESTORE, Corrupt

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import NamedTuple

__all__ = [
    "SLICE_BYTES_MAX",
    "Slice",
    "WaitingRows",
    "completed_rows",
    "decode_rows",
    "encode_rows",
    "encode_slices",
    "in_pieces",
    "plain_rows",
]

SLICE_BYTES_MAX: Final = 256 * 1024 - 1
"""Cap of a slice: an outbox entry has it behind the number of its table, and at most 256 KiB."""

Slice = tuple["int | None", bytes]
"""(apply_seq, Arrow stream) of an entry; None where the rows have that of their records."""

_ROWS_PER_SLICE_MAX: Final = 8_192
"""Twice as many with random op_ids are more than `SLICE_BYTES_MAX`: they would be encoded once, and then as halves."""
_COMPLETED_BYTES_MAX: Final = 32 * 1024
"""Of slices that are completed together. A longer one may have thousands of rows, many times its length in memory."""
_ROWS_PER_PIECE: Final = 131_072
_BYTES_PER_PIECE: Final = 64 * 1024 * 1024
_TEXT_CHARACTERS_MAX: Final = 1_024
_MS_PER_DAY: Final = 86_400_000
_PACKED_AS: Final = {pa.int32(): "i", pa.int64(): "q"}
_SCHEMAS: Final = {name: outbox_schema(table) for name, table in AUDIT_TABLES.items()}
_PLAIN_SCHEMAS: Final = {
    name: pa.schema(
        [pa.field(field.name, pa.string() if pa.types.is_dictionary(field.type) else field.type) for field in schema]
    )
    for name, schema in _SCHEMAS.items()
}
_CERTAINLY_NOT_CUT_BYTES: Final = SLICE_BYTES_MAX // 2
"""A row with texts up to this length fits into a slice, with its numbers and the schema."""


def encode_rows(table: str, rows: Sequence[NamedTuple], limit_bytes: int = SLICE_BYTES_MAX) -> list[bytes]:
    """Return the slices of `encode_slices` alone."""
    return [data for _, data in encode_slices(table, rows, limit_bytes)]


def encode_slices(
    table: str, rows: Sequence[NamedTuple], limit_bytes: int = SLICE_BYTES_MAX
) -> list[tuple[int, bytes]]:
    """Pack the rows of one audit table, in order, into slices of at most `limit_bytes` each: (number of rows, slice).

    Rows quote what clients sent, so no value may make this fail. A number beyond the range of its column becomes the
    nearest value in range, invalid Unicode is replaced, and in a single row beyond the limit each text is cut to 1,024
    characters, with a note.
    """
    schema = _SCHEMAS[table]
    parts: Iterable[Sequence[NamedTuple]]
    if isinstance(rows, OperationRows):
        parts = rows.parts(_ROWS_PER_SLICE_MAX)
    else:
        parts = (rows[start : start + _ROWS_PER_SLICE_MAX] for start in range(0, len(rows), _ROWS_PER_SLICE_MAX))
    return [encoded for part in parts for encoded in _slices(_record_batch(part, schema), limit_bytes)]


def decode_rows(table: str, slices: Iterable[bytes]) -> pa.Table:
    """Unpack slices into one table with the kernel's columns of `table`, without dictionaries.

    A column that is missing in a slice, which an older version wrote, is null.

    Raises:
        Corrupt: A slice cannot be read.
    """
    return _plain((batch for data in slices for batch in _read(data, table)), _PLAIN_SCHEMAS[table])


def completed_rows(
    table: str,
    slices: Iterable[Slice],
    state_epoch: str,
    ops_topic_id: str,
    rejected_heads: RejectedHeads = RejectedHeads.WHOLE,
) -> Iterator[pa.Table]:
    """Yield the rows of slices with the columns that the outbox does not hold, in the schema of the table.

    Those of small slices are in one table: by itself the smallest takes half a millisecond. Of the values in `rejected`
    it is chosen what is kept. Without an `apply_seq` a row has the Kafka offset of its record in that column.

    Raises:
        Corrupt: A slice cannot be read.
    """
    for together in bounded_lists(slices, lambda slice_: len(slice_[1]), _COMPLETED_BYTES_MAX):
        found = [(apply_seq, [*_read(data, table)]) for apply_seq, data in together]
        rows = _plain([batch for _, batches in found for batch in batches], _PLAIN_SCHEMAS[table])
        count = rows.num_rows
        added = {
            "apply_seq": rows["kafka_offset"]
            if any(apply_seq is None for apply_seq, _ in found)
            else pa.array(np.repeat([seq for seq, _ in found], [sum(map(len, batches)) for _, batches in found])),
            "state_epoch": pa.repeat(state_epoch, count),
            "ops_topic_id": pa.repeat(ops_topic_id, count),
            "op_date": pc.divide(rows["now_ms"], _MS_PER_DAY).cast(pa.int32()).cast(pa.date32()),
        }
        if table == REJECTED.name:
            heads = [kept_head(head, rejected_heads) for head in rows["value_head"].to_pylist()]
            added["value_head"] = pa.array(heads, pa.binary())
        yield with_all_columns(AUDIT_TABLES[table], rows, added)


def plain_rows(table: str, rows: Sequence[NamedTuple]) -> pa.Table:
    """Return what `decode_rows` returns for the slices of `encode_rows`, at a fraction of the cost."""
    if not rows:
        return _PLAIN_SCHEMAS[table].empty_table()
    batch = _record_batch(rows, _PLAIN_SCHEMAS[table])
    if sum(map(_longest, batch.columns)) > _CERTAINLY_NOT_CUT_BYTES:
        return decode_rows(table, encode_rows(table, rows))
    return pa.Table.from_batches([batch])


def in_pieces(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Join small tables to pieces of at least 131,072 rows or 64 MiB, except the last: one row group each."""
    waiting = WaitingRows()
    for table in tables:
        yield from waiting.add(table)
    yield from waiting.take()


class WaitingRows:
    """Small tables that wait for more, to become a piece as in `in_pieces`."""

    def __init__(self) -> None:
        self._tables: list[pa.Table] = []
        self._rows = self._size = 0

    def add(self, table: pa.Table) -> Iterator[pa.Table]:
        """Add a table; yield the piece, if they are enough for one."""
        self._tables.append(table)
        self._rows += table.num_rows
        self._size += table.nbytes
        if self._rows >= _ROWS_PER_PIECE or self._size >= _BYTES_PER_PIECE:
            yield from self.take()

    def take(self) -> Iterator[pa.Table]:
        """Yield those that wait as one piece, if there are any."""
        if self._tables:
            tables, self._tables, self._rows, self._size = self._tables, [], 0, 0
            yield pa.concat_tables(tables)


def _record_batch(rows: Sequence[NamedTuple], schema: pa.Schema) -> pa.RecordBatch:
    if isinstance(rows, OperationRows):
        if rows.ranges:
            return _batch_of_blocks(rows, schema)
        rows = rows.heads
    columns = zip(*rows, strict=True)
    return pa.RecordBatch.from_arrays(
        [_array(values, field.type) for values, field in zip(columns, schema, strict=True)], schema=schema
    )


def _batch_of_blocks(rows: OperationRows, schema: pa.Schema) -> pa.RecordBatch:
    """Return what `_record_batch` returns: the columns of the heads, each value as often as its block has rows."""
    lengths = np.array(rows.lengths())
    block_of_row = np.repeat(np.arange(len(lengths)), lengths)
    number_in_block = np.arange(len(block_of_row)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    own = dict(zip(("entry", "first_offset", "last_offset"), zip(*rows.entry_ranges(), strict=True), strict=True))
    columns = []
    for head_values, field in zip(zip(*rows.heads, strict=True), schema, strict=True):
        if field.name in own:
            columns.append(_array(own[field.name], field.type))
        elif field.name == "ordinal":
            ordinals = np.array(head_values)[block_of_row] + number_in_block
            columns.append(pa.array(ordinals, field.type))
        else:
            columns.append(_array(head_values, field.type).take(pa.array(block_of_row)))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _longest(column: pa.Array) -> int:
    """Return the length in bytes of the longest text of a column; 0 for numbers."""
    kind = column.type
    if not (pa.types.is_string(kind) or pa.types.is_binary(kind)):
        return 0
    return pc.max(pc.binary_length(column)).as_py() or 0


def _array(values: tuple[Any, ...], kind: pa.DataType) -> pa.Array:
    first = values[0]
    try:
        # Half of the columns have one value in all rows of a busy micro-batch: to see that takes a tenth of the time.
        if first == values[-1] and values.count(first) == len(values):
            return _repeated(first, len(values), kind)
        if kind in _PACKED_AS:
            with contextlib.suppress(struct.error):  # there is a null, or a number that does not fit
                return _packed(values, kind)
        return pa.array(values, kind)
    except (OverflowError, UnicodeEncodeError, pa.ArrowInvalid):
        return pa.array([_fitted(value, kind) for value in values], kind)


def _packed(values: tuple[int, ...], kind: pa.DataType) -> pa.Array:
    """Return an array of numbers that all fit, in a fifth of the time that Arrow takes to look at each."""
    data = struct.pack(f"={len(values)}{_PACKED_AS[kind]}", *values)
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(data)])


def _repeated(value: object, count: int, kind: pa.DataType) -> pa.Array:
    if value is None:
        return pa.nulls(count, kind)
    if pa.types.is_dictionary(kind):
        return pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0, kind.index_type), count), pa.array([value]))
    return pa.repeat(pa.scalar(value, kind), count)


def _fitted(value: object, kind: pa.DataType) -> object:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, int) and pa.types.is_integer(kind):
        return max(-(1 << (kind.bit_width - 1)), min(value, (1 << (kind.bit_width - 1)) - 1))
    return value


def _slices(batch: pa.RecordBatch, limit_bytes: int) -> list[tuple[int, bytes]]:
    data = arrow_stream(batch, "zstd")
    if len(data) <= limit_bytes:
        return [(batch.num_rows, data)]
    if batch.num_rows > 1:
        half = batch.num_rows // 2
        return _slices(_compacted(batch.slice(0, half)), limit_bytes) + _slices(
            _compacted(batch.slice(half)), limit_bytes
        )
    return [(1, arrow_stream(_cut(batch), "zstd"))]


def _compacted(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Encode the dictionaries again, because each half would contain the whole dictionary of the batch."""
    columns = [
        column.dictionary_decode().dictionary_encode() if pa.types.is_dictionary(column.type) else column
        for column in batch.columns
    ]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _cut(batch: pa.RecordBatch) -> pa.RecordBatch:
    row = batch.to_pylist()[0]
    cut = {
        name: f"{value[:_TEXT_CHARACTERS_MAX]}... (cut, had {len(value)} characters)"
        if isinstance(value, str) and len(value) > _TEXT_CHARACTERS_MAX
        else value
        for name, value in row.items()
    }
    return pa.RecordBatch.from_pylist([cut], schema=batch.schema)


def _read(data: bytes, table: str) -> Iterator[pa.RecordBatch]:
    try:
        with pa.ipc.open_stream(data) as reader:
            for batch in reader:
                batch.validate(full=True)  # Arrow would follow damaged offsets out of its buffers
                yield batch
    except (pa.ArrowException, OSError) as error:
        message = f"an outbox slice of {table} cannot be read: {error}; {RESTORE}"
        raise Corrupt(message, subject=table) from error


def _plain(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    """Return the rows without dictionaries; those of neighbours with the same columns are looked up together."""
    tables = [schema.empty_table()]
    for found, alike in groupby(batches, key=attrgetter("schema")):
        rows = pa.Table.from_batches(alike)
        columns = [
            rows[field.name].cast(field.type) if field.name in found.names else pa.nulls(len(rows), field.type)
            for field in schema
        ]
        tables.append(pa.Table.from_arrays(columns, schema=schema))
    return pa.concat_tables(tables).combine_chunks()
