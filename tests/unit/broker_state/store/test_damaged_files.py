"""Claim: whatever happens to a file of a store, the store says so as `Corrupt`, with the command that repairs it.

Method: a store with three tables, a write-ahead log and two column families with data. Each kind of its files is
damaged in each way; then the store is opened, read, written to, copied and closed. A write-ahead log that was damaged
is a store that was there before (tests/crash/test_store_kills.py).
"""

from __future__ import annotations

import os
import random
import shutil
from typing import TYPE_CHECKING

import pytest

from broker_state.store.overlay import OPS, STATE
from broker_state.store.rocks_store import BUILDER_FAMILIES, FAMILIES, META, RocksStore
from popstream.wire.base_errors import Corrupt, Invalid, PopstreamError
from tests.support.left_behind import damage
from tests.support.wire import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

KEYS = 3_000


def fill(store: RocksStore, chance: random.Random) -> None:
    rows = [(STATE, b"%06d" % number, chance.randbytes(200)) for number in range(0, KEYS, 3)]
    store.write_changes([*rows, (META, b"applied", b"x")])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a store that was killed."""
    folder = tmp_path_factory.mktemp("whole")
    chance = random.Random(1)
    with RocksStore(folder / "state") as store:
        for number in range(3):
            fill(store, chance)
            store.copy_to(folder / f"flushed-{number}")
        store.write_changes([(STATE, b"in the log", b"1")])
        shutil.copytree(folder / "state", folder / "killed")
    return folder / "killed"


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    return shutil.copytree(whole, tmp_path / "state")


def flip(file: Path) -> None:
    damage(file, file.stat().st_size // 2)


def truncate(file: Path) -> None:
    data = file.read_bytes()
    file.write_bytes(data[: len(data) // 2])


def empty(file: Path) -> None:
    file.write_bytes(b"")


def remove(file: Path) -> None:
    file.unlink()


def overwrite(file: Path) -> None:
    file.write_bytes(random.Random(2).randbytes(file.stat().st_size))


def swap(file: Path) -> None:
    """Put another file of the same kind in its place, or one of another kind if there is only one."""
    others = [other for other in sorted(file.parent.glob(f"*{file.suffix}")) if other != file and other.is_file()]
    shutil.copy(others[0] if file.suffix and others else next(file.parent.glob("*.sst")), file)


def put_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


DAMAGES = (flip, truncate, empty, remove, overwrite, swap, put_folder)
KINDS = ("*.sst", "MANIFEST-*", "CURRENT", "*.log", "OPTIONS-*", "IDENTITY", "rocksdict-config.json")
REFUSED = ("*.sst", "MANIFEST-*", "CURRENT")
"""Kinds without which RocksDB cannot go on. It does without the others, or with an older state."""


def uses(path: Path, *, read_only: bool) -> Iterator[PopstreamError]:
    """Use a store in every way, as far as it goes, and yield its errors; others are raised."""
    try:
        store = RocksStore(path, read_only=read_only)
    except PopstreamError as error:
        yield error
        return
    works: list[Callable[[], object]] = [lambda: [list(store.scan(family, b"")) for family in FAMILIES]]
    if not read_only:
        works += [
            lambda: store.write_changes([(STATE, b"x", b"y")]),
            lambda: store.copy_to(path.with_name("checkpoint")),
        ]
    for work in (*works, store.close):
        try:
            work()
        except PopstreamError as error:
            yield error


@pytest.mark.parametrize("read_only", [False, True], ids=["opened", "opened to be read"])
@pytest.mark.parametrize("harm", DAMAGES)
@pytest.mark.parametrize("kind", KINDS)
def test_damage_is_corrupt_and_names_the_command(
    copy: Path, kind: str, harm: Callable[[Path], None], *, read_only: bool
) -> None:
    victim = max(copy.glob(kind), key=lambda file: file.stat().st_size)
    harm(victim)
    errors = list(uses(copy, read_only=read_only))
    assert [type(error) for error in errors] == [Corrupt] * len(errors)
    assert all("run `popstream restore`" in error.message and "\n" not in error.message for error in errors)
    if kind in REFUSED and (kind, harm) != ("MANIFEST-*", truncate):  # a shorter manifest is an older one
        assert errors
        assert str(copy) in errors[0].message


def write_until_it_fails(store: RocksStore, folder: Path) -> None:
    folder.mkdir()
    chance = random.Random(3)
    for number in range(50):
        fill(store, chance)
        store.copy_to(folder / str(number))


def test_a_damaged_file_that_a_compaction_meets(tmp_path: Path) -> None:
    """RocksDB then refuses writes and snapshots, and cannot close in order; the files are released all the same."""
    chance = random.Random(1)
    with RocksStore(tmp_path / "state") as store:
        for number in range(3):
            fill(store, chance)
            store.copy_to(tmp_path / f"flushed-{number}")
    flip(max((tmp_path / "state").glob("*.sst"), key=lambda file: file.stat().st_size))
    with pytest.raises(Corrupt, match="block checksum mismatch") as raised, RocksStore(tmp_path / "state") as store:
        write_until_it_fails(store, tmp_path / "copies")
    said = raised.value.message
    assert said.startswith(("the write failed: Corruption", "no snapshot can be made in "))
    assert said.endswith("run `popstream restore`")
    assert any("cannot be closed in order" in note for note in raised.value.__notes__)
    again = RocksStore(tmp_path / "state")
    # The compaction begins again by itself, and fails in a thread of RocksDB.
    wait_for(lambda: again._db.property_int_value("rocksdb.background-errors"))
    with pytest.raises(Corrupt, match=r"cannot be closed in order: Corruption.*run `popstream restore`"):
        again.close()
    RocksStore(tmp_path / "state", read_only=True).close()


def test_a_store_that_stopped_for_damage_says_so_again(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing:
        def write(self, *_: object) -> None:
            raise Exception("Corruption: block checksum mismatch in 000301.sst")  # noqa: TRY002 - as rocksdict

        def latest_sequence_number(self) -> int:
            return 7

        def close(self) -> None:
            pass

    with RocksStore(copy) as store:
        monkeypatch.setattr(store, "_db", Failing())
        with pytest.raises(Corrupt, match=r"^the write failed: Corruption"):
            store.write_changes([(STATE, b"x", b"y")])
        with pytest.raises(Corrupt, match=r"^the store stopped: the write failed: Corruption.*popstream restore"):
            store.write_changes([(STATE, b"x", b"y")])


def test_the_store_of_the_builder_in_place_of_the_state(tmp_path: Path) -> None:
    RocksStore(tmp_path / "state", BUILDER_FAMILIES).close()
    with pytest.raises(Corrupt, match=r"cannot open the state.*run `popstream restore`"):
        RocksStore(tmp_path / "state")


def test_no_store_and_a_store_in_use_are_not_damage(copy: Path, tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="cannot open the state"):
        RocksStore(tmp_path / "nothing", read_only=True)
    with RocksStore(copy), pytest.raises(Invalid, match="lock"):
        RocksStore(copy)


def test_a_manifest_that_was_cut_off_anywhere_leaves_all_families_at_the_same_moment(tmp_path: Path) -> None:
    """Without a word from RocksDB: a state beside an older note of how far it is decided would decide records twice."""
    with RocksStore(tmp_path / "state") as store:
        for number in range(1, 4):  # RocksDB would compact four flushed files, and note that at any time
            rows = [(STATE, b"%d" % key, b"%d" % number) for key in range(100)]
            store.write_changes([*rows, (OPS, b"op", b"%d" % number), (META, b"applied", b"%d" % number)])
            if number < 3:  # the last one is flushed, family by family, when the store is closed
                store.copy_to(tmp_path / f"flushed-{number}")
    (manifest,) = (tmp_path / "state").glob("MANIFEST-*")
    size, opened, torn = manifest.stat().st_size, set(), 0
    for cut in range(0, size, 7):
        copy = shutil.copytree(tmp_path / "state", tmp_path / "copy")
        os.truncate(copy / manifest.name, cut)
        try:
            with RocksStore(copy) as store:
                found = {store.get(STATE, b"7"), store.get(OPS, b"op"), store.get(META, b"applied")}
            assert len(found) == 1, f"cut off at {cut} of {size}: {found}"
            opened |= found
        except Corrupt as error:
            torn += "is torn: its column families are of different moments" in error.message
        shutil.rmtree(copy)
    assert torn
    assert opened == {None, b"1", b"2", b"3"}, "older states open, and a start compares them with the tables"
