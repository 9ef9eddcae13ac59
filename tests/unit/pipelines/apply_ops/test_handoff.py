"""Work that is handed over: in order, one at a time, and nothing after a failure."""

import threading

import pytest

from pipelines.apply_ops.handoff import Handoff


def test_the_next_is_begun_when_the_one_before_is_done() -> None:
    """The caller is free while the first is worked on, and waits with the second in hand."""
    done: list[int] = []
    may_go_on = threading.Event()

    def work(number: int) -> None:
        assert may_go_on.wait(10)
        done.append(number)

    line = Handoff(work)
    line.hand_over(1)
    assert done == []
    second = threading.Thread(target=line.hand_over, args=(2,))
    second.start()
    second.join(0.05)
    assert second.is_alive(), "the second was taken over before the first was done"
    may_go_on.set()
    second.join(10)
    line.close()
    assert done == [1, 2]


def test_what_fails_is_told_to_the_next_and_nothing_follows() -> None:
    done: list[int] = []

    def work(number: int) -> None:
        if number == 1:
            message = "the disk is full"
            raise OSError(message)
        done.append(number)

    line = Handoff(work)
    line.hand_over(1)
    for number in (2, 3):
        with pytest.raises(OSError, match="the disk is full"):
            line.hand_over(number)
    line.close()
    assert done == []
