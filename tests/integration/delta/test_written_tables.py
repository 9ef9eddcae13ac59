"""Claim: the rows of a job on a cluster reach its tables once, with their totals, whether tasks or Spark write them."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.errors import PySparkException

from broker_state.consume_queue import ConsumeQueue, Unit, Units
from connectors.delta.erased_values import RejectedHeads
from connectors.delta.log.table_log import require_table_log
from connectors.delta.rows import encode_rows
from connectors.delta.tables import AUDIT_TABLES, CONSUME_QUEUE, TABLES, table_path
from pipelines.cluster.audit import written_tables
from pipelines.cluster.audit.entry_rows import EntryRows
from pipelines.cluster.audit.table_locations import TableLocations
from pipelines.cluster.audit.unit_entries import UNIT_TABLE, unit_records
from pipelines.cluster.audit.written_files import write_files
from pipelines.cluster.audit.written_tables import WrittenTables, require_tables
from pipelines.cluster.decide.extent import START, Extent
from pipelines.cluster.decide.outgoing import EntryKey
from pipelines.decide_ops.entries import TABLE_NUMBERS
from pipelines.decide_ops.entry import EntryKind, LogPlace
from popstream.wire.base_errors import Corrupt
from tests.benchmarks.delta_speed import Turn
from tests.support.delta_files import create_table
from tests.support.written_rows import unequal

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from pipelines.cluster.audit.written_files import Written

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

Entry = tuple[bytes, bytes]
TURNS = 30
NAMES = (*AUDIT_TABLES, CONSUME_QUEUE.name)
NUMBERS = {TABLE_NUMBERS["deliveries"], TABLE_NUMBERS["operations"], UNIT_TABLE}


class AtUrl(TableLocations):
    """Tables that tasks cannot write, as those on an object store."""

    def folder(self, _: SparkSession) -> None:
        return None


def audit_entry(name: str, rows: list[Any]) -> Entry:
    number = TABLE_NUMBERS[name]
    (data,) = encode_rows(name, rows)
    key = EntryKey("epoch", 0, number, Extent(START, START, LogPlace(1, 1)), EntryKind.AUDIT)
    return key.encode(), bytes((number,)) + data


def units_entry() -> Entry:
    record = ConsumeQueue.new("T", "simple", 10)
    units = Units.of([Unit(queue_offset=at, size_bytes=1, store_time_ms=1, message_base=at) for at in (10, 11, 14)])
    (entry,) = unit_records(("orders", 2), "epoch", [(7, [(record, units)])], START, "audit", 4)
    assert entry.key is not None
    return entry.key, entry.value


def letter() -> Entry:
    key = EntryKey("epoch", 0, 0, Extent(START, START, LogPlace(1, 1)), EntryKind.DEAD_LETTER)
    return key.encode(), b"\0a dead letter, which is for another place"


def some_entries() -> list[Entry]:
    turns = [Turn(number) for number in range(TURNS)]
    rows = [
        entry
        for turn in turns
        for entry in (audit_entry("deliveries", turn.deliveries()), audit_entry("operations", turn.operations()))
    ]
    return [*rows, units_entry(), letter()]


def frame_of(spark: SparkSession, entries: Iterable[Entry]) -> DataFrame:
    keys, values = zip(*entries, strict=True)
    rows = {
        "partition": pa.array([0] * len(keys), pa.int32()),
        "offset": pa.array(range(len(keys)), pa.int64()),
        "key": pa.array(keys, pa.binary()),
        "value": pa.array(values, pa.binary()),
    }
    return spark.createDataFrame(pa.table(rows)).repartition(2)


def written(spark: SparkSession, locations: TableLocations) -> WrittenTables:
    return WrittenTables(spark, locations, EntryRows("epoch", "topic id", RejectedHeads.WHOLE), "audit")


def sorted_rows(root: Path, name: str) -> list[dict[str, Any]]:
    rows = DeltaTable(table_path(root, name)).to_pyarrow_table().to_pylist()
    return sorted(cast("list[dict[str, Any]]", rows), key=lambda row: str(sorted(row.items(), key=str)))


def tables_in(root: Path) -> Path:
    for name in NAMES:
        create_table(root, name)
    return root


def test_tasks_and_spark_write_the_same_rows_and_totals(spark: SparkSession, tmp_path: Path) -> None:
    by_tasks, by_spark = tables_in(tmp_path / "by_tasks"), tables_in(tmp_path / "by_spark")
    entries = some_entries()
    for locations in (TableLocations(f"file:{by_tasks}"), AtUrl(str(by_spark))):
        tables = written(spark, locations)
        tables.append(frame_of(spark, entries), NUMBERS, {}, 0)
        tables.append(frame_of(spark, entries), NUMBERS, {}, 0)  # a micro-batch that is repeated
    found = {name: sorted_rows(by_tasks, name) for name in NAMES}
    assert found == {name: sorted_rows(by_spark, name) for name in NAMES}
    assert {name: len(rows) for name, rows in found.items() if rows} == {
        "deliveries": TURNS * len(Turn(0).deliveries()),
        "operations": TURNS * len(Turn(0).operations()),
        "consume_queue": 3,
    }
    for root in (by_tasks, by_spark):
        assert unequal(root, *(TABLES[name] for name in NAMES)) == []
    for name in ("deliveries", "operations", "consume_queue"):
        one, other = (require_table_log(table_path(root, name)) for root in (by_tasks, by_spark))
        assert (one.txns, one.version, other.version) == (other.txns, 1, 1)
        assert [app for app in one.txns if app.startswith("row_totals/epoch/")] != []


def test_of_an_entry_that_is_written_in_part_the_rest_is_written(spark: SparkSession, tmp_path: Path) -> None:
    rows = Turn(0).deliveries()
    second = rows[1]
    begin = LogPlace(second.kafka_offset, second.ordinal)
    tables = written(spark, TableLocations(str(tables_in(tmp_path))))
    entries = [audit_entry("deliveries", rows)]
    tables.append(frame_of(spark, entries), {TABLE_NUMBERS["deliveries"]}, {(0, 0): begin}, 0)
    assert len(sorted_rows(tmp_path, "deliveries")) == len(rows) - 1
    assert unequal(tmp_path, TABLES["deliveries"]) == []


def test_an_entry_that_cannot_be_read_leaves_no_file_and_no_commit(spark: SparkSession, tmp_path: Path) -> None:
    tables = written(spark, TableLocations(str(tables_in(tmp_path))))
    key, value = audit_entry("operations", Turn(1).operations())
    damaged = [audit_entry("deliveries", Turn(0).deliveries()), (key, value[: len(value) // 2])]
    with pytest.raises(Exception, match="an outbox slice of operations cannot be read"):
        tables.append(frame_of(spark, damaged).coalesce(1), NUMBERS, {}, 0)
    assert list(tmp_path.rglob("*.parquet")) == []
    assert {require_table_log(table_path(tmp_path, name)).version for name in NAMES} == {0}


def test_a_table_with_a_constraint_of_somebody_is_written_by_spark_which_checks_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    tables = written(spark, TableLocations(str(tables_in(tmp_path))))
    spark.sql(f"ALTER TABLE delta.`{table_path(tmp_path, 'deliveries')}` ADD CONSTRAINT young CHECK (attempt < 3)")
    entries = frame_of(spark, some_entries())
    tables.append(entries, NUMBERS, {}, 0)
    assert {name: len(sorted_rows(tmp_path, name)) for name in ("deliveries", "operations")} == {
        "deliveries": TURNS * len(Turn(0).deliveries()),
        "operations": TURNS * len(Turn(0).operations()),
    }
    assert {is_of_task(file) for file in files_of(tmp_path, "deliveries")} == {False}
    assert {is_of_task(file) for file in files_of(tmp_path, "operations")} == {True}
    assert unequal(tmp_path, *(TABLES[name] for name in NAMES)) == []


def test_files_whose_commit_fails_are_deleted_and_the_others_stay(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = written(spark, TableLocations(str(tables_in(tmp_path))))

    def while_somebody_changes_a_table(*arguments: Any) -> dict[str, list[Written]]:
        files = write_files(*arguments)
        spark.sql(f"ALTER TABLE delta.`{table_path(tmp_path, 'deliveries')}` ADD CONSTRAINT young CHECK (attempt < 3)")
        return files

    entries = frame_of(spark, some_entries())
    monkeypatch.setattr(written_tables, "write_files", while_somebody_changes_a_table)
    with pytest.raises(PySparkException, match="METADATA_CHANGED"):
        tables.append(entries, NUMBERS, {}, 0)
    assert list(table_path(tmp_path, "deliveries").rglob("*.parquet")) == []
    assert len(sorted_rows(tmp_path, "operations")) == TURNS * len(Turn(0).operations())
    monkeypatch.setattr(written_tables, "write_files", write_files)
    tables.append(entries, NUMBERS, {}, 0)
    assert len(sorted_rows(tmp_path, "deliveries")) == TURNS * len(Turn(0).deliveries())
    assert unequal(tmp_path, *(TABLES[name] for name in NAMES)) == []


@pytest.mark.parametrize("name", ["of a job", "50% or 50%25", "a#b"])
def test_a_folder_is_that_of_hadoop_whatever_its_name(spark: SparkSession, tmp_path: Path, name: str) -> None:
    root = tmp_path / name
    locations = TableLocations(str(root))
    locations.ensure(spark)
    assert locations.folder(spark) == root
    written(spark, locations).append(frame_of(spark, [units_entry()]), {UNIT_TABLE}, {}, 0)
    (file,) = table_path(root, "consume_queue").rglob("*.zstd.parquet")
    assert file.is_relative_to(root)
    assert spark.read.format("delta").load(locations.of("consume_queue")).count() == 3


def files_of(root: Path, name: str) -> list[str]:
    return DeltaTable(table_path(root, name)).file_uris()


def is_of_task(file: str) -> bool:
    return re.fullmatch(r"part-[0-9a-f]{32}\.zstd\.parquet", file.rsplit("/", 1)[1]) is not None


DELIVERIES = {TABLE_NUMBERS["deliveries"]}


def append_turn(spark: SparkSession, tables: WrittenTables, number: int) -> None:
    tables.append(frame_of(spark, [audit_entry("deliveries", Turn(number).deliveries())]), DELIVERIES, {}, number)


def begun(root: Path, number: int) -> str:
    """A checkpoint whose query has begun micro-batches up to one."""
    offsets = root / f"checkpoint-{number}" / "offsets"
    offsets.mkdir(parents=True)
    for each in range(number + 1):
        (offsets / str(each)).write_text("")
    return str(offsets.parent)


@pytest.mark.parametrize("location", [TableLocations, AtUrl])
def test_a_restored_table_is_refused_until_its_rows_are_back(
    spark: SparkSession, tmp_path: Path, location: type[TableLocations]
) -> None:
    """While the job runs, at its next start, and not because of what others do to its files."""
    locations = location(str(tables_in(tmp_path / "tables")))
    table = f"delta.`{locations.of('deliveries')}`"
    tables, checkpoint = written(spark, locations), begun(tmp_path, 2)
    append_turn(spark, tables, 0)
    append_turn(spark, tables, 1)
    spark.sql(f"OPTIMIZE {table}")
    require_tables(spark, locations, "epoch", checkpoint)
    spark.sql(f"RESTORE TABLE {table} TO VERSION AS OF 1")
    spark.sql(f"OPTIMIZE {table}")
    for attempt in (
        partial(append_turn, spark, tables, 2),
        partial(append_turn, spark, written(spark, locations), 2),
        partial(require_tables, spark, locations, "epoch", checkpoint),
    ):
        with pytest.raises(Corrupt, match="deliveries was RESTOREd to a version before the last commit") as raised:
            attempt()
    advised = re.search(r"RESTORE TABLE .* TO VERSION AS OF \d+", raised.value.message)
    assert advised is not None
    spark.sql(advised.group())
    require_tables(spark, locations, "epoch", checkpoint)
    append_turn(spark, tables, 2)
    assert len(sorted_rows(tmp_path / "tables", "deliveries")) == sum(len(Turn(each).deliveries()) for each in range(3))


def test_a_checkpoint_that_is_older_than_its_tables_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """Its next micro-batches would pass for repeated ones, and their rows be left out."""
    locations = TableLocations(str(tables_in(tmp_path / "tables")))
    tables = written(spark, locations)
    for number in range(3):
        append_turn(spark, tables, number)
    require_tables(spark, locations, "epoch", begun(tmp_path, 2))
    require_tables(spark, locations, "another epoch", begun(tmp_path, 0))
    with pytest.raises(Corrupt, match=r"deliveries has rows of micro-batch 2, and .* has begun none after 1"):
        require_tables(spark, locations, "epoch", begun(tmp_path, 1))
    with pytest.raises(Corrupt, match="has begun none after -1: it is an older copy"):
        require_tables(spark, locations, "epoch", str(tmp_path / "nothing"))
