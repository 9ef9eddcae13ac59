"""Claim: items are applied in order, one at a time, and none after a failure."""

import threading

import pytest

from pipelines.apply_ops.handoff import Handoff


def test_the_next_item_starts_when_the_previous_one_ends() -> None:
    """The caller is free during the first item, and waits with the second."""
    done: list[int] = []
    may_continue = threading.Event()

    def work(number: int) -> None:
        assert may_continue.wait(60)
        done.append(number)

    handoff = Handoff(work)
    handoff.hand_over(1)
    assert done == []
    second = threading.Thread(target=handoff.hand_over, args=(2,))
    second.start()
    second.join(0.05)
    assert second.is_alive(), "the second was accepted before the first ended"
    may_continue.set()
    second.join(60)
    handoff.close()
    assert done == [1, 2]


def test_a_failure_is_raised_by_every_later_call() -> None:
    done: list[int] = []

    def work(number: int) -> None:
        if number == 1:
            message = "the disk is full"
            raise OSError(message)
        done.append(number)

    handoff = Handoff(work)
    handoff.hand_over(1)
    for number in (2, 3):
        with pytest.raises(OSError, match="the disk is full"):
            handoff.hand_over(number)
    handoff.close()
    assert done == []
