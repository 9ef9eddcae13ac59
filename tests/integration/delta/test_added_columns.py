"""Claim: a table that an older version made gets the optional columns that it lacks; its rows have nulls in them.

Method: a Delta table made and written without the column; then Spark, the readers of files, and compaction.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from connectors.delta.compaction import Compacted, compact
from connectors.delta.exactly_once import ExactlyOnceTable
from connectors.delta.log.table_log import require_table_log
from connectors.delta.pieces import find_pieces, read_piece
from connectors.delta.schemas import arrow_schema
from connectors.delta.store import ensure_table, require_columns
from connectors.delta.tables import CONSUME_QUEUE, Table, table_path
from popstream.wire.base_errors import Corrupt, Invalid
from tests.support.unit_rows import unit_row

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

ADDED = "deliver_at_ms"


def without(*names: str) -> Table:
    return replace(CONSUME_QUEUE, columns=tuple(each for each in CONSUME_QUEUE.columns if each.name not in names))


def append(spark: SparkSession, root: Path, table: Table, version: int, **changed: Any) -> None:
    row = unit_row("orders", version, **changed)
    rows = pa.Table.from_pylist([row], arrow_schema(table))
    ExactlyOnceTable(spark, root, table, "build_consume_queue", "epoch").append([rows], version)


def test_a_lacking_column_is_added_where_a_new_table_has_it(spark: SparkSession, tmp_path: Path) -> None:
    path = table_path(tmp_path, CONSUME_QUEUE.name)
    append(spark, tmp_path, without(ADDED), 1)

    append(spark, tmp_path, CONSUME_QUEUE, 2, deliver_at_ms=1_790_000_000_000)

    read = spark.read.format("delta").load(str(path))
    assert read.schema.names == [column.name for column in CONSUME_QUEUE.columns]
    assert read.schema[ADDED].metadata["comment"].startswith("When it can be popped")
    times = {row["queue_offset"]: row[ADDED] for row in read.collect()}
    assert times == {1: None, 2: 1_790_000_000_000}
    version = require_table_log(path).version
    ensure_table(spark, tmp_path, CONSUME_QUEUE)
    assert require_table_log(path).version == version, "nothing is added twice"

    pieces = find_pieces(path, CONSUME_QUEUE, (), "queue_offset", lambda rows: pa.array(["all"] * rows.num_rows)).pieces
    schema = arrow_schema(CONSUME_QUEUE).remove(arrow_schema(CONSUME_QUEUE).get_field_index("store_date"))
    rows = pa.concat_tables(
        [read_piece(path, piece, schema, may_lack=CONSUME_QUEUE.optional_columns) for piece in pieces]
    )
    assert dict(zip(rows["queue_offset"].to_pylist(), rows[ADDED].to_pylist(), strict=True)) == times
    with pytest.raises(Corrupt, match=ADDED):
        read_piece(path, pieces[0], schema)

    assert compact(tmp_path, CONSUME_QUEUE) == Compacted(table="consume_queue", compacted=2, into=1)
    spark.catalog.clearCache()
    after = spark.read.format("delta").load(str(path))
    assert len(after.inputFiles()) == 1
    assert {row["queue_offset"]: row[ADDED] for row in after.collect()} == times


def test_a_table_of_an_older_version_gets_timestamps_comments_and_the_change_feed(
    spark: SparkSession, tmp_path: Path
) -> None:
    """In one commit each, however many columns there are; the next start changes nothing."""
    path = table_path(tmp_path, CONSUME_QUEUE.name)
    timestamps = [column.name for column in CONSUME_QUEUE.columns if column.of_ms is not None]
    old = without(*timestamps)
    types = {column.name: replace(column, comment="Whose, it's not said.") for column in old.columns[:3]}
    older = replace(old, columns=tuple(types.get(column.name, column) for column in old.columns))
    append(spark, tmp_path, older, 1)
    spark.sql(f"ALTER TABLE delta.`{path}` UNSET TBLPROPERTIES ('delta.enableChangeDataFeed')")
    before = require_table_log(path)

    append(spark, tmp_path, CONSUME_QUEUE, 2)

    log = require_table_log(path)
    assert log.version == before.version + 4
    assert log.properties["delta.enableChangeDataFeed"] == "true"
    read = spark.read.format("delta").load(str(path))
    assert read.schema.names == [column.name for column in CONSUME_QUEUE.columns]
    assert [field.metadata["comment"] for field in read.schema] == [column.comment for column in CONSUME_QUEUE.columns]
    ensure_table(spark, tmp_path, CONSUME_QUEUE)
    assert require_table_log(path).version == log.version


def test_a_column_that_is_never_null_is_not_added(spark: SparkSession, tmp_path: Path) -> None:
    old = without(ADDED, "tag_hash")
    ensure_table(spark, tmp_path, old)
    with pytest.raises(Invalid, match="other columns") as raised:
        ensure_table(spark, tmp_path, CONSUME_QUEUE)
    assert list(raised.value.details[1:]) == ["tag_hash: missing, expected bigint"]
    path = table_path(tmp_path, CONSUME_QUEUE.name)
    schema = require_table_log(path).schema
    assert f'"name":"{ADDED}"' not in schema
    with pytest.raises(Invalid, match="other columns"):
        require_columns(path, without("tag_hash"), schema)
    found = require_columns(path, without("tag_hash"), schema, may_lack=CONSUME_QUEUE.optional_columns)
    assert found == {column.name for column in old.columns}
