"""The deduplication ids of the accepted units of one queue: which units of a scan repeat one of them.

What is known follows from the units of the queue within the window alone. The last `ids_max` accepted units are known,
and until they are forgotten in steps some more.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import NamedTuple, Protocol

import numpy as np

from broker_state.consume_queue import (
    NO_DUPLICATE,
    Accepted,
    ConsumeQueue,
    Get,
    Scan,
    Units,
    accepted_units,
    first_unit_since,
    latest_time_ms,
    mark_duplicates,
    units_between,
)

__all__ = ["AcceptedIds", "DedupRule", "IdCounts", "MemoryIds", "accepted_ids", "with_duplicates"]

FORGOTTEN_MIN = 1_000
"""Ids that an append can forget at least, or twice as many as it adds to the queue."""
_OFFSETS_READ_MAX = 100_000
"""Offsets whose units are read at once."""


class DedupRule(NamedTuple):
    """Which units of a simple queue are duplicates.

    Attributes:
        window_ms: How long a unit makes later ones with its id duplicates; 0: it does not.
        ids_max: How many accepted units with an id it is at most the last one of, as long as it does so.
    """

    window_ms: int
    ids_max: int


class IdCounts(NamedTuple):
    """What is counted of the deduplication ids of a queue.

    Attributes:
        accepted: The number of the last accepted unit with an id.
        forgotten_early: Ids that were forgotten within the window, because more than `ids_max` were accepted.
    """

    accepted: int
    forgotten_early: int


class AcceptedIds(Protocol):
    """What is remembered of the ids of a queue."""

    @property
    def counts(self) -> IdCounts:
        """What is counted."""

    def find(self, hashes: Sequence[bytes]) -> list[Accepted | None]:
        """Return the last accepted unit for each of some hashes."""

    def oldest(self, count: int) -> list[tuple[bytes, Accepted]]:
        """Return the first accepted units by their offsets, at most `count`, with their hashes."""

    def update(
        self, forgotten: Sequence[tuple[bytes, Accepted]], accepted: Mapping[bytes, Accepted], counts: IdCounts
    ) -> None:
        """Forget some, then remember the accepted ones by their hashes."""


class MemoryIds:
    """In memory: some 250 bytes an id."""

    def __init__(self, accepted: Mapping[bytes, Accepted], counts: IdCounts) -> None:
        self._accepted = dict(accepted)
        self.counts = counts

    def __len__(self) -> int:
        """Return the number of ids."""
        return len(self._accepted)

    def find(self, hashes: Sequence[bytes]) -> list[Accepted | None]:
        """See `AcceptedIds.find`."""
        return [self._accepted.get(hashed) for hashed in hashes]

    def oldest(self, count: int) -> list[tuple[bytes, Accepted]]:
        """See `AcceptedIds.oldest`."""
        return list(islice(self._accepted.items(), count))

    def update(
        self, forgotten: Sequence[tuple[bytes, Accepted]], accepted: Mapping[bytes, Accepted], counts: IdCounts
    ) -> None:
        """See `AcceptedIds.update`."""
        for hashed, _ in forgotten:
            del self._accepted[hashed]
        for hashed, last in sorted(accepted.items(), key=lambda each: each[1].queue_offset):
            self._accepted.pop(hashed, None)  # its place in the order is that of its last unit
            self._accepted[hashed] = last
        self.counts = counts


def with_duplicates(record: ConsumeQueue, get: Get, scan: Scan, ids: AcceptedIds, rule: DedupRule) -> Scan:
    """Return the scan with its duplicates marked; remember the ids that it has accepted, and forget old ones.

    What was scanned before keeps what was said of it.
    """
    units = scan.units
    if record.queue_type != "simple":  # a repeat is inside a unit, or may be all that compaction leaves
        none = np.zeros(len(units), np.uint64)
        return replace(scan, units=replace(units, dedup_high=none, dedup_low=none))
    known, fresh = (
        units.between(scan.first_offset, record.end_offset),
        units.between(record.end_offset, scan.end_offset),
    )
    if len(known):
        stored = units_between(record, get, scan.first_offset, record.end_offset)
        said = dict(zip(stored.queue_offset.tolist(), stored.duplicate_of.tolist(), strict=True))
        marks = [said.get(at, NO_DUPLICATE) for at in known.queue_offset.tolist()]
        known = replace(known, duplicate_of=np.array(marks, np.int64))
    if rule.window_ms and len(fresh):
        fresh = _marked(fresh, latest_time_ms(record, get), ids, rule)
    return replace(scan, units=Units.joined([known, fresh]))


def accepted_ids(record: ConsumeQueue, get: Get, rule: DedupRule) -> dict[bytes, Accepted]:
    """Return what is known of the ids of a queue that was read up to its end, in the order of their offsets.

    The number of the last one is `ids_max`.
    """
    latest_ms = latest_time_ms(record, get)
    if latest_ms is None or not rule.window_ms or record.queue_type != "simple":
        return {}
    since = first_unit_since(record, get, latest_ms - rule.window_ms + 1)
    start = since.queue_offset if since else record.end_offset
    accepted: dict[bytes, Accepted] = {}
    number = rule.ids_max
    for end in range(record.end_offset, start, -_OFFSETS_READ_MAX):
        if not number:
            break
        units = units_between(record, get, max(start, end - _OFFSETS_READ_MAX), end)
        for hashed, last in islice(accepted_units(units, number), number):
            accepted.setdefault(hashed, last)
            number = last.number - 1
    return dict(reversed(accepted.items()))


def _marked(fresh: Units, clock_ms: int | None, ids: AcceptedIds, rule: DedupRule) -> Units:
    counts = ids.counts
    marked, accepted = mark_duplicates(
        fresh, clock_ms, rule.window_ms, ids.find, accepted_count=counts.accepted, ids_max=rule.ids_max
    )
    fresh_ms = int(fresh.store_time_ms.max())
    latest_ms = fresh_ms if clock_ms is None else max(fresh_ms, clock_ms)
    accepted_count = max((last.number for last in accepted.values()), default=counts.accepted)
    until_ms = latest_ms - rule.window_ms

    def is_early(last: Accepted) -> bool:
        return accepted_count - last.number >= rule.ids_max

    forgotten = [
        (hashed, last)
        for hashed, last in ids.oldest(max(FORGOTTEN_MIN, 2 * len(accepted)))
        if hashed not in accepted and (last.store_time_ms <= until_ms or is_early(last))
    ]
    early_count = sum(last.store_time_ms > until_ms for _, last in forgotten)
    if accepted or forgotten:
        ids.update(forgotten, accepted, IdCounts(accepted_count, counts.forgotten_early + early_count))
    return marked
