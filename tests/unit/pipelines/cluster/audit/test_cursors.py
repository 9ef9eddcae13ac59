"""Which entries of the audit topic are written (extent.py), when tasks repeat what they sent."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

import pytest

from pipelines.cluster.audit import audit_query
from pipelines.cluster.audit.unit_entries import UnitsKey
from pipelines.cluster.decide.extent import START, Cursors, Extent
from pipelines.cluster.decide.outgoing import EntryKey
from pipelines.decide_ops.entry import EntryKind, LogPlace
from popstream.wire.base_errors import Corrupt

if TYPE_CHECKING:
    from pipelines.cluster.decide.extent import HasExtent


def order_key(number: int, extent: Extent) -> HasExtent:
    """The key of an entry of one of four orders."""
    if number == 3:
        return UnitsKey("e", "3", 0, extent)
    return EntryKey("e", number % 2, number // 2, extent, EntryKind.AUDIT)


def cut(chance: random.Random, number: int, committed: LogPlace, places: list[LogPlace]) -> list[HasExtent]:
    """Entries with all places, cut at random."""
    last = len(places) - 1
    ends = sorted({last, *(chance.randrange(last + 1) for _ in range(chance.randrange(3)))}) if places else []
    edges = [committed, *(places[at]._replace(ordinal=places[at].ordinal + 1) for at in ends)]
    return [order_key(number, Extent(committed, begin, end)) for begin, end in pairwise(edges)]


def covered(key: HasExtent, begin: LogPlace, places: list[tuple[str, LogPlace]]) -> list[tuple[str, LogPlace]]:
    return [each for each in places if each[0] == key.source and begin <= each[1] < key.extent.end]


def test_every_place_counts_once_whatever_tasks_repeat_and_however_they_cut_it() -> None:
    chance = random.Random(3)
    sent: list[HasExtent] = []
    places: list[tuple[str, LogPlace]] = []
    committed = dict.fromkeys(range(4), START)
    for batch in range(60):
        made = {
            number: [LogPlace(batch * 10 + at, each) for at in range(chance.randrange(4)) for each in range(2)]
            for number in range(4)
        }
        for _ in range(chance.randrange(3)):  # tasks that ended on the way, or whose sink lost some of it
            for number in range(4):
                entries = cut(chance, number, committed[number], made[number])
                sent += [entry for entry in entries if chance.random() < 0.6]
        for number, found in made.items():
            sent += cut(chance, number, committed[number], found)
            if found:
                places += [(order_key(number, Extent(START, START, START)).source, each) for each in found]
                committed[number] = found[-1]._replace(ordinal=found[-1].ordinal + 1)
    taken: list[tuple[str, LogPlace]] = []
    at, ends = 0, dict[str, LogPlace]()
    while at < len(sent):
        end = at + chance.randrange(1, 30)
        for _ in range(chance.randrange(1, 3)):  # a micro-batch may be repeated from the cursors that it began with
            cursors = Cursors(ends)
            new = [(key, begin) for key in sent[at:end] if (begin := cursors.take(key)) is not None]
        taken += [place for key, begin in new for place in covered(key, begin, places)]
        at, ends = end, cursors.ends
    assert Counter(taken) == Counter(places)


def test_entries_that_an_earlier_micro_batch_sent_and_that_are_gone_are_an_error() -> None:
    cursors = Cursors({})
    first = EntryKey("e", 0, 0, Extent(START, START, LogPlace(4, 1)), EntryKind.AUDIT)
    later = EntryKey("e", 0, 0, Extent(LogPlace(4, 1), LogPlace(4, 1), LogPlace(6, 1)), EntryKind.AUDIT)
    with pytest.raises(Corrupt, match="has lost entries of '0 operations'"):
        cursors.take(later)
    assert cursors.take(first) == START
    assert cursors.take(later) == LogPlace(4, 1)


def test_cursors_of_a_later_micro_batch_that_are_missing_or_damaged_are_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files: dict[str, bytes] = {}

    class File:
        def __init__(self, _: object, url: str) -> None:
            self.url = url

        def read(self) -> bytes | None:
            return files.get(self.url)

    monkeypatch.setattr(audit_query, "HadoopFile", File)
    spark = cast("Any", None)
    assert audit_query.stored_cursors(spark, "/audit", 0).ends == {}
    with pytest.raises(Corrupt, match="/audit/cursors/3 is missing, so what is written to the tables is not known"):
        audit_query.stored_cursors(spark, "/audit", 3)
    files["/audit/cursors/3"] = b'{"3 operations": [7, 1]}'
    assert audit_query.stored_cursors(spark, "/audit", 3).ends == {"3 operations": LogPlace(7, 1)}
    files["/audit/cursors/3"] = b'{"3 operations": [7'
    with pytest.raises(Corrupt, match="/audit/cursors/3 cannot be read"):
        audit_query.stored_cursors(spark, "/audit", 3)


@pytest.mark.parametrize("interval_s", [0.5, 10.0, 60.0, 300.0])
def test_a_longer_interval_does_not_lower_the_rate_at_which_rows_are_written(interval_s: float) -> None:
    assert audit_query.entries_per_commit_max(interval_s) / interval_s >= 2_000
