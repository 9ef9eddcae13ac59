"""Small tables and slices are joined up to a bound, in their order, and none is lost."""

from collections import Counter

import pyarrow as pa
import pytest

from broker_state.audit import OperationRow
from connectors.arrow_stream import arrow_stream
from connectors.delta.rows import completed_rows, encode_rows
from connectors.delta.waiting_rows import WaitingSlices, in_pieces
from popstream.wire.base_errors import Corrupt

ROWS = {0: 2, 1: 9_000, 2: 30, 3: 1}
"""How many a WriteBatch has, by its number."""


@pytest.mark.parametrize(
    ("text_bytes", "rows_each"), [(1, [132_000, 132_000, 36_000]), (10_000, [8_000, 8_000, 4_000])]
)
def test_pieces_are_neither_small_nor_too_large_for_memory(text_bytes: int, rows_each: list[int]) -> None:
    count = 4_000
    table = pa.table({"text": pa.repeat("x" * text_bytes, count)})

    pieces = list(in_pieces([table] * (sum(rows_each) // count)))

    assert [piece.num_rows for piece in pieces] == rows_each
    assert pa.concat_tables(pieces).num_rows == sum(rows_each)


def test_small_slices_are_joined_and_long_ones_are_alone() -> None:
    sizes = [1, 30_000, 2_767, 1, 256 * 1024, 5, 6]
    waiting = WaitingSlices()

    found = [each for seq, size in enumerate(sizes) for each in waiting.add((seq, bytes(size)))]
    found += waiting.take()

    assert [[seq for seq, _ in slices] for slices in found] == [[0, 1, 2], [3], [4], [5, 6]]
    assert not [*waiting.take()]


@pytest.mark.parametrize("has_seq", [True, False])
def test_rows_of_slices_together_are_those_of_each(*, has_seq: bool) -> None:
    """Slices with one row and with many, several of a WriteBatch, without rows, of a version with fewer columns."""
    written = [encode_rows("operations", [_operation(seq, at) for at in range(rows)]) for seq, rows in ROWS.items()]
    older = pa.ipc.open_stream(written[0][0]).read_all().drop_columns(["admin_key"]).combine_chunks().to_batches()[0]
    written.insert(2, [arrow_stream(older, "zstd"), arrow_stream(older.slice(0, 0), "zstd")])
    slices = [(seq if has_seq else None, data) for seq, of_write in enumerate(written) for data in of_write]
    assert len(slices) > len(written) + 1

    together = completed_rows("operations", slices, "epoch", "topic id")

    each = [completed_rows("operations", [slice_], "epoch", "topic id") for slice_ in slices]
    assert together.num_rows == sum(ROWS.values()) + ROWS[0]
    assert together.equals(pa.concat_tables(each))
    if has_seq:
        rows_of_seq = Counter(together["apply_seq"].to_pylist())
        assert rows_of_seq == {0: ROWS[0], 1: ROWS[1], 2: ROWS[0], 3: ROWS[2], 4: ROWS[3]}
    else:
        assert together["apply_seq"].equals(together["kafka_offset"])


def test_a_damaged_slice_among_others_is_corrupt() -> None:
    good = encode_rows("operations", [_operation(0, 0)])
    with pytest.raises(Corrupt, match="operations"):
        completed_rows("operations", [(1, good[0]), (2, good[0][:-60]), (3, good[0])], "epoch", "topic id")


def _operation(seq: int, number: int) -> OperationRow:
    return OperationRow(
        0, number, 0, 1_795_262_400_000, "ack", f"topic-{seq}", 0, f"group-{number % 7}", f"op-{number}", None, 0,
        number, number, None, None, 0, "OK", True, False, 5, None, None, None,
    )  # fmt: skip
