"""Claim: texts are erased from every file that has them, rows stay, and totals, comparisons and a second run agree.

Method: tables with the totals that a job's writer sets, made without Spark.
"""

from __future__ import annotations

import itertools
import os
import time
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from broker_state.audit import RejectedRow
from connectors.delta import erasure
from connectors.delta.compaction import compact
from connectors.delta.erasure import Erased, Wanted, erase
from connectors.delta.log.commits import commits_after
from connectors.delta.log.table_log import require_table_log
from connectors.delta.log.write_commit import commit_info, txn_action, write_commit
from connectors.delta.pieces import each_table_part
from connectors.delta.row_totals import NO_ROWS, RowTotalsWriter, WrittenTotals, totals_by_day
from connectors.delta.tables import TABLES, table_path
from popstream.wire.base_errors import Invalid, Unavailable
from tests.support.audit_tables import NOW_MS, delivery
from tests.support.delta_files import append_audit_rows, create_table

DELIVERIES = TABLES["deliveries"]
DAY_MS = 86_400_000
ADDRESS = "alice@example.com"


def append_counted(root: Path, name: str, rows: list[Any], seq: int) -> None:
    """Append rows, and set their totals as a job does."""
    version = append_audit_rows(root, name, rows, seq)
    log = require_table_log(root / name)
    totals = RowTotalsWriter(name, "epoch-1", log.txns, seq - 1 if seq > 1 else -1, was_restored=False)
    before = version - 1
    for part in each_table_part(root / name, version, TABLES[name]):
        totals.add(part.filter(pc.equal(part["apply_seq"], seq)), "op_date")
    txns = [txn_action(app, number) for app, number in totals.txns().items()]
    write_commit(root / name, before + 1, [commit_info(version, "WRITE"), *txns], lambda _: None, durable=False)


def require_totals(root: Path, name: str) -> None:
    """The rows that are there have the totals that the log says."""
    log = require_table_log(root / name)
    written = WrittenTotals(name, log.txns)
    found: dict[Any, Any] = {}
    for part in each_table_part(root / name, log.version, TABLES[name]):
        for day, total in totals_by_day(part, "op_date").items():
            found[day] = found.get(day, NO_ROWS).plus(total)
    assert found
    assert {day: written.total("epoch-1", day) for day in found} == found


