"""Claim: the suite of `consume_queue` finds nothing in good rows, and each rule finds the one fault made for it.

Method: rows by hand in the real table, the faults each in a topic of its own; the other tables are empty.
"""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING

import pyarrow as pa

from connectors.delta.schemas import arrow_schema
from connectors.delta.tables import AUDIT_TABLES, CONSUME_QUEUE
from expectations.consume_queue_suite import consume_queue_suite
from expectations.opened_tables import OpenedTables
from expectations.validate import validate
from tests.support.delta_files import append_rows, create_table
from tests.support.unit_rows import batch_row, unit_row

if TYPE_CHECKING:
    from pathlib import Path

GOOD = [
    unit_row("simple", 3),
    unit_row("simple", 7, build_seq=2),
    unit_row("simple", 3, topic_id="made again", build_seq=5),
    batch_row("batch", 0, 0, 10),
    batch_row("batch", 1, 10, 1, is_readable=False),
    batch_row("batch", 5, 11, 3),
]
ROWS_AS_WRITTEN = "expect_rows_as_written"
FAULTS = {
    "expect_units_to_be_unique": [unit_row("f1", 1), unit_row("f1", 1)],
    "expect_units_to_have_values": [unit_row("f2", 1, key_hash=None)],
    "expect_messages_to_be_counted_in_order": [batch_row("f3", 0, 0, 10), batch_row("f3", 1, 9, 2)],
    "expect_date_to_be_that_of_the_store_time": [unit_row("f4", 1, store_date=date(2026, 11, 20))],
    "expect_units_in_log_order": [unit_row("f5", 1, build_seq=2), unit_row("f5", 2, build_seq=1)],
}


def test_each_rule_finds_its_fault_and_nothing_else(tmp_path: Path) -> None:
    for table in (*AUDIT_TABLES, CONSUME_QUEUE.name):
        create_table(tmp_path, table)
    rows = [*GOOD, *(each for planted in FAULTS.values() for each in planted)]
    append_rows(tmp_path, CONSUME_QUEUE.name, pa.Table.from_pylist(rows, schema=arrow_schema(CONSUME_QUEUE)))
    with OpenedTables(tmp_path) as opened:
        report = validate(opened, results=False)
    failures = [
        outcome
        for outcome in report.failures
        if outcome.expectation != ROWS_AS_WRITTEN  # the job has not written these rows
    ]
    assert {outcome.expectation for outcome in failures} == FAULTS.keys()
    assert FAULTS.keys() | {ROWS_AS_WRITTEN} == {each.expectation_type for each in consume_queue_suite().expectations}
    for outcome in failures:
        assert {found["topic"] for found in outcome.sample} == {FAULTS[outcome.expectation][0]["topic"]}, outcome
        assert outcome.unexpected_count == len(outcome.sample), "more was found than is shown"
