"""Claim: what shards hold becomes a store as an embedded job has it, with what a verification has to know."""

from __future__ import annotations

import operator
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

import msgspec
import pytest

from broker_state.consume_queue import ConsumeQueue, Unit, Units
from broker_state.store.memory_kv import MemoryKv
from broker_state.store.rocks_store import RocksStore
from checkpoints.applied import applied_of
from checkpoints.reconcile import LogFound
from checkpoints.replay import NO_REPLAY, replay_of
from checkpoints.snapshot_store import Snapshot
from connectors.delta.tables import AUDIT_TABLES
from pipelines.apply_ops.quarantine import Quarantine
from pipelines.build_consume_queue.builder_records import UnitSpan
from pipelines.cluster import copy_of_state
from pipelines.cluster.audit import table_locations
from pipelines.cluster.audit.undelivered import _spans_of
from pipelines.cluster.audit.unit_entries import unit_records
from pipelines.cluster.checkpoint_identity import FORMAT, CheckpointIdentity
from pipelines.cluster.copy_of_state import WithBeginning, local_tables
from pipelines.cluster.decide.extent import START
from pipelines.cluster.decide.shard import Shard, ShardMeta, ShardSettings
from pipelines.cluster.decide.shard_rows import META_MAP, PROGRESS_MAPS, ShardRow, content_of, progress_of
from pipelines.cluster.decide.shard_state import quarantine_key
from pipelines.cluster.migration.shards import Shards
from pipelines.cluster.migration.stored_state import content_of_store
from pipelines.decide_ops.decode import KafkaRecord
from pipelines.recovery.verify.base import choose_base
from popstream.wire.base_errors import Corrupt, Invalid
from tests.model.generator import PARTITIONS
from tests.support.cluster_log import decided_entries
from tests.support.in_process.folding import KERNEL_FAMILIES, RESULTS_PARTITIONS, records_of
from tests.support.in_process.memory_maps import SEED, memory_maps

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

RECORDS = 400
NO_SPARK = cast("SparkSession", None)
IDENTITY = CheckpointIdentity(
    format=FORMAT, prefix="p", state_epoch="e2", seed=SEED, ops_topic_id="T", ops_partitions=PARTITIONS
)


class Decided:
    """A generated log, decided by shards in memory and by the kernel at once."""

    def __init__(self) -> None:
        counts = dict.fromkeys(range(PARTITIONS), 0)
        records = []
        for each in records_of(4, RECORDS):
            at = counts[each.partition]
            counts[each.partition] += 1
            records.append(KafkaRecord(each.partition, at, each.timestamp_ms, each.key, each.value, len(each.value)))
        self.log = LogFound(topic="p.ops", topic_id="T", first_offset=dict.fromkeys(counts, 0), end_offset=counts)
        self.kv = MemoryKv()
        decided_entries(self.kv, records)
        settings = ShardSettings("run", PARTITIONS, RESULTS_PARTITIONS, None, SEED, 1 << 20)
        self.rows: list[ShardRow] = []
        for partition in counts:
            maps = memory_maps()
            shard = Shard(settings, maps, ShardMeta())
            shard.apply(record for record in records if record.partition == partition)
            if partition == 0:
                maps.quarantined.put(quarantine_key(3), b"poison")
            self.rows.append(ShardRow(partition, META_MAP, b"", shard.meta.encode()))
            for name, stored in zip(maps._fields, maps, strict=True):
                self.rows += [ShardRow(partition, name, key, value) for key, value in stored.items()]

    def shards(self, **changed: Any) -> Shards:
        progress = progress_of(row for row in self.rows if row.map in PROGRESS_MAPS)
        return Shards(msgspec.structs.replace(IDENTITY, **changed), progress, lambda: self.rows)


@pytest.fixture(scope="module")
def decided() -> Decided:
    return Decided()


def test_a_store_gets_what_the_shards_hold(decided: Decided, tmp_path: Path) -> None:
    shards = decided.shards()
    assert shards.next_offset == decided.log.end_offset
    applied = shards.applied("p.ops", "e2", ["e1"], 7)
    written = shards.write(tmp_path / "state", applied, decided.log, rows_from={})
    with RocksStore(tmp_path / "state", read_only=True) as store:
        found: dict[str, dict[bytes, bytes]] = {family: {} for family in KERNEL_FAMILIES}
        for family, key, value in content_of_store(store):
            found[family][key] = value
        assert found == {family: decided.kv.families.get(family, {}) for family in KERNEL_FAMILIES}
        assert written.keys == sum(map(len, found.values()))
        assert applied_of(store) == applied
        assert (applied.apply_seq, applied.epochs) == (7, ("e2", "e1"))
        assert list(Quarantine(store)) == [((0, 3), "poison")]
        assert replay_of(store) == NO_REPLAY


def test_a_state_from_elsewhere_says_from_where_on_its_tables_have_rows(decided: Decided, tmp_path: Path) -> None:
    first = dict.fromkeys(range(PARTITIONS), 5)
    shards = decided.shards(first_offset=first, since_loss=["e1"])
    shards.write(tmp_path / "state", shards.applied("p.ops", "e3", []), decided.log, rows_from=first)
    with RocksStore(tmp_path / "state", read_only=True) as store:
        replay = replay_of(store)
    assert replay.compared_from == dict.fromkeys(AUDIT_TABLES, first)
    assert replay.since_loss == ["e1", "e2", "e3"]


