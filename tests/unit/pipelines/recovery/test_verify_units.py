"""Claim: `popstream verify` compares each unit with its row in `consume_queue` and its record, and counts differences.

Method: a builder's store is filled from records of three queues, of each type; the table is written by hand, without
the last units, which are in the outbox. Then one thing is changed.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from broker_state.consume_queue import Scan, Units, units_between
from broker_state.store.rocks_store import BUILDER_FAMILIES, RocksStore
from checkpoints.applied import Applied
from connectors.delta.all_columns import with_all_columns
from connectors.delta.pieces import find_pieces
from connectors.delta.row_comparison import Comparison
from connectors.delta.tables import CONSUME_QUEUE
from pipelines.apply_ops.outbox import Outbox
from pipelines.build_consume_queue.builder import Builder
from pipelines.build_consume_queue.builder_records import read_queues, reader_of
from pipelines.build_units.unit_tables import delta_rows, units_by_queue
from pipelines.decide_ops.entry import EntryKind
from pipelines.recovery.ops_log import LostRecords
from pipelines.recovery.verify import units as units_module
from pipelines.recovery.verify.plan import VerifyPlan, unit_sources
from pipelines.recovery.verify.units import DifferentQueue, MessageLog, UnitResult, compare_units
from pipelines.recovery.verify.verdict import verdict
from pipelines.recovery.verify.work_folder import replace_file
from popstream.payload.inner_batch import InnerMessage, encode_inner_batch
from popstream.topics.message_topics import MessageTopic
from popstream.wire.queue_name import QueueName
from tests.support.in_process.verify_scene import WrittenTable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from popstream.wire.command import QueueType

QUEUE_TYPES: dict[str, QueueType] = {"plain": "simple", "batched": "batch", "latest": "sparse"}
RECORDS = 90
IN_DELTA = 60


class Record(NamedTuple):
    """As kafka-python has it."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes
    headers: list[tuple[str, bytes]]


