"""A worker begins when it is told, ends when it is told, and ends at once when the demo is gone."""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO

import msgspec

from pipelines.demo.lifeline import Lifeline
from pipelines.demo.orders import GO, STOP, Note


class Demo:
    """The other end of a lifeline."""

    def __init__(self, orders: int) -> None:
        self._orders = orders
        self.notes = io.BytesIO()
        self.ended = threading.Event()
        self.has_hung_up = False

    def tell(self, line: bytes) -> None:
        os.write(self._orders, line)

    def hang_up(self) -> None:
        self.has_hung_up = True
        os.close(self._orders)

    def states(self) -> list[str]:
        return [msgspec.json.decode(line, type=Note).state for line in self.notes.getvalue().splitlines()]


@contextmanager
def connected() -> Iterator[tuple[Lifeline, Demo]]:
    ours, theirs = os.pipe()
    demo = Demo(theirs)
    with FileIO(ours) as orders:
        yield Lifeline(orders, demo.notes, on_end=demo.ended.set), demo
        if not demo.has_hung_up:
            demo.hang_up()
        assert demo.ended.wait(5)


def test_work_begins_with_go() -> None:
    with connected() as (lifeline, demo):
        began = threading.Event()

        def work() -> None:
            lifeline.wait_for_go()
            began.set()

        threading.Thread(target=work).start()
        assert not began.wait(0.05)
        demo.tell(GO)
        assert began.wait(5)
        assert demo.states() == ["ready"]
        assert not lifeline.is_stopping


def test_stop_is_heard_once_and_also_by_who_comes_late() -> None:
    with connected() as (lifeline, demo):
        heard: list[str] = []
        lifeline.on_stop(lambda: heard.append("early"))
        demo.tell(STOP)
        assert lifeline.wait_for_stop(5)
        lifeline.on_stop(lambda: heard.append("late"))
        assert lifeline.is_stopping
    assert heard == ["early", "late"]


def test_stop_also_lets_one_go_who_waits_to_begin() -> None:
    with connected() as (lifeline, demo):
        demo.tell(STOP)
        lifeline.wait_for_go()
        assert lifeline.wait_for_stop(5)


def test_the_end_of_the_demo_is_the_end() -> None:
    with connected() as (_, demo):
        demo.hang_up()
        assert demo.ended.wait(5)


def test_notes_carry_what_was_counted() -> None:
    with connected() as (lifeline, demo):
        lifeline.count(popped=3, acked=1)
        lifeline.count(popped=2, redelivered=1)
        lifeline.tell("armed")
        note = msgspec.json.decode(demo.notes.getvalue(), type=Note)
        assert note == Note(state="armed", popped=5, acked=1, redelivered=1)
