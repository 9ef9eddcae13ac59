"""Claim: the state with which nothing is lost is taken, or else, with consent, the one with the least loss."""

from __future__ import annotations

import errno
import random
import shutil
from typing import TYPE_CHECKING

import pytest

from broker_state.store.overlay import STATE
from broker_state.store.rocks_store import META, DiskFull, RocksStore
from checkpoints.applied import APPLIED_KEY, Applied
from checkpoints.layout import JobFolder
from checkpoints.reconcile import LogFound
from checkpoints.snapshot_store import SnapshotStore
from pipelines.recovery.candidates import (
    EMPTY,
    NO_SNAPSHOT,
    PRESENT,
    PUT_ASIDE,
    PassedOver,
    find_candidates,
    usable_states,
)
from pipelines.recovery.take_snapshot import take_snapshot
from tests.support.flipped_byte import flip_byte
from tests.support.left_behind import damage

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def folder(tmp_path: Path) -> JobFolder:
    return JobFolder(tmp_path / "job")


def write_state(path: Path, decided: int) -> None:
    applied = Applied(
        state_epoch="e", ops_topic="ops", ops_topic_id="id", apply_seq=decided // 10, next_offset={0: decided}
    )
    with RocksStore(path) as store:
        store.write_changes([(META, APPLIED_KEY, applied.encode())])


def taken(folder: JobFolder, log_start: int, *, lossy: bool = False) -> tuple[list[str], dict[str, str]]:
    """The sources of usable states, in order, and the reasons against the other candidates."""
    snapshots = SnapshotStore(str(folder.snapshots))
    log = LogFound(topic="ops", topic_id="id", first_offset={0: log_start}, end_offset={0: 1_000})
    passed_over: dict[str, PassedOver] = {}
    candidates = find_candidates(folder, snapshots, None)
    states = usable_states(candidates, folder, log, {}, passed_over, {}, was_more=False, lossy=lossy)
    sources = [state.source for state in states]
    return sources, {source: "\n".join(found.reasons) for source, found in passed_over.items()}


def keep_snapshot(folder: JobFolder, decided: int) -> str:
    write_state(folder.root / "of_snapshot", decided)
    with RocksStore(folder.root / "of_snapshot") as store:
        snapshot = take_snapshot(store, None, folder.scratch, SnapshotStore(str(folder.snapshots)))
    return f"snapshot {snapshot.id}"


def test_the_present_state_comes_first_then_the_newest(folder: JobFolder) -> None:
    write_state(folder.state, 500)
    snapshot = keep_snapshot(folder, 300)
    assert taken(folder, 0)[0] == [PRESENT, snapshot, EMPTY]
    assert taken(folder, 400)[0] == [PRESENT]


def test_the_log_from_its_start_or_one_snapshot_can_be_chosen(folder: JobFolder) -> None:
    write_state(folder.state, 500)
    snapshot = keep_snapshot(folder, 300)
    store = SnapshotStore(str(folder.snapshots))
    for only, source in ((NO_SNAPSHOT, EMPTY), (snapshot.removeprefix("snapshot "), snapshot)):
        assert [candidate.source for candidate in find_candidates(folder, store, only)] == [source]


def test_with_consent_the_state_that_lacks_the_fewest_records_is_taken(folder: JobFolder) -> None:
    """A present state from an old backup, and a newer snapshot: retention has passed both."""
    write_state(folder.state, 100)
    snapshot = keep_snapshot(folder, 500)
    assert taken(folder, 600)[0] == []
    sources, passed_over = taken(folder, 600, lossy=True)
    assert sources == [snapshot, PRESENT, EMPTY]
    assert "partition 0 starts at 600, but is decided only up to 100" in passed_over[PRESENT]