def causes(root: Path) -> list[str]:
    rows = (
        DeltaTable(root / "deliveries")
        .to_pyarrow_table()
        .sort_by([("kafka_offset", "ascending"), ("ordinal", "ascending")])
    )
    found: list[str] = rows["cause"].to_pylist()
    return found


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Four records of `deliveries` on two dates, in a file each; the first two have what handlers raised."""
    create_table(tmp_path, "deliveries")
    said = [f"handler: ValueError: {ADDRESS} is unknown", f"{ADDRESS} left", "ack", "handler: OSError: disk"]
    for seq, cause in enumerate(said, 1):
        row = delivery(seq, 0, NOW_MS + (seq - 1) // 2 * DAY_MS)._replace(
            cause=cause, first_offset=seq, last_offset=seq
        )
        append_counted(tmp_path, "deliveries", [row, row._replace(ordinal=1, cause="pop")], seq)
    require_totals(tmp_path, "deliveries")
    return tmp_path


def rejected(kafka_offset: int) -> RejectedRow:
    head = b"\xff" + ADDRESS.encode()
    return RejectedRow(0, kafka_offset, 0, NOW_MS, "NOT_JSON", "bad", 20, "ab", head, None, None)


def text_of(file: Path) -> str:
    return repr(pq.ParquetFile(file).read().to_pylist())


def everywhere(root: Path) -> bytes:
    """All bytes below the tables, with the columns of each Parquet file as text."""
    found = b""
    for file in sorted(root.rglob("*")):
        if file.suffix == ".parquet" and "_delta_log" not in file.parts:
            found += text_of(file).encode()
        elif file.is_file():
            found += file.read_bytes()
    return found


def test_a_text_is_gone_from_every_file_and_the_rows_stay(root: Path) -> None:
    compact(root, DELIVERIES)  # the files that it replaced have the text, too
    assert ADDRESS.encode() in everywhere(root)

    done = erase(root, "deliveries", Wanted(text=ADDRESS))

    assert done == Erased(table="deliveries", values=2, files=1, old_files=3)
    assert causes(root) == [
        "handler: (erased)",
        "pop",
        "(erased)",
        "pop",
        "ack",
        "pop",
        "handler: OSError: disk",
        "pop",
    ]
    assert ADDRESS.encode() not in everywhere(root)
    require_totals(root, "deliveries")
    assert erase(root, "deliveries", Wanted(text=ADDRESS)) == Erased(table="deliveries")
    assert DeltaTable(root / "deliveries").history(1)[0]["operation"] == "UPDATE"


def test_erasing_twice_adds_up(root: Path) -> None:
    erase(root, "deliveries", Wanted(text="is unknown"))
    erase(root, "deliveries", Wanted(text="left"))
    require_totals(root, "deliveries")
    append_counted(root, "deliveries", [delivery(9, 0, NOW_MS)], 9)
    require_totals(root, "deliveries")
    compact(root, DELIVERIES)
    require_totals(root, "deliveries")


def test_a_dry_run_counts_and_erases_nothing(root: Path) -> None:
    before = everywhere(root)
    assert erase(root, "deliveries", Wanted(text=ADDRESS), dry_run=True).values == 2
    assert everywhere(root) == before


@pytest.mark.parametrize(
    ("wanted", "erased"),
    [
        (Wanted(record=(0, 1)), [0]),
        (Wanted(message=("orders", 0, 4)), [3]),
        (Wanted(message=("orders", 0, 3)), []),
        (Wanted(message=("orders", 1, 4)), []),
        (Wanted(record=(0, 1), text="left"), []),
        (Wanted(record=(0, 2), text="left"), [1]),
    ],
)
def test_a_record_or_a_message_chooses_and_own_words_stay(root: Path, wanted: Wanted, erased: list[int]) -> None:
    before = causes(root)[::2]
    assert erase(root, "deliveries", wanted).values == len(erased)
    after = causes(root)
    assert [
        number for number, (one, other) in enumerate(zip(before, after[::2], strict=True)) if one != other
    ] == erased
    assert after[1::2] == ["pop"] * 4
    require_totals(root, "deliveries")


def test_the_head_of_a_rejected_record_goes_with_its_detail(tmp_path: Path) -> None:
    create_table(tmp_path, "rejected")
    rows = [
        RejectedRow(0, 1, 0, NOW_MS, "NOT_JSON", f"bad: {ADDRESS}", 20, "ab", b"\xff" + ADDRESS.encode(), None, None),
        RejectedRow(0, 2, 0, NOW_MS, "NOT_JSON", "bad", 20, "cd", b"else", None, None),
    ]
    append_counted(tmp_path, "rejected", rows, 1)
    assert erase(tmp_path, "rejected", Wanted(text=ADDRESS)).values == 2
    found = (
        DeltaTable(tmp_path / "rejected").to_pyarrow_table().sort_by("kafka_offset").select(["detail", "value_head"])
    )
    assert found.to_pylist() == [{"detail": "(erased)", "value_head": b""}, {"detail": "bad", "value_head": b"else"}]
    require_totals(tmp_path, "rejected")
    assert erase(tmp_path, "rejected", Wanted(record=(0, 2))).values == 2
    assert ADDRESS.encode() not in everywhere(tmp_path)


def test_a_file_that_somebody_may_be_about_to_commit_is_left_alone(root: Path) -> None:
    (file, *_) = [each for each in (root / "deliveries").rglob("*.parquet") if "ValueError" in text_of(each)]
    fresh, orphan = file.with_name("part-fresh.parquet"), file.with_name("part-orphan.parquet")
    for copy in (fresh, orphan):
        copy.write_bytes(file.read_bytes())
    os.utime(orphan, (time.time() - 4_000,) * 2)
    assert erase(root, "deliveries", Wanted(text="ValueError")).old_files == 2
    assert fresh.exists()
    assert not orphan.exists()
    assert not file.exists()


def test_what_came_before_is_on_the_disk_before_the_texts_are_erased(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a power loss may take the commit that says which rows are delivered, and leave the rows: they come twice."""
    synced: set[Path] = set()
    before: list[set[Path]] = []
    link = os.link

    def linked(commit: Path, target: Path) -> None:
        before.append({*synced})
        link(commit, target)

    version = require_table_log(root / "deliveries").version
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.add(Path(f"/proc/self/fd/{descriptor}").readlink()))
    monkeypatch.setattr(os, "link", linked)
    erase(root, "deliveries", Wanted(text=ADDRESS))
    assert root / "deliveries" / "_delta_log" / f"{version:020d}.json" in before[0]


