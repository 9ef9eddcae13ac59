"""Claim: `popstream restore` reads nothing while the owner of the prefix runs elsewhere, and says what it has done."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from checkpoints.layout import JobFolder
from checkpoints.prefix_owner import Owner
from checkpoints.snapshot_store import SnapshotStore
from connectors.kafka.owner_log import LastRecord
from pipelines.cli.state import restore_state
from pipelines.job_settings import JobSettings
from pipelines.process import prefix_ownership
from popstream.kafka_connection import KafkaConnection
from popstream.wire.base_errors import Fenced, Invalid, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

OWNER = Owner(session="s", term=1, state_epoch="e", has_decided=True, ops_topic_id="t", place="p", folder="/job")


def owner_log_of(heartbeat: int) -> Callable[..., Any]:
    """Return a class of a topic whose Kafka offset grows by `heartbeat` with each look at it."""

    class Log:
        def __init__(self, *_: object) -> None:
            self._kafka_offset = 0

        def last(self) -> LastRecord[Owner]:
            self._kafka_offset += heartbeat
            return LastRecord(self._kafka_offset, OWNER)

    return Log


@pytest.fixture(autouse=True)
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_ownership, "SILENCE_S", 0.05)
    monkeypatch.setattr(prefix_ownership, "HEARTBEAT_S", 0.01)
    monkeypatch.setattr(prefix_ownership, "POLL_S", 0.01)
    monkeypatch.setattr(restore_state, "describe", lambda _connection, names: dict.fromkeys(names))


def test_an_owner_that_runs_elsewhere_refuses_it_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restore_state, "OwnerLog", owner_log_of(heartbeat=1))
    with pytest.raises(Fenced, match=r"another job runs with the prefix orders: .* folder /job.*\. Stop it first"):
        restore_state._owner_epoch(KafkaConnection("k:9092"), "orders", "q")
    assert restore_state._owner_epoch(KafkaConnection("k:9092"), "orders", "p") == "e", "its own folder"


def test_an_owner_that_is_dead_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restore_state, "OwnerLog", owner_log_of(heartbeat=0))
    assert restore_state._owner_epoch(KafkaConnection("k:9092"), "orders", "q") == "e"


def test_no_table_is_moved_for_a_snapshot_that_there_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = JobFolder(tmp_path / "job")
    (folder.delta / "operations").mkdir(parents=True)
    monkeypatch.setattr(restore_state, "require_job_folder", lambda _: None)
    with pytest.raises(Invalid, match="there is no snapshot typo at"):
        restore_state.run_restore(
            JobSettings(folder=folder.root),
            var=tmp_path,
            lossy=False,
            only="typo",
            rebuild=["operations"],
            as_json=False,
        )
    assert (folder.delta / "operations").is_dir()


def test_a_base_that_cannot_be_stored_is_asked_for_by_name(tmp_path: Path) -> None:
    restored: Any = SimpleNamespace(since_loss=["e"])

    def refuse() -> None:
        message = "the snapshot cannot be kept at s3://bucket: no route to host"
        raise Unavailable(message, subject="s3://bucket")

    with pytest.raises(Unavailable, match=r"^the state is restored, but .*no route to host; .*`popstream snapshot`$"):
        restore_state._require_base(restored, SnapshotStore(str(tmp_path)), refuse)
    nothing_lost: Any = SimpleNamespace(since_loss=[])
    restore_state._require_base(nothing_lost, SnapshotStore(str(tmp_path)), refuse)
