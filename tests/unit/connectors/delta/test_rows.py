"""Arrow slices return the rows of the outbox, equal and in order, and no slice exceeds the limit.

Method: round trips of made-up rows, ordinary and as bad as a client can make them.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import get_type_hints

import pyarrow as pa
import pytest

from broker_state.audit import DeliveryRow, OperationRow
from connectors.delta.reference import tables_markdown
from connectors.delta.rows import SLICE_BYTES_MAX, decode_rows, encode_rows, in_pieces
from connectors.delta.schemas import arrow_schema
from connectors.delta.spark_schemas import spark_schema
from connectors.delta.tables import AUDIT_TABLES, TABLES, Kind
from popstream.wire.base_errors import Corrupt

ROOT = Path(__file__).parents[4]


def delivery(number: int) -> DeliveryRow:
    return DeliveryRow(
        number % 4, number, 0, 1_795_262_400_000 + number, "orders", 0, "billing", "leased", number * 10,
        number * 10 + 9, number + 1, 0, 1, 1_795_262_400_000 + number, None if number % 3 else number, "pop",
        f"client-{number % 9}",
    )  # fmt: skip


def operation(number: int, **changed: object) -> OperationRow:
    handle = hashlib.sha256(str(number).encode()).hexdigest()
    row = OperationRow(
        0, number, 0, 1_795_262_400_000, "ack", "orders", 0, "billing", f"op-{number}", None, 0, number, number, handle,
        None, 0, "OK", True, False, 5, None, None, None,
    )  # fmt: skip
    return row._replace(**changed)  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [0, 1, 2, 16_384, 16_385, 40_000])
def test_rows_come_back_equal_and_in_order(count: int) -> None:
    rows = [delivery(number) for number in range(count)]

    decoded = decode_rows("deliveries", encode_rows("deliveries", rows))

    assert [tuple(row.values()) for row in decoded.to_pylist()] == rows


@pytest.mark.parametrize("name", AUDIT_TABLES)
def test_each_value_comes_back_in_the_column_of_its_name(name: str) -> None:
    columns = AUDIT_TABLES[name].decided_columns
    sentinels = {
        column.name: {Kind.STRING: column.name, Kind.BINARY: column.name.encode(), Kind.BOOLEAN: number % 2 == 0}.get(
            column.kind, 100 + number
        )
        for number, column in enumerate(columns)
    }
    row_type = AUDIT_TABLES[name].row_type
    assert row_type is not None
    assert row_type._fields == tuple(sentinels)

    (decoded,) = decode_rows(name, encode_rows(name, [row_type._make(sentinels.values())])).to_pylist()

    assert decoded == sentinels


@pytest.mark.parametrize(
    ("text_bytes", "rows_each"), [(1, [132_000, 132_000, 36_000]), (10_000, [8_000, 8_000, 4_000])]
)
def test_pieces_are_neither_small_nor_too_large_for_memory(text_bytes: int, rows_each: list[int]) -> None:
    count = 4_000
    table = pa.table({"text": pa.repeat("x" * text_bytes, count)})

    pieces = list(in_pieces([table] * (sum(rows_each) // count)))

    assert [piece.num_rows for piece in pieces] == rows_each
    assert pa.concat_tables(pieces).num_rows == sum(rows_each)


def test_no_slice_is_longer_than_the_limit() -> None:
    rows = [operation(number) for number in range(20_000)]

    slices = encode_rows("operations", rows)
    short = encode_rows("operations", rows[:500], limit_bytes=8_192)

    assert max(map(len, slices)) <= SLICE_BYTES_MAX
    assert len(short) > 1
    assert max(map(len, short)) <= 8_192
    assert decode_rows("operations", short).to_pylist() == decode_rows("operations", slices).slice(0, 500).to_pylist()


def test_a_single_row_beyond_the_limit_is_cut_with_a_note() -> None:
    noise = "".join(hashlib.sha256(str(number).encode()).hexdigest() for number in range(10_000))
    rows = [operation(1), operation(2, detail=noise, topic=noise), operation(3)]

    slices = encode_rows("operations", rows)
    decoded = decode_rows("operations", slices).to_pylist()

    assert max(map(len, slices)) <= SLICE_BYTES_MAX
    assert decoded[1]["detail"] == f"{noise[:1024]}... (cut, had 640000 characters)"
    assert decoded[1]["op_id"] == "op-2"
    assert [decoded[0]["detail"], decoded[2]["detail"]] == [None, None]


def test_values_beyond_the_range_of_a_column_are_fitted() -> None:
    row = operation(1, queue_id=2**40, first_offset=-(2**80), last_offset=2**64, topic="a\ud800b")

    (decoded,) = decode_rows("operations", encode_rows("operations", [row, operation(2)])).slice(0, 1).to_pylist()

    assert decoded["queue_id"] == 2**31 - 1
    assert decoded["first_offset"] == -(2**63)
    assert decoded["last_offset"] == 2**63 - 1
    assert decoded["topic"] == "a?b"


def test_a_slice_from_before_a_column_existed_has_nulls_in_it() -> None:
    (data,) = encode_rows("operations", [operation(1)])
    batch = pa.ipc.open_stream(data).read_all().combine_chunks().to_batches()[0].drop_columns(["detail", "attempt"])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)

    (decoded,) = decode_rows("operations", [sink.getvalue().to_pybytes()]).to_pylist()

    assert tuple(decoded.values()) == operation(1)


@pytest.mark.parametrize("data", [b"", b"nonsense", encode_rows("deliveries", [delivery(1)])[0][:-500]])
def test_damaged_bytes_are_corrupt(data: bytes) -> None:
    with pytest.raises(Corrupt, match="deliveries"):
        decode_rows("deliveries", [data])


@pytest.mark.parametrize("table", AUDIT_TABLES.values(), ids=lambda table: table.name)
def test_each_row_field_has_a_column_of_its_type(table: object) -> None:
    assert isinstance(table, type(AUDIT_TABLES["operations"]))
    assert table.row_type is not None
    kinds = {int: {Kind.INT, Kind.BIGINT}, str: {Kind.STRING}, bool: {Kind.BOOLEAN}, bytes: {Kind.BINARY}}
    hints = get_type_hints(table.row_type)

    fields = table.decided_columns

    assert tuple(column.name for column in fields) == table.row_type._fields
    for column in fields:
        base = next(
            kind for kind in kinds if kind in (hints[column.name], *getattr(hints[column.name], "__args__", ()))
        )
        assert column.kind in kinds[base], column.name
        assert column.required == (type(None) not in getattr(hints[column.name], "__args__", ())), column.name


@pytest.mark.parametrize("table", TABLES.values(), ids=lambda table: table.name)
def test_arrow_and_spark_agree_and_each_column_has_a_comment(table: object) -> None:
    assert isinstance(table, type(AUDIT_TABLES["operations"]))
    schema = spark_schema(table)

    assert schema.names == arrow_schema(table).names
    assert all(field.metadata["comment"].endswith((".", "...", ")")) for field in schema)


def test_the_document_of_the_tables_is_current() -> None:
    assert (ROOT / "docs" / "tables.md").read_text(encoding="utf-8") == tables_markdown(), (
        "run: python -m connectors.delta.reference > docs/tables.md"
    )
