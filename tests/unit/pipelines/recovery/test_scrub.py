"""Claim: damage in a file that nothing reads is reported within one pass, at the rate that was set."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from broker_state.store.overlay import STATE
from broker_state.store.rocks_store import BUILDER_FAMILIES, QUEUES, RocksStore
from pipelines.recovery.scrub import BYTES_PER_S_MIN, PAUSE_S, Pace, Scrub
from popstream.wire.base_errors import Corrupt
from tests.support.flipped_byte import flip_byte
from tests.support.threads import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DAY_S = 86_400.0


class SimulatedClock:
    def __init__(self) -> None:
        self.now = 0.0
        self.rates: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def pace(self, bytes_per_s: float) -> Pace:
        self.rates.append(bytes_per_s)
        return Pace(bytes_per_s, lambda: self.now, self.sleep)


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[list[RocksStore]]:
    """A state of about 3 MB in three table files, and a store of a builder."""
    with RocksStore(tmp_path / "state") as state, RocksStore(tmp_path / "queues", BUILDER_FAMILIES) as queues:
        for part in range(3):
            values = random.Random(part).randbytes(1_000_000)
            state.write_changes(
                [(STATE, b"%d %04d" % (part, n), values[n * 1000 : n * 1000 + 1000]) for n in range(1000)]
            )
            state.checkpoint(tmp_path / f"flushed {part}")
        queues.write_changes([(QUEUES, b"key", b"value")])
        queues.checkpoint(tmp_path / "flushed queues")
        yield [state, queues]


def size_of(stores: list[RocksStore]) -> int:
    return sum((store.path / name).stat().st_size for store in stores for name in store.table_files())


def test_a_sound_store_has_no_damage(stores: list[RocksStore], clock: SimulatedClock) -> None:
    scrub = Scrub(stores, DAY_S, clock.pace)
    scrub.read_stores()
    assert scrub.damage == []


def test_damage_that_reads_do_not_meet_is_reported_within_a_pass(
    stores: list[RocksStore], clock: SimulatedClock
) -> None:
    state, queues = stores
    assert len(list(state.scan(STATE, b""))) == 3000  # now in RocksDB's cache
    victims = [f"state/{state.table_files()[1]}", f"queues/{queues.table_files()[0]}"]
    for victim in victims:
        flip_byte(state.path.parent / victim)
    scrub = Scrub(stores, DAY_S, clock.pace)
    for _ in range(2):
        scrub.read_stores()
        assert [sentence.partition(" ")[0] for sentence in scrub.damage] == victims
    assert scrub.damage[0].endswith("stop the job and run `popstream restore`")


def test_a_pass_keeps_its_rate(stores: list[RocksStore], clock: SimulatedClock) -> None:
    """The floor for a small store; for others such that a pass and its pause take the interval."""
    size = size_of(stores)
    Scrub(stores, DAY_S, clock.pace).read_stores()
    assert clock.rates == [BYTES_PER_S_MIN]
    assert clock.now == pytest.approx(size / BYTES_PER_S_MIN, rel=0.01)
    clock.now = 0.0
    Scrub(stores, 1.0, clock.pace).read_stores()
    assert clock.rates[1] == size / 0.5
    assert clock.now == pytest.approx(0.5, rel=0.01)


def test_lost_time_is_not_made_up_for(clock: SimulatedClock) -> None:
    pace = clock.pace(1000)
    pace.wait(1000)
    clock.now += 3600
    for _ in range(10):
        pace.wait(1000)
    assert clock.now == pytest.approx(1 + 3600 + 9)


def test_a_file_that_a_compaction_replaced_is_skipped(
    stores: list[RocksStore], clock: SimulatedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = stores[0].table_files()
    listed = iter([["000001.sst", *names], names])
    monkeypatch.setattr(stores[0], "table_files", lambda: next(listed))
    flip_byte(stores[0].path / names[-1])
    scrub = Scrub(stores, DAY_S, clock.pace)
    scrub.read_stores()
    assert [sentence.partition(" ")[0] for sentence in scrub.damage] == [f"state/{names[-1]}"]


def test_a_missing_file_is_reported(stores: list[RocksStore], clock: SimulatedClock) -> None:
    name = stores[0].table_files()[0]
    (stores[0].path / name).unlink()
    scrub = Scrub(stores, DAY_S, clock.pace)
    scrub.read_stores()
    assert scrub.damage == [f"state/{name} is missing: stop the job and run `popstream restore`"]


def test_damage_that_a_snapshot_found_is_reported_once(stores: list[RocksStore], clock: SimulatedClock) -> None:
    scrub = Scrub(stores, DAY_S, clock.pace)
    name = f"state/{stores[0].table_files()[0]}"
    scrub.report(Corrupt("no snapshot was taken", subject=name))
    flip_byte(stores[0].path.parent / name)
    scrub.read_stores()
    assert scrub.damage == ["no snapshot was taken"]


def test_the_thread_reads_and_stops_in_the_middle_of_a_pass(stores: list[RocksStore]) -> None:
    flip_byte(stores[0].path / stores[0].table_files()[0])
    scrub = Scrub(stores, 0.2)
    scrub.start()
    eventually(lambda: len(scrub.damage) == 1)
    scrub.stop()
    assert not scrub._periodic._thread.is_alive()


def test_an_interval_of_zero_reads_nothing(stores: list[RocksStore]) -> None:
    scrub = Scrub(stores, 0)
    scrub.start()
    assert not scrub._periodic._thread.is_alive()
    scrub.stop()


def test_the_pause_is_part_of_the_interval() -> None:
    assert Scrub([], DAY_S)._pass_s + PAUSE_S == DAY_S
