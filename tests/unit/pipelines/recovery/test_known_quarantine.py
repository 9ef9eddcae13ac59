"""Claim: a record stays quarantined if any state, snapshot or replaced table that can be read says so."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from broker_state.audit import RejectedRow
from broker_state.store.rocks_store import META, RocksStore
from checkpoints.applied import APPLIED_KEY, NOTED_KEY, Applied, encode_noted
from checkpoints.layout import JobFolder
from checkpoints.reconcile import LogFound
from checkpoints.snapshot_store import SnapshotStore
from connectors.delta.tables import table_path
from pipelines.apply_ops.quarantine import quarantine_change
from pipelines.recovery.candidates import EMPTY, PassedOver, find_candidates, usable_states
from pipelines.recovery.known_quarantine import known_quarantine
from pipelines.recovery.replaced_files import move_tables_away
from pipelines.recovery.take_snapshot import take_snapshot
from tests.support.delta_files import append_audit_rows, create_table

if TYPE_CHECKING:
    from collections.abc import Callable

LOG = LogFound(topic="ops", topic_id="topic-1", first_offset={0: 0}, end_offset={0: 1_000})


@pytest.fixture
def folder(tmp_path: Path) -> JobFolder:
    return JobFolder(tmp_path / "job")


def write_state(path: Path, *quarantined: int, topic_id: str = "topic-1") -> None:
    """Write a state that knows its rows of these records to be in Delta."""
    applied = Applied(state_epoch="e", ops_topic="ops", ops_topic_id=topic_id, apply_seq=1, next_offset={0: 500})
    noted = encode_noted({"rejected": 1} if quarantined else {})
    with RocksStore(path) as store:
        changes = [quarantine_change(0, offset, f"of {path.parent.name}") for offset in quarantined]
        store.write_changes([(META, APPLIED_KEY, applied.encode()), (META, NOTED_KEY, noted), *changes])


def row(kafka_offset: int, reason: str = "QUARANTINED") -> RejectedRow:
    return RejectedRow(0, kafka_offset, 0, 1_000, reason, "it killed the job", 3, "0" * 64, b"abc", None, None)


def write_table(folder: JobFolder) -> list[Path]:
    """Two files: a record in quarantine and one that is rejected for another reason; another in quarantine."""
    create_table(folder.delta, "rejected")
    append_audit_rows(folder.delta, "rejected", [row(1), row(2, "NOT_JSON")], 1)
    append_audit_rows(folder.delta, "rejected", [row(3)], 2)
    return sorted(table_path(folder.delta, "rejected").rglob("*.parquet"), key=lambda file: file.stat().st_mtime_ns)


def test_every_state_counts_that_can_be_opened(folder: JobFolder) -> None:
    assert known_quarantine(folder, "topic-1") == {}
    assert not folder.root.exists()
    write_state(folder.state, 7, 8)
    write_state(folder.replaced / "a" / "state", 8, 9)
    write_state(folder.replaced / "b" / "state", 10, topic_id="another")
    write_state(folder.replaced / "c" / "state", 11)
    (folder.replaced / "c" / "state" / "CURRENT").unlink()
    assert known_quarantine(folder, "topic-1") == {(0, 7): "of job", (0, 8): "of job", (0, 9): "of a"}


def lose_the_log(files: list[Path]) -> None:
    table = next(parent for parent in files[0].parents if parent.name == "rejected")
    shutil.rmtree(table / "_delta_log")


def damage_a_file(files: list[Path]) -> None:
    files[1].write_bytes(files[1].read_bytes()[:-1])


@pytest.mark.parametrize(("harm", "known"), [(lose_the_log, {1, 3}), (damage_a_file, {1})])
def test_a_table_counts_that_was_moved_away_as_far_as_it_can_be_read(
    folder: JobFolder, harm: Callable[[list[Path]], None], known: set[int]
) -> None:
    harm(write_table(folder))
    move_tables_away(folder, ["rejected"])
    assert known_quarantine(folder, "topic-1") == {(0, offset): "it killed the job" for offset in known}
    assert known_quarantine(folder, "another") == {}


def test_a_snapshot_counts_that_is_passed_over_for_lost_rows(folder: JobFolder) -> None:
    """The state is lost, and the table has been moved away: only the snapshot has heard of the record."""
    snapshots = SnapshotStore(str(folder.snapshots))
    write_state(folder.root / "stored" / "state", 7)
    with RocksStore(folder.root / "stored" / "state") as store:
        taken = take_snapshot(store, None, folder.scratch, snapshots)
    passed_over: dict[str, PassedOver] = {}
    quarantine = known_quarantine(folder, LOG.topic_id)
    candidates = find_candidates(folder, snapshots, None)
    whole: dict[str, dict[str, int]] = {"rejected": {}}
    states = usable_states(candidates, folder, LOG, whole, passed_over, quarantine, was_more=False, lossy=False)
    assert [state.source for state in states] == [EMPTY]
    assert passed_over.keys() == {f"snapshot {taken.id}"}
    assert quarantine == {(0, 7): "of stored"}
