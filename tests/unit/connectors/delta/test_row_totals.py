"""Claim: the totals of a table's log tell deleted, doubled, changed and foreign rows from those that were written."""

from __future__ import annotations

import datetime as dt
import json
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from connectors.delta.row_digest import row_digests
from connectors.delta.row_totals import NO_ROWS, RowTotal, RowTotalsWriter, WrittenTotals, totals_by_day
from connectors.delta.tables import AUDIT_TABLES, table_path
from popstream.wire.base_errors import Corrupt
from tests.support.written_rows import FIRST, rows_of, writer

if TYPE_CHECKING:
    from pathlib import Path

MONDAY, TUESDAY = dt.date(2026, 11, 23), dt.date(2026, 11, 24)

SCHEMA = pa.schema(
    [
        ("number", pa.int64()),
        ("small", pa.int32()),
        ("text", pa.string()),
        ("data", pa.binary()),
        ("flag", pa.bool_()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("day", pa.date32()),
    ]
)


def rows(count: int, day: dt.date = MONDAY) -> pa.Table:
    return pa.Table.from_pylist(
        [
            {
                "number": number,
                "small": None if number % 3 == 0 else -number,
                "text": f"t{number % 5}",
                "data": bytes([number % 256]) * (number % 7),
                "flag": number % 2 == 0,
                "at": dt.datetime(2026, 1, 1, second=number % 60, tzinfo=dt.UTC),
                "day": day,
            }
            for number in range(count)
        ],
        SCHEMA,
    )


def with_value(table: pa.Table, row: int, column: str, value: object) -> pa.Table:
    values = table[column].to_pylist()
    values[row] = value
    return table.set_column(table.schema.get_field_index(column), column, pa.array(values, SCHEMA.field(column).type))


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("number", 8),
        ("number", None),
        ("number", 7 + (1 << 40)),
        ("small", 7),
        ("small", 0),
        ("text", "t3"),
        ("text", ""),
        ("text", None),
        ("data", b"x"),
        ("data", None),
        ("flag", True),
        ("flag", None),
        ("at", dt.datetime(2026, 1, 1, second=8, tzinfo=dt.UTC)),
        ("day", TUESDAY),
    ],
)
def test_a_changed_value_changes_the_digest_of_its_row_alone(column: str, value: object) -> None:
    before, after = row_digests(rows(20)), row_digests(with_value(rows(20), 7, column, value))
    assert [number for number in range(20) if before[number] != after[number]] == [7]


def test_values_that_change_places_change_the_sum() -> None:
    table = rows(20)
    swapped = with_value(with_value(table, 1, "text", "t2"), 2, "text", "t1")
    assert totals_by_day(table, "day") != totals_by_day(swapped, "day")
    within = with_value(with_value(table, 4, "number", -4), 4, "small", 4)
    assert totals_by_day(table, "day") != totals_by_day(within, "day")


def test_the_sum_depends_on_the_rows_and_not_on_how_they_are_stored() -> None:
    table = rows(1_000)
    total = totals_by_day(table, "day")[MONDAY]
    assert total.rows == 1_000
    parts = [totals_by_day(table.slice(first, 7), "day")[MONDAY] for first in range(0, 1_000, 7)]
    added = NO_ROWS
    for part in reversed(parts):
        added = added.plus(part)
    assert added == total
    chunked = pa.concat_tables([table.slice(500), table.slice(0, 500)])
    assert totals_by_day(chunked, "day")[MONDAY] == total
    # A text that repeats and one that does not are hashed in different ways.
    distinct = pa.table({"text": [f"{number:04}" for number in range(1_000)]})
    assert sum(row_digests(distinct).tolist()) == sum(
        row_digests(distinct.slice(n, 1)).tolist()[0] for n in range(1_000)
    )


def test_a_writer_goes_on_where_the_log_ends() -> None:
    txns: dict[str, int] = {}
    for count, day in ((5, MONDAY), (3, TUESDAY), (4, MONDAY)):
        writer = RowTotalsWriter("operations", "e1", txns, -1, was_restored=False)
        writer.add(rows(count, day), "day")
        txns |= writer.txns()
        writer.committed()
        assert writer.txns() == {}
    expected = {
        MONDAY: totals_by_day(rows(5), "day")[MONDAY].plus(totals_by_day(rows(4), "day")[MONDAY]),
        TUESDAY: totals_by_day(rows(3, TUESDAY), "day")[TUESDAY],
    }
    assert WrittenTotals("operations", txns).by_epoch == {"e1": expected}
    assert WrittenTotals("operations", txns).after == {}


