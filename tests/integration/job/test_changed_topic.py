"""Claim: an ops topic that grows, or is made again, under a running job ends it, and no other one starts on it.

Queues would be decided by two partitions at once, the old one and the one that their keys lead to now; and records of
another topic would be taken for more of the old. Method: a host, whose topic is changed while it runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from kafka.admin import KafkaAdminClient

from connectors.kafka.own_topics import TopicSettings, ensure_topics
from pipelines.job_settings import JobSettings
from pipelines.process.host import Host
from popstream.wire.base_errors import Corrupt
from tests.support.wire import Wire, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from connectors.kafka.embedded import EmbeddedKafka
    from pipelines.process.job import Job

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[3]
GREW = r"ops has 3 partitions and had 2.* `popstream up --prefix NAME --folder FOLDER --ops-partitions 3`"
MADE_AGAIN = r"ops was deleted and made again.* `popstream restore --lossy`"


def add_partition(job: Job) -> None:
    with KafkaAdminClient(bootstrap_servers=str(job.connection)) as admin:
        admin.create_partitions({job.topics.ops: 3})


def make_again(job: Job) -> None:
    with KafkaAdminClient(bootstrap_servers=str(job.connection)) as admin:
        admin.delete_topics([job.topics.ops])
    settings = TopicSettings(ops_partitions=2)
    wait_for(lambda: ensure_topics(job.connection, job.topics, settings)[job.topics.ops] != job.ops)


def ends_and_stays_down(host: Host, change: Callable[[Job], None], said: str) -> None:
    with host:
        with Wire(host.job) as wire:
            wire.ask("declare", topic_id="id")
        change(host.job)
        failure = host.wait()
        assert isinstance(failure, Corrupt)
        with pytest.raises(Corrupt, match=said):
            raise failure
        assert sorted(host.job.apply_ops.applied.next_offset) == [0, 1]
    with pytest.raises(Corrupt, match=said), Host(host.settings, var=ROOT / "var"):
        pass


@pytest.fixture
def host(spark: SparkSession, kafka: EmbeddedKafka, tmp_path: Path, topic_prefix: str) -> Host:
    assert spark.sparkContext._jsc is not None, "a host that finds no Spark starts and ends one of its own"
    settings = JobSettings(
        folder=tmp_path / "job",
        bootstrap_servers=kafka.bootstrap_servers,
        topic_prefix=topic_prefix,
        ops_partitions=2,
    )
    return Host(settings, var=ROOT / "var")


def test_partition_added(host: Host) -> None:
    ends_and_stays_down(host, add_partition, GREW)


def test_topic_recreated(host: Host) -> None:
    ends_and_stays_down(host, make_again, MADE_AGAIN)
