"""A version of a table as delta-rs finds it, and the tables that are refused."""

from __future__ import annotations

import re
import shutil
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from connectors.delta.compaction import compact
from connectors.delta.log.commits import commit_file
from connectors.delta.log.write_commit import commit_info, write_commit
from connectors.delta.snapshot import open_snapshot
from connectors.delta.tables import DELIVERIES
from popstream.wire.base_errors import Corrupt, Invalid
from tests.support.audit_tables import NOW_MS, delivery
from tests.support.delta_files import append_audit_rows, create_table

if TYPE_CHECKING:
    from pathlib import Path

DAY_MS = 86_400_000


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Three commits after the one that creates the table, each with ten ranges of five offsets, a day apart."""
    root = tmp_path / "a folder [of] zone=1" / "delta"
    path = create_table(root, "deliveries")
    for seq in range(3):
        rows = [delivery(seq, 10 * seq + number, NOW_MS + seq * DAY_MS) for number in range(10)]
        append_audit_rows(root, "deliveries", rows, seq)
    return path


def test_the_newest_version_has_all_files(table: Path) -> None:
    snapshot = open_snapshot(table)
    assert (snapshot.version, len(snapshot.files)) == (3, 3)
    assert list(snapshot.columns) == [column.name for column in DELIVERIES.columns]
    assert snapshot.partitioned_by == ["op_date"]


def test_files_are_left_out_by_their_statistics(table: Path) -> None:
    def kept(offset: int) -> list[int]:
        files = open_snapshot(table).files
        found = (f for f in files if f.may_have("first_offset", None, offset) and f.may_have("last_offset", offset))
        return sorted(file.least["first_offset"] for file in found)

    assert (kept(3), kept(11), kept(27), kept(34)) == ([0], [0, 10], [20], [])


def test_an_earlier_version_has_its_files(table: Path) -> None:
    assert len(open_snapshot(table, version=1).files) == 1
    assert open_snapshot(table, version=0).files == []


def test_a_time_names_the_version_that_was_the_newest(table: Path) -> None:
    assert open_snapshot(table, at=datetime(2100, 1, 1, tzinfo=UTC)).version == 3
    with pytest.raises(Invalid, match="deliveries did not exist at 2020-01-01"):
        open_snapshot(table, at=datetime(2020, 1, 1, tzinfo=UTC))


def test_a_version_to_come_is_refused(table: Path) -> None:
    with pytest.raises(Invalid, match="deliveries has no version 9: its newest is 3"):
        open_snapshot(table, version=9)


def test_a_compaction_beside_the_reader_takes_no_file_from_it(table: Path) -> None:
    before = open_snapshot(table)
    append_audit_rows(table.parent, "deliveries", [delivery(3, 40, NOW_MS + 2 * DAY_MS)], 3)
    assert compact(table.parent, DELIVERIES).compacted == 2
    assert all(file.path.exists() for file in before.files)
    assert len(open_snapshot(table).files) == 3


def test_a_version_whose_files_vacuum_deleted_is_refused(table: Path) -> None:
    append_audit_rows(table.parent, "deliveries", [delivery(3, 40, NOW_MS + 2 * DAY_MS)], 3)
    compact(table.parent, DELIVERIES)
    kept = {file.path for file in open_snapshot(table).files}
    for file in table.glob("*/*.parquet"):
        if file not in kept:
            file.unlink()
    assert len(open_snapshot(table).files) == 3
    with pytest.raises(Invalid, match="version 3 of deliveries cannot be read any more: VACUUM has deleted its files"):
        open_snapshot(table, version=3)


def test_a_missing_or_torn_file_of_the_newest_version_is_damage(table: Path) -> None:
    file = open_snapshot(table).files[0].path
    data = file.read_bytes()
    file.write_bytes(data[:-1])
    with pytest.raises(Corrupt, match=f"has {len(data) - 1} bytes, and {len(data)} by the log: bring it back"):
        open_snapshot(table)
    file.unlink()
    with pytest.raises(Corrupt, match=r"is missing: bring it back .*restore --rebuild deliveries"):
        open_snapshot(table)


def test_a_log_with_a_gap_is_damage(table: Path) -> None:
    commit_file(table, 2).unlink()
    with pytest.raises(Corrupt, match=r"the log of deliveries lacks version 2, and has 3: bring it back"):
        open_snapshot(table)


def test_no_table_is_no_damage(table: Path) -> None:
    shutil.rmtree(table / "_delta_log")
    with pytest.raises(Invalid, match=f"there is no table deliveries in {re.escape(str(table.parent))}"):
        open_snapshot(table)


def changed(table: Path, *actions: dict[str, Any]) -> Path:
    write_commit(table, 3, [commit_info(3, "SET TBLPROPERTIES"), *actions], lambda _: None, durable=False)
    return table


def test_a_table_with_deleted_rows_within_files_is_refused(table: Path) -> None:
    feature = ["deletionVectors"]
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": feature, "writerFeatures": feature}
    with pytest.raises(Invalid, match="the table deliveries has deletionVectors, which needs --engine spark"):
        open_snapshot(changed(table, {"protocol": protocol}))


def test_a_table_with_other_names_in_its_files_is_refused(table: Path) -> None:
    first = commit_file(table, 0).read_bytes().splitlines()
    metadata = next(msgspec.json.decode(line) for line in first if b'"metaData"' in line)
    schema = msgspec.json.decode(metadata["metaData"]["schemaString"])
    for number, column in enumerate(schema["fields"], 1):
        column["metadata"] = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": f"c{number}"}
    metadata["metaData"]["schemaString"] = msgspec.json.encode(schema).decode()
    metadata["metaData"]["configuration"] = {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "9"}
    protocol = {"minReaderVersion": 2, "minWriterVersion": 5}
    with pytest.raises(Invalid, match=r"the table deliveries (has columnMapping|needs --engine spark)"):
        open_snapshot(changed(table, {"protocol": protocol}, metadata))
