"""Claim: a restore puts no damaged store of the builder in place."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from broker_state.store.rocks_store import BUILDER_FAMILIES, UNITS, RocksStore
from checkpoints.layout import JobFolder
from pipelines.recovery.replaced_files import put_in_place
from tests.support.flipped_byte import flip_byte

if TYPE_CHECKING:
    from pathlib import Path


def write_queues(path: Path, value: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with RocksStore(path.with_name("open"), BUILDER_FAMILIES) as store:
        store.write_changes([(UNITS, b"key", value)])
        store.copy_to(path)


def damage(path: Path) -> None:
    flip_byte(max(path.glob("*.sst"), key=lambda file: file.stat().st_size))


def queues_in_place(folder: JobFolder) -> bytes | None:
    if not folder.queues.is_dir():
        return None
    with RocksStore(folder.queues, BUILDER_FAMILIES) as store:
        return store.get(UNITS, b"key")


@pytest.mark.parametrize(
    ("damaged", "keep_queues", "in_place"),
    [
        ((), True, b"present"),
        ((), False, b"restored"),
        (("present",), True, b"restored"),
        (("restored",), True, b"present"),
        (("restored",), False, None),
        (("present", "restored"), True, None),
    ],
)
def test_a_damaged_store_of_the_builder_is_replaced(
    tmp_path: Path, damaged: tuple[str, ...], *, keep_queues: bool, in_place: bytes | None
) -> None:
    folder = JobFolder(tmp_path / "job")
    places = {"present": folder.queues, "restored": tmp_path / "restored" / "queues"}
    for name, place in places.items():
        write_queues(place, name.encode())
        if name in damaged:
            damage(place)
    (tmp_path / "restored" / "state").mkdir()
    put_in_place(folder, tmp_path / "restored", keep_queues=keep_queues)
    assert queues_in_place(folder) == in_place
