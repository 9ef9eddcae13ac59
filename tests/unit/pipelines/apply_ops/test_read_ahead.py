"""Claim: the next item is read, in a thread of its own, while the caller works on one; errors keep their place."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from pipelines.apply_ops.read_ahead import read_ahead

if TYPE_CHECKING:
    from collections.abc import Iterator


def test_the_next_item_is_read_while_one_is_worked_on() -> None:
    second_is_read = threading.Event()
    third_is_read = threading.Event()

    def items() -> Iterator[int]:
        yield 1
        second_is_read.set()
        yield 2
        third_is_read.set()
        yield 3

    ahead = read_ahead(items())
    assert next(ahead) == 1
    assert second_is_read.wait(10)  # nobody has asked for it
    assert not third_is_read.is_set()  # and no more than one
    assert list(ahead) == [2, 3]


def test_an_error_comes_after_the_items_before_it() -> None:
    def items() -> Iterator[int]:
        yield 1
        message = "no more"
        raise ValueError(message)

    ahead = read_ahead(items())
    assert next(ahead) == 1
    with pytest.raises(ValueError, match="no more"):
        next(ahead)


def test_the_thread_is_prepared_and_ends_with_a_caller_that_stops_early() -> None:
    prepared: list[threading.Thread] = []
    ahead = read_ahead(iter(range(10)), lambda: prepared.append(threading.current_thread()))
    assert next(ahead) == 0
    assert prepared != [threading.current_thread()]
    ahead.close()
    assert [thread.is_alive() for thread in prepared] == [False]
