"""What happened to each message in each lane: once as the Delta tables tell it, once as the consumers do. Pure.

A lane is (group, queue id); a message is its queue offset. Counts are kept in arrays by offset, and a range of a row is
one slice of them.
"""

from array import array
from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from typing import NamedTuple

from broker_state.audit import DeliveryStep
from pipelines.demo.journal import Acked, Changed, Popped, Worker
from pipelines.demo.messages import HASH_BYTES

__all__ = ["Delivery", "JournalLane", "Lane", "Lanes", "TableLane", "ledger_of_journals", "ledger_of_tables"]

Lane = tuple[str, int]
_HEX = 2 * HASH_BYTES
_SAMPLES_MAX = 5
NOBODY = -1


class Delivery(NamedTuple):
    """One row of `deliveries`, as far as it matters here; in log order within a lane."""

    group: str
    queue_id: int
    step: str
    first_offset: int
    last_offset: int
    attempt: int
    at_ms: int
    deadline_ms: int | None
    cause: str
    client_id: str | None


class TableLane:
    """A lane as the table `deliveries` tells it."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.live = bytearray(length)
        self.acked = bytearray(length)
        self.dead = bytearray(length)
        self.done_again = 0
        """Messages that were done when they were done once more, or leased again."""
        self.double_leased = 0
        self.overtaking = 0
        """Messages leased while one before them was neither done nor leased."""
        self.redelivered = 0
        self.changed = 0
        self.expired_from_log = 0
        self.out_of_range = 0
        self.samples: list[str] = []

    def apply(self, row: Delivery) -> None:
        """Take the next row."""
        first, end = row.first_offset, row.last_offset + 1
        if not 0 <= first < end <= self.length:
            self.out_of_range += 1
            return
        count = end - first
        if row.step == DeliveryStep.LEASED:
            self._lease(row, first, end)
        elif row.step in {DeliveryStep.ACKED, DeliveryStep.DEAD_LETTERED}:
            done = self.acked if row.step == DeliveryStep.ACKED else self.dead
            again = _count(self.acked, first, end) + _count(self.dead, first, end)
            if again:
                self.done_again += again
                self._note(f"done again: {row}")
            done[first:end] = b"\1" * count
            self.live[first:end] = bytes(count)
        elif row.step == DeliveryStep.CHANGED:
            self.changed += count
            self.live[first:end] = b"\1" * count
        elif row.step in {DeliveryStep.EXPIRED, DeliveryStep.RELEASED}:
            self.changed += count if row.cause == "change_invisible" else 0
            self.live[first:end] = bytes(count)
        else:
            self.expired_from_log += count
            self.live[first:end] = bytes(count)

    def _lease(self, row: Delivery, first: int, end: int) -> None:
        twice = _count(self.live, first, end)
        if twice:
            self.double_leased += twice
            self._note(f"leased while leased: {row}")
        again = _count(self.acked, first, end) + _count(self.dead, first, end)
        if again:
            self.done_again += again
            self._note(f"leased when done: {row}")
        self.live[first:end] = b"\1" * (end - first)
        before = _count(self.acked, 0, first) + _count(self.dead, 0, first) + _count(self.live, 0, first)
        self.overtaking += end - first if before < first else 0
        self.redelivered += end - first if row.attempt > 1 else 0

    def _note(self, text: str) -> None:
        if len(self.samples) < _SAMPLES_MAX:
            self.samples.append(text)


class JournalLane:
    """A lane as the consumers tell it; `contents` has the hash of each message that was delivered, 0 where none was."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.contents = array("Q", bytes(8 * length))
        self.delivered = bytearray(length)
        self.acked = array("H", bytes(2 * length))
        self.holder = array("h", repeat(NOBODY, length))
        self.end_ms = array("q", bytes(8 * length))
        self.double_leased = 0
        self.other_content = 0
        self.acked_by_other = 0
        self.broken = 0
        self.out_of_order = 0
        self.unread = 0
        self.changed = 0
        self.out_of_range = 0
        self.samples: list[str] = []

    def pop(self, worker: int, event: Popped) -> None:
        """Messages were leased from `pop_time_ms` on."""
        self.broken += event.broken
        self.out_of_order += event.out_of_order
        self.unread += event.unread
        at = 0
        for first, last, _ in event.ranges:
            if not 0 <= first <= last < self.length:
                self.out_of_range += 1
                at += last - first + 1
                continue
            for offset in range(first, last + 1):
                content = int(event.hashes[_HEX * at : _HEX * (at + 1)], 16)
                at += 1
                if self.end_ms[offset] > event.pop_time_ms:
                    self.double_leased += 1
                    self._note(f"offset {offset} popped at {event.pop_time_ms}, leased until {self.end_ms[offset]}")
                if self.delivered[offset] and self.contents[offset] != content:
                    self.other_content += 1
                    self._note(f"offset {offset} came with two contents")
                self.contents[offset] = content
                self.delivered[offset] = 1
                self.end_ms[offset] = event.next_visible_time_ms
                self.holder[offset] = worker

    def change(self, event: Changed) -> None:
        """Leases end at another time."""
        for first, last, _, applied in event.runs:
            if not applied:
                continue
            if not 0 <= first <= last < self.length:
                self.out_of_range += 1
                continue
            count = last - first + 1
            self.changed += count
            self.end_ms[first : last + 1] = array("q", repeat(event.next_visible_time_ms, count))

    def ack(self, worker: int, event: Acked) -> None:
        """Messages are done; taken after all pops, so that nobody may have got them later."""
        for first, last, _, applied in event.runs:
            if not applied:
                continue
            if not 0 <= first <= last < self.length:
                self.out_of_range += 1
                continue
            for offset in range(first, last + 1):
                self.acked[offset] += 1
                if self.holder[offset] != worker:
                    self.acked_by_other += 1
                    self._note(f"offset {offset} acked by worker {worker}, last leased by {self.holder[offset]}")

    def _note(self, text: str) -> None:
        if len(self.samples) < _SAMPLES_MAX:
            self.samples.append(text)