def test_rows_of_a_commit_that_failed_do_not_count() -> None:
    writer = RowTotalsWriter("operations", "e1", {}, -1, was_restored=False)
    writer.add(rows(5), "day")
    writer.discard()
    writer.add(rows(2), "day")
    assert WrittenTotals("operations", writer.txns()).by_epoch["e1"][MONDAY] == totals_by_day(rows(2), "day")[MONDAY]


def test_an_epoch_that_an_older_version_began_counts_from_now_on() -> None:
    writer = RowTotalsWriter("operations", "e1", {"apply_ops/operations/e1": 41}, 41, was_restored=False)
    writer.add(rows(2), "day")
    txns = writer.txns()
    assert WrittenTotals("operations", txns).after == {"e1": 41}
    later = RowTotalsWriter("operations", "e1", txns, 50, was_restored=False)
    later.add(rows(1), "day")
    assert WrittenTotals("operations", later.txns()).after == {}, "it is said once"


def test_after_a_restore_the_totals_of_earlier_epochs_are_unknown() -> None:
    first = RowTotalsWriter("operations", "e1", {}, -1, was_restored=False)
    first.add(rows(5), "day")
    txns = first.txns()
    second = RowTotalsWriter("operations", "e2", txns, -1, was_restored=True)
    second.add(rows(2), "day")
    written = WrittenTotals("operations", {**txns, **second.txns()})
    assert written.by_epoch == {"e1": {MONDAY: None}, "e2": {MONDAY: totals_by_day(rows(2), "day")[MONDAY]}}


def test_a_total_of_nothing_is_no_rows() -> None:
    assert totals_by_day(rows(0), "day") == {}
    assert RowTotal(0, 0) == NO_ROWS


@pytest.mark.parametrize("of", ["counted/after", "2026-11-23/rows", "2026-11-23/digest", "2026-11-23/erased"])
def test_a_flipped_bit_in_a_name_is_damage_of_the_log_or_changes_nothing(of: str) -> None:
    """A commit in the middle of a log may be damaged: later ones then have the right entries as well."""
    names = ["counted/after", "2026-11-23/rows", "2026-11-23/digest", "2026-11-23/erased"]
    txns = {f"row_totals/e1/{name}": number for number, name in enumerate(names)} | {"history/first_day": 20_000}
    name = f"row_totals/e1/{of}".encode()
    refusals = {}
    for place in range(len(name)):
        for bit in range(7):
            flipped = bytes([*name[:place], name[place] ^ 1 << bit, *name[place + 1 :]]).decode()
            try:
                WrittenTotals("operations", {**txns, flipped: 3})
            except Corrupt as error:
                refusals[flipped] = error.message
    assert refusals == {
        flipped: f"the log of operations is damaged: {flipped!r} is no total of rows: bring it back from a copy, or run"
        " `popstream restore --rebuild operations`"
        for flipped in refusals
    }
    assert bool(refusals) == (of in {"2026-11-23/rows", "2026-11-23/erased"})


@pytest.mark.parametrize("name", ["row_totals", "history.first_day", "row_totals.e1"])
def test_other_transactions_may_have_any_name(name: str) -> None:
    assert WrittenTotals("operations", {name: 3}).by_epoch == {}


def test_a_job_does_not_start_with_a_damaged_total(tmp_path: Path) -> None:
    table = AUDIT_TABLES["operations"]
    job = writer(tmp_path, table)
    for seq in (1, 2):
        job.append([rows_of(table, FIRST, seq)], seq)
    commit = table_path(tmp_path, table.name) / "_delta_log" / f"{1:020d}.json"
    lines = [json.loads(line) for line in commit.read_text().splitlines()]
    for line in lines:
        if line.get("txn", {}).get("appId", "").endswith("/rows"):
            line["txn"]["appId"] = line["txn"]["appId"].replace("epoch", "epocj")
    commit.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    for opened in (job.reopen, lambda: writer(tmp_path, table)):
        with pytest.raises(Corrupt, match="is no total of rows: bring it back"):
            opened()
