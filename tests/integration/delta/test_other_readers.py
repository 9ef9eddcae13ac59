"""Claim: Spark, delta-rs, polars and DuckDB read the same rows of the tables that the job wrote and compacted.

Method: DuckDB reads the Parquet files that the log names; the others read the log, which begins with a checkpoint that
Spark has written, as its commits are gone after a week.
"""

from __future__ import annotations

import datetime as dt
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from connectors.delta import exactly_once
from connectors.delta.compaction import Compacted, compact
from connectors.delta.duckdb_tables import DuckDbTables
from connectors.delta.exactly_once import ExactlyOnceTable
from connectors.delta.flusher import AuditFlusher
from connectors.delta.history_start import HISTORY_BEGINS
from connectors.delta.log.table_log import read_data_files
from connectors.delta.retention import delete_before
from connectors.delta.rows import encode_rows
from connectors.delta.schemas import arrow_schema
from connectors.delta.snapshot import open_snapshot
from connectors.delta.tables import AUDIT_TABLES, DELIVERIES, TABLES, Table
from connectors.delta.views import VIEWS
from tests.support.audit_tables import NOW_MS, delivery
from tests.support.flipped_byte import noticed_flips
from tests.support.kernel_history import KernelHistory
from tests.support.spark_views import name_tables
from tests.support.written_rows import FIRST, rows_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.integration,
    # delta-rs 1.6 gives Arrow to polars and DuckDB by a method that it is about to rename.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

DAY_MS = 86_400_000
CHECKPOINTS = "*.checkpoint*.parquet"
WANTED_DAY = dt.date(2026, 11, 22)
WANTED = f"apply_seq = 3 AND op_date = DATE '{WANTED_DAY}'"


@pytest.fixture
def table(root: Path, start: Callable[..., AuditFlusher], monkeypatch: pytest.MonkeyPatch) -> Path:
    """Rows of two dates in files of three flushes, the older ones compacted; no checkpoint covers the last one."""
    monkeypatch.setattr(exactly_once, "TABLE_CHECKPOINT_INTERVAL", 5)
    flusher = start()
    long_name = "a group " * 20  # beyond what statistics keep of a text
    for seq in range(1, 5):
        rows = [delivery(seq, number, NOW_MS + number % 2 * DAY_MS)._replace(group=long_name) for number in range(6)]
        flusher.flush("deliveries", [(seq, data) for data in encode_rows("deliveries", rows)], seq)
        if seq == 2:
            assert compact(root, DELIVERIES) == Compacted(table="deliveries", compacted=4, into=2)
    assert [file.name[:20] for file in (root / "deliveries").glob(f"_delta_log/{CHECKPOINTS}")] == [f"{5:020d}"]
    return root / "deliveries"


@pytest.fixture
def expected(spark: SparkSession, table: Path) -> list[tuple[Any, ...]]:
    rows = spark.read.format("delta").load(str(table)).where(WANTED).orderBy("ordinal").toArrow().to_pylist()
    assert len(rows) == 3
    return [tuple(row.values()) for row in rows]


@pytest.fixture
def moment() -> dt.datetime:
    return dt.datetime.fromtimestamp((NOW_MS + DAY_MS) / 1000, dt.UTC)


def test_readers_of_the_history_pass_over_the_checksum_of_a_commit(spark: SparkSession, table: Path) -> None:
    by_spark = spark.sql(f"DESCRIBE HISTORY delta.`{table}`").collect()
    by_delta_rs = DeltaTable(table).history()
    assert "popstreamChecksum" in by_delta_rs[0]
    assert [row["operation"] for row in by_spark] == [commit["operation"] for commit in by_delta_rs]
    assert {"WRITE", "OPTIMIZE"} <= {row["operation"] for row in by_spark}


