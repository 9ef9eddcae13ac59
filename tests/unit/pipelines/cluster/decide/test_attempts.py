"""Claim: state, answers and rows are those of the log, whichever attempts of a task sent which of its entries.

Method: a shard decides a log whole, one record at a time with notes, and in other micro-batches. What these send is
joined as Kafka would have it after ends of workers, lost sends and new starts, and is read as the tables are written.
"""

from __future__ import annotations

import struct
from collections import Counter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Self

import pytest

from connectors.delta.rows import completed_rows
from connectors.kafka.cluster_topics import ClusterTopics
from connectors.kafka.own_topics import Topics
from pipelines.cluster.audit.audit_query import audit_key, new_entries
from pipelines.cluster.audit.entry_rows import rows_from
from pipelines.cluster.audit.unit_entries import UnitsKey
from pipelines.cluster.decide import shard, shard_attempts
from pipelines.cluster.decide.extent import Cursors, Extent
from pipelines.cluster.decide.outgoing import EntryKey, Outlet, records_of
from pipelines.cluster.decide.shard import Shard, ShardMeta
from pipelines.cluster.decide.shard_attempts import ShardAttempts, dead_records
from pipelines.cluster.decide.shard_state import quarantined_in
from pipelines.decide_ops import ops_decider
from pipelines.decide_ops.entries import read_slice
from pipelines.decide_ops.entry import EntryKind, LogPlace, PlacedEntry
from popstream.kafka_connection import KafkaConnection
from tests.support.in_process.memory_maps import memory_maps
from tests.support.in_process.small_job import DECLARE, written_to
from tests.unit.pipelines.cluster.decide.test_shard import SETTINGS, answers, pop, record

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from pipelines.cluster.decide.shard_state import ShardMaps
    from pipelines.decide_ops.decode import KafkaRecord

OUTLET = Outlet("epoch", 0, Topics.of("p"), ClusterTopics.of("p"), 4)
RECORDS = [record(0, **DECLARE), record(1, **written_to(0, 999)), *(pop(at) for at in range(2, 40))]
LATER = [pop(at) for at in range(40, 50)]
POISON = 21

Sent = list[tuple[EntryKey, bytes]]


class Noted:
    """Notes in memory; `refused` are the records under which the process has ended often enough."""

    def __init__(self, *refused: int) -> None:
        self.offsets: list[int] = []
        self._refused = refused

    def begin(self, kafka_offset: int) -> bool:
        self.offsets.append(kafka_offset)
        return kafka_offset not in self._refused

    def pause(self) -> None:
        self.offsets.append(-1)


class Attempt:
    """What one task makes of a micro-batch over a state."""

    def __init__(
        self,
        records: Iterable[KafkaRecord],
        maps: ShardMaps | None = None,
        meta: ShardMeta | None = None,
        notes: Noted | None = None,
        dead: Collection[int] = (),
    ) -> None:
        self.maps = memory_maps() if maps is None else maps
        deciding = Shard(SETTINGS, self.maps, meta or ShardMeta(), dead)
        committed = deciding.meta.ends
        entries = deciding.apply(records, notes)
        self.meta = deciding.meta
        self.answers = answers(entries)
        self.sent: Sent = [
            (EntryKey.decode(each.key or b""), each.value)
            for each in records_of(entries, OUTLET, committed, committed)
            if each.topic == "p.cluster_audit"
        ]

    def stored(self) -> list[list[tuple[bytes, bytes]]]:
        return [sorted(each.items()) for each in self.maps]


def rows_in(sent: Sequence[tuple[EntryKey, bytes]]) -> Counter[str]:
    """The rows of the tables, as the audit query writes them."""
    cursors = Cursors({})
    rows: Counter[str] = Counter()
    for key, value in sent:
        begin = cursors.take(key)
        if begin is not None and key.kind == EntryKind.AUDIT:
            table, data = read_slice(value)
            (found,) = completed_rows(table, [(None, data)], "epoch", "T")
            rows.update(f"{table} {row}" for row in rows_from(found, begin).to_pylist())
    return rows


