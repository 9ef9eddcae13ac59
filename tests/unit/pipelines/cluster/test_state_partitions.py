"""Into how many partitions a state is divided (state_partitions.py)."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from connectors.kafka.topic_admin import TopicFacts
from pipelines.cluster import committed, state_partitions
from pipelines.cluster.checkpoint_identity import CheckpointIdentity
from pipelines.cluster.cluster_job import ClusterJob, ClusterSettings
from pipelines.cluster.decide.kept_shards import KeptShards
from pipelines.job_settings import JobSettings
from popstream.kafka_connection import KafkaConnection
from popstream.wire.base_errors import Corrupt, Invalid
from tests.support.hadoop_files import HadoopFiles

DECIDING = "/state/decide_ops"
IDENTITY = CheckpointIdentity.new("p", TopicFacts("p.ops", "T", 64))


def plan(partitions: int, end: int = 0) -> bytes:
    conf = f'"conf":{{"spark.sql.shuffle.partitions":"{partitions}","spark.sql.streaming.stateStore.x":"y"}}'
    return f'v1\n{{"batchWatermarkMs":0,{conf}}}\n{{"p.ops":{{"0":{end}}}}}'.encode()


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> HadoopFiles:
    found = HadoopFiles()
    for module in (committed, state_partitions):
        monkeypatch.setattr(module, "HadoopFile", found.open)
    return found


def put(files: HadoopFiles, *planned: int, committed: int = 0) -> None:
    """Store the plans of micro-batches with these numbers of partitions, of which the first ones are committed."""
    files.clear()
    for batch_id, partitions in enumerate(planned):
        files[f"{DECIDING}/offsets/{batch_id}"] = plan(partitions, 100 * batch_id)
        if batch_id < committed:
            files[f"{DECIDING}/commits/{batch_id}"] = b"v1\n{}"


class Spark:
    """In place of a session."""

    class conf:  # noqa: N801 - Spark's name
        """Settings."""

        @staticmethod
        def get(_: str) -> str:
            return "16"


@pytest.fixture
def spark() -> Any:
    return Spark()


def job(spark: Any, tasks: int) -> ClusterJob:
    cluster = ClusterSettings(checkpoint="/state", tables="/tables", tasks=tasks)
    return ClusterJob(JobSettings(topic_prefix="p"), cluster, KafkaConnection("kafka:9092"), spark)


@pytest.mark.parametrize(
    ("planned", "committed_count", "tasks", "shards"),
    [
        ([], 0, 16, 4),  # a new state
        ([2, 2], 2, 16, 32),  # more cores than the state has partitions
        ([2], 0, 16, 32),  # of which nothing is committed yet
        ([16, 16], 1, 16, 4),
        ([16], 1, 2, 32),  # fewer
    ],
)
def test_a_worker_keeps_the_shards_of_its_part_of_the_state(
    planned: list[int], committed_count: int, tasks: int, shards: int, files: HadoopFiles, spark: Any
) -> None:
    put(files, *planned, committed=committed_count)
    made = job(spark, tasks)
    with capture_logs() as logs:
        partitions = made._state_partitions(DECIDING)
    settings = made._shard_settings(IDENTITY, 4, partitions, None)
    assert settings.shards_per_task == shards
    assert settings.cache_bytes == made.cluster.cache_bytes // shards
    held_at_once = -(-64 // min(partitions, tasks))
    assert KeptShards.limit_for(settings.shards_per_task) >= held_at_once
    warned = [entry["to_use_all"] for entry in logs if entry["event"] == "cores_without_state"]
    assert warned == ([f"stop the job, and run `popstream rescale --partitions {tasks}`"] if partitions < tasks else [])


def test_a_state_whose_rescale_was_interrupted_is_not_decided_with(files: HadoopFiles, spark: Any) -> None:
    put(files, 2, 8, committed=1)
    with pytest.raises(Invalid, match="finish it with `popstream rescale --partitions 8`"):
        job(spark, 2)._state_partitions(DECIDING)


@pytest.mark.parametrize("content", [None, b"", b"v1\n{}\n{}"])
def test_a_damaged_plan_is_named(content: bytes | None, files: HadoopFiles, spark: Any) -> None:
    put(files, 2, 2, committed=1)
    files.pop(f"{DECIDING}/offsets/0") if content is None else files.update({f"{DECIDING}/offsets/0": content})
    with pytest.raises(Corrupt, match=r"^/state/decide_ops/offsets/0 cannot be read: no "):
        job(spark, 2)._state_partitions(DECIDING)