def test_a_timestamp_is_that_of_the_milliseconds_in_every_reader(
    spark: SparkSession, table: Path, moment: dt.datetime
) -> None:
    """Each reader skips files by it, too: the statistics of a file have it."""
    by_spark = spark.read.format("delta").load(str(table)).where(f"now_utc = TIMESTAMP '{moment:%Y-%m-%d %H:%M:%S%z}'")
    assert by_spark.where("now_ms <> unix_millis(now_utc)").count() == 0
    counts = {"Spark": by_spark.count()}
    log = DeltaTable(table)
    counts["delta-rs"] = log.to_pyarrow_table(filters=[("now_utc", "=", moment)]).num_rows
    counts["polars"] = pl.scan_delta(str(table)).filter(pl.col("now_utc") == moment).collect().height
    counts["DuckDB"] = by_duckdb(table, DELIVERIES).filter(pc.field("now_utc") == moment).num_rows
    assert counts == dict.fromkeys(counts, 12)
    least = log.get_add_actions(flatten=True)["min.now_utc"].to_pylist()
    assert sorted(set(least)) == [moment - dt.timedelta(days=1), moment]


def test_the_changes_of_the_table_can_be_followed(spark: SparkSession, table: Path) -> None:
    """Compaction is no change."""
    changes = spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", 0).load(str(table))
    by_version = {(row["_commit_version"], row["_change_type"]): row["count"] for row in
                  changes.groupBy("_commit_version", "_change_type").count().collect()}  # fmt: skip
    assert by_version == {(version, "insert"): 6 for version in (1, 2, 5, 6)}
    read = DeltaTable(table).load_cdf(starting_version=5).read_all()
    assert read.num_rows == 12


def test_spark_and_duckdb_read_the_same_in_every_view(
    spark: SparkSession, root: Path, start: Callable[..., AuditFlusher]
) -> None:
    history = KernelHistory()
    failing = history.pop(1, "b", 3, max_attempts=1)
    history.change(2, "b", failing, 0, release="back_off", cause="ValueError: no milk")
    history.ack(3, "c", failing, 1)
    history.tick(60)
    flusher = start()
    for name, rows in history.tables().items():
        flusher.flush(name, [(1, data) for data in encode_rows(name, rows)], 1)
    delete_before(root, AUDIT_TABLES["commit_positions"], dt.date(2026, 11, 23))
    session = spark.newSession()
    name_tables(session, root, history.tables())
    with DuckDbTables([open_snapshot(root / name) for name in history.tables()]) as tables:
        for view in (*VIEWS, HISTORY_BEGINS):
            sql = f"SELECT * FROM {view}"  # noqa: S608 - names of our own
            by_spark = session.sql(sql).toArrow()
            assert by_spark.schema.names == tables.columns(sql)
            found = [tuple(row.values()) for row in by_spark.to_pylist()]
            assert sorted(map(repr, found)) == sorted(map(repr, _in_utc(tables.rows(sql))))
            assert found


