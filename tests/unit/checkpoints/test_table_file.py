"""Claim: every damaged byte of a table file is found, and files that RocksDB writes are never reported."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from broker_state.store.overlay import OPS, STATE
from broker_state.store.rocks_store import META, OUTBOX, RocksStore
from checkpoints.table_file import PIECE_BYTES, check_table, verify_table, verify_tables
from popstream.wire.base_errors import Corrupt
from tests.support.flipped_byte import flip_byte

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A small table file with data, range deletions, filter and properties."""
    with RocksStore(tmp_path / "state") as store:
        store.write_changes([(STATE, b"%04d" % number, b"value %d" % number) for number in range(100)])
        store.write_changes([], [(STATE, b"0010", b"0020")])
        store.copy_to(tmp_path / "copy" / "state")
    return max((tmp_path / "copy" / "state").glob("*.sst"), key=lambda file: file.stat().st_size)


@pytest.fixture(autouse=True)
def copy(tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()


def test_every_flipped_byte_is_found(table: Path) -> None:
    verify_table(table)
    for at in range(table.stat().st_size):
        flip_byte(table, at)
        with pytest.raises(Corrupt, match=rf"^state/{table.name} is damaged"):
            verify_table(table)
        flip_byte(table, at)
    verify_table(table)


def test_every_truncation_is_found(table: Path) -> None:
    data = table.read_bytes()
    for size in range(0, len(data), 5):
        table.write_bytes(data[:size])
        with pytest.raises(Corrupt, match=rf"^state/{table.name} is damaged"):
            verify_table(table)
    table.write_bytes(data + b"\0")
    with pytest.raises(Corrupt):
        verify_table(table)


def test_a_missing_file_is_not_damaged(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        verify_table(tmp_path / "000001.sst")


@pytest.mark.parametrize("seed", range(5))
def test_sound_stores_pass(tmp_path: Path, seed: int) -> None:
    """Small and large values, compressible or not, deletions, range deletions, and compactions."""
    rng = random.Random(seed)
    with RocksStore(tmp_path / "state") as store:
        for _ in range(8):
            changes = [
                (family, rng.randbytes(rng.randrange(1, 60)), rng.choice([value, None]))
                for family in (STATE, OPS, OUTBOX, META)
                for value in (b"", b"v" * rng.randrange(100_000), rng.randbytes(rng.choice([10, 5_000, 300_000])))
                for _ in range(rng.randrange(1, 40))
            ]
            first, end = sorted(rng.randbytes(2) for _ in range(2))
            store.write_changes(changes, [(STATE, first, end)])
            copy = tmp_path / "copy" / str(rng.random())
            store.copy_to(copy)
            for path in copy.glob("*.sst"):
                pieces = list(check_table(path))
                assert max(pieces) < PIECE_BYTES + 310_000
                assert sum(pieces) == pytest.approx(path.stat().st_size, abs=100)
        verify_tables(store)
        assert len(store.table_files()) >= 4


def test_damage_under_a_range_deletion_is_found(tmp_path: Path) -> None:
    """A scan skips such blocks, and a compaction reads them."""
    with RocksStore(tmp_path / "state") as store:
        store.write_changes([(STATE, b"%06d" % number, random.Random(number).randbytes(100)) for number in range(2000)])
        store.copy_to(tmp_path / "copy" / "first")
        name = max(store.table_files(), key=lambda name: (tmp_path / "state" / name).stat().st_size)
        store.write_changes([], [(STATE, b"000100", b"001900")])
    flip_byte(tmp_path / "state" / name)
    with RocksStore(tmp_path / "state", read_only=True) as store:
        assert len(list(store.scan(STATE, b""))) == 200
        with pytest.raises(Corrupt, match="block checksum mismatch"):
            verify_tables(store)
