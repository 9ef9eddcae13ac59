"""Into how many partitions a state is divided (state_partitions.py), and what `popstream rescale` refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest
from structlog.testing import capture_logs

from connectors.kafka.topic_admin import TopicFacts
from pipelines.cluster import committed, rescale, state_partitions
from pipelines.cluster.checkpoint_identity import CheckpointIdentity
from pipelines.cluster.cluster_job import ClusterJob, ClusterSettings
from pipelines.cluster.decide.kept_shards import KeptShards
from pipelines.cluster.migration.stored_state import Migrated
from pipelines.job_settings import JobSettings
from popstream.kafka_connection import KafkaConnection
from popstream.wire.base_errors import Corrupt, Fenced, Invalid
from tests.support.hadoop_files import HadoopFiles

if TYPE_CHECKING:
    from collections.abc import Callable

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
    for spark_batch_id, partitions in enumerate(planned):
        files[f"{DECIDING}/offsets/{spark_batch_id}"] = plan(partitions, 100 * spark_batch_id)
        if spark_batch_id < committed:
            files[f"{DECIDING}/commits/{spark_batch_id}"] = b"v1\n{}"


class Spark:
    """In place of a session that can repartition: it commits the last planned micro-batch, or a new one."""

    version = "4.2.0"

    def __init__(self, files: HadoopFiles) -> None:
        self._streamingCheckpointManager = self
        self._files = files
        self.repartitioned: list[tuple[str, int]] = []

    def repartition(self, checkpoint: str, partitions: int) -> None:
        self.repartitioned.append((checkpoint, partitions))
        last = max(committed.micro_batches_in(cast("Any", None), f"{checkpoint}/offsets"))
        self._files[f"{checkpoint}/commits/{last}"] = b""

    class conf:  # noqa: N801 - Spark's name
        """Settings."""

        @staticmethod
        def get(_: str) -> str:
            return "16"


@pytest.fixture
def spark(files: HadoopFiles, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(rescale, "_digest", lambda *_: Migrated(1, "same"))
    return Spark(files)


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


def rescale_to_three(spark: Any, require_owned: Callable[[], None] = lambda: None) -> None:
    rescale.rescale(spark, "/state", IDENTITY, 3, require_owned=require_owned)


@pytest.mark.parametrize(
    ("planned", "committed_count", "said"),
    [
        ([], 0, "the state in /state has decided nothing yet: start its job first"),
        ([2], 0, "the state in /state has decided nothing yet: start its job first"),
        ([2, 3], 2, "the state in /state has 3 partitions already"),
        ([3, 3], 1, "the state in /state has 3 partitions already"),
        (
            [2, 8],
            1,
            "a rescale of /state to 8 partitions was interrupted: finish it with `popstream rescale --partitions 8`",
        ),
    ],
)
def test_a_state_that_cannot_be_rescaled_is_named(
    planned: list[int], committed_count: int, said: str, files: HadoopFiles, spark: Any
) -> None:
    put(files, *planned, committed=committed_count)
    with pytest.raises(Invalid) as refused:
        rescale_to_three(spark)
    assert str(refused.value) == said
    assert spark.repartitioned == []


def test_an_interrupted_rescale_is_finished_by_one_to_the_same_number(files: HadoopFiles, spark: Any) -> None:
    put(files, 2, 3, committed=1)
    before = dict(files)
    rescale_to_three(spark)
    assert spark.repartitioned == [(DECIDING, 3)]
    assert files == {**before, f"{DECIDING}/commits/1": b""}


def test_a_micro_batch_that_is_not_committed_is_passed_over(files: HadoopFiles, spark: Any) -> None:
    """What Spark finds is an interrupted rescale, which begins with the committed state and goes on behind it."""
    put(files, 2, 2, 2, committed=2)
    rescale_to_three(spark)
    assert files[f"{DECIDING}/offsets/3"] == plan(3, end=100)
    assert spark.repartitioned == [(DECIDING, 3)]
    assert sorted(committed.micro_batches_in(spark, f"{DECIDING}/commits")) == [0, 1, 3]
    put(files, 2, 2, committed=2)
    rescale_to_three(spark)
    assert f"{DECIDING}/offsets/2" not in files, "Spark plans it by itself"


def test_a_rescale_that_has_lost_the_prefix_writes_nothing(files: HadoopFiles, spark: Any) -> None:
    def lost() -> None:
        message = "taken"
        raise Fenced(message)

    put(files, 2, 2, 2, committed=2)
    before = dict(files)
    with pytest.raises(Fenced, match="taken"):
        rescale_to_three(spark, lost)
    assert (files, spark.repartitioned) == (before, [])


def test_a_spark_that_cannot_repartition_is_named(files: HadoopFiles) -> None:
    class Older:
        version = "4.1.0"

    put(files, 2, committed=1)
    with pytest.raises(Invalid, match=r"^Spark 4\.1\.0 cannot repartition .*: this needs Spark 4\.2$"):
        rescale_to_three(cast("Any", Older()))


@pytest.mark.parametrize("content", [None, b"", b"v1\n{}\n{}"])
def test_a_damaged_plan_is_named(content: bytes | None, files: HadoopFiles, spark: Any) -> None:
    put(files, 2, 2, committed=1)
    files.pop(f"{DECIDING}/offsets/0") if content is None else files.update({f"{DECIDING}/offsets/0": content})
    with pytest.raises(Corrupt, match=r"^/state/decide_ops/offsets/0 cannot be read: no "):
        rescale_to_three(spark)
