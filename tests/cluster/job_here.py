"""A job on a cluster in this process, and what its tests wait for."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from connectors.kafka.topic_admin import create_message_topic
from pipelines.cluster.cluster_job import ClusterJob, ClusterSettings
from pipelines.job_settings import JobSettings
from popstream.kafka_connection import KafkaConnection

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from connectors.kafka.embedded import EmbeddedKafka

__all__ = ["LIMIT_S", "job_of", "orders", "until"]

LIMIT_S = 120.0


def until(holds: Callable[[], bool], job: ClusterJob) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while not holds():
        assert job.failure is None, job.failure
        assert time.monotonic() < deadline_s, "it takes too long"
        time.sleep(0.1)


def job_of(spark: SparkSession, kafka: EmbeddedKafka, prefix: str, root: Path) -> ClusterJob:
    settings = JobSettings(folder=root, topic_prefix=prefix, ops_partitions=2, results_partitions=2, flush_interval_s=1)
    cluster = ClusterSettings(checkpoint=str(root / "state"), tables=str(root / "tables"))
    return ClusterJob(settings, cluster, KafkaConnection(kafka.bootstrap_servers), spark)


def orders(kafka: EmbeddedKafka, prefix: str, *, queues: int) -> tuple[str, dict[str, Any]]:
    """Make a message topic; its name, and the options of clients that use it."""
    topic = f"{prefix}.orders"
    create_message_topic(KafkaConnection(kafka.bootstrap_servers), topic, queues)
    return topic, {"bootstrap_servers": kafka.bootstrap_servers, "prefix": prefix}
