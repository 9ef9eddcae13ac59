"""Starts with the same undecided micro-batch (repeated_starts.py), and what a task does with their number."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, cast

from pyspark import TaskContext

from pipelines.cluster import committed
from pipelines.cluster.decide import repeated_starts, shard_processor
from pipelines.cluster.decide.repeated_starts import noted_micro_batch
from pipelines.cluster.decide.shard_processor import ShardProcessor
from popstream.kafka_connection import KafkaConnection
from tests.unit.pipelines.cluster.decide.test_shard import SETTINGS

if TYPE_CHECKING:
    import pytest

NO_SPARK = cast("Any", None)


class Files:
    """In place of those of Hadoop."""

    def __init__(self) -> None:
        self.planned = ["0", "1", ".crc"]
        self.content: dict[str, bytes] = {}


def test_the_third_start_with_a_micro_batch_decides_it_with_notes(monkeypatch: pytest.MonkeyPatch) -> None:
    files = Files()

    class File:
        def __init__(self, _: object, url: str) -> None:
            self.url = url

        def names(self) -> list[str]:
            assert self.url == "/state/decide_ops/offsets"
            return files.planned

        def read(self) -> bytes | None:
            return files.content.get(self.url)

        def write(self, content: bytes) -> None:
            files.content[self.url] = content

    monkeypatch.setattr(repeated_starts, "HadoopFile", File)
    monkeypatch.setattr(committed, "HadoopFile", File)

    def start(last_committed: int) -> int | None:
        return noted_micro_batch(NO_SPARK, "/state/decide_ops", last_committed)

    assert [start(1) for _ in range(4)] == [None] * 4, "all that was planned is committed"
    assert not files.content
    assert [start(0) for _ in range(4)] == [None, None, 1, 1]
    files.planned.append("2")
    assert [start(1) for _ in range(3)] == [None, None, 2], "it has decided the one before"
    files.content["/state/decide_ops-starts.json"] = b"{"
    assert start(1) is None


class Context(NamedTuple):
    """In place of the one of a task of Spark."""

    attempt: int
    spark_batch_id: str | None

    def attemptNumber(self) -> int:  # noqa: N802 - Spark's name
        return self.attempt

    def getLocalProperty(self, key: str) -> str | None:  # noqa: N802
        assert key == "streaming.sql.batchId"
        return self.spark_batch_id


def test_a_task_notes_its_records_from_its_third_attempt_or_in_such_a_micro_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shard_processor, "ShardAttempts", lambda *_: "notes")

    def notes(attempt: int, spark_batch_id: str | None, noted: int | None) -> object:
        monkeypatch.setattr(TaskContext, "get", lambda: Context(attempt, spark_batch_id))
        settings = SETTINGS._replace(noted_micro_batch=noted)
        return ShardProcessor(settings, KafkaConnection("kafka:9092"), "p", 4, "epoch")._attempts(0)

    assert notes(0, "7", None) is None
    assert notes(1, "7", 6) is None
    assert notes(2, "7", None) == "notes"
    assert notes(0, "7", 7) == "notes"
    assert notes(0, None, None) is None
