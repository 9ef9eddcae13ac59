"""Claim: which units are duplicates follows from the log alone: however it is cut, read again, or truncated meanwhile.

Method: the real store on disk, compared with a list of everything that was accepted.
"""

from __future__ import annotations

import io
import random
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pytest
import structlog
from rich.console import Console

from broker_state.consume_queue import NO_DUPLICATE, Scan, Unit, Units, units_between
from broker_state.store.rocks_store import BUILDER_FAMILIES, META, RocksStore
from pipelines.apply_ops.outbox import Outbox
from pipelines.build_consume_queue.builder import Builder
from pipelines.build_consume_queue.queue_view import QueueRequest, views_of
from pipelines.build_consume_queue.stored_ids import BY_ID_KEY, BY_OFFSET_KEY
from pipelines.build_units import accepted_ids
from pipelines.build_units.unit_tables import delta_rows
from pipelines.cli.state.queue import print_queues
from pipelines.decide_ops.entry import EntryKind
from popstream.topics.message_topics import MessageTopic
from popstream.wire.command import Command, Dispatch, QueueType

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

QUEUE = ("orders", 0)
WINDOW_MS = 1_000
MANY = 1_000_000
Record = tuple[int, int]
"""(store time, number of the id; 0: none)."""


def units_of(records: Sequence[Record], first: int = 0) -> Units:
    return Units.of(
        [
            Unit(queue_offset=at, size_bytes=9, store_time_ms=time_ms, message_base=at, dedup_high=0, dedup_low=number)
            for at, (time_ms, number) in enumerate(records, first)
        ]
    )


def duplicates(records: Sequence[Record], window_ms: int = WINDOW_MS, ids_max: int = MANY) -> list[int]:
    """By the rule, from everything that was accepted."""
    found: list[int] = []
    accepted: dict[int, Record] = {}
    order: list[int] = []
    clock_ms = -(1 << 62)
    for at, (time_ms, number) in enumerate(records):
        clock_ms = max(clock_ms, time_ms)
        last = accepted.get(number)
        is_within = last and abs(time_ms - last[1]) < window_ms and clock_ms - last[1] < window_ms
        if number and last and is_within and last[0] in order[-ids_max:]:
            found.append(last[0])
        else:
            found.append(NO_DUPLICATE)
            accepted[number] = (at, time_ms)
            order += [at] if number else []
    return found


class Lab:
    def __init__(
        self, folder: Path, window_ms: int = WINDOW_MS, queue_type: QueueType = "simple", ids_max: int = MANY
    ) -> None:
        self._folder, self._window_ms, self._ids_max = folder, window_ms, ids_max
        self.open()
        self.builder.update_topics(topic("id"), {QUEUE[0]: queue_type})

    def open(self) -> None:
        self.store = RocksStore(self._folder, BUILDER_FAMILIES)
        self.outbox = Outbox(self.store)
        self.builder = Builder(
            self.store, self.outbox, "epoch", dedup_window_ms=self._window_ms, dedup_ids_max=self._ids_max
        )

    def reopen(self) -> None:
        self.store.close()
        self.open()

    def append(self, records: Sequence[Record], first: int, end: int) -> None:
        self.builder.append({QUEUE: Scan(first, end, units_of(records[first:end], first))})

    @property
    def units(self) -> Units:
        return units_between(self.builder.queues[QUEUE], self.builder.get(QUEUE), 0, 1 << 62)

    def remembered(self, kind: bytes) -> dict[bytes, bytes]:
        return {key: value for key, value in self.store.scan(META, b"") if key.startswith(kind)}

    def skipped(self) -> list[int]:
        found = []
        for entry in self.outbox.undelivered(EntryKind.DISPATCH):
            command = msgspec.json.decode(entry.value, type=Command)
            if isinstance(command, Dispatch):
                found += [at for first, last in command.skip for at in range(first, last + 1)]
        return found


