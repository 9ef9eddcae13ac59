"""Which entries of the audit topic are written (audit_query.py), when tasks repeat what they sent."""

from __future__ import annotations

import random
from collections import Counter

from pipelines.cluster.audit_query import Cursors
from pipelines.cluster.outgoing import EntryKey
from pipelines.decide_ops.entry import EntryKind


def test_every_entry_counts_once_whatever_a_task_repeats_and_wherever_a_micro_batch_ends() -> None:
    chance = random.Random(3)
    sent: list[EntryKey] = []
    wanted: list[EntryKey] = []
    for apply_seq in range(1, 40):
        entries = [
            EntryKey(partition, apply_seq, ordinal, EntryKind.AUDIT)
            for partition in range(3)
            for ordinal in range(chance.randrange(4))
        ]
        wanted += entries
        for _ in range(chance.randrange(3)):  # tasks that were killed on the way
            sent += entries[: chance.randrange(len(entries) + 1)]
        sent += entries
    taken: list[EntryKey] = []
    at, last = 0, dict[int, tuple[int, int]]()
    while at < len(sent):
        end = at + chance.randrange(1, 30)
        for _ in range(chance.randrange(1, 3)):  # a micro-batch may be repeated from the cursors that it began with
            cursors = Cursors(dict(last))
            batch = [key for key in sent[at:end] if cursors.take(key)]
        taken += batch
        last = cursors.last
        at = end
    assert Counter(taken) == Counter(wanted)
