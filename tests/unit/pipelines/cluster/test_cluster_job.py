"""How the driver of a job on a cluster takes its prefix, and how it ends (cluster_job.py). Method: without a JVM."""

from __future__ import annotations

from typing import Any, cast

import pytest
from py4j.java_gateway import JavaObject
from pyspark.sql.streaming.query import StreamingQuery

from connectors.delta.spark_errors import SparkError
from pipelines.cluster.cluster_job import ClusterJob, ClusterSettings
from pipelines.job_settings import JobSettings
from popstream.kafka_connection import KafkaConnection
from tests.support.java_error import ended_jvm

NO_SPARK = cast("Any", None)


@pytest.fixture
def job() -> ClusterJob:
    cluster = ClusterSettings(checkpoint="/state", tables="/tables")
    return ClusterJob(JobSettings(topic_prefix="p"), cluster, KafkaConnection("kafka:9092"), NO_SPARK)


def test_a_job_whose_jvm_has_ended_stops_and_says_what_ended_it(job: ClusterJob) -> None:
    stopped: list[str] = []
    job._stack.callback(stopped.append, "first started")
    job._watch(StreamingQuery(JavaObject("o1", ended_jvm()._gateway_client)))
    assert job.wait(60)
    job.stop()
    assert isinstance(job.failure, SparkError)
    assert str(job.failure).startswith("Spark failed (ConnectionRefusedError)")
    assert stopped == ["first started"]
