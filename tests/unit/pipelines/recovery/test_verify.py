"""Claim: `popstream verify` finds its base while a running job deletes its oldest snapshots."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from broker_state.store.rocks_store import META, RocksStore
from checkpoints.applied import APPLIED_KEY, Applied
from checkpoints.reconcile import LogFound
from checkpoints.snapshots import Snapshot, SnapshotStore
from pipelines.recovery.snapshot_loop import take_snapshot
from pipelines.recovery.verify import _base
from popstream.wire.base_errors import Corrupt

if TYPE_CHECKING:
    from pathlib import Path

LOG = LogFound(topic="ops", topic_id="id", first_offset={0: 50}, end_offset={0: 1_000})


def applied(decided: int) -> Applied:
    return Applied(state_epoch="e", ops_topic="ops", ops_topic_id="id", apply_seq=decided, next_offset={0: decided})


@pytest.fixture
def snapshots(tmp_path: Path) -> SnapshotStore:
    """Snapshots at the offsets 100, 200 and 300."""
    snapshots = SnapshotStore(str(tmp_path / "kept"))
    with RocksStore(tmp_path / "state") as store:
        for decided in (100, 200, 300):
            store.write_changes([(META, APPLIED_KEY, applied(decided).encode())])
            take_snapshot(store, None, tmp_path / "scratch", snapshots)
    return snapshots


def test_the_base_is_the_oldest_snapshot_that_the_log_continues(snapshots: SnapshotStore, tmp_path: Path) -> None:
    assert _base(applied(400), LOG, snapshots, tmp_path / "base", None, [])[0] == {0: 100}


def test_a_snapshot_deleted_in_the_meantime_is_passed_over(
    snapshots: SnapshotStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch = snapshots.fetch

    def forget_and_fetch(snapshot: Snapshot, folder: Path) -> None:
        folder.mkdir()
        snapshots.prune(2)
        fetch(snapshot, folder)

    monkeypatch.setattr(snapshots, "fetch", forget_and_fetch)
    found, name = _base(applied(400), LOG, snapshots, tmp_path / "base", None, [])
    assert found == {0: 200}
    assert name == f"snapshot {snapshots.list()[-1].id}"


def test_a_damaged_snapshot_is_reported(
    snapshots: SnapshotStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_snapshot: Snapshot, _folder: Path) -> None:
        raise Corrupt("it is not what it was")

    monkeypatch.setattr(snapshots, "fetch", fail)
    with pytest.raises(Corrupt, match="not what it was"):
        _base(applied(400), LOG, snapshots, tmp_path / "base", None, [])
