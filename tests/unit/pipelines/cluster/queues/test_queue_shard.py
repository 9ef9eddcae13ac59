"""Claim: over the maps of a cluster a queue is built as on a disk: the same record, values, operations and rows.

Method: logs of every type with holes, tags and deduplication ids, that lose their start and their end and are made
anew, go to the embedded builder over RocksDB and to a shard, in micro-batches of random lengths, with repeats, and with
a memory that is lost at random.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pytest

from broker_state.consume_queue import Scan, Unit, Units, units_between
from broker_state.store.keys import queue_prefix
from broker_state.store.rocks_store import BUILDER_FAMILIES, UNITS, RocksStore
from checkpoints.reconcile import LogFound
from pipelines.apply_ops.outbox import Outbox
from pipelines.build_consume_queue.builder import Builder
from pipelines.build_consume_queue.builder_records import read_spans
from pipelines.build_units.accepted_ids import DedupRule
from pipelines.build_units.unit_tables import DELTA_SCHEMA, UNIT_SCHEMA, delta_rows, table_of
from pipelines.cluster.arrow_slices import sliced
from pipelines.cluster.audit.unit_entries import UnitsKey, completed_units, unit_records
from pipelines.cluster.decide.extent import Cursors
from pipelines.cluster.queues import queue_shard
from pipelines.cluster.queues.queue_log import (
    Began,
    LogRecord,
    Scanned,
    Truncated,
    decode_log_record,
    require_same_queue_log,
)
from pipelines.cluster.queues.queue_shard import QueueMeta, QueueShard
from pipelines.cluster.queues.scan_records import ScanSpan, scan_packer
from pipelines.decide_ops.entry import Entry, EntryKind
from popstream.exchange.partitioner import queue_of_ops_key
from popstream.topics.message_topics import MessageTopic
from popstream.wire.base_errors import Corrupt
from popstream.wire.command import Command, Dispatch, encode_command
from tests.support.in_process.memory_maps import MemoryMap

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from broker_state.consume_queue import ConsumeQueue
    from popstream.wire.command import QueueType

QUEUE = ("orders", 0)
RULE = DedupRule(window_ms=500, ids_max=40)
STEPS = 60


class Embedded:
    """The builder over RocksDB."""

    def __init__(self, folder: Path, queue_type: QueueType) -> None:
        self.store = RocksStore(folder, BUILDER_FAMILIES)
        self.outbox = Outbox(self.store)
        self.builder = Builder(
            self.store, self.outbox, "epoch", dedup_window_ms=RULE.window_ms, dedup_ids_max=RULE.ids_max
        )
        self.queue_type = queue_type
        self.rows: list[pa.Table] = []

    @property
    def record(self) -> ConsumeQueue:
        return self.builder.queues[QUEUE]

    def values(self) -> dict[bytes, bytes]:
        prefix = queue_prefix(*QUEUE)
        return {key[len(prefix) :]: value for key, value in self.store.scan(UNITS, prefix)}

    def begin(self, topic_id: str, start: int) -> list[Command]:
        topic = MessageTopic(QUEUE[0], topic_id, {0: start}, {0: start})
        return self._commands(self.builder.update_topics({QUEUE[0]: topic}, {QUEUE[0]: self.queue_type}))

    def append(self, scan: Scan) -> list[Command]:
        entries = self.builder.append({QUEUE: scan})
        for entry in entries:
            for span in read_spans(entry) if entry.kind == EntryKind.UNIT_SPANS else ():
                found = scan_units(self, span.first_offset, span.end_offset)
                self.rows.append(delta_rows(QUEUE, span.topic_id, span.queue_type, found))
        return self._commands(entries)

    def _commands(self, entries: list[Entry]) -> list[Command]:
        decode = msgspec.json.Decoder(Command).decode
        return [decode(entry.value) for entry in entries if entry.kind == EntryKind.DISPATCH]


def scan_units(embedded: Embedded, first: int, end: int) -> Units:
    return units_between(embedded.record, embedded.builder.get(QUEUE), first, end)


def differences(found: dict[Any, Any], wanted: dict[Any, Any]) -> list[Any]:
    return sorted(key for key in found.keys() | wanted.keys() if found.get(key) != wanted.get(key))[:9]


def said(commands: Iterable[Command]) -> Iterator[tuple[Any, ...]]:
    """What operations say, one after the other, of each offset; however they are cut."""
    for command in commands:
        if isinstance(command, Dispatch):
            runs = [(run.first, run.last, (run.tag, run.count, run.deliver_at_ms)) for run in command.ranges]
            for first, last, facts in sorted([*runs, *((first, last, None) for first, last in command.skip)]):
                yield from ((command.topic_id, at, facts) for at in range(first, last + 1))
        else:
            yield (encode_command(command),)


def numbered(items: Iterable[Any]) -> dict[int, Any]:
    return dict(enumerate(items))


class OnCluster:
    """A shard whose memory may be lost between micro-batches."""

    def __init__(self) -> None:
        self.map = MemoryMap()
        self.meta = QueueMeta()
        self.shard: QueueShard | None = None
        self.rows: list[pa.Table] = []
        self.log_end = 0
        self.cursors = Cursors({})

    def apply(self, records: list[LogRecord], *, forget: bool) -> list[Command]:
        before = self.meta.end
        ids = None if forget or self.shard is None else self.shard.ids
        self.shard = QueueShard(QUEUE, self.map, QueueMeta.decode(self.meta.encode()), RULE, ids)
        built = self.shard.apply(enumerate(records, self.log_end))
        self.log_end += len(records)
        self.meta = self.shard.meta
        for record in unit_records(
            QUEUE, "epoch", ((each.log_offset, each.units) for each in built), before, "audit", 3
        ):
            assert record.key is not None
            assert self.cursors.take(key := UnitsKey.decode(record.key)) == key.extent.begin
            assert key.extent.end <= self.meta.end
            self.rows.append(completed_units(record.key, record.value, "epoch").select(DELTA_SCHEMA.names))
        return [command for each in built for command in each.commands]


def random_units(chance: random.Random, first: int, end: int, queue_type: QueueType) -> Units:
    clock = first * 3
    units = []
    for at in range(first, end):
        if chance.random() < 0.3:
            continue
        units.append(
            Unit(
                queue_offset=at,
                size_bytes=chance.randrange(100),
                store_time_ms=clock + at * 3 + chance.randrange(-20, 20),
                message_base=at,
                inner_count=chance.choice([1, 3]) if queue_type == "batch" else 1,
                tag_hash=chance.choice([0, 0, 9]),
                key_hash=chance.choice([0, 77]),
                deliver_at_ms=chance.choice([0, 0, 0, 5]),
                dedup_low=chance.choice([0, chance.randrange(1, 60)]),
            )
        )
    return Units.of(units)


def scanned(topic_id: str, scan: Scan, rows_max: int = 60) -> list[LogRecord]:
    """As tasks and driver write it: pieces, and then what follows the last one."""
    packed = scan_packer({QUEUE: ScanSpan(topic_id, scan.first_offset, scan.end_offset)}, "log", 4)
    batches = table_of(QUEUE, scan.units).combine_chunks().to_batches(max_chunksize=rows_max)
    found = list(packed(batches))
    values = [value for batch in found for value in batch.column("value").to_pylist()]
    end = found[-1].column("end_offset")[-1].as_py() if found else scan.first_offset
    return [*map(decode_log_record, values), Scanned(topic_id, end, scan.end_offset)]


@pytest.mark.parametrize("queue_type", ["simple", "batch", "sparse"])
@pytest.mark.parametrize("seed", range(2))
def test_a_queue_is_built_as_on_a_disk(
    queue_type: QueueType, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_shard, "REMOVED_SINGLY_MAX", 2)
    chance = random.Random(seed)
    embedded, cluster = Embedded(tmp_path / "queues", queue_type), OnCluster()
    wanted: list[Command] = []
    found: list[Command] = []
    waiting: list[LogRecord] = []
    seen: list[LogRecord] = []
    topic_number, start = 1, 0

    def topic_id() -> str:
        return f"id {topic_number}"

    wanted += embedded.begin(topic_id(), 0)
    waiting.append(Began(topic_id(), queue_type, 0))
    for _ in range(STEPS):
        step = chance.random()
        end = embedded.record.end_offset
        if step < 0.03:
            topic_number += 1
            start = chance.choice([0, 1_500])
            wanted += embedded.begin(topic_id(), start)
            waiting.append(Began(topic_id(), queue_type, start))
        elif step < 0.1:
            # On a cluster the ids of units that have left the log are forgotten with them.
            start = max(start, chance.randrange(max(1, end - 150) if queue_type == "simple" else end + 10))
            wanted += embedded.begin(topic_id(), start)
            waiting.append(Began(topic_id(), queue_type, start))
        elif step < 0.15:
            at = chance.randrange(start, end + 1)
            embedded.builder.truncate(QUEUE, at, is_same_log=False)
            waiting.append(Truncated(topic_id(), at))
        else:
            scan_end = end + chance.choice([1, 9, 300])
            scan = Scan(end, scan_end, random_units(chance, end, scan_end, queue_type))
            wanted += embedded.append(scan)
            waiting += scanned(topic_id(), scan)
        if chance.random() < 0.4:
            late = [record for record in seen[-9:] if isinstance(record, Scanned)]
            found += cluster.apply([*late, *waiting, *waiting[-1:]], forget=chance.random() < 0.3)
            seen = [] if any(isinstance(record, Truncated) for record in waiting) else waiting
            waiting = []
    found += cluster.apply(waiting, forget=True)
    assert cluster.meta.record == embedded.record
    assert differences(dict(cluster.map.items()), embedded.values()) == []
    assert differences(numbered(said(found)), numbered(said(wanted))) == []
    rows = [pa.concat_tables(each.rows).combine_chunks() for each in (embedded, cluster)]
    assert rows[0].num_rows > 500
    assert differences(numbered(rows[0].to_pylist()), numbered(rows[1].to_pylist())) == []
    embedded.store.close()


def test_a_gap_in_the_log_is_told_and_closed_by_reading_again() -> None:
    cluster = OnCluster()
    units = random_units(random.Random(1), 0, 60, "simple")
    whole = scanned("id", Scan(0, 60, units), rows_max=7)
    cluster.apply([Began("id", "simple", 0), *whole[:2], *whole[3:]], forget=False)
    behind = cluster.meta
    assert behind.is_behind
    assert behind.record is not None
    end = behind.record.end_offset
    assert 0 < end < 60
    cluster.apply(scanned("id", Scan(end, 60, units.between(end, 60))), forget=False)
    assert not cluster.meta.is_behind
    other = OnCluster()
    other.apply([Began("id", "simple", 0), *whole], forget=False)
    assert differences(dict(cluster.map.items()), dict(other.map.items())) == []


def test_a_scan_of_a_queue_that_has_not_begun_is_told() -> None:
    cluster = OnCluster()
    cluster.apply([Scanned("id", 100, 200)], forget=False)
    assert cluster.meta.is_behind
    assert cluster.meta.record is None
    cluster.apply([Began("id", "simple", 0)], forget=False)
    assert not cluster.meta.is_behind


def test_a_log_that_was_made_anew_is_refused_before_its_units_pass_for_written_ones() -> None:
    cluster = OnCluster()
    units = random_units(random.Random(1), 0, 60, "simple")
    cluster.apply([Began("id", "simple", 0), *scanned("id", Scan(0, 30, units.between(0, 30)))], forget=False)
    before, cluster.log_end = cluster.meta, 0
    with pytest.raises(Corrupt, match=r"a record of orders/0 at 0, below \d: .* `popstream migrate to-cluster"):
        cluster.apply(scanned("id", Scan(30, 60, units.between(30, 60))), forget=True)
    assert cluster.meta == before


def test_a_log_that_ends_below_what_was_taken_of_it_is_refused() -> None:
    log = LogFound(topic="p.cluster_queue_log", topic_id="new", first_offset={0: 0, 1: 0}, end_offset={0: 7, 1: 0})
    require_same_queue_log({0: 7, 1: 0}, log)
    require_same_queue_log({}, log)
    with pytest.raises(Corrupt, match="cluster_queue_log ends below what was taken of it") as refused:
        require_same_queue_log({0: 7, 1: 3}, log)
    assert refused.value.details == ("partition 1 ends at 0, but is decided up to 3",)


def test_a_type_that_a_queue_does_not_have_is_ignored() -> None:
    cluster = OnCluster()
    cluster.apply([Began("id", "simple", 0)], forget=False)
    before = cluster.meta
    assert cluster.apply([Began("id", "batch", 0)], forget=True) == []
    assert cluster.meta == before


def test_rows_of_several_queues_come_in_records_that_follow_each_other() -> None:
    parts = [
        table_of((topic, queue_id), random_units(random.Random(queue_id), 5, 40, "simple"))
        for topic, queue_id in (("a", 0), ("a", 1), ("b", 1))
    ]
    table = pa.concat_tables(parts)
    spans = {("a", 0): ScanSpan("A", 5, 40), ("b", 1): ScanSpan("B", 10, 30)}
    values: dict[tuple[str, int], list[Scanned]] = {}
    count = 0
    for batch in scan_packer(spans, "log", 4)(table.combine_chunks().to_batches(max_chunksize=10)):
        for key, value, records in zip(
            *(batch.column(name).to_pylist() for name in ("key", "value", "records")), strict=True
        ):
            record = decode_log_record(value)
            assert isinstance(record, Scanned)
            values.setdefault(queue_of_ops_key(key), []).append(record)
            count += records
    assert values.keys() == spans.keys()
    for queue, found in values.items():
        assert found[0].first_offset == spans[queue].first_offset
        assert [each.first_offset for each in found[1:]] == [each.end_offset for each in found[:-1]]
        assert found[-1].end_offset <= spans[queue].end_offset
    in_span = [at for at in parts[2]["queue_offset"].to_pylist() if 10 <= at < 30]
    assert count == parts[0].num_rows + len(in_span)


def test_slices_are_bounded_and_hold_all_rows_in_order() -> None:
    rows = table_of(QUEUE, random_units(random.Random(3), 0, 5_000, "simple"))
    parts = list(sliced(rows, 10_000))
    assert len(parts) > 2
    assert all(len(data) <= 10_000 for _, data in parts)
    assert pa.concat_tables([part for part, _ in parts]).to_pylist() == rows.to_pylist()
    assert list(sliced(UNIT_SCHEMA.empty_table(), 10)) == []
