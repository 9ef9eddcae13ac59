"""Metrics by topic and group, and how long answers take: what Prometheus gets of the lanes."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from broker_state.audit import DeliveryStep
from pipelines.control.metric_definitions import Metric
from popstream.wire.reason import CODE_OF_REASON, Reason

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from prometheus_client.metrics_core import Metric as Family

    from broker_state.audit import DeliveryRow
    from broker_state.operation_rows import OperationRows

__all__ = ["REST", "GroupFigures", "GroupName", "LaneFigures", "LaneMetrics"]

GroupName = tuple[str, str]
"""(topic, group)"""

REST: GroupName = ("(other)", "(other)")
"""Labels of the sum of all groups that are not shown by themselves. No Kafka topic can have this name."""

ANSWER_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Upper bounds of the histogram's buckets."""

_COUNTED_STEPS = (DeliveryStep.LEASED, DeliveryStep.DEAD_LETTERED)

_NOT_REFUSED = {0, CODE_OF_REASON[Reason.NO_MESSAGE]}
"""A pop that found no message has a code, but was not refused."""


class GroupFigures(NamedTuple):
    """A group in all queues of a topic, or several of them.

    Attributes:
        lag: Queue offsets below the commit positions that are not acked.
        in_flight: Of these, leased.
        available: Of these, waiting for redelivery.
        oldest_at_ms: When the oldest unacked message was dispatched, in ms since 1970; 0: all are acked.
    """

    name: GroupName
    lag: int
    in_flight: int
    available: int
    oldest_at_ms: int


class LaneFigures(NamedTuple):
    """The figures of all groups at one moment.

    Attributes:
        read_at_s: `time.monotonic()` of that moment.
        group_count: Groups, shown or not.
        groups: Those that are shown; the last one is REST if others are summed.
        room: How many more could be shown.
    """

    read_at_s: float
    group_count: int
    groups: Sequence[GroupFigures]
    room: int