def _in_utc(rows: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    """DuckDB names the zone in another way."""
    utc = ZoneInfo("UTC")
    for row in rows:
        yield tuple(each.astimezone(utc) if isinstance(each, dt.datetime) else each for each in row)


def test_delta_rs_reads_it(table: Path, expected: list[tuple[Any, ...]]) -> None:
    log = DeltaTable(table)
    assert (log.version(), len(log.file_uris())) == (6, 6)
    found = log.to_pyarrow_table(partitions=[("op_date", "=", "2026-11-22")], filters=[("apply_seq", "=", 3)])
    rows = found.sort_by("ordinal").select(_columns(log)).to_pylist()
    assert [tuple(row.values()) for row in rows] == expected
    assert log.transaction_version("jobs/deliveries/epoch-1") == 4


def test_polars_reads_it(table: Path, expected: list[tuple[Any, ...]]) -> None:
    wanted = (pl.col("apply_seq") == 3) & (pl.col("op_date") == pl.date(2026, 11, 22))
    found = pl.scan_delta(str(table)).filter(wanted).sort("ordinal").collect()
    assert found.select(_columns(DeltaTable(table))).rows() == expected


def test_duckdb_reads_it_on_delta_rs(table: Path, expected: list[tuple[Any, ...]]) -> None:
    rows = DeltaTable(table).to_pyarrow_dataset()
    with duckdb.connect() as connection:
        connection.register("deliveries", rows)
        columns = ", ".join(f'"{name}"' for name in _columns(DeltaTable(table)))
        query = f"SELECT {columns} FROM deliveries WHERE {WANTED} ORDER BY ordinal"  # noqa: S608 - names of our own
        found = connection.sql(query).fetchall()
    assert found == expected


def test_duckdb_reads_the_files_of_the_log(table: Path, expected: list[tuple[Any, ...]]) -> None:
    found = by_duckdb(table, DELIVERIES).filter((pc.field("apply_seq") == 3) & (pc.field("op_date") == WANTED_DAY))
    assert [tuple(row.values()) for row in found.sort_by("ordinal").to_pylist()] == expected


def by_duckdb(path: Path, table: Table) -> pa.Table:
    log = read_data_files(path)
    assert log is not None
    files = [str(path / file.relative_path) for file in log.files]
    columns = ", ".join(f'"{name}"' for name in arrow_schema(table).names)
    with duckdb.connect() as connection:
        partitions = "" if table.partitioned_by is None else f", hive_types={{'{table.partitioned_by}': DATE}}"
        source = f"read_parquet($files, hive_partitioning={table.partitioned_by is not None}{partitions})"
        query = f"SELECT {columns} FROM {source}"  # noqa: S608 - names of our own
        return connection.sql(query, params={"files": files}).to_arrow_table()


@pytest.mark.parametrize("name", TABLES)
def test_each_table_after_a_checkpoint_is_read_by_all(
    spark: SparkSession, root: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The commits that a checkpoint covers are gone. One table has a column of bytes."""
    monkeypatch.setattr(exactly_once, "TABLE_CHECKPOINT_INTERVAL", 2)
    table, path = TABLES[name], root / name
    writer = ExactlyOnceTable(spark, root, table, "jobs", "epoch-1")
    rows = [rows_of(table, FIRST, seq) for seq in (1, 2, 3)]
    for seq, given in enumerate(rows, 1):
        assert writer.append([given], seq) == given.num_rows
    log = path / "_delta_log"
    assert [file.name[:20] for file in log.glob(CHECKPOINTS)] == [f"{2:020d}"]
    for version in range(2):
        (log / f"{version:020d}.json").unlink()
    found = {
        "Spark": spark.read.format("delta").load(str(path)).toArrow(),
        "delta-rs": DeltaTable(path).to_pyarrow_table(),
        "polars": pl.scan_delta(str(path)).collect().to_arrow(),
        "DuckDB": by_duckdb(path, table),
    }
    expected = as_texts(table, pa.concat_tables(rows))
    assert {reader: as_texts(table, read) for reader, read in found.items()} == dict.fromkeys(found, expected)


def as_texts(table: Table, rows: pa.Table) -> list[str]:
    """Return rows in one order, in the types of the table: readers differ in how wide a text may be."""
    schema = arrow_schema(table)
    return sorted(map(repr, rows.select(schema.names).cast(schema).to_pylist()))


def test_a_flipped_bit_of_a_checkpoint_by_spark_is_noticed_or_changes_nothing(table: Path) -> None:
    for version in range(5):
        (table / "_delta_log" / f"{version:020d}.json").unlink()
    [file] = (table / "_delta_log").glob(CHECKPOINTS)
    size = file.stat().st_size
    footer = size - pq.read_metadata(file).serialized_size - 8
    seeded = random.Random(1)
    places = [*seeded.choices(range(footer), k=150), *seeded.choices(range(footer, size), k=150)]
    noticed = noticed_flips(file, (8 * place + seeded.randrange(8) for place in places), lambda: read_data_files(table))
    assert sum(place < footer for place in noticed) > 40


def _columns(log: DeltaTable) -> list[str]:
    return [field.name for field in log.schema().fields]
