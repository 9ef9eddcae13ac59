"""Claim: no row is committed by a job that may no longer write, nor after the commit of another one.

Method: the writer of one table, without Spark.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.errors import PySparkException

from connectors.delta import exactly_once
from connectors.delta.log.commits import commit_file
from connectors.delta.tables import AUDIT_TABLES, table_path
from popstream.wire.base_errors import Corrupt, Fenced, Unavailable
from tests.support.written_rows import FIRST, rows_of, unequal, version_of, writer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TABLE = AUDIT_TABLES["operations"]


def test_ownership_is_required_when_the_rows_are_written_and_not_committed_yet(tmp_path: Path) -> None:
    """A process that was frozen while it wrote data files may own nothing when it goes on."""
    found_at_check: list[tuple[int, int]] = []
    refusals = [Unavailable("Kafka does not confirm it")]

    def require_ownership() -> None:
        found_at_check.append((version_of(tmp_path, TABLE), len(files())))
        if files() and refusals:
            raise refusals.pop()

    def files() -> list[Path]:
        return list(table_path(tmp_path, TABLE.name).rglob("*.parquet"))

    table = writer(tmp_path, TABLE, require_ownership=require_ownership)
    created = version_of(tmp_path, TABLE)
    with pytest.raises(Unavailable):
        table.append([rows_of(TABLE, FIRST)], 1)
    assert (version_of(tmp_path, TABLE), files(), table.delivered) == (created, [], -1)
    table.append([rows_of(TABLE, FIRST)], 1)
    assert found_at_check == [(created, 0), (created, 1)] * 2
    assert (version_of(tmp_path, TABLE), table.delivered) == (created + 1, 1)


def test_rows_that_a_former_state_has_written_after_the_restore_are_told(tmp_path: Path) -> None:
    """The restored one would write rows of the same decisions again."""
    former = writer(tmp_path, TABLE, "former")
    former.append([rows_of(TABLE, FIRST, epoch="former")], 1)
    at_restore = version_of(tmp_path, TABLE)
    assert writer(tmp_path, TABLE, "restored", restores_known=at_restore).written_since == set()
    former.append([rows_of(TABLE, FIRST, 2, "former")], 2)
    assert writer(tmp_path, TABLE, "restored", restores_known=at_restore).written_since == {"former"}
    again = writer(tmp_path, TABLE, "again", restores_known=version_of(tmp_path, TABLE))
    again.append([rows_of(TABLE, FIRST, 2, "again")], 2)
    assert writer(tmp_path, TABLE, "again", restores_known=at_restore + 1).written_since == set()


def test_rows_that_the_new_files_do_not_have_are_not_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = writer(tmp_path, TABLE)
    before, write = version_of(tmp_path, TABLE), pq.ParquetWriter.write_table
    with monkeypatch.context() as forgetful:
        forgetful.setattr(pq.ParquetWriter, "write_table", lambda file, rows: write(file, rows.slice(1)))
        with pytest.raises(Corrupt, match="the new files of operations have 19 rows, and 20 were written: nothing was"):
            table.append([rows_of(TABLE, FIRST)], 1)
    path = table_path(tmp_path, TABLE.name)
    assert (version_of(tmp_path, TABLE), list(path.rglob("*.parquet"))) == (before, [])
    assert table.append([rows_of(TABLE, FIRST)], 1) == 20
    assert DeltaTable(path).to_pyarrow_table().num_rows == 20


@pytest.mark.parametrize("epoch", ["epoch", "restored"])
def test_nothing_is_committed_after_the_commit_of_another_job(tmp_path: Path, epoch: str) -> None:
    """With the same state, or with one that was restored from it and decides the same records again."""
    first, second = writer(tmp_path, TABLE), writer(tmp_path, TABLE, epoch)
    second.append([rows_of(TABLE, FIRST, epoch=epoch)], 1)
    before = version_of(tmp_path, TABLE)
    with pytest.raises(Fenced, match="another process writes to operations for"):
        first.append([rows_of(TABLE, FIRST)], 1)
    assert version_of(tmp_path, TABLE) == before


CHANGES: dict[str, tuple[Callable[[Path], object], tuple[str, int, int]]] = {
    "a DELETE": (lambda path: DeltaTable(path).delete("ordinal = 3"), ("epoch", 40, 39)),
    "an append": (
        lambda path: write_deltalake(path, rows_of(TABLE, FIRST, 9, "theirs").slice(0, 2), mode="append"),
        ("theirs", 0, 2),
    ),
}
"""What somebody else does to the table, and the state epoch of which then other rows are found than were written."""


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_by_somebody_else_between_look_and_commit_stays_and_the_check_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    do, told = CHANGES[change]
    path = table_path(tmp_path, TABLE.name)
    table = writer(tmp_path, TABLE)
    table.append([rows_of(TABLE, FIRST)], 1)
    before, link = version_of(tmp_path, TABLE), os.link
    assert unequal(tmp_path, TABLE) == []

    def change_and_link(commit: Path, target: Path) -> None:
        monkeypatch.setattr(os, "link", link)
        do(path)
        link(commit, target)

    monkeypatch.setattr(os, "link", change_and_link)
    assert table.append([rows_of(TABLE, FIRST, 2)], 2) == 20
    assert version_of(tmp_path, TABLE) == before + 2
    found = Counter(DeltaTable(path).to_pyarrow_table()["apply_seq"].to_pylist())
    assert found.pop(2) == 20
    assert found == ({1: 19} if change == "a DELETE" else {1: 20, 9: 2})
    assert writer(tmp_path, TABLE).delivered == 2
    [row] = unequal(tmp_path, TABLE)
    assert (row["state_epoch"], row["rows_written"], row["rows_found"]) == told


@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_checkpoint_of_the_log_that_cannot_be_written_is_told_until_one_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_damaged: bool
) -> None:
    """With the damage to the one before, if that is why."""
    table = writer(tmp_path, TABLE)
    checkpoint = commit_file(table_path(tmp_path, TABLE.name), 0).with_suffix(".checkpoint.parquet")

    def fail(*_: object) -> None:
        raise PySparkException("no memory\nat java")

    monkeypatch.setattr(exactly_once, "TABLE_CHECKPOINT_INTERVAL", 2)
    monkeypatch.setattr(exactly_once, "write_table_checkpoint", fail)
    told: list[str | None] = []
    for seq in (1, 2):
        table.append([rows_of(TABLE, FIRST, seq)], seq)
        told.append(table.table_checkpoint_failure)
        if is_damaged:
            checkpoint.write_bytes(b"PAR1")
    assert table.delivered == 2
    not_due, failure = told
    assert not_due is None
    beginning = "no checkpoint of the log of operations was written at version 2: "
    damage = f"the log of operations is damaged: {checkpoint} cannot be read: "
    assert failure is not None
    assert failure.startswith(beginning + (damage if is_damaged else "no memory"))
    assert is_damaged == failure.endswith("or run `popstream restore --rebuild operations`")
    assert "\n" not in failure
    monkeypatch.setattr(exactly_once, "write_table_checkpoint", lambda *_: None)
    for seq in (3, 4):
        table.append([rows_of(TABLE, FIRST, seq)], seq)
    assert table.table_checkpoint_failure is None
