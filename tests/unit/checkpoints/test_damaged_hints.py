"""Claim: small files beside the state that only help are replaced when they are damaged; nothing fails for them.

The files: attempts, lock, job.json, last_done, the manifests of snapshots. A list of quarantined records is part of
the state: damaged, it is `Corrupt`.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from broker_state.store.rocks_store import META, RocksStore
from checkpoints.applied import Applied
from checkpoints.micro_batch_attempts import Attempts
from checkpoints.ownership import Ownership
from checkpoints.snapshot_retention import SnapshotRetention
from checkpoints.snapshot_store import SnapshotStore
from pipelines.apply_ops.quarantine import Quarantine, quarantine_change
from pipelines.control.job_file import JobFile
from pipelines.loops.periodic import Periodic
from popstream.wire.base_errors import Corrupt, Fenced

if TYPE_CHECKING:
    from pathlib import Path

CONTENTS = [
    b"",
    b"{",
    b"[]",
    b"7",
    b"null",
    b'{"next_offset":',
    b'{"next_offset":{"0":"x"}}',
    b"\xff\xfe\0",
    b"[" * 9_999,
]


@pytest.mark.parametrize("content", CONTENTS)
def test_damaged_attempts_are_counted_from_one_again(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "attempts"
    file.write_bytes(content)
    attempts = Attempts(file)
    assert attempts.alone is None
    assert [attempts.begin({0: 7}), Attempts(file).begin({0: 7})] == [1, 2]


@pytest.mark.parametrize("content", CONTENTS)
def test_a_damaged_lock_holds_and_is_written_again(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "lock"
    file.write_bytes(content)
    with Ownership(file) as owner:
        owner.require()
        file.write_bytes(content)
        owner.require()
        assert file.read_bytes() != content
        with pytest.raises(Fenced, match="runs the job"):
            Ownership(file)


@pytest.mark.parametrize("content", CONTENTS)
def test_a_damaged_job_file_names_no_job(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "job.json").write_bytes(content)
    assert JobFile.read(tmp_path / "job.json") is None


def test_a_job_file_that_is_a_folder(tmp_path: Path) -> None:
    assert JobFile.read(tmp_path) is None


def test_work_whose_last_time_is_lost_begins_after_a_whole_interval(tmp_path: Path) -> None:
    """A file in place of the folder."""
    (tmp_path / "last_done").write_bytes(b"")
    periodic = Periodic("snapshot", 900, lambda: None, tmp_path / "last_done")
    assert periodic._first_pause_s() == 900


def snapshot_twice(tmp_path: Path) -> SnapshotStore:
    snapshots = SnapshotStore(str(tmp_path / "kept"))
    (tmp_path / "files").mkdir()
    for seq in (1, 2):
        (tmp_path / "files" / "CURRENT").write_text(str(seq))
        snapshots.put(tmp_path / "files", Applied(state_epoch="e", ops_topic="t", ops_topic_id="i", apply_seq=seq), 0)
    return snapshots


@pytest.mark.parametrize("content", CONTENTS)
def test_a_manifest_is_no_snapshot(tmp_path: Path, content: bytes) -> None:
    snapshots = snapshot_twice(tmp_path)
    older = snapshots.list()[1]
    (tmp_path / "kept" / "manifests" / f"{snapshots.list()[0].id}.json").write_bytes(content)
    assert snapshots.list() == [older]


def test_the_manifest_of_another_snapshot_is_no_snapshot(tmp_path: Path) -> None:
    snapshots = snapshot_twice(tmp_path)
    newer, older = [tmp_path / "kept" / "manifests" / f"{each.id}.json" for each in snapshots.list()]
    shutil.copy(older, newer)
    assert [each.applied.apply_seq for each in snapshots.list()] == [1]
    assert snapshots.prune(SnapshotRetention(newest=1)) == 0


def test_a_damaged_list_of_quarantined_records_is_refused(tmp_path: Path) -> None:
    with RocksStore(tmp_path / "state") as store:
        family, key, _ = quarantine_change(0, 7, "x")
        store.write_changes([(family, key, b"\xff")])
        assert list(Quarantine(store)) == [((0, 7), "\ufffd")]
        store.write_changes([(META, key[:-1], b"x")])
        with pytest.raises(Corrupt, match=r"unreadable quarantine.*run `popstream restore`"):
            Quarantine(store)
