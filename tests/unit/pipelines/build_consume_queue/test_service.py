"""Claim: constructing the builder's service does nothing, and a failed start leaves nothing open."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from broker_state.store.rocks_store import BUILDER_FAMILIES, RocksStore
from checkpoints.layout import JobFolder
from pipelines.build_consume_queue.service import BuilderService
from pipelines.decide_ops.entry import EntryKind
from pipelines.job_settings import JobSettings
from popstream.kafka_connection import KafkaConnection
from popstream.testing.memory_job import MemoryJob
from popstream.topics.message_topics import MessageTopic
from popstream.wire.base_errors import Unavailable
from tests.support.threads import leaves_no_thread

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def service(folder: Path) -> BuilderService:
    """A service without Spark."""
    nothing: Any = None
    settings = JobSettings(folder=folder, message_topics="*")
    return BuilderService(settings, JobFolder(folder), KafkaConnection("127.0.0.1:1"), nothing, lambda _: None)


def raises(*_: Any, **__: Any) -> None:
    message = "Kafka does not answer"
    raise Unavailable(message)


def test_a_service_is_constructed_and_stopped_without_side_effects(tmp_path: Path) -> None:
    with leaves_no_thread():
        service(tmp_path / "job").stop()
    assert not (tmp_path / "job").exists()


class Loop:
    """The part of a `UnitFlush` that the service starts and stops."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.loop = self
        self.calls: list[str] = []

    def start(self) -> None:
        self.calls.append("start")

    def stop(self) -> None:
        self.calls.append("stop")


@pytest.mark.parametrize("step", ["units_in_delta", "UnitFlush", "Transport", "BuilderQuery"])
def test_a_failed_start_closes_what_it_has_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    steps: dict[str, Callable[..., object]] = {
        "units_in_delta": lambda *_: None,
        "UnitFlush": Loop,
        "Transport": lambda _: MemoryJob().transport(),
        step: raises,
    }
    for name, substitute in steps.items():
        monkeypatch.setattr(f"pipelines.build_consume_queue.service.{name}", substitute)
    monkeypatch.setattr("pipelines.build_consume_queue.builder.Builder.begin_epoch", lambda *_: None)
    built = service(tmp_path)
    with leaves_no_thread(), pytest.raises(Unavailable, match="does not answer"):
        built.start()
    if step == "BuilderQuery":
        assert built.unit_flush.calls == ["start", "stop"]  # type: ignore[attr-defined]
    RocksStore(built._folder.queues, BUILDER_FAMILIES).close()  # it is not locked
    built.stop()


def test_an_abandoned_service_sends_nothing_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = MemoryJob()
    for name, substitute in {
        "units_in_delta": lambda *_: None,
        "UnitFlush": Loop,
        "Transport": lambda _: memory.transport(),
        "BuilderQuery": Loop,
    }.items():
        monkeypatch.setattr(f"pipelines.build_consume_queue.service.{name}", substitute)
    monkeypatch.setattr("pipelines.build_consume_queue.builder.Builder.begin_epoch", lambda *_: None)
    with leaves_no_thread():
        built = service(tmp_path).start()
        built.abandon()
        entries = built.builder.update_topics({"orders": MessageTopic("orders", "id", {0: 0}, {0: 0})}, {})
        built.sender.send(entries)
        assert (len(entries), memory.records) == (1, [])
        assert [each.key for each in built.outbox.undelivered(EntryKind.DISPATCH)] == [entries[0].key]
        built.stop()
