"""Slices that are completed together give the rows that each gives by itself, and long ones are not together."""

from collections import Counter

import pyarrow as pa
import pytest

from broker_state.audit import OperationRow
from connectors.arrow_stream import arrow_stream
from connectors.delta.rows import completed_rows, encode_rows
from popstream.wire.base_errors import Corrupt

ROWS = {0: 2, 1: 9_000, 2: 30, 3: 1}
"""How many a WriteBatch has, by its number."""


@pytest.mark.parametrize("has_seq", [True, False])
def test_rows_of_slices_together_are_those_of_each(*, has_seq: bool) -> None:
    """Slices with one row and with many, several of a WriteBatch, without rows, of a version with fewer columns."""
    written = [encode_rows("operations", [_operation(seq, at) for at in range(rows)]) for seq, rows in ROWS.items()]
    older = pa.ipc.open_stream(written[0][0]).read_all().drop_columns(["admin_key"]).combine_chunks().to_batches()[0]
    written.insert(2, [arrow_stream(older, "zstd"), arrow_stream(older.slice(0, 0), "zstd")])
    slices = [(seq if has_seq else None, data) for seq, of_write in enumerate(written) for data in of_write]
    assert len(slices) > len(written) + 1

    tables = [*completed_rows("operations", slices, "epoch", "topic id")]

    together = pa.concat_tables(tables)
    each = [rows for slice_ in slices for rows in completed_rows("operations", [slice_], "epoch", "topic id")]
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
        list(completed_rows("operations", [(1, good[0]), (2, good[0][:-60]), (3, good[0])], "epoch", "topic id"))


def test_small_slices_are_completed_together_and_long_ones_alone() -> None:
    small, long = (encode_rows("operations", [_operation(0, at) for at in range(rows)])[0] for rows in (1, 8_000))
    assert len(small) * 7 < 32 * 1024 < len(small) * 8
    assert len(long) > 32 * 1024

    tables = completed_rows("operations", [(None, data) for data in [small] * 8 + [long, small]], "epoch", "topic id")

    assert [table.num_rows for table in tables] == [7, 1, 8_000, 1]


def _operation(seq: int, number: int) -> OperationRow:
    return OperationRow(
        0, number, 0, 1_795_262_400_000, "ack", f"topic-{seq}", 0, f"group-{number % 7}", f"op-{number}", None, 0,
        number, number, None, None, 0, "OK", True, False, 5, None, None, None,
    )  # fmt: skip