def topic(topic_id: str) -> dict[str, MessageTopic]:
    return {QUEUE[0]: MessageTopic(QUEUE[0], topic_id, {0: 0}, {0: 0})}


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    made = Lab(tmp_path / "queues")
    yield made
    made.store.close()


@pytest.mark.parametrize(
    ("records", "wanted"),
    [
        ([(0, 1), (999, 1), (1_000, 1), (1_999, 1)], [-1, 0, -1, 2]),  # the window begins with the first one
        ([(0, 1), (5, 2), (6, 0), (7, 0), (8, 1)], [-1, -1, -1, -1, 0]),
        ([(5_000, 1), (4_500, 1), (4_000, 1)], [-1, 0, -1]),  # times that run backwards
        ([(0, 1), (9_000, 0), (1, 1), (9_001, 1)], [-1, -1, -1, -1]),  # the clock has passed
        ([(9_000, 1), (5, 1), (6, 1)], [-1, -1, -1]),  # none while one time is far ahead, instead of all
    ],
)
def test_what_is_a_duplicate(lab: Lab, records: list[Record], wanted: list[int]) -> None:
    assert duplicates(records) == wanted
    lab.append(records, 0, len(records))
    assert lab.units.duplicate_of.tolist() == wanted
    assert lab.skipped() == [at for at, first in enumerate(wanted) if first != NO_DUPLICATE]
    rows = delta_rows(QUEUE, "id", "simple", lab.units)
    assert rows["duplicate_of"].to_pylist() == [None if at == NO_DUPLICATE else at for at in wanted]


@pytest.mark.parametrize("ids_max", [MANY, 5, 20])
@pytest.mark.parametrize("seed", range(8))
def test_cuts_restarts_repeats_and_truncations_change_nothing(tmp_path: Path, seed: int, ids_max: int) -> None:
    chance = random.Random(seed)
    records: list[Record] = []
    now_ms = 0
    for _ in range(1_500):
        now_ms += chance.choice([0, 1, 3, 40])
        records.append((now_ms + chance.choice([0, 0, 0, -300, 700]), chance.choice([0, *range(1, 30)])))
    lab = Lab(tmp_path / "queues", ids_max=ids_max)
    truncations = 0
    while (at := lab.builder.queues[QUEUE].end_offset) < len(records):
        lab.append(records, max(0, at - chance.choice([0, 0, 20])), min(len(records), at + chance.choice([1, 30, 400])))
        match chance.randrange(6):
            case 0:
                lab.reopen()
            case 1 if truncations < 4:
                truncations += 1
                lab.builder.truncate(QUEUE, max(0, at - chance.choice([0, 5, 600])))
    assert lab.units.duplicate_of.tolist() == duplicates(records, ids_max=ids_max)
    whole = Lab(tmp_path / "whole", ids_max=ids_max)
    whole.append(records, 0, len(records))
    assert whole.units == lab.units
    # What is still needed is remembered alike.
    for made in (whole, lab):
        made.builder.truncate(QUEUE, len(records) - 1)
        made.append(records, len(records) - 1, len(records))
    for kind in (BY_ID_KEY, BY_OFFSET_KEY):
        assert whole.remembered(kind) == lab.remembered(kind)
    whole.store.close()
    lab.store.close()


def test_ids_are_forgotten_in_bounded_steps_after_the_window(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accepted_ids, "FORGOTTEN_MIN", 100)
    records = [(0, number) for number in range(1, 251)] + [(WINDOW_MS, 0)] * 3 + [(WINDOW_MS, 3)]
    lab.append(records, 0, 250)
    left = []
    for first in range(250, 254):
        lab.append(records, first, first + 1)
        assert len(lab.remembered(BY_ID_KEY)) == len(lab.remembered(BY_OFFSET_KEY))
        left.append(len(lab.remembered(BY_ID_KEY)))
    assert left == [150, 50, 0, 1]
    assert lab.units.duplicate_of.max() == NO_DUPLICATE