def test_it_goes_on_after_others_have_changed_the_files(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original: Any = erasure._written_anew
    interfered: list[Path] = []

    def interfere(path: Path, *more: Any) -> Any:
        made = original(path, *more)
        if not interfered:
            interfered.append(path)
            compact(root, DELIVERIES)
        return made

    monkeypatch.setattr(erasure, "_written_anew", interfere)
    assert erase(root, "deliveries", Wanted(text=ADDRESS)).values == 2
    assert ADDRESS.encode() not in everywhere(root)
    require_totals(root, "deliveries")


def test_after_some_tries_it_gives_up_and_leaves_nothing(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> int:
        raise Unavailable("always")

    monkeypatch.setattr(erasure, "write_commit", refuse)
    before = everywhere(root)
    with pytest.raises(Unavailable, match="always"):
        erase(root, "deliveries", Wanted(text=ADDRESS))
    assert everywhere(root) == before


def test_a_table_that_cannot_be_rewritten_is_refused(root: Path) -> None:
    DeltaTable(table_path(root, "deliveries")).alter.add_constraint({"positive": "epoch >= 0"})
    with pytest.raises(Invalid, match="checkConstraints"):
        erase(root, "deliveries", Wanted(text=ADDRESS))
    assert erase(root, "operations", Wanted(text=ADDRESS)) == Erased(table="operations"), "there is none"


def test_a_file_that_is_committed_meanwhile_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flush commits at any place between the reads of the log."""
    path = create_table(tmp_path, "rejected")
    append_audit_rows(tmp_path, "rejected", [rejected(1)], 1)
    seqs = itertools.count(2)

    def read_beside_a_flush(table: Path, version: int) -> list[Any]:
        append_audit_rows(tmp_path, "rejected", [rejected(next(seqs))], next(seqs))
        found = [*commits_after(table, version)]
        append_audit_rows(tmp_path, "rejected", [rejected(next(seqs))], next(seqs))
        return found

    monkeypatch.setattr("connectors.delta.erasure.commits_after", read_beside_a_flush)
    assert erase(tmp_path, "rejected", Wanted(text=ADDRESS)).old_files == 1
    assert DeltaTable(path).to_pyarrow_table().num_rows == 3


@pytest.mark.parametrize("is_old", [False, True])
def test_what_a_killed_writer_has_left_is_deleted_once_nobody_can_commit_it(tmp_path: Path, *, is_old: bool) -> None:
    path = create_table(tmp_path, "rejected")
    append_audit_rows(tmp_path, "rejected", [rejected(1)], 1)
    left = path / "op_date=2026-09-21" / "part-1.parquet"
    left.parent.mkdir(exist_ok=True)
    left.write_bytes(b"PAR1 and no footer")
    if is_old:
        os.utime(left, (time.time() - 7_200,) * 2)
    for dry_run in (True, False):
        assert erase(tmp_path, "rejected", Wanted(text="nobody"), dry_run=dry_run).old_files == is_old
        assert left.exists() == (dry_run or not is_old)
