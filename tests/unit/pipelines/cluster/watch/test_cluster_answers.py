"""Claim: the driver of a cluster answers by the API of every job, and says in one line what it does not tell.

Method: the real server over a report and samples of queries; Spark, which reads the checkpoint, takes no part.
"""

from __future__ import annotations

import urllib.error
import urllib.request
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from pipelines.cluster.watch.cluster_answers import ClusterAnswers
from pipelines.cluster.watch.cluster_metrics import ClusterMetrics
from pipelines.control.client import ask
from pipelines.control.cluster_report import ClusterReport, ShardReport
from pipelines.control.job_file import JobFile
from pipelines.control.messages import JobReport, Status, StatusRequest
from pipelines.control.page_messages import LanePage, LanesRequest
from pipelines.http_api.http_server import HttpServer
from pipelines.http_api.listeners import listeners_of
from pipelines.job_settings import JobSettings
from popstream.kafka_connection import KafkaConnection
from popstream.wire.base_errors import Invalid
from tests.unit.pipelines.cluster.watch.test_query_progress import Watched

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from pipelines.cluster.watch.driver_watch import DriverWatch

CLUSTER = ClusterReport(
    master="spark://a:7077",
    tables="s3a://b/tables",
    shards=[ShardReport(partition=0, next_offset=40, lag=2, recent=20)],
    skew=1.0,
)
REPORT = JobReport(folder="s3a://b/orders", apply_seq=9, prefix="orders", ops_lag=2, cluster=CLUSTER)


@pytest.fixture
def url() -> Iterator[str]:
    """The address of the API."""
    watched = Watched({0: 20})
    watched.report(8, 40)
    driver = cast("DriverWatch", SimpleNamespace(report=lambda: REPORT, progress=watched.watch))
    answers = ClusterAnswers(cast("SparkSession", None), REPORT.folder, KafkaConnection("kafka:9092"), driver)
    registry = CollectorRegistry()
    registry.register(ClusterMetrics(lambda: (), lambda: REPORT))
    (listener,) = listeners_of(JobSettings(api_port=9465), answers, registry, lambda: ["Kafka is away"])
    with HttpServer([listener._replace(port=0)]) as server:
        yield f"http://localhost:{server.ports[0]}"


def get(address: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(address, timeout=60) as answer:  # noqa: S310 - it is HTTP
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def asked(url: str, request: Any, reply: Any) -> Any:
    unknown = JobFile(pid=0, bootstrap_servers="", prefix="", folder="", address=url, token="", started_at=0.0)
    return ask(unknown, request, reply)


def test_status_has_the_report_and_the_rate(url: str) -> None:
    status = asked(url, StatusRequest(limit=0), Status)
    assert (status.running, status.folder, status.prefix, status.ops_lag) == (True, REPORT.folder, "orders", 2)
    assert (status.cluster, status.operations_per_s) == (CLUSTER, 10.0)


def test_metrics_probes_rates_and_the_page_are_those_of_every_job(url: str) -> None:
    status, text = get(f"{url}/metrics")
    assert (status, "popstream_ops_lag_records 2.0" in text) == (200, True)
    assert get(f"{url}/ready") == (503, "Kafka is away\n")
    assert get(f"{url}/")[0] == 200
    rates = msgspec.json.decode(get(f"{url}/api/v1/rates")[1])
    assert [(point["operations_per_s"], point["micro_batches"]) for point in rates] == [(10.0, 2)]


def test_what_the_driver_does_not_tell_it_says_with_the_command_that_does(url: str) -> None:
    with pytest.raises(Invalid, match=r"does not follow lanes .*`popstream status --checkpoint "):
        asked(url, LanesRequest(), LanePage)
    status, text = get(f"{url}/api/v1/message?topic=orders&queue_id=0&queue_offset=1")
    assert (status, "popstream why orders/0/1 --tables s3a://b/tables" in text) == (400, True)
