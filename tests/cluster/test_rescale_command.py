"""Claim: `popstream rescale` divides the state of a stopped job anew and says what it holds, and leases go on in it.
Where it must not, or cannot, it says why, ends with 2, and changes nothing.

Method: a job on local threads; the command by itself, and where it refuses in this process, with its Spark.
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from pipelines.cli.app import app
from pipelines.cli.cluster import state_place
from pipelines.cluster.checkpoint_layout import decide_checkpoint
from pipelines.cluster.state_partitions import state_partitions
from popstream import Consumer, Producer
from tests.cluster.conftest import ROOT
from tests.cluster.job_here import job_of, orders, until
from tests.cluster.submitted import popstream

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from connectors.kafka.embedded import EmbeddedKafka
    from pipelines.cluster.cluster_job import ClusterJob

HOUR_MS = 3_600_000


class Rescaled:
    """A prefix with a job, and the command for its state."""

    def __init__(self, spark: SparkSession, kafka: EmbeddedKafka, prefix: str, root: Path) -> None:
        self.spark, self.kafka, self.prefix, self.root = spark, kafka, prefix, root
        self.state = str(root / "state")

    def job(self) -> ClusterJob:
        return job_of(self.spark, self.kafka, self.prefix, self.root)

    def partitions(self) -> int:
        found = state_partitions(self.spark, decide_checkpoint(self.state))
        assert found is not None
        return found.partitions

    def command(self, partitions: int, state: str | None = None) -> list[str]:
        job = ("--bootstrap-servers", self.kafka.bootstrap_servers, "--prefix", self.prefix, "--var", str(ROOT / "var"))
        return ["rescale", "--checkpoint", state or self.state, "--partitions", str(partitions), *job]

    def refusal(self, partitions: int, state: str | None = None) -> str:
        """What the command says when it refuses."""
        done = CliRunner().invoke(app, self.command(partitions, state))
        assert done.exit_code == 2, done.output
        return done.stderr


@pytest.fixture
def rescaled(
    cluster_spark: SparkSession,
    kafka: EmbeddedKafka,
    topic_prefix: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Rescaled:
    @contextlib.contextmanager
    def shared(*_: object, **__: object) -> Iterator[SparkSession]:
        yield cluster_spark

    monkeypatch.setattr(state_place, "cluster_spark", shared)
    return Rescaled(cluster_spark, kafka, topic_prefix, tmp_path)


def test_the_command_gives_a_stopped_job_more_partitions(rescaled: Rescaled) -> None:
    topic, client = orders(rescaled.kafka, rescaled.prefix, queues=1)
    with rescaled.job() as job:
        with Producer(**client, dispatch=True) as producer:
            for body in (b"1", b"2"):
                producer.send(topic, body).result(60)
        leasing = Consumer(**client, group="g", renewal=None)
        until(lambda: bool(leasing.pop(topic, max_messages=1, invisible_time_ms=HOUR_MS)), job)
        leasing.close(release=False)
        assert "another job runs with the prefix" in rescaled.refusal(3)
        assert job.failure is None
    assert "Invalid value for '--partitions'" in rescaled.refusal(0)
    assert "has 2 partitions already" in rescaled.refusal(2)
    assert f"there is no state of a job in {rescaled.root}/none" in rescaled.refusal(3, f"{rescaled.root}/none")
    assert rescaled.partitions() == 2

    done = popstream(*rescaled.command(3))
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert re.fullmatch(
        r"popstream: [1-9]\d* keys in 3 partitions; both copies have the digest [0-9a-f]{32}\n", done.stderr
    )
    assert rescaled.partitions() == 3
    with rescaled.job() as job, Consumer(**client, group="g", renewal=None) as consumer:
        until(lambda: [each.value for each in consumer.pop(topic, invisible_time_ms=HOUR_MS)] == [b"2"], job)