class LaneMetrics(Collector):
    """What Prometheus reads. Figures are replaced as a whole, and counts go on over all jobs of a process.

    A group is counted by itself as long as it is shown, and what is not shown under REST. Counts rise only, and begin
    with 0, also when a group is shown again: Prometheus does not see an increase from nothing to 1. Refusals begin with
    the first of each reason, as there are too many reasons for a series each.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._figures: LaneFigures | None = None
        self._shown: set[GroupName] = set()
        self._room = 0
        self._delivered: Counter[GroupName] = Counter()
        self._redelivered: Counter[GroupName] = Counter()
        self._dead_lettered: Counter[GroupName] = Counter()
        self._refused: Counter[tuple[str, str, str]] = Counter()
        self._answers = np.zeros(len(ANSWER_SECONDS) + 1, np.int64)
        """Answers by bucket, the last one without an upper bound."""
        self._answer_seconds = 0.0

    def show(self, figures: LaneFigures | None) -> None:
        """Replace the figures; None: no job runs. Counts of groups that are not shown any more end."""
        with self._lock:
            self._figures = figures
            if figures is None:
                return
            self._shown = {group.name for group in figures.groups}
            self._room = figures.room
            kept = self._shown | {REST}
            for counts in (self._delivered, self._redelivered, self._dead_lettered):
                for name in counts.keys() - kept:
                    del counts[name]
            for labels in [labels for labels in self._refused if labels[:2] not in kept]:
                del self._refused[labels]

    def count_deliveries(self, rows: Iterable[DeliveryRow]) -> None:
        """Count delivered, redelivered and dead-lettered messages."""
        counted = [row for row in rows if row.step in _COUNTED_STEPS]
        with self._lock:
            for row in counted:
                name = row.topic, row.group
                if name not in self._shown and self._room:  # a group that is new since the last figures
                    self._shown.add(name)
                    self._room -= 1
                label, count = self._label(name), row.last_offset - row.first_offset + 1
                if row.step == DeliveryStep.DEAD_LETTERED:
                    self._dead_lettered[label] += count
                    continue
                self._delivered[label] += count
                if row.attempt > 1:
                    self._redelivered[label] += count

    def count_operations(self, rows: OperationRows, published_ms: float) -> None:
        """Count refused runs, and how long operations took until `published_ms`, in ms since 1970."""
        refused = [(row, count) for row, count in rows.blocks() if row.code not in _NOT_REFUSED]
        answered_ms = [row.now_ms for row in rows.heads if not row.ordinal and row.op_id is not None]
        seconds = np.maximum(published_ms - np.array(answered_ms, np.float64), 0) / 1000
        buckets = np.bincount(np.searchsorted(ANSWER_SECONDS, seconds), minlength=len(ANSWER_SECONDS) + 1)
        with self._lock:
            self._answers += buckets
            self._answer_seconds += float(seconds.sum())
            for row, count in refused:
                self._refused[*self._label((row.topic, row.group or "")), str(row.reason)] += count

    def _label(self, name: GroupName) -> GroupName:
        return name if name in self._shown else REST

    def _from_zero(self, counts: Counter[GroupName]) -> dict[GroupName, int]:
        """Return the counts of all names that the next row may have."""
        names = self._shown if self._room else self._shown | {REST}
        return {**dict.fromkeys(names, 0), **counts}

    def collect(self) -> Iterator[Family]:
        """Yield all metrics with their series."""
        now_ms = time.time() * 1000
        with self._lock:
            figures = self._figures
            counts = [
                _counters(Metric.LANE_DELIVERED, self._from_zero(self._delivered)),
                _counters(Metric.LANE_REDELIVERED, self._from_zero(self._redelivered)),
                _counters(Metric.LANE_DEAD_LETTERED, self._from_zero(self._dead_lettered)),
                _counters(Metric.LANE_REFUSED, self._refused),
            ]
            answers, answer_seconds = self._answers.cumsum().tolist(), self._answer_seconds
        yield from counts
        yield _histogram(Metric.ANSWER_SECONDS, answers, answer_seconds)
        groups = () if figures is None else figures.groups
        for metric, values in (
            (Metric.LANE_LAG, [group.lag for group in groups]),
            (Metric.LANE_IN_FLIGHT, [group.in_flight for group in groups]),
            (Metric.LANE_AVAILABLE, [group.available for group in groups]),
            (Metric.LANE_OLDEST, [_age_s(group.oldest_at_ms, now_ms) for group in groups]),
        ):
            family = _gauge(metric)
            for group, value in zip(groups, values, strict=True):
                family.add_metric(group.name, value)
            yield family
        for metric, total in (
            (Metric.LANE_GROUPS, None if figures is None else figures.group_count),
            (Metric.LANE_FIGURES_AGE, None if figures is None else time.monotonic() - figures.read_at_s),
        ):
            family = _gauge(metric)
            if total is not None:
                family.add_metric((), total)
            yield family


def _age_s(at_ms: int, now_ms: float) -> float:
    return max(0.0, now_ms - at_ms) / 1000 if at_ms else 0.0


def _gauge(metric: Metric) -> GaugeMetricFamily:
    return GaugeMetricFamily(metric.value.name, metric.value.help, labels=metric.value.labels)


def _counters(
    metric: Metric, counts: Mapping[GroupName, int] | Mapping[tuple[str, str, str], int]
) -> CounterMetricFamily:
    family = CounterMetricFamily(metric.value.name, metric.value.help, labels=metric.value.labels)
    for labels, count in counts.items():
        family.add_metric(labels, count)
    return family


def _histogram(metric: Metric, cumulated: Sequence[int], total: float) -> HistogramMetricFamily:
    bounds = (*(str(bound) for bound in ANSWER_SECONDS), "+Inf")
    family = HistogramMetricFamily(metric.value.name, metric.value.help)
    family.add_metric((), buckets=list(zip(bounds, cumulated, strict=True)), sum_value=total)
    return family
