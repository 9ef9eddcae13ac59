"""Small tables and slices are joined up to a bound, in their order, and none is lost."""

import pyarrow as pa
import pytest

from broker_state.audit import OperationRow
from connectors.delta.rows import SLICE_BYTES_MAX, completed_rows, encode_rows
from connectors.delta.waiting_rows import WaitingSlices, in_pieces


@pytest.mark.parametrize(
    ("text_bytes", "rows_each"), [(1, [132_000, 132_000, 36_000]), (10_000, [8_000, 8_000, 4_000])]
)
def test_pieces_are_neither_small_nor_too_large_for_memory(text_bytes: int, rows_each: list[int]) -> None:
    count = 4_000
    table = pa.table({"text": pa.repeat("x" * text_bytes, count)})

    pieces = list(in_pieces([table] * (sum(rows_each) // count)))

    assert [piece.num_rows for piece in pieces] == rows_each
    assert pa.concat_tables(pieces).num_rows == sum(rows_each)


def test_slices_are_joined_up_to_the_length_of_the_longest() -> None:
    sizes = [1, SLICE_BYTES_MAX - 1, 1, SLICE_BYTES_MAX, 5, 6]
    waiting = WaitingSlices()

    found = [each for seq, size in enumerate(sizes) for each in waiting.add((seq, bytes(size)))]
    found += waiting.take()

    assert [[seq for seq, _ in slices] for slices in found] == [[0, 1], [2], [3], [4, 5]]
    assert not [*waiting.take()]


@pytest.mark.parametrize("has_seq", [True, False])
def test_rows_of_slices_together_are_those_of_each(*, has_seq: bool) -> None:
    """Slices with one row and with many, whose dictionaries differ, and without rows."""
    counts = [1, 3_000, 2, 1]
    slices = [
        (seq if has_seq else None, data)
        for seq, count in enumerate(counts)
        for data in encode_rows("operations", [_operation(seq, number) for number in range(count)])
    ]

    together = completed_rows("operations", slices, "epoch", "topic id")

    each = [completed_rows("operations", [slice_], "epoch", "topic id") for slice_ in slices]
    assert together.num_rows == sum(counts)
    assert together.equals(pa.concat_tables(each))
    if has_seq:
        assert together["apply_seq"].to_pylist() == [seq for seq, count in enumerate(counts) for _ in range(count)]
    else:
        assert together["apply_seq"].equals(together["kafka_offset"])


def _operation(seq: int, number: int) -> OperationRow:
    return OperationRow(
        0, number, 0, 1_795_262_400_000, "ack", f"topic-{seq}", 0, f"group-{number % 7}", f"op-{number}", None, 0,
        number, number, None, None, 0, "OK", True, False, 5, None, None, None,
    )  # fmt: skip
