"""Claim: damage in a file that nothing reads is reported within one pass, at the rate that was set."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path
from typing import TYPE_CHECKING, Never

import pytest

from broker_state.store.overlay import STATE
from broker_state.store.rocks_store import BUILDER_FAMILIES, QUEUES, RocksStore
from checkpoints.layout import JobFolder
from pipelines.recovery.scrub import BYTES_PER_S_MIN, PAUSE_S, Pace, Scrub
from popstream.wire.base_errors import Corrupt, Unavailable
from tests.support.flipped_byte import flip_byte
from tests.support.threads import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

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
            state.copy_to(tmp_path / f"flushed {part}")
        queues.write_changes([(QUEUES, b"key", b"value")])
        queues.copy_to(tmp_path / "flushed queues")
        yield [state, queues]


def folder_of(stores: list[RocksStore]) -> JobFolder:
    return JobFolder(stores[0].path.parent)


def size_of(stores: list[RocksStore]) -> int:
    return sum((store.path / name).stat().st_size for store in stores for name in store.table_files())


def test_a_sound_store_has_no_damage(stores: list[RocksStore], clock: SimulatedClock) -> None:
    scrub = Scrub(stores, DAY_S, folder_of(stores), clock.pace)
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
    scrub = Scrub(stores, DAY_S, folder_of(stores), clock.pace)
    for _ in range(2):
        scrub.read_stores()
        assert [sentence.partition(" ")[0] for sentence in scrub.damage] == victims
    assert scrub.damage[0].endswith("stop the job and run `popstream restore`")


def test_a_pass_keeps_its_rate(stores: list[RocksStore], clock: SimulatedClock) -> None:
    """The floor for a small store; for others such that a pass and its pause take the interval."""
    size = size_of(stores)
    Scrub(stores, DAY_S, folder_of(stores), clock.pace).read_stores()
    assert clock.rates == [BYTES_PER_S_MIN]
    assert clock.now == pytest.approx(size / BYTES_PER_S_MIN, rel=0.01)
    clock.now = 0.0
    Scrub(stores, 1.0, folder_of(stores), clock.pace).read_stores()
    assert clock.rates[1] == size / 0.5
    assert clock.now == pytest.approx(0.5, rel=0.01)


def test_a_pass_goes_on_after_a_restart_where_it_was(stores: list[RocksStore], clock: SimulatedClock) -> None:
    """A job that is stopped more often than a pass takes would never read its last files otherwise."""
    flip_byte(stores[0].path / stores[0].table_files()[0])
    damaged = f"state/{stores[0].table_files()[0]}"
    first = Scrub(stores, DAY_S, folder_of(stores), lambda rate: StopsAfter(first, 1_500_000, clock.pace(rate)))
    first.read_stores()
    assert 0 < folder_of(stores).scrubbed.read_text().count("\n") < len(stores[0].table_files())
    clock.now = 0.0
    again = Scrub(stores, DAY_S, folder_of(stores), clock.pace)
    again.read_stores()
    assert clock.now < 0.7 * size_of(stores) / BYTES_PER_S_MIN
    assert [sentence.partition(" ")[0] for sentence in again.damage] == [damaged], "it is read again, and told again"
    assert not folder_of(stores).scrubbed.exists()
    again.read_stores()
    assert clock.now > size_of(stores) / BYTES_PER_S_MIN, "the next pass reads everything"


def test_a_damaged_place_is_no_place(stores: list[RocksStore], clock: SimulatedClock) -> None:
    folder_of(stores).scrubbed.write_bytes(b"\xff\x00state/000")
    Scrub(stores, DAY_S, folder_of(stores), clock.pace).read_stores()
    assert clock.now == pytest.approx(size_of(stores) / BYTES_PER_S_MIN, rel=0.01)


class StopsAfter(Pace):
    """Stops a scrub once it has read `count` bytes."""

    def __init__(self, scrub: Scrub, count: int, pace: Pace) -> None:
        self._scrub, self._left, self._pace = scrub, count, pace

    def wait(self, count: int) -> None:
        self._pace.wait(count)
        self._left -= count
        if self._left <= 0:
            self._scrub.stop()


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
    scrub = Scrub(stores, DAY_S, folder_of(stores), clock.pace)
    scrub.read_stores()
    assert [sentence.partition(" ")[0] for sentence in scrub.damage] == [f"state/{names[-1]}"]


def test_a_missing_file_is_reported(stores: list[RocksStore], clock: SimulatedClock) -> None:
    name = stores[0].table_files()[0]
    (stores[0].path / name).unlink()
    scrub = Scrub(stores, DAY_S, folder_of(stores), clock.pace)
    scrub.read_stores()
    assert scrub.damage == [f"state/{name} is missing: stop the job and run `popstream restore`"]


def test_damage_that_a_snapshot_found_is_reported_once(stores: list[RocksStore], clock: SimulatedClock) -> None:
    scrub = Scrub(stores, DAY_S, folder_of(stores), clock.pace)
    name = f"state/{stores[0].table_files()[0]}"
    scrub.report(Corrupt("no snapshot was taken", subject=name))
    flip_byte(stores[0].path.parent / name)
    scrub.read_stores()
    assert scrub.damage == ["no snapshot was taken"]


def test_damage_of_a_file_that_was_read_again_or_replaced_is_told_no_more(
    stores: list[RocksStore], clock: SimulatedClock
) -> None:
    scrub = Scrub(stores, DAY_S, folder_of(stores), clock.pace)
    name = f"state/{stores[0].table_files()[0]}"
    for subject in (name, "state/000001.sst", "state"):
        scrub.report(Corrupt(f"{subject} is damaged", subject=subject))
    scrub.read_stores()
    assert scrub.damage == ["state is damaged"]


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EACCES])
def test_an_error_of_the_process_is_no_damage(
    stores: list[RocksStore], clock: SimulatedClock, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(self: Path, *_: object, **__: object) -> Never:
        raise OSError(number, os.strerror(number), str(self))

    scrub = Scrub(stores, DAY_S, folder_of(stores), clock.pace)
    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(Unavailable, match=rf"^state/\d+.sst cannot be read: {os.strerror(number)}$"):
        scrub.read_stores()
    assert scrub.damage == []


def test_the_thread_reads_and_stops_in_the_middle_of_a_pass(stores: list[RocksStore]) -> None:
    flip_byte(stores[0].path / stores[0].table_files()[0])
    scrub = Scrub(stores, 0.2, folder_of(stores))
    scrub.start()
    eventually(lambda: len(scrub.damage) == 1)
    scrub.stop()
    assert not scrub._periodic._thread.is_alive()


def test_an_interval_of_zero_reads_nothing(stores: list[RocksStore]) -> None:
    scrub = Scrub(stores, 0, folder_of(stores))
    scrub.start()
    assert not scrub._periodic._thread.is_alive()
    scrub.stop()


def test_the_pause_is_part_of_the_interval(tmp_path: Path) -> None:
    assert Scrub([], DAY_S, JobFolder(tmp_path))._pass_s + PAUSE_S == DAY_S
