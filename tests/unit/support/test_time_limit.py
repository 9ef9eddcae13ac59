"""A time limit ends a block whatever the block does about its end."""

from __future__ import annotations

import signal
from typing import NoReturn

import pytest

from tests.support.time_limit import time_limit


def hangs() -> NoReturn:
    while True:
        pass


def hangs_twice(ended: list[str]) -> None:
    try:
        try:
            hangs()
        finally:
            ended.append("block")
            hangs()
    finally:
        ended.append("clean-up")


# The limits are of CPU time, as the time-out of pytest itself uses the alarm.
def test_a_block_whose_clean_up_hangs_as_well_is_ended() -> None:
    ended: list[str] = []
    with pytest.raises(TimeoutError, match="too long"), time_limit(0.05, TimeoutError("too long"), of_cpu=True):
        hangs_twice(ended)
    assert ended == ["block", "clean-up"]


def test_nothing_is_left_of_a_limit_when_its_block_is_over() -> None:
    before = signal.getsignal(signal.SIGVTALRM)
    with time_limit(60, TimeoutError("too long"), of_cpu=True):
        pass
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0.0, 0.0)
    assert signal.getsignal(signal.SIGVTALRM) is before
