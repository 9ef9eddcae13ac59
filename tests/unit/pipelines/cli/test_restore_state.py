"""Claim: `popstream restore` reads nothing while the owner of the prefix runs in another folder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from checkpoints.prefix_owner import Owner
from connectors.kafka.owner_log import LastRecord
from pipelines.cli.state import restore_state
from pipelines.process import prefix_ownership
from popstream.kafka_connection import KafkaConnection
from popstream.wire.base_errors import Fenced

if TYPE_CHECKING:
    from collections.abc import Callable

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
