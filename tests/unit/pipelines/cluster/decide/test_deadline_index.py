"""Deadlines in buckets (deadline_index.py), beside the store in memory."""

from __future__ import annotations

import random

import pytest

from broker_state.store.keys import NEVER_MS, DeadlineRef, deadline_key, queue_prefix
from broker_state.store.value_format import CorruptValueError
from pipelines.cluster.decide.deadline_index import DeadlineIndex

QUEUES = [queue_prefix("orders", number) for number in range(3)]


def test_buckets_hold_what_was_set_and_only_those_that_change_are_stored() -> None:
    chance = random.Random(7)
    index, stored = DeadlineIndex(), dict[bytes, bytes]()
    present = {queue: set[DeadlineRef]() for queue in QUEUES}
    for step in range(300):
        queue = chance.choice(QUEUES)
        changes: list[tuple[bytes, bytes | None]] = []
        for ref in chance.sample(sorted(present[queue]), min(len(present[queue]), chance.randrange(3))):
            changes.append((deadline_key(queue, ref), None))
            present[queue].discard(ref)
        added = DeadlineRef(chance.randrange(1, 50), chance.randrange(3), chance.randrange(5), chance.randrange(300))
        changes.append((deadline_key(queue, added), b""))
        present[queue].add(added)
        buckets = list(index.apply(changes))
        assert len(buckets) <= len(changes)
        for key, value in buckets:
            if value is None:
                del stored[key]
            else:
                stored[key] = value
        if step % 10 == 0:
            index = DeadlineIndex()
            index.load(stored.items())
        for each, refs in present.items():
            assert index.after(each, None, NEVER_MS, 10_000) == sorted(refs)
            assert index.earliest_of(each) == (min(refs).deadline_ms if refs else None)
    some = sorted(present[QUEUES[0]])
    middle = some[len(some) // 2]
    expected = [ref for ref in some if ref > middle and ref.deadline_ms <= 40][:5]
    assert index.after(QUEUES[0], middle, 40, 5) == expected


def test_a_damaged_bucket_is_named() -> None:
    with pytest.raises(CorruptValueError, match="bucket of deadlines"):
        DeadlineIndex().load([(QUEUES[0] + bytes(13), b"short")])
