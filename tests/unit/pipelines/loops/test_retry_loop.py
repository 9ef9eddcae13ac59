"""Claim: work is retried while its errors are transient; a permanent error ends the job, once.

Method: work that fails as it is told, on the real thread, with pauses of some milliseconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from broker_state.store.rocks_store import StoreStopped
from pipelines.loops import retry_loop as retry_loop_module
from pipelines.loops.retry_loop import RetryLoop
from popstream.wire.base_errors import Corrupt
from tests.support.wire import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

NEVER_S = 3_600.0


class Work:
    """Raises its errors, one at each call, counts the calls, and notes what its loop reports at each."""

    def __init__(self, *raises: Exception) -> None:
        self._raises = list(raises)
        self.calls = 0
        self.loop: RetryLoop | None = None
        self.problems: list[str | None] = []

    def __call__(self) -> None:
        if self.loop is not None:
            self.problems.append(self.loop.problem)
        self.calls += 1
        if self._raises:
            raise self._raises.pop(0)


@pytest.fixture
def failures() -> list[BaseException]:
    return []


def started(work: Callable[[], None], failures: list[BaseException], interval_s: float = 0.005) -> RetryLoop:
    loop = RetryLoop("work", interval_s, work, failures.append, problem_prefix="no Delta")
    loop.start()
    return loop


def test_it_retries_and_reports_the_problem(failures: list[BaseException], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry_loop_module, "RETRY_S", 0.05)
    work = Work(OSError("the volume is away\nlong story"), OSError())
    loop = RetryLoop("work", 0.005, work, failures.append, problem_prefix="no Delta")
    work.loop = loop
    loop.start()
    wait_for(lambda: work.calls > 3)
    loop.stop()
    assert work.problems[:4] == [None, "no Delta: the volume is away", "no Delta: OSError", None]
    assert failures == []


@pytest.mark.parametrize("error", [Corrupt("the table was RESTOREd"), StoreStopped("the state cannot be read")])
def test_an_error_that_no_retry_mends_ends_it(failures: list[BaseException], error: Exception) -> None:
    """A store that has failed has to be reopened."""
    work = Work(error)
    loop = started(work, failures)
    wait_for(lambda: failures)
    loop.stop()
    assert (failures, work.calls) == ([error], 1)


def test_stop_calls_the_work_once_more(failures: list[BaseException]) -> None:
    work = Work()
    started(work, failures, NEVER_S).stop()
    assert (failures, work.calls) == ([], 1)


def test_an_error_of_the_last_call_is_reported(failures: list[BaseException]) -> None:
    """Undelivered entries stay in the outbox."""
    away = OSError("away")
    started(Work(away), failures, NEVER_S).stop()
    assert failures == [away]
