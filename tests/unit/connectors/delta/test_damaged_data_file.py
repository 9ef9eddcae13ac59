"""Claim: whichever bit of a data file is flipped, each reader returns rows or says which file is damaged.

Method: a small file of the job; in each third byte one bit is flipped, another one each time, footer included.
pyarrow checks pages alone: of a damaged footer it makes other columns, types and counts.
"""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from connectors.delta.compaction import compact
from connectors.delta.erasure import Wanted, erase
from connectors.delta.log.table_log import read_data_files
from connectors.delta.pieces import each_table_part, find_pieces, read_piece
from connectors.delta.schemas import arrow_schema, columns_of
from connectors.delta.table_damage import damage_in
from connectors.delta.tables import TABLES, table_path
from popstream.wire.base_errors import Corrupt
from tests.support.delta_files import create_failed_deliveries

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

DELIVERIES = TABLES["deliveries"]


def sources(rows: pa.Table) -> pa.ChunkedArray:
    return rows["partition"].cast(pa.string())


def read_by_pieces(root: Path) -> None:
    path = table_path(root, "deliveries")
    for piece in find_pieces(path, DELIVERIES, ("partition",), "kafka_offset", sources).pieces:
        read_piece(path, piece, columns_of(DELIVERIES, ["topic", "cause"]), may_lack=DELIVERIES.optional_columns)


def read_all(root: Path) -> None:
    for rows in each_table_part(table_path(root, "deliveries"), 3, DELIVERIES):
        assert rows.schema == arrow_schema(DELIVERIES)


def count_texts(root: Path) -> None:
    erase(root, "deliveries", Wanted(text="alice"), dry_run=True)


def search(root: Path) -> None:
    if (damage := damage_in(table_path(root, "deliveries"))) is not None:
        raise damage


@pytest.mark.parametrize("read", [read_by_pieces, read_all, count_texts, search])
def test_a_flipped_bit_is_named_or_harmless(tmp_path: Path, read: Callable[[Path], None]) -> None:
    create_failed_deliveries(tmp_path)
    path = table_path(tmp_path, "deliveries")
    found = read_data_files(path)
    assert found is not None
    file = path / found.files[0].path
    sound = file.read_bytes()
    outcomes = collections.Counter[str]()
    for place in range(0, len(sound), 3):
        damaged = bytearray(sound)
        damaged[place] ^= 1 << place % 8
        file.write_bytes(damaged)
        try:
            read(tmp_path)
        except Corrupt as error:
            assert str(file) in error.message, error  # noqa: PT017 - most flips are harmless or named, by place
            outcomes["named"] += 1
        else:
            outcomes["harmless"] += 1
    assert outcomes["named"] > len(sound) // 30, outcomes


def test_a_column_of_another_name_is_not_lost_by_a_rewrite(tmp_path: Path) -> None:
    create_failed_deliveries(tmp_path)
    path = table_path(tmp_path, "deliveries")
    found = read_data_files(path)
    assert found is not None
    optional = min(DELIVERIES.optional_columns)
    file = path / found.files[0].path
    renamed = file.read_bytes().replace(optional.encode(), f"{optional[:-1]}X".encode())
    file.write_bytes(renamed)
    with pytest.raises(Corrupt, match=f"has columns that the table does not have: '{optional[:-1]}X'"):
        compact(tmp_path, DELIVERIES)
    with pytest.raises(Corrupt, match="has columns that the table does not have"):
        erase(tmp_path, "deliveries", Wanted(text="alice"))
