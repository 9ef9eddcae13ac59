"""Claim: partitions that somebody adds to the ops topic end the job, and no other one starts on it.

Queues would be decided by two partitions at once, the old one and the one that their keys lead to now. Method: a host,
whose topic grows while it runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from kafka.admin import KafkaAdminClient

from broker_state.errors import Corrupt
from pipelines.host import Host
from pipelines.settings import JobSettings
from tests.support.wire import Wire

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from connectors.kafka.embedded import EmbeddedKafka

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
SAID = r"ops has 3 partitions and had 2.* `popstream up --prefix NAME --folder FOLDER --ops-partitions 3`"


def test_partition_added(spark: SparkSession, kafka: EmbeddedKafka, tmp_path: Path, topic_prefix: str) -> None:
    assert spark.sparkContext._jsc is not None, "a host that finds no Spark starts and ends one of its own"
    settings = JobSettings(
        folder=tmp_path / "job",
        bootstrap_servers=kafka.bootstrap_servers,
        topic_prefix=topic_prefix,
        ops_partitions=2,
    )
    with Host(settings, var=ROOT / "var") as host:
        with Wire(host.job) as wire:
            wire.ask("declare", topic_id="id")
        with KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers) as admin:
            admin.create_partitions({host.job.topics.ops: 3})
        failure = host.wait()
        assert isinstance(failure, Corrupt)
        with pytest.raises(Corrupt, match=SAID):
            raise failure
        assert sorted(host.job.apply_ops.applied.next_offset) == [0, 1]
    with pytest.raises(Corrupt, match=SAID), Host(settings, var=ROOT / "var"):
        pass