def record(topic: str, offset: int) -> Record:
    key = None if offset % 3 else b"key-%d" % offset
    tag = [("popstream-tag", b"paid")] if offset % 2 else []
    if offset % 11 == 0:
        tag.append(("popstream-deliver-at", b"%d" % (2_000 + offset) if offset % 2 else b"soon"))
    if offset % 9 == 0:
        tag.append(("popstream-dedup-id", b"order-%d" % (offset // 18)))
    if topic != "batched" or offset % 5 == 0:
        return Record(offset, 1_000 + offset, key, b"x" * offset, tag)
    messages = [InnerMessage(b"%d" % number, 0) for number in range(1 + offset % 4)]
    value, headers = encode_inner_batch(
        messages, created_ms=7, ids=[f"a-{offset:x}{number}" for number in range(len(messages))]
    )
    return Record(offset, 1_000 + offset, key, value, [*headers, *tag])


class UnitScene:
    """The store, the table and the topics; offsets divisible by 7 are holes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.records = {
            topic: [record(topic, offset) for offset in range(RECORDS) if offset % 7] for topic in QUEUE_TYPES
        }
        self.table = WrittenTable(root / "delta", CONSUME_QUEUE.name)
        self.span = (0, RECORDS)
        with RocksStore(root / "queues", BUILDER_FAMILIES) as store:
            outbox = Outbox(store)
            builder = Builder(store, outbox, "epoch")
            topics = {name: MessageTopic(name, f"id-{name}", {0: 0}, {0: RECORDS}) for name in QUEUE_TYPES}
            builder.update_topics(topics, QUEUE_TYPES)
            for first, end in ((0, 20), (20, IN_DELTA), (IN_DELTA, RECORDS)):
                builder.append({(topic, 0): self.scan(builder, topic, first, end) for topic in QUEUE_TYPES})
                if end <= IN_DELTA:
                    rows = pa.concat_tables(
                        [self.rows(builder, store, (topic, 0), first, end) for topic in QUEUE_TYPES]
                    )
                    self.table.append(rows, "build_consume_queue/consume_queue/epoch")
                    delivered = [each.key for each in outbox.undelivered(EntryKind.UNIT_SPANS)]
                    outbox.delivered(delivered)

    def scan(self, builder: Builder, topic: str, first: int, end: int) -> Scan:
        found = [each for each in self.records[topic] if first <= each.offset < end]
        table = units_module._log_rows((topic, 0), builder.queues[topic, 0], found)
        ((_, units),) = units_by_queue(table, batch_topics=frozenset({"batched"}))
        return Scan(first, end, units)

    def rows(self, builder: Builder, store: RocksStore, queue: QueueName, first: int, end: int) -> pa.Table:
        known = builder.queues[queue]
        units: Units = units_between(known, reader_of(store, queue), first, end)
        rows = delta_rows(queue, known.topic_id, known.queue_type, units)
        count = rows.num_rows
        added = {
            "build_seq": pa.array([1] * count, pa.int64()),
            "state_epoch": pa.repeat("epoch", count),
            "store_date": pa.array([0] * count, pa.int32()).cast(pa.date32()),
        }
        return with_all_columns(CONSUME_QUEUE, rows, added)

    def change(self, change: Callable[[pa.Table], pa.Table]) -> None:
        """Replace the last file of the table."""
        file = self.table.path / f"part-{self.table.version:05d}.parquet"
        rows = pa.parquet.ParquetFile(file).read()
        dates = pa.array([0] * rows.num_rows, pa.int32()).cast(pa.date32())
        self.table.append(change(rows.append_column("store_date", dates)), removed=[file.name])

    def add(self, topic: str, queue_id: int, topic_id: str, count: int, build_seq: int = 1) -> None:
        """Append rows to the table that the store does not have."""
        rows = pa.parquet.ParquetFile(self.table.path / "part-00001.parquet").read().slice(0, count)
        added = {
            "topic": pa.repeat(topic, count),
            "queue_id": pa.array([queue_id] * count, pa.int32()),
            "topic_id": pa.repeat(topic_id, count),
            "build_seq": pa.array([build_seq] * count, pa.int64()),
            "store_date": pa.array([0] * count, pa.int32()).cast(pa.date32()),
        }
        self.table.append(with_all_columns(CONSUME_QUEUE, rows.drop_columns([*added][:-1]), added))

    def compare(self, *, with_store: bool = True, **logs: str) -> UnitResult:
        columns = ("topic", "queue_id", "topic_id")
        plan = VerifyPlan(
            since=None,
            base="",
            topic="",
            topic_id="",
            first={},
            end={},
            state="",
            queues=str(self.root / "queues") if with_store else None,
            delta=str(self.root / "delta"),
            applied=Applied(state_epoch="e", ops_topic="", ops_topic_id=""),
            keys="",
            quarantine=[],
            tables={},
            units=find_pieces(self.table.path, CONSUME_QUEUE, columns, "queue_offset", unit_sources),
            slices=[],
            shares=[],
        )
        found = {(topic, 0): logs.get(topic) or MessageLog(self.span, self.reader(topic)) for topic in QUEUE_TYPES}
        return compare_units(plan, self.root / "noted", found, lambda *_: None)

    def reader(self, topic: str) -> Callable[[int, int], Iterator[Any]]:
        return lambda first, end: (each for each in self.records[topic] if first <= each.offset < end)

    def lines(self) -> list[str]:
        found = self.compare()
        return [*found.in_delta.lines("units of consume_queue"), *found.in_log.lines("units in the log")]

    @property
    def units(self) -> int:
        return sum(map(len, self.records.values()))


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> UnitScene:
    monkeypatch.setattr(units_module, "SLICE_OFFSETS", 50)
    return UnitScene(tmp_path)


def test_units_of_every_type_equal_their_rows_and_records(scene: UnitScene) -> None:
    found = scene.compare()
    assert found.in_delta.is_equal
    assert found.in_log.is_equal
    in_delta = sum(each.offset < IN_DELTA for records in scene.records.values() for each in records)
    assert (found.in_delta.equal, found.in_outbox) == (in_delta, scene.units - in_delta)
    assert found.in_log.equal == scene.units
    with RocksStore(scene.root / "queues", BUILDER_FAMILIES, read_only=True) as store:
        queues = dict(read_queues(store))
        marks = {
            queue[0]: units_between(record, reader_of(store, queue), 0, RECORDS).duplicate_of
            for queue, record in queues.items()
        }
    assert {topic: sorted(set(found.tolist())) for topic, found in marks.items()} == {
        "plain": [-1, 18, 36, 72], "batched": [-1], "latest": [-1],
    }  # fmt: skip


def test_missing_repeated_and_changed_rows_are_counted_and_named(scene: UnitScene) -> None:
    def change(rows: pa.Table) -> pa.Table:
        tag = rows.schema.get_field_index("tag_hash")
        hashes = pc.if_else(pc.equal(rows["queue_offset"], 25), 77, rows["tag_hash"])
        changed = rows.set_column(tag, "tag_hash", hashes)
        return pa.concat_tables([changed.filter(pc.not_equal(rows["queue_offset"], 30)), rows.slice(10, 2)])

    scene.change(change)
    said = "\n".join(scene.lines())
    for wanted in (
        "3 of 153 units of consume_queue differ",
        "3 of 153 .* are missing",
        "2 of 150 .* are there repeatedly",
    ):
        assert re.search(f"^{wanted}", said, re.MULTILINE), said
    assert re.search(r"^\w+/0, queue offset 25: tag_hash is 77 instead of -?\d+$", said, re.MULTILINE)


def test_a_file_of_a_version_without_a_column_has_nulls_in_it(scene: UnitScene) -> None:
    """Its units that have a time of delivery differ, as they would if the column said null."""
    scene.change(lambda rows: rows.drop_columns("deliver_at_ms"))
    found = scene.compare().in_delta
    assert (found.equal, found.changed) == (147, 6)
    said = "\n".join(scene.lines())
    assert re.search(r"queue offset 33: deliver_at_ms is None instead of 2033$", said, re.MULTILINE), said


def test_a_unit_without_a_record_and_a_record_without_a_unit_are_named(scene: UnitScene) -> None:
    del scene.records["plain"][3]
    scene.records["batched"].insert(0, record("batched", 0))
    assert scene.compare().different_queues == [DifferentQueue("plain", 0, 4), DifferentQueue("batched", 0, 0)]
    (scene.root / "noted").unlink()
    assert scene.lines()[:2] == [
        f"1 of {scene.units} units in the log are missing",
        f"1 of {scene.units} units in the log are too many",
    ]


@pytest.mark.parametrize("count", [1, 3, 5])
def test_queues_that_differ_are_named_with_the_command_that_reads_them_again(count: int) -> None:
    queues = [DifferentQueue("orders", number, 10 * number) for number in range(count)]
    result = UnitResult(in_log=Comparison(wanted=count, changed=count), different_queues=queues)
    *_, advice = verdict(None, [], result).differences
    commands = [
        f"`popstream queue orders --queue {number} --rebuild-from {10 * number}`" for number in range(min(count, 3))
    ]
    more = ", then the same with 2 more queues, which `popstream verify` names" if count == 5 else ""
    assert advice == f"if the builder is wrong, read again while the job runs: {', '.join(commands)}{more}"


def test_retention_and_compaction_are_no_difference(scene: UnitScene) -> None:
    scene.span = (40, RECORDS)
    del scene.records["latest"][50:55]
    found = scene.compare()
    assert found.in_log.is_equal
    assert 0 < found.in_log.equal < scene.units


def test_records_that_leave_the_log_meanwhile_are_no_difference(
    scene: UnitScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose(_first: int, _end: int) -> Iterator[Any]:
        raise LostRecords("retention")

    monkeypatch.setattr(scene, "reader", lambda _: lose)
    assert scene.compare().in_log.wanted == 0


def test_a_queue_without_a_log_is_compared_with_delta_alone(scene: UnitScene) -> None:
    found = scene.compare(plain="plain was deleted")
    assert found.not_in_log == ["plain was deleted"]
    assert found.in_log.equal == scene.units - len(scene.records["plain"])


def test_rows_without_a_store_are_counted(scene: UnitScene) -> None:
    """A start builds a lost store again, so they are no difference; but nobody has looked at them."""
    found = scene.compare(with_store=False)
    in_delta = {topic: sum(each.offset < IN_DELTA for each in scene.records[topic]) for topic in QUEUE_TYPES}
    assert found.not_in_store == [
        f"{in_delta[topic]:,} rows of consume_queue, of 1 queue of {topic} (topic id id-{topic}): the builder's store"
        " is missing or empty"
        for topic in sorted(QUEUE_TYPES)
    ]
    verified = verdict(None, [], found)
    assert verified.units is not None
    assert (verified.units.not_in_store, verified.differences) == (found.not_in_store, [])


def test_rows_of_queues_that_the_store_does_not_know_are_counted(scene: UnitScene) -> None:
    scene.add("plain", 0, "id-before", 3)
    scene.add("plain", 1, "id-before", 2)
    scene.add("gone", 7, "id-gone", 4)
    found = scene.compare()
    assert found.in_delta.is_equal
    assert found.not_in_store == [
        "4 rows of consume_queue, of 1 queue of gone (topic id id-gone): the builder's store does not know the topic",
        "5 rows of consume_queue, of 2 queues of plain (topic id id-before): the topic was made again since",
    ]


def test_rows_of_a_queue_that_a_topic_never_had_are_a_difference(scene: UnitScene) -> None:
    scene.add("plain", 99, "id-plain", 5)
    scene.add("plain", 100, "id-plain", 2, build_seq=99)  # by a running job, since its store was copied
    found = scene.compare()
    assert found.not_in_store == []
    assert found.in_delta.extra == 5
    said = "\n".join(verdict(None, [], found).differences)
    assert "rows of consume_queue are too many" in said
    assert "plain/99: 5 are too many, the builder's store has no such queue" in said
    assert "`popstream restore --rebuild consume_queue`" in said
    assert scene.compare() == found, "once, also where it goes on"


def test_many_topics_without_a_store_are_a_few_lines(scene: UnitScene) -> None:
    for number in range(12):
        scene.add(f"topic-{number:02d}", 0, "id", 2)
    *_, last = scene.compare().not_in_store
    assert last == "4 rows of consume_queue, of 2 more topics"


def test_a_comparison_that_was_stopped_goes_on(scene: UnitScene, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = scene.compare()
    (scene.root / "noted").unlink()
    noted: list[int] = []

    def stop(path: Path, data: bytes) -> None:
        if len(noted) == 2:
            raise KeyboardInterrupt
        noted.append(0)
        replace_file(path, data)

    monkeypatch.setattr("pipelines.recovery.verify.units.replace_file", stop)
    with pytest.raises(KeyboardInterrupt):
        scene.compare()
    monkeypatch.setattr("pipelines.recovery.verify.units.replace_file", replace_file)
    assert 0 < msgspec.msgpack.decode((scene.root / "noted").read_bytes(), type=UnitResult).slices < whole.slices
    assert scene.compare() == whole