def test_no_more_ids_are_kept_than_the_bound_allows_and_the_oldest_are_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accepted_ids, "FORGOTTEN_MIN", 10)
    lab = Lab(tmp_path / "queues", ids_max=100)
    records = [(0, number) for number in range(1, 1_001)] + [(1, 950), (1, 850), (1, 850), (1, 901), (1, 902)]
    with structlog.testing.capture_logs() as logged:
        for first in range(0, 1_000, 10):
            lab.append(records, first, first + 10)
            assert len(lab.remembered(BY_ID_KEY)) == len(lab.remembered(BY_OFFSET_KEY)) <= 110
            if first == 500:
                lab.reopen()
        lab.append(records, 1_000, 1_005)
    # 850 was forgotten early. It is accepted again, and 901 forgotten for it.
    assert lab.units.duplicate_of.tolist()[1_000:] == [949, -1, 1_001, -1, -1]
    assert lab.builder.forgotten_ids >= 900
    warnings = [event for event in logged if event["event"] == "deduplication_ids_forgotten_early"]
    assert len(warnings) == 2, "one a minute, and one of the reopened store"
    with RocksStore(tmp_path / "state") as state:
        views = views_of(lab.store, state, QueueRequest(topic=QUEUE[0]))
    console = Console(file=io.StringIO(), record=True, width=200)
    print_queues(console, views)
    assert f"orders/0: {lab.builder.forgotten_ids:,} dedup_ids were forgotten" in console.export_text()
    before = lab.builder.forgotten_ids
    lab.reopen()
    assert lab.builder.forgotten_ids == before
    lab.store.close()
    assert lab.builder.forgotten_ids == before, "metrics ask between two jobs, too"


def test_ids_that_are_forgotten_after_the_window_are_not_counted_as_early(lab: Lab) -> None:
    lab.append([(0, 1), (WINDOW_MS, 2), (2 * WINDOW_MS, 3)], 0, 3)
    lab.append([(0, 0)] * 3 + [(2 * WINDOW_MS, 4)], 3, 4)
    assert len(lab.remembered(BY_ID_KEY)) == 2
    assert lab.builder.forgotten_ids == 0


def test_an_id_that_is_accepted_again_while_it_is_forgotten_is_remembered(lab: Lab) -> None:
    records = [(0, 1), (WINDOW_MS, 1), (WINDOW_MS + 1, 1)]
    for at in range(3):
        lab.append(records, at, at + 1)
    assert lab.units.duplicate_of.tolist() == [-1, -1, 1]
    assert len(lab.remembered(BY_ID_KEY)) == len(lab.remembered(BY_OFFSET_KEY)) == 1


def test_a_recreated_topic_knows_no_ids_of_before(lab: Lab) -> None:
    lab.append([(0, 1)], 0, 1)
    lab.builder.update_topics(topic("another"), {})
    assert lab.remembered(b"dedup") == {}
    lab.append([(0, 1)], 0, 1)
    assert lab.units.duplicate_of.tolist() == [NO_DUPLICATE]


def test_without_a_window_nothing_is_a_duplicate(tmp_path: Path) -> None:
    lab = Lab(tmp_path / "queues", window_ms=0)
    lab.append([(0, 1), (0, 1)], 0, 2)
    assert lab.units.duplicate_of.tolist() == [NO_DUPLICATE] * 2
    lab.builder.truncate(QUEUE, 1)
    assert lab.remembered(b"dedup") == {}
    lab.store.close()


@pytest.mark.parametrize("queue_type", ["batch", "sparse"])
def test_ids_mean_nothing_in_other_queues(tmp_path: Path, queue_type: QueueType) -> None:
    lab = Lab(tmp_path / "queues", queue_type=queue_type)
    lab.append([(0, 1), (0, 1)], 0, 2)
    assert lab.units.duplicate_of.tolist() == [NO_DUPLICATE] * 2
    assert not np.any(lab.units.dedup_low)
    assert lab.remembered(b"dedup") == {}
    lab.store.close()
