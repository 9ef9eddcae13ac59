"""Claim: the state with which nothing is lost is taken, or else, with consent, the one with the least loss."""

from __future__ import annotations

import errno
import shutil
from typing import TYPE_CHECKING

import pytest

from broker_state.store.rocks_store import META, DiskFull, RocksStore
from checkpoints.applied import APPLIED_KEY, Applied
from checkpoints.layout import JobFolder
from checkpoints.reconcile import LogFound
from checkpoints.snapshots import SnapshotStore
from pipelines.recovery.candidates import EMPTY, PRESENT, PUT_ASIDE, find_candidates, usable_states
from pipelines.recovery.snapshot_loop import take_snapshot

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
    passed_over: dict[str, str] = {}
    candidates = find_candidates(folder, snapshots, None)
    states = usable_states(candidates, folder, log, {}, passed_over, was_more=False, lossy=lossy)
    return [state.source for state in states], passed_over


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
        store.checkpoint(folder.root / "flushed")
    shutil.rmtree(folder.state)
    (folder.root / "flushed").rename(folder.state)
    assert list(folder.state.glob("*.sst"))

    def fail(_self: Path, _target: str) -> None:
        raise OSError(errno.EXDEV, "another disk")

    monkeypatch.setattr("pathlib.Path.hardlink_to", fail)
    assert taken(folder, 400)[0] == [PRESENT]