def poison(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the kernel raise for one record."""
    fold = ops_decider.fold  # type: ignore[attr-defined]

    def poisoned(overlay: Any, records: Any, decision: Any) -> Any:
        if any(each.kafka_offset == POISON for each in records):
            message = "poison"
            raise RuntimeError(message)
        return fold(overlay, records, decision)

    monkeypatch.setattr(ops_decider, "fold", poisoned)


def decoded_rows(entry: PlacedEntry) -> int:
    table, data = read_slice(entry.value)
    (found,) = completed_rows(table, [(None, data)], "epoch", "T")
    return len(found)


def kafka_offset_of(row: str) -> int:
    return int(row.split("'kafka_offset': ")[1].split(",", maxsplit=1)[0])


def test_one_record_at_a_time_leads_to_the_same_as_all_at_once() -> None:
    notes = Noted()
    whole, alone = Attempt(RECORDS), Attempt(RECORDS, notes=notes)
    assert notes.offsets == [*range(40), -1]
    assert alone.sent == whole.sent
    assert alone.meta == whole.meta
    assert alone.answers == whole.answers
    assert alone.stored() == whole.stored()


@pytest.mark.parametrize("first", ["whole", "alone"])
@pytest.mark.parametrize("part", [0.4, 1.0])
def test_an_attempt_that_failed_after_some_or_all_was_sent_adds_and_hides_nothing(first: str, part: float) -> None:
    attempts = {"whole": Attempt(RECORDS), "alone": Attempt(RECORDS, notes=Noted())}
    committed = attempts["alone" if first == "whole" else "whole"]
    failed = attempts[first].sent
    later = Attempt(LATER, committed.maps, committed.meta)
    sent = [*failed[: round(len(failed) * part)], *committed.sent, *later.sent]
    once = rows_in([*committed.sent, *later.sent])
    assert rows_in(sent) == once
    assert {*once.values()} == {1}


@pytest.mark.parametrize("is_poisoned", [False, True])
def test_a_part_ends_where_enough_is_made_of_it_with_notes_and_without(
    *, is_poisoned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_poisoned:
        poison(monkeypatch)
    whole = Attempt(RECORDS)
    monkeypatch.setattr(shard, "TURN_RECORDS", 2)
    monkeypatch.setattr(shard, "MADE_MAX", 20)
    parts = [*Shard(SETTINGS, memory_maps(), ShardMeta()).parts(RECORDS)]
    assert len(parts) > 4
    sizes = [sum(decoded_rows(entry) for entry in part if entry.kind == EntryKind.AUDIT) for part in parts]
    assert max(sizes) <= 20 + 2 * 4
    cut, alone = Attempt(RECORDS), Attempt(RECORDS, notes=Noted())
    assert cut.sent == alone.sent
    assert cut.stored() == alone.stored()
    assert rows_in(cut.sent) == rows_in(whole.sent)
    assert len(cut.sent) > len(whole.sent)


def test_slices_of_a_micro_batch_are_one_order() -> None:
    """Those of an attempt that ended between two slices are repeated by the next one."""
    maps = memory_maps()
    one = Shard(SETTINGS, maps, ShardMeta())
    sent: Sent = []
    for at in range(0, 40, 8):
        begins = one.meta.ends
        entries = one.apply(RECORDS[at : at + 8])
        sent += [
            (EntryKey.decode(each.key or b""), each.value)
            for each in records_of(entries, OUTLET, {}, begins)
            if each.topic == "p.cluster_audit"
        ]
    assert rows_in(sent) == rows_in([*sent[:7], *sent]) == rows_in(Attempt(RECORDS).sent)
    lost = [each for number, each in enumerate(sent) if number != 4]
    assert rows_in([*lost, *sent]) == rows_in(sent), "a send that failed, and the attempt after it"
    later = Attempt(LATER, maps, one.meta).sent
    assert {*rows_in([*lost, *sent, *later]).values()} == {1}


@pytest.mark.parametrize("middle", [1, 7, 39])
def test_rows_do_not_depend_on_where_a_micro_batch_ends(middle: int) -> None:
    begun = Attempt(RECORDS[:middle])
    parts = [*begun.sent, *Attempt(RECORDS[middle:], begun.maps, begun.meta).sent]
    whole = Attempt(RECORDS).sent
    assert rows_in(parts) == rows_in(whole) == rows_in([*parts[:5], *whole]) == rows_in([*whole[:2], *parts])


def test_the_cut_for_a_record_that_raises_changes_the_rows_of_no_other_one(monkeypatch: pytest.MonkeyPatch) -> None:
    healthy = Attempt(RECORDS)
    poison(monkeypatch)
    whole, alone = Attempt(RECORDS), Attempt(RECORDS, notes=Noted())
    assert whole.sent == alone.sent
    assert whole.stored() == alone.stored()
    assert [*quarantined_in(whole.maps)] == [POISON]

    def before(rows: Counter[str]) -> Counter[str]:
        return Counter({row: count for row, count in rows.items() if kafka_offset_of(row) < POISON})

    assert before(rows_in(whole.sent)) == before(rows_in(healthy.sent))


def test_a_record_under_which_the_process_has_ended_is_the_only_one_to_differ() -> None:
    alone = Attempt(RECORDS, notes=Noted(POISON))
    assert [*quarantined_in(alone.maps)] == [POISON]
    by_op = {answer["op_id"]: answer for answer in alone.answers}
    assert [op_id for op_id, answer in by_op.items() if answer["code"]] == [f"op-{POISON}"]
    assert {*rows_in([*Attempt(RECORDS[:POISON]).sent, *alone.sent]).values()} == {1}


def test_a_record_that_was_quarantined_so_stays_quarantined_when_a_new_start_repeats_its_micro_batch() -> None:
    """Its answer may have left, before anything was committed."""
    sent = Attempt(RECORDS, notes=Noted(POISON))
    again = Attempt(RECORDS, dead=[POISON])
    assert again.answers == sent.answers
    assert again.sent == sent.sent
    assert again.stored() == sent.stored()
    later = Attempt(LATER, again.maps, again.meta, dead=[POISON])
    assert {answer["code"] for answer in later.answers} == {0}


def test_notes_of_dead_records_outlive_their_micro_batch_and_are_of_one_state(monkeypatch: pytest.MonkeyPatch) -> None:
    written: dict[bytes, bytes] = {}

    class Notes:
        """The topic."""

        def __init__(self, *_: object) -> None:
            """Read it from its beginning."""

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None:
            """Close."""

        def to_end(self) -> Iterable[tuple[bytes, bytes]]:
            return list(written.items())

        def send(self, _: str, *, key: bytes, value: bytes, partition: int) -> Any:
            assert partition == 0
            written[key] = value
            return SimpleNamespace(get=lambda timeout: timeout)

    monkeypatch.setattr(shard_attempts, "KeyedLog", Notes)
    monkeypatch.setattr(shard_attempts, "KafkaProducer", lambda **_: Notes())
    kafka = KafkaConnection("kafka:9092")

    def attempt(state_epoch: str = "epoch") -> ShardAttempts:
        return ShardAttempts(kafka, "attempts", 2, state_epoch)

    for _ in range(2):
        assert attempt().begin(POISON), "and the worker ends"
    assert dead_records(kafka, "attempts", "epoch") == {}, "no attempt has quarantined it"
    decides = attempt()
    assert not decides.begin(POISON)
    decides.pause()
    assert dead_records(kafka, "attempts", "epoch") == {2: {POISON}}
    assert dead_records(kafka, "attempts", "another") == {}
    assert attempt("another").begin(POISON)
    again = attempt()
    assert not again.begin(POISON), "the same answer again"


def test_every_row_has_the_offset_of_its_record_in_place_of_the_number_of_a_write() -> None:
    for row in rows_in(Attempt(RECORDS).sent):
        assert f"'apply_seq': {kafka_offset_of(row)}," in row


def test_entries_of_another_state_are_left_out_and_move_no_cursor() -> None:
    own = Attempt(RECORDS).sent
    foreign = [(key._replace(state_epoch="another"), value) for key, value in own]
    later = Extent(LogPlace(900, 0), LogPlace(900, 0), LogPlace(901, 0))
    of_units = UnitsKey("another", "t", 0, later)
    keys: list[EntryKey | UnitsKey | None] = [None, *(key for key, _ in foreign), of_units, *(key for key, _ in own)]
    cursors = Cursors({})
    found = new_entries([((0, at), key, 0, b"") for at, key in enumerate(keys)], cursors, "epoch")
    assert found.repeated == [(0, at) for at in range(len(foreign) + 2)]
    assert not found.partly
    assert cursors.ends == {key.source: key.extent.end for key, _ in own}
    version_before = struct.pack(">IQIB", 3, 17, 2, EntryKind.AUDIT)
    assert audit_key(version_before) is None
    assert audit_key(b"orders" + struct.pack(">iQIB", 3, 17, 2, EntryKind.UNITS)) is None
    assert audit_key(of_units.encode()) == of_units
