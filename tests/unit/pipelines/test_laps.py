"""Claim: a lap is measured once, whatever is made of it: seconds for metrics and logs, and a span."""

from __future__ import annotations

import contextlib
import gc
import weakref

import pytest

from pipelines import laps
from pipelines.laps import Lap, seconds_of
from tests.support.module_time import replace_time


class Clock:
    """A clock that a test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 100.0
        replace_time(monkeypatch, "pipelines.laps", perf_counter=lambda: self.now_s)

    def spend(self, lap: Lap, seconds: float) -> None:
        with lap:
            self.now_s += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_the_turns_of_a_loop_are_one_lap(clock: Clock) -> None:
    work = Lap("micro_batch")
    for _ in range(3):
        clock.spend(work.part("decide"), 2.0)
        clock.now_s += laps.AT_ONCE_S / 2
    (decide,) = work.parts
    assert (decide.began_s, decide.seconds) == (100.0, 6.0)
    assert decide.ended_s == pytest.approx(106.0 + laps.AT_ONCE_S)


def test_the_turns_of_a_loop_of_several_parts_are_one_lap_for_each(clock: Clock) -> None:
    work = Lap("micro_batch")
    for _ in range(9):
        for name in ("decode", "prefetch", "decide"):
            clock.spend(work.part(name), laps.AT_ONCE_S / 4)
    assert [part.name for part in work.parts] == ["decode", "prefetch", "decide"]
    assert sum(part.seconds for part in work.parts) == pytest.approx(27 * laps.AT_ONCE_S / 4)


def test_what_comes_again_later_is_another_lap_and_counts_with_the_first(clock: Clock) -> None:
    work = Lap("micro_batch")
    for name in ("fetch", "decide", "write", "decide"):
        clock.spend(work.part(name), 1.0)
    clock.now_s += 1.0  # somebody else's turn
    clock.spend(work.part("decide"), 4.0)
    assert [part.name for part in work.parts] == ["fetch", "decide", "write", "decide", "decide"]
    assert seconds_of(work) == {"fetch": 1.0, "decide": 6.0, "write": 1.0}


def test_a_lap_that_fails_is_told_with_its_error_and_its_seconds(clock: Clock) -> None:
    told: list[tuple[float, BaseException | None]] = []
    failed = OSError("no space left")
    lap = Lap("flush", lambda lap: told.append((lap.seconds, lap.error)))

    def work() -> None:
        with lap:
            clock.now_s += 3.0
            raise failed

    with pytest.raises(OSError, match="no space"):
        work()
    assert told == [(3.0, failed)]


def test_what_has_failed_lets_go_of_all_that_it_had(clock: Clock) -> None:
    """Without waiting for a garbage collection: it may be a store, which somebody opens again."""

    class Store:
        pass

    def fail() -> weakref.ref[Store]:
        store = Store()
        found = weakref.ref(store)

        def work() -> None:
            with Lap("flush", lambda _: None) as lap, lap.part("commit"):
                clock.now_s += 1.0
                raise OSError(str(id(store)))

        with contextlib.suppress(OSError):
            work()
        return found

    gc.disable()
    try:
        assert fail()() is None
    finally:
        gc.enable()


def test_a_part_after_one_that_failed_is_another_lap(clock: Clock) -> None:
    work = Lap("micro_batch")
    with pytest.raises(ValueError, match="poison"), work.part("decide"):
        raise ValueError("poison")
    clock.spend(work.part("decide"), 1.0)
    assert [part.error is None for part in work.parts] == [False, True]
