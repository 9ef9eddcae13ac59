"""Which entries of the audit topic are written (audit_query.py), when tasks repeat what they sent."""

from __future__ import annotations

import random
from collections import Counter

from pipelines.cluster.audit_query import Cursors
from pipelines.cluster.outgoing import EntryKey
from pipelines.cluster.unit_entries import UnitsKey
from pipelines.decide_ops.entry import EntryKind


def test_every_entry_counts_once_whatever_a_task_repeats_and_wherever_a_micro_batch_ends() -> None:
    chance = random.Random(3)
    sent: list[EntryKey | UnitsKey] = []
    wanted: list[EntryKey | UnitsKey] = []
    for apply_seq in range(1, 40):
        entries: list[EntryKey | UnitsKey] = [
            EntryKey(partition, apply_seq, ordinal, EntryKind.AUDIT)
            for partition in range(3)
            for ordinal in range(chance.randrange(4))
        ]
        entries.extend(UnitsKey("3", 0, apply_seq, ordinal) for ordinal in range(chance.randrange(3)))
        wanted += entries
        for _ in range(chance.randrange(3)):  # tasks that were killed on the way
            sent += entries[: chance.randrange(len(entries) + 1)]
        sent += entries
    taken: list[EntryKey | UnitsKey] = []
    at, last = 0, dict[str, tuple[int, int]]()
    while at < len(sent):
        end = at + chance.randrange(1, 30)
        for _ in range(chance.randrange(1, 3)):  # a micro-batch may be repeated from the cursors that it began with
            cursors = Cursors(dict(last))
            batch = [key for key in sent[at:end] if cursors.take(key)]
        taken += batch
        last = cursors.last
        at = end
    assert Counter(taken) == Counter(wanted)
