"""Claim: each deadline gets its tick, whatever Kafka answers, and only then. Method: a clock of the test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pipelines.apply_ops import ticker as module
from pipelines.apply_ops.ticker import Ticker

if TYPE_CHECKING:
    from collections.abc import Callable

QUEUE = ("orders", 0)
START_MS = 1_790_000_000_000


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(module, "time", made)
    return made


def fail(error: BaseException) -> None:
    raise error


def no_send(_queue: tuple[str, int], _value: bytes, _answered: Callable[[int | None], None]) -> None:
    message = "the thread has not been started"
    raise AssertionError(message)


def test_a_queue_is_ticked_when_its_deadline_is_over(clock: Clock) -> None:
    ticker = Ticker(no_send, fail)
    ticker.learn({QUEUE: START_MS + 500}, START_MS, behind=False)
    assert ticker._next() == (0.5, None)
    clock.now_s = 0.5
    assert ticker._next() == (0.0, QUEUE)


def test_a_full_micro_batch_that_was_the_last_one_delays_ticks_for_seconds(clock: Clock) -> None:
    ticker = Ticker(no_send, fail)
    ticker.learn({QUEUE: START_MS + 500}, START_MS, behind=True)
    clock.now_s = 1.0
    assert ticker._next() == (module._BEHIND_S - 1, None)
    clock.now_s = module._BEHIND_S
    assert ticker._next() == (0.0, QUEUE)


def test_a_tick_that_could_not_be_sent_is_sent_again_a_second_later(clock: Clock) -> None:
    ticker = Ticker(no_send, fail)
    ticker.learn({QUEUE: START_MS}, START_MS, behind=False)
    assert ticker._next() == (0.0, QUEUE)
    ticker._sent(QUEUE, None)
    assert ticker._next() == (1.0, None)
    clock.now_s = 1.0
    assert ticker._next() == (0.0, QUEUE)