def test_a_state_that_was_put_aside_precedes_an_empty_one(folder: JobFolder) -> None:
    """A restore was killed between its renames, and `up` has created a new state since."""
    write_state(folder.replaced / "20300101T000000Z-a" / "state", 100)
    write_state(folder.replaced / "20300102T000000Z-b" / "state", 500)
    newest, older = f"{PUT_ASIDE} in 20300102T000000Z-b", f"{PUT_ASIDE} in 20300101T000000Z-a"
    assert taken(folder, 0)[0] == [newest, older, EMPTY]
    with RocksStore(folder.state):
        pass
    sources, passed_over = taken(folder, 0)
    assert sources == [EMPTY, newest, older]
    assert passed_over[PRESENT] == "it has decided nothing"
    assert taken(folder, 400)[0] == [newest]
    assert taken(folder, 600, lossy=True)[0] == [newest, older, EMPTY]


def test_a_state_that_cannot_even_be_closed_is_passed_over(folder: JobFolder) -> None:
    """A compaction, which begins when the state is opened, meets the damage: RocksDB fails each call from then on."""
    chance = random.Random(1)
    write_state(folder.state, 500)
    snapshot = keep_snapshot(folder, 300)
    with RocksStore(folder.state) as store:
        for number in range(2):  # after four files of a family a compaction would delete files while they are copied
            store.write_changes([(STATE, b"%06d" % key, chance.randbytes(200)) for key in range(2_000)])
            store.copy_to(folder.root / f"flushed-{number}")
        store.write_changes([(STATE, b"in the log", b"1")])
        shutil.copytree(folder.state, folder.root / "killed")
    shutil.rmtree(folder.state)
    (folder.root / "killed").rename(folder.state)
    table = max(folder.state.glob("*.sst"), key=lambda file: file.stat().st_size)
    damage(table, table.stat().st_size // 2)
    sources, passed_over = taken(folder, 0)
    assert sources == [snapshot, EMPTY]
    assert "block checksum mismatch" in passed_over[PRESENT]


def test_a_damaged_state_is_passed_over_although_reads_skip_the_damage(folder: JobFolder) -> None:
    """The damaged block is below a range deletion: only a compaction would meet it."""
    write_state(folder.state, 500)
    with RocksStore(folder.state) as store:
        store.write_changes([(STATE, b"%06d" % number, b"%d" % number * 20) for number in range(5_000)])
        store.copy_to(folder.root / "flushed")
        (victim,) = (name for name in store.table_files() if (folder.state / name).stat().st_size > 10_000)
        store.write_changes([], [(STATE, b"000010", b"004990")])
    snapshot = keep_snapshot(folder, 300)
    flip_byte(folder.state / victim)
    sources, passed_over = taken(folder, 0)
    assert sources == [snapshot, EMPTY]
    assert passed_over[PRESENT].startswith(f"state/{victim} is damaged: ")


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES])
def test_a_state_that_cannot_be_read_is_passed_over(
    folder: JobFolder, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    write_state(folder.state, 500)
    snapshot = keep_snapshot(folder, 300)
    fail_to_copy(monkeypatch, number)
    sources, passed_over = taken(folder, 0)
    assert sources == [snapshot, EMPTY]
    assert "cannot be copied" in passed_over[PRESENT]


def test_a_full_disk_is_no_reason_against_a_state(folder: JobFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    write_state(folder.state, 500)
    keep_snapshot(folder, 300)
    fail_to_copy(monkeypatch, errno.ENOSPC)
    with pytest.raises(DiskFull, match="cannot be copied"):
        taken(folder, 0)


def fail_to_copy(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def fail(source: str, _target: str) -> None:
        raise OSError(number, "No space left on device" if number == errno.ENOSPC else "no", source)

    monkeypatch.setattr(shutil, "copy2", fail)


def test_files_are_copied_where_they_cannot_be_linked(folder: JobFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """The state may be on another disk than the scratch folder."""
    write_state(folder.state, 500)
    with RocksStore(folder.state) as store:
        store.copy_to(folder.root / "flushed")
    shutil.rmtree(folder.state)
    (folder.root / "flushed").rename(folder.state)
    assert list(folder.state.glob("*.sst"))

    def fail(_self: Path, _target: str) -> None:
        raise OSError(errno.EXDEV, "another disk")

    monkeypatch.setattr("pathlib.Path.hardlink_to", fail)
    assert taken(folder, 400)[0] == [PRESENT]
