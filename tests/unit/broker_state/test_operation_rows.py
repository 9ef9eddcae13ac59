"""Rows of `operations` in blocks are read as the rows one by one, and become the same Arrow slices."""

import random

import pytest

from broker_state.audit import EntryRange, OperationRow
from broker_state.operation_rows import OperationRows
from connectors.delta.rows import decode_rows, encode_slices, plain_rows


def row(record: int, ordinal: int, entry: int | None, first: int | None, last: int | None) -> OperationRow:
    return OperationRow(
        0, record, ordinal, 1_795_262_400_000 + record, "ack", "orders", 0, None if record % 3 else "billing",
        f"op-{record}", None, entry, first, last, f"handle-{record % 5}", None, record % 2 * 401, "OK", record % 2 == 0,
        False, record, None, 1, None if record % 2 else "late", None,
    )  # fmt: skip


def drawn(seed: int, blocks: int, longest: int) -> tuple[OperationRows, list[OperationRow]]:
    """Blocks, of which several may be of one record, and the rows that they stand for."""
    chance = random.Random(seed)
    in_blocks, rows = OperationRows(), []
    record = ordinal = 0
    for _ in range(blocks):
        if chance.random() < 0.6:
            record, ordinal = record + 1, 0
        length = 1 if chance.random() < 0.5 else chance.randint(1, longest)
        first = chance.randrange(1_000)
        ranges: list[EntryRange] = [(number, first + number, first + number) for number in range(length)]
        if length == 1 and chance.random() < 0.3:
            ranges = [(None, None, None)]
        in_blocks.append(row(record, ordinal, *ranges[0]), ranges)
        rows += [row(record, ordinal + number, *each) for number, each in enumerate(ranges)]
        ordinal += length
    return in_blocks, rows


@pytest.mark.parametrize("seed", range(10))
def test_blocks_are_read_as_their_rows(seed: int) -> None:
    in_blocks, rows = drawn(seed, blocks=30, longest=6)
    assert list(in_blocks) == rows
    assert len(in_blocks) == len(rows)
    assert [in_blocks[at] for at in range(-len(rows), len(rows))] == rows + rows
    assert in_blocks[3:-2] == rows[3:-2]
    assert in_blocks == rows
    assert in_blocks != rows[:-1]
    with pytest.raises(IndexError):
        in_blocks[len(rows)]


def test_rows_of_later_records_follow() -> None:
    in_blocks, rows = drawn(1, blocks=10, longest=4)
    later, later_rows = drawn(2, blocks=10, longest=4)
    in_blocks.extend(later)
    assert in_blocks == rows + later_rows


@pytest.mark.parametrize("longest", [1, 6])
@pytest.mark.parametrize("rows_max", [1, 2, 5, 7, 1_000])
def test_parts_have_all_rows_in_order(rows_max: int, longest: int) -> None:
    in_blocks, rows = drawn(3, blocks=30, longest=longest)
    parts = list(in_blocks.parts(rows_max))
    assert [row for part in parts for row in part] == rows
    assert {len(part) for part in parts[:-1]} <= {rows_max}
    assert len(parts[-1]) <= rows_max
    assert list(OperationRows().parts(rows_max)) == []


@pytest.mark.parametrize(("blocks", "longest"), [(1, 1), (40, 1), (40, 300), (200, 1_000)])
def test_slices_of_blocks_have_the_rows_of_those_of_plain_rows(blocks: int, longest: int) -> None:
    in_blocks, rows = drawn(blocks + longest, blocks, longest)
    encoded, wanted = encode_slices("operations", in_blocks, 65_536), encode_slices("operations", rows, 65_536)
    assert [count for count, _ in encoded] == [count for count, _ in wanted]
    for (_, one), (_, other) in zip(encoded, wanted, strict=True):
        assert len(one) <= 65_536
        assert decode_rows("operations", [one]) == decode_rows("operations", [other])
    assert plain_rows("operations", in_blocks) == plain_rows("operations", rows)
