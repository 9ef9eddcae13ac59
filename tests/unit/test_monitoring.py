"""Claim: the alert rules and the dashboard ask for metrics and labels that a job exports, and for all that alert.

`promtool` also checks their syntax, and plays docker/alerts_test.yaml, where it is installed.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import yaml

from pipelines.control.metric_definitions import Metric, MetricKind

if TYPE_CHECKING:
    from collections.abc import Iterator

DOCKER = Path(__file__).parents[2] / "docker"
TARGET_LABELS = {"instance", "job"}
"""Prometheus itself adds them to every series."""

SERIES = re.compile(r"\b(popstream_\w+)(?:\{([^}]*)\})?")
MATCHED_LABEL = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")
GROUPING = re.compile(r"\bby\s*\(([^)]*)\)")


def exported() -> dict[str, set[str]]:
    """The labels of each series that a job exports, by name."""
    found: dict[str, set[str]] = {}
    for metric in Metric:
        name, kind, _, _, labels = metric.value
        if kind is MetricKind.HISTOGRAM:
            found[f"{name}_bucket"] = {*labels, "le"}
            found[f"{name}_sum"] = found[f"{name}_count"] = {*labels}
        else:
            found[name] = {*labels}
    return found


def wrong_parts(expression: str) -> list[str]:
    """Names of series that no job exports, and labels that they do not have."""
    known = exported()
    series = SERIES.findall(expression)
    wrong = [name for name, _ in series if name not in known]
    labels = set().union(*(known.get(name, set()) for name, _ in series)) | TARGET_LABELS
    for name, matchers in series:
        wrong += [
            each for each in MATCHED_LABEL.findall(matchers) if each not in known.get(name, set()) | TARGET_LABELS
        ]
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
    assert wrong_parts(expression) == wrong


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_an_alert_asks_for_what_a_job_exports(rule: dict[str, Any]) -> None:
    assert wrong_parts(rule["expr"]) == []
    assert rule["labels"]["severity"] in {"warning", "critical"}
    series = {name for name, _ in SERIES.findall(rule["expr"])}
    labels = set().union(*(exported()[name] for name in series))
    shown = re.findall(r"\$labels\.(\w+)", " ".join(rule["annotations"].values()))
    assert set(shown) <= labels | TARGET_LABELS


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
    assert named == {metric.value.name for metric in Metric if metric.value.alert}


@pytest.mark.parametrize("expression", list(dashboard_expressions()))
def test_a_panel_asks_for_what_a_job_exports(expression: str) -> None:
    assert wrong_parts(expression) == []


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


def test_promtool_accepts_the_rules_and_they_fire_as_their_tests_say() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed")
    for command in (["check", "rules", "alerts.yaml"], ["test", "rules", "alerts_test.yaml"]):
        done = subprocess.run([promtool, *command], cwd=DOCKER, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
