"""Claim: the alert rules and the dashboard ask for metrics and labels that a job exports, and for all that alert.

Method: they are compared with the definitions of the metrics, and with two scrapes of the endpoint of a job in memory:
one after a start, and one after everything that can go wrong with operations has; both with those of a driver, which
reports what it is given. promtool also checks their syntax, and plays docker/alerts_test.yaml: `make alerts-test`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import urllib.request
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from broker_state.store.rocks_store import RocksStore
from pipelines.cluster.watch.cluster_metrics import ClusterMetrics
from pipelines.control.cluster_metric_definitions import METRICS_OF_EVERY_JOB, ClusterMetric
from pipelines.control.cluster_report import ClusterReport, ShardReport
from pipelines.control.lane_views import scan_queues
from pipelines.control.lane_watch import LaneWatch
from pipelines.control.messages import JobReport, OwnerView
from pipelines.control.metric_definitions import Metric, MetricKind
from pipelines.control.metrics import Metrics
from pipelines.decide_ops.decode import KafkaRecord
from pipelines.http_api.http_server import HttpServer, Listener
from pipelines.http_api.metrics_app import metrics_app
from tests.support.in_process.small_job import DECLARE, POP, SmallJob, written_to
from tests.support.query_progress import PROGRESS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

DOCKER = Path(__file__).parents[2] / "docker"
TARGET_LABELS = {"instance", "job"}
"""Prometheus itself adds them to every series."""

SERIES = re.compile(r"\b(popstream_\w+)(?:\{([^}]*)\})?")
MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"')
GROUPING = re.compile(r"\bby\s*\(([^)]*)\)")


def exported() -> dict[str, set[str]]:
    """The labels of each series that a job exports, by name."""
    found: dict[str, set[str]] = {}
    for metric in (*Metric, *ClusterMetric):
        name, kind, _, _, labels = metric.value
        if kind is MetricKind.HISTOGRAM:
            found[f"{name}_bucket"] = {*labels, "le"}
            found[f"{name}_sum"] = found[f"{name}_count"] = {*labels}
        else:
            found[name] = {*labels}
    return found


def wrong_parts(expression: str, known: Mapping[str, set[str]]) -> list[str]:
    """Names of series that are not known, and labels that they do not have."""
    series = SERIES.findall(expression)
    wrong = [name for name, _ in series if name not in known]
    labels = set().union(*(known.get(name, set()) for name, _ in series)) | TARGET_LABELS
    for name, matchers in series:
        found = known.get(name, set()) | TARGET_LABELS
        wrong += [label for label, _, _ in MATCHER.findall(matchers) if label not in found]
    for grouping in GROUPING.findall(expression):
        wrong += [each.strip() for each in grouping.split(",") if each.strip() not in labels]
    return wrong if series else ["no series at all"]


def rules() -> list[dict[str, Any]]:
    document = yaml.safe_load((DOCKER / "alerts.yaml").read_text(encoding="utf-8"))
    return [rule for group in document["groups"] for rule in group["rules"]]


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode((DOCKER / "dashboard.json").read_bytes())
    return found


def dashboard_expressions() -> Iterator[str]:
    for panel in dashboard()["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))
    for variable in dashboard()["templating"]["list"]:
        if variable["type"] == "query":
            metric, label = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["definition"]).groups()  # type: ignore[union-attr]
            yield f"count by ({label}) ({metric})"


@pytest.mark.parametrize(
    ("expression", "wrong"),
    [
        ("popstream_ready == 0", []),
        ("popstream_raedy == 0", ["popstream_raedy"]),
        ('popstream_lane_lag_messages{topic="t",grp="g"}', ["grp"]),
        ("sum by (le, instance) (rate(popstream_answer_seconds_bucket[5m]))", []),
        ("rate(popstream_answer_seconds[5m])", ["popstream_answer_seconds"]),
        ("sum by (group) (popstream_ready)", ["group"]),
        ("vector(1)", ["no series at all"]),
    ],
)
def test_the_check_finds_what_is_wrong(expression: str, wrong: list[str]) -> None:
    assert wrong_parts(expression, exported()) == wrong


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_an_alert_asks_for_what_a_job_exports(rule: dict[str, Any]) -> None:
    assert wrong_parts(rule["expr"], exported()) == []
    assert rule["labels"]["severity"] in {"warning", "critical"}
    series = {name for name, _ in SERIES.findall(rule["expr"])}
    labels = set().union(*(exported()[name] for name in series))
    shown = re.findall(r"\$labels\.(\w+)", " ".join(rule["annotations"].values()))
    assert set(shown) <= labels | TARGET_LABELS


def alert_tests() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = yaml.safe_load((DOCKER / "alerts_test.yaml").read_text(encoding="utf-8"))["tests"]
    return found


def test_every_alert_is_played_when_it_fires() -> None:
    fired = {check["alertname"] for test in alert_tests() for check in test["alert_rule_test"] if check["exp_alerts"]}
    assert fired == {rule["alert"] for rule in rules()}


def test_the_played_series_are_those_of_a_job() -> None:
    for series in (each["series"] for test in alert_tests() for each in test["input_series"]):
        if not series.startswith("up{"):
            assert wrong_parts(series, exported()) == []


def test_a_job_that_is_away_is_found_while_others_are_scraped() -> None:
    """The series of the job itself cannot tell: those of the others are there."""
    (expression,) = [rule["expr"] for rule in rules() if rule["alert"] == "PopstreamAway"]
    matched = re.search(r'\bup\{job=~"([^"]*)"\} == 0 or', expression)
    assert matched is not None
    page = (DOCKER.parent / "docs" / "monitoring.md").read_text(encoding="utf-8")
    named = re.findall(r"^  - job_name: (\S+)$", page, re.MULTILINE)
    assert named
    assert all(re.fullmatch(matched[1], name) for name in named), "the documented scrape job is what the alert asks for"


def test_every_metric_to_alert_on_has_a_rule_and_no_other() -> None:
    asked = {name for rule in rules() for name, _ in SERIES.findall(rule["expr"])}
    named = {re.sub("_bucket$", "", name) for name in asked} - {Metric.LANE_DELIVERED.value.name}  # to compare with
    assert named == {metric.value.name for metric in (*Metric, *ClusterMetric) if metric.value.alert}


@pytest.mark.parametrize("expression", list(dashboard_expressions()))
def test_a_panel_asks_for_what_a_job_exports(expression: str) -> None:
    assert wrong_parts(expression, exported()) == []


def test_the_dashboard_shows_every_metric_and_no_panel_covers_another() -> None:
    shown = {
        re.sub("_(bucket|sum|count)$", "", name) for text in dashboard_expressions() for name, _ in SERIES.findall(text)
    }
    assert {metric.value.name for metric in Metric} - shown == {Metric.DELTA_LAG.value.name}
    panels = dashboard()["panels"]
    cells = [
        (x, y)
        for at in (panel["gridPos"] for panel in panels)
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    assert len({panel["id"] for panel in panels}) == len(panels)


Series = tuple[str, frozenset[tuple[str, str]]]
"""Name and labels."""

OWNER = OwnerView(prefix="shop", state="01234567", since_ms=5, host="a", folder="/f", pid=7, term=1)


def series_of(registry: CollectorRegistry) -> dict[Series, float]:
    return series_in(generate_latest(registry).decode())


def series_in(text: str) -> dict[Series, float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def series_of_a_driver() -> dict[Series, float]:
    cluster = ClusterReport(shards=[ShardReport(partition=0, next_offset=9, lag=0, recent=4)], skew=1.0)
    report = JobReport(folder="/f", apply_seq=7, owner=OWNER, cluster=cluster)
    registry = CollectorRegistry()
    queries: list[Any] = [SimpleNamespace(name=name, lastProgress=PROGRESS) for name in ("decide_ops", "audit")]
    registry.register(ClusterMetrics(lambda: queries, lambda: report))
    return series_of(registry)


FIRST_REFUSED = {Metric.LANE_REFUSED.value.name}
"""Series that begin with the first refusal: there are too many reasons for one each."""


class Scraped:
    """The endpoint of a job, scraped after a start and after errors.

    Attributes:
        at_start: The series of a job that has handed out a message, and refused, lost and given up nothing.
        after_errors: Those after a redelivery, a dead letter, a refusal and a record that is no operation.
    """

    def __init__(self, root: Path) -> None:
        self.metrics = Metrics()
        self.metrics.show_owner(OWNER)
        app = metrics_app(self.metrics.registry, list)
        with RocksStore(root / "state") as store, HttpServer([Listener("127.0.0.1", 0, app, "metrics_port")]) as server:
            self.watch = LaneWatch(store, self.metrics.lanes, 10)
            self.watch.load(scan_queues(store))
            self.job = SmallJob(root, store, observe=self.watch.observe)
            self.run(DECLARE, written_to(0, 9), POP)
            self.at_start = self.scrape(server.ports[0])
            for now_ms in (20_000, 40_000):  # the lease expires, then the last one that is allowed
                self.job.now_ms = now_ms
                self.run({**POP, "max_attempts": 2})
            self.run({**POP, "max_messages": 0})
            self.job.run_records([KafkaRecord(0, 6, now_ms, b"", b"{", 1)], 7)
            self.follow()
            self.after_errors = self.scrape(server.ports[0])

    def run(self, *operations: dict[str, Any]) -> None:
        self.job.run(*operations)
        self.follow()

    def follow(self) -> None:
        self.metrics.record(self.job.reports[-1], self.job.outbox, 0)
        self.watch.refresh()

    def scrape(self, port: int) -> dict[Series, float]:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            return {**series_of_a_driver(), **series_in(answer.read().decode())}


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Scraped:
    return Scraped(tmp_path_factory.mktemp("scraped"))


def labels_in(series: Mapping[Series, float]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = defaultdict(set)
    for name, labels in series:
        found[name] |= {label for label, _ in labels}
    return found


def matching(name: str, matchers: str, series: Mapping[Series, float]) -> set[Series]:
    """The series that a selector selects; a variable of the dashboard stands for anything."""
    chosen = set()
    for found, labels in series:
        values = dict(labels)
        if found == name and all(
            bool(re.fullmatch(re.sub(r"^\$\w+$", ".*", value) if "~" in operator else re.escape(value), values[label]))
            == operator.startswith("=")
            for label, operator, value in MATCHER.findall(matchers)
            if label not in TARGET_LABELS
        ):
            chosen.add((found, labels))
    return chosen


@pytest.mark.parametrize("expression", [*(rule["expr"] for rule in rules()), *dashboard_expressions()])
def test_each_expression_selects_series_of_the_endpoint(scraped: Scraped, expression: str) -> None:
    assert wrong_parts(expression, labels_in(scraped.after_errors)) == []
    for name, matchers in SERIES.findall(expression):
        assert matching(name, matchers, scraped.after_errors), name
        assert name in FIRST_REFUSED or matching(name, matchers, scraped.at_start), name


def test_each_series_that_rises_from_an_error_was_there_with_0(scraped: Scraped) -> None:
    """`increase` and `rate` are 0 for a series that begins with a 1."""
    new = scraped.after_errors.keys() - scraped.at_start.keys()
    assert {name for name, _ in new if not name.endswith("_created")} == FIRST_REFUSED
    counted = {metric.value.name for metric in Metric if metric.value.kind is MetricKind.COUNTER and metric.value.alert}
    rose = {
        series[0]
        for series, value in scraped.after_errors.items()
        if series[0] in counted and value > scraped.at_start.get(series, 0)
    }
    assert counted - rose == {Metric.RESTARTS.value.name}, "the activity has everything that alerts count"


def test_a_driver_exports_what_is_defined_for_it_and_nothing_else() -> None:
    """Its own, and those of an embedded job on which the same alerts are."""
    found = labels_in(series_of_a_driver())
    defined = {metric.value.name: set(metric.value.labels) for metric in (*METRICS_OF_EVERY_JOB, *ClusterMetric)}
    assert found == defined


def test_promtool_accepts_the_rules_and_they_fire_as_their_tests_say() -> None:
    promtool = os.environ.get("PROMTOOL") or shutil.which("promtool")
    if promtool is None:
        pytest.skip("there is no promtool on PATH: `make alerts-test` builds one")
    for command in (["check", "rules", "alerts.yaml"], ["test", "rules", "alerts_test.yaml"]):
        done = subprocess.run([promtool, *command], cwd=DOCKER, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
