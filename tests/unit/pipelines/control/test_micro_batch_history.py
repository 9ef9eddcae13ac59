"""Claim: the points of the page say what was decided between them, and are of the last ten minutes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from pipelines.control.metrics import Metrics, Totals
from pipelines.control.micro_batch_history import POINTS_MAX, MicroBatchHistory, RatePoint


class Counted(Metrics):
    """Metrics that a test sets."""

    def __init__(self) -> None:
        super().__init__()
        self.now = Totals()
        self.seconds: dict[str, float] = {}

    def totals(self) -> Totals:
        return self.now

    def step_seconds(self) -> dict[str, float]:
        return dict(self.seconds)


@pytest.fixture
def clock() -> SimpleNamespace:
    return SimpleNamespace(now_s=1_000.0)


def test_a_point_has_the_rate_and_the_mean_of_each_step(clock: SimpleNamespace) -> None:
    metrics = Counted()
    history = MicroBatchHistory(metrics, lambda: clock.now_s)
    metrics.now, metrics.seconds = Totals(operations=500, micro_batches=4), {"decide": 0.2, "write": 0.1}
    clock.now_s = 1_001.9
    history.sample()
    assert history.points() == [], "not two seconds yet"
    clock.now_s = 1_002.0
    history.sample()
    first = RatePoint(at_ms=1_002_000, operations_per_s=250.0, micro_batches=4, step_ms={"decide": 50.0, "write": 25.0})
    assert history.points() == [first]
    clock.now_s = 1_006.0
    history.sample()
    idle = RatePoint(at_ms=1_006_000, operations_per_s=0.0, micro_batches=0, step_ms={})
    assert history.points() == [first, idle]


def test_it_keeps_ten_minutes_and_bears_a_clock_that_is_set_back(clock: SimpleNamespace) -> None:
    history = MicroBatchHistory(Counted(), lambda: clock.now_s)
    for _ in range(POINTS_MAX + 5):
        clock.now_s += 2
        history.sample()
    assert len(history.points()) == POINTS_MAX
    clock.now_s -= 3_600
    history.sample()
    clock.now_s += 2
    history.sample()
    assert history.points()[-1].at_ms == round(clock.now_s * 1000)
