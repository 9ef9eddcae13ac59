"""Maintenance is begun by the clock or by whoever asks, one at a time, and tells how it goes."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from connectors.delta.maintenance import Maintained
from pipelines.maintenance import MaintenanceLoop, MaintenanceView
from tests.support.threads import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Tables:
    """Two tables that are maintained one by one when the test lets them."""

    def __init__(self) -> None:
        self.rounds = 0
        self.may_go_on = threading.Semaphore(0)
        self.fails = False

    def maintain(self) -> Iterator[Maintained]:
        self.rounds += 1
        for name in ("leases", "deliveries"):
            self.may_go_on.acquire()
            if self.fails:
                message = f"{name} is damaged"
                raise ValueError(message)
            yield Maintained(table=name, compacted=2, into=1, removed=0)


@pytest.fixture
def tables() -> Tables:
    return Tables()


@pytest.fixture
def loop(tables: Tables, tmp_path: Path) -> Iterator[MaintenanceLoop]:
    loop = MaintenanceLoop(tables.maintain, 0.0, tmp_path)
    loop.start()
    yield loop
    tables.may_go_on.release(100)
    loop.stop()


def names(view: MaintenanceView) -> list[str]:
    return [done.table for done in view.done]


def test_each_table_is_told_when_it_is_done(loop: MaintenanceLoop, tables: Tables) -> None:
    assert loop.view == MaintenanceView()
    begun = loop.begin()
    assert begun.is_under_way
    assert names(begun) == []
    tables.may_go_on.release()
    eventually(lambda: names(loop.view) == ["leases"])
    assert loop.view.is_under_way
    tables.may_go_on.release()
    eventually(lambda: not loop.view.is_under_way)
    assert names(loop.view) == ["leases", "deliveries"]
    assert (loop.view.begun_at_ms, loop.view.failure) == (begun.begun_at_ms, None)


def test_who_asks_while_it_is_under_way_waits_for_the_same(loop: MaintenanceLoop, tables: Tables) -> None:
    loop.begin()
    tables.may_go_on.release()
    eventually(lambda: names(loop.view) == ["leases"])
    assert names(loop.begin()) == ["leases"]
    tables.may_go_on.release()
    eventually(lambda: not loop.view.is_under_way)
    assert tables.rounds == 1
    loop.begin()
    tables.may_go_on.release(2)
    eventually(lambda: not loop.view.is_under_way)
    assert tables.rounds == 2


def test_a_failure_is_told_until_it_succeeds(loop: MaintenanceLoop, tables: Tables) -> None:
    tables.fails = True
    tables.may_go_on.release()
    loop.begin()
    eventually(lambda: not loop.view.is_under_way)
    assert loop.view.failure == "leases is damaged"
    tables.fails = False
    assert loop.begin().failure is None
    tables.may_go_on.release(2)
    eventually(lambda: not loop.view.is_under_way)
    assert names(loop.view) == ["leases", "deliveries"]
    assert loop.view.failure is None


def test_what_comes_of_the_clock_is_told_as_well(tables: Tables, tmp_path: Path) -> None:
    tables.may_go_on.release(100)
    loop = MaintenanceLoop(tables.maintain, 0.01, tmp_path)
    loop.start()
    eventually(lambda: len(loop.view.done) == 2)
    loop.stop()
    assert loop.view.begun_at_ms is not None