def test_one_shard_is_in_memory_at_a_time(decided: Decided) -> None:
    read: list[int] = []

    def rows() -> Iterator[ShardRow]:
        for row in decided.rows:
            read.append(row.ops_partition)
            yield row

    next(content_of(rows(), SEED))
    assert set(read) == {0, 1}, "and the first row of the next one"
    assert len({row.ops_partition for row in decided.rows}) > 2


def test_a_log_that_does_not_go_on_with_the_state_is_refused(decided: Decided, tmp_path: Path) -> None:
    shards = decided.shards()
    applied = shards.applied("p.ops", "e2", [])
    later = {partition: end + 1 for partition, end in decided.log.end_offset.items()}
    lost = msgspec.structs.replace(decided.log, first_offset=later, end_offset=later)
    with pytest.raises(Corrupt, match="no longer has the records after the state"):
        shards.write(tmp_path / "lost", applied, lost, rows_from={})
    other = msgspec.structs.replace(decided.log, topic_id="U")
    with pytest.raises(Corrupt):
        shards.write(tmp_path / "other", applied, other, rows_from={})
    assert not list(tmp_path.iterdir())


class NoSnapshots:
    """A place without snapshots."""

    def list(self) -> list[Snapshot]:
        return []

    def fetch(self, snapshot: Snapshot, folder: Path) -> None:
        raise AssertionError(snapshot.id, folder)


def test_a_verification_begins_with_what_was_migrated_where_the_log_does_not_reach_back(
    decided: Decided, tmp_path: Path
) -> None:
    shards = decided.shards()
    half = {partition: end // 2 for partition, end in decided.log.end_offset.items()}
    (tmp_path / "beginning" / "state").mkdir(parents=True)
    begun = msgspec.structs.replace(shards.applied("p.ops", "e2", []), next_offset=half)
    beginning = Snapshot(id="of the migration", taken_at_ms=0, applied=begun, files=[])
    snapshots = WithBeginning(NoSnapshots(), beginning, tmp_path / "beginning")
    applied = shards.applied("p.ops", "e2", [])
    log = msgspec.structs.replace(decided.log, first_offset=half)
    base = choose_base(applied, log, snapshots, tmp_path / "base", None, [])
    assert (base.name, base.next_offset) == ("snapshot of the migration", half)
    assert (tmp_path / "base" / "state").is_dir()
    with pytest.raises(Corrupt, match="run `popstream snapshot` now"):
        choose_base(applied, log, NoSnapshots(), tmp_path / "none", None, [])


def test_entries_of_units_say_what_they_span() -> None:
    record = ConsumeQueue.new("T", "simple", 10)
    offsets = (10, 11, 14)
    units = Units.of([Unit(queue_offset=at, size_bytes=1, store_time_ms=1, message_base=at) for at in offsets])
    (entry,) = unit_records(("orders", 2), "e2", [(7, [(record, units)])], START, "audit", 4)
    (span,) = msgspec.msgpack.decode(_spans_of(entry.value), type=list[UnitSpan])
    assert operator.attrgetter("topic", "queue_id", "topic_id", "first_offset", "end_offset", "unit_count")(span) == (
        *("orders", 2, "T"),
        *(10, 15, 3),
    )


class Folder:
    """A `HadoopFile` of this machine, below `root`; a path without a scheme is one of `scheme`."""

    scheme = "file"
    root = ""

    def __init__(self, _: object, url: str) -> None:
        found = urlsplit(url)
        self.qualified = found.scheme or self.scheme, found.path
        self.path = Path(self.root + found.path)

    def names(self) -> list[str]:
        return [each.name for each in self.path.iterdir()] if self.path.is_dir() else []

    def copy_to(self, folder: Path, *, without: str = "") -> None:
        shutil.copytree(self.path, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(without))


@pytest.fixture
def hadoop(monkeypatch: pytest.MonkeyPatch) -> type[Folder]:
    class Here(Folder):
        pass

    for module in (copy_of_state, table_locations):
        monkeypatch.setattr(module, "HadoopFile", Here)
    return Here


def test_tables_on_this_machine_stay_where_they_are(tmp_path: Path, hadoop: type[Folder]) -> None:
    assert hadoop.scheme == "file"
    with pytest.raises(Invalid, match="there are no tables in"):
        local_tables(NO_SPARK, str(tmp_path), tmp_path / "copy")
    (tmp_path / "operations" / "_delta_log" / "0.json").mkdir(parents=True)
    for name in (str(tmp_path), f"file://{tmp_path}"):
        assert local_tables(NO_SPARK, name, tmp_path / "copy") == tmp_path
    assert not (tmp_path / "copy").exists()


@pytest.mark.parametrize("name", ["/job/tables/", "s3a://bucket/job/tables", "hdfs:///job/tables"])
def test_those_of_another_file_system_are_copied(tmp_path: Path, hadoop: type[Folder], name: str) -> None:
    """One without a scheme is of the file system that Hadoop has as its own."""
    hadoop.scheme, hadoop.root = "hdfs", str(tmp_path / "cluster")
    table = tmp_path / "cluster" / "job" / "tables" / "operations"
    (table / "_delta_log").mkdir(parents=True)
    (table / "_delta_log" / "0.json").write_text("{}")
    (table / "part-1").write_text("rows")
    found = local_tables(NO_SPARK, name, tmp_path / "copy")
    assert found == tmp_path / "copy"
    assert {str(each.relative_to(found)) for each in found.rglob("*") if each.is_file()} == {
        "operations/_delta_log/0.json",
        "operations/part-1",
    }
