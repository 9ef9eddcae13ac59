"""Periodic work: restarts of the job do not change its schedule."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from pipelines.loops.periodic import Periodic
from tests.support.threads import eventually

if TYPE_CHECKING:
    from pathlib import Path

DAY_S = 86_400.0


def first_pause_s(folder: Path, done_s_ago: float | None) -> float:
    if done_s_ago is not None:
        done = folder / "maintenance"
        done.touch()
        os.utime(done, (time.time() - done_s_ago,) * 2)
    return Periodic("maintenance", DAY_S, lambda: None, folder)._first_pause_s()


@pytest.mark.parametrize(
    ("done_s_ago", "pause_s"), [(None, DAY_S), (0.0, DAY_S), (DAY_S / 4, DAY_S * 3 / 4), (DAY_S * 9, 60.0)]
)
def test_a_start_waits_for_the_rest_of_the_interval(tmp_path: Path, done_s_ago: float | None, pause_s: float) -> None:
    assert first_pause_s(tmp_path, done_s_ago) == pytest.approx(pause_s, abs=5)


def test_a_clock_that_was_set_back_does_not_lengthen_the_interval(tmp_path: Path) -> None:
    assert first_pause_s(tmp_path, -DAY_S * 30) == DAY_S


def test_failed_work_does_not_count_as_done(tmp_path: Path) -> None:
    outcomes = iter([ValueError("no"), None])

    def work() -> None:
        if (error := next(outcomes, None)) is not None:
            raise error

    done = tmp_path / "folder" / "work"
    done.parent.mkdir()
    done.touch()
    os.utime(done, (0, 0))
    periodic = Periodic("work", 0.01, work, done.parent)
    assert periodic.failure is None
    periodic.start()
    eventually(lambda: done.stat().st_mtime > 0)
    periodic.stop()
    assert next(outcomes, None) is None
    assert periodic.failure is None


def test_an_error_is_logged_as_an_event_of_the_thread() -> None:
    def work() -> None:
        message = "no"
        raise ValueError(message)

    periodic = Periodic("ops-topic-watch", 0.01, work)
    with capture_logs() as logged:
        periodic.start()
        eventually(lambda: bool(logged))
        periodic.stop()
    assert logged[0] == {"event": "ops_topic_watch_failed", "error": "no", "log_level": "error"}


def test_without_an_interval_the_work_is_never_done(tmp_path: Path) -> None:
    periodic = Periodic("work", 0.0, lambda: pytest.fail("it was done"), tmp_path)
    periodic.start()
    time.sleep(0.05)
    periodic.stop()
    assert not (tmp_path / "work").exists()