class Lanes(NamedTuple):
    """Every lane of a demo, from both sides."""

    tables: Mapping[Lane, TableLane]
    journals: Mapping[Lane, JournalLane]


def ledger_of_tables(
    rows: Iterable[Delivery], groups: Sequence[str], lengths: Sequence[int]
) -> tuple[dict[Lane, TableLane], int]:
    """Each lane as Delta tells it, from rows in log order; and how many rows are of no lane of the demo."""
    lanes = {(group, queue_id): TableLane(length) for group in groups for queue_id, length in enumerate(lengths)}
    strange = 0
    for row in rows:
        lane = lanes.get((row.group, row.queue_id))
        if lane is None:
            strange += 1
        else:
            lane.apply(row)
    return lanes, strange


def ledger_of_journals(
    workers: Sequence[Worker], groups: Sequence[str], lengths: Sequence[int]
) -> dict[Lane, JournalLane]:
    """Each lane as the consumers tell it, in the order of the broker's time.

    At one ms a change comes before a pop: a message that is given back may be handed out in the same moment, while a
    pop and a change of what it brought are never decided together.
    """
    lanes = {(group, queue_id): JournalLane(length) for group in groups for queue_id, length in enumerate(lengths)}
    timed: list[tuple[int, int, int, Lane, Popped | Changed]] = []
    for number, worker in enumerate(workers):
        for event in worker.events:
            if isinstance(event, Popped):
                timed.append((event.pop_time_ms, 1, number, (worker.group, event.queue_id), event))
            elif isinstance(event, Changed):
                at_ms = event.next_visible_time_ms - event.invisible_time_ms
                timed.append((at_ms, 0, number, (worker.group, event.queue_id), event))
    for _, _, number, lane, event in sorted(timed, key=lambda item: item[:3]):
        if isinstance(event, Popped):
            lanes[lane].pop(number, event)
        else:
            lanes[lane].change(event)
    for number, worker in enumerate(workers):
        for event in worker.events:
            if isinstance(event, Acked):
                lanes[worker.group, event.queue_id].ack(number, event)
    return lanes


def _count(marks: bytearray, first: int, end: int) -> int:
    return marks.count(1, first, end)
