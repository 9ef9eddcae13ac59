"""The suites find nothing in what the kernel does, and each rule finds the one fault made for it.

Method: histories of random worlds, decided by the kernel, and small ones by hand are written through the flusher.
Then one fault is planted for each expectation, each in a partition of the ops topic of its own. One validation of all
of them must give, for each expectation, rows of its own partition and of no other: so every rule can fail, and fails
alone.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from broker_state.audit import DeliveryStep
from connectors.delta.log.table_log import require_table_log
from connectors.delta.retention import delete_before
from connectors.delta.schemas import arrow_schema
from connectors.delta.tables import AUDIT_TABLES, table_path
from expectations.opened_tables import OpenedTables
from expectations.results import write_results
from expectations.suites import suites
from expectations.validate import validate
from popstream.wire.base_errors import Invalid
from tests.support.delta_files import append_rows
from tests.support.quality_rows import NOW_MS, Rows, good, of_worlds, write

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from expectations.report import QualityReport


class Fault(NamedTuple):
    """One expectation, and what makes it fail."""

    suite: str
    expectation: str
    plant: Callable[[Rows], None]


def twice(table: str) -> Callable[[Rows], None]:
    # An empty move: a second row of a real one would not follow the first either.
    extra = {"commit_positions": lambda rows: rows.position(300, 5, 5)}

    def plant(rows: Rows) -> None:
        row: Any = (
            extra[table](rows) if table in extra else rows.tables[table][-1][1]._replace(kafka_offset=500, ordinal=0)
        )
        if table == "deliveries":
            row = rows.lease(500, "leased", 50, 59, 5)
        if table == "operations":
            row = row._replace(now_ms=NOW_MS + 500, deadline_after_ms=NOW_MS + 100_000)
        rows.add(table, row, row)

    return plant


def renumbered(table: str) -> Callable[[Rows], None]:
    return lambda rows: rows.replace(table, -1, ordinal=7)


def without(table: str, column: str) -> Callable[[Rows], None]:
    return lambda rows: rows.replace(table, 0, **{column: None})


def on_another_date(table: str) -> Callable[[Rows], None]:
    rows_of = {
        "operations": lambda rows: rows.operation(500),
        "deliveries": lambda rows: rows.lease(500, "leased", 50, 59, 5),
        "commit_positions": lambda rows: rows.position(500, 5, 5),
        "rejected": lambda rows: rows.rejection(500),
        "order_info": lambda rows: rows.batch(500),
    }
    return lambda rows: rows.wrong_date.append((table, rows_of[table](rows)))


def before_its_time(table: str) -> Callable[[Rows], None]:
    def plant(rows: Rows) -> None:
        later = {
            "operations": rows.operation(600),
            "deliveries": rows.lease(600, "leased", 60, 69, 6),
            "commit_positions": rows.position(600, 5, 5),
            "rejected": rows.rejection(600),
            "order_info": rows.batch(600),
        }[table]
        seq, row = rows.tables[table][-1]
        rows.tables[table][-1] = (seq + 1, row)
        rows.add(table, later, seq=seq)

    return plant


def extra(table: str, make: Callable[[Rows], NamedTuple]) -> Callable[[Rows], None]:
    return lambda rows: rows.add(table, make(rows))


def leased_below(rows: Rows) -> None:
    """The lane has moved on over offsets that were passed over by tag, and gives one of them away."""
    rows.add("commit_positions", rows.position(310, 5, 20, next_offset=30, acked=25, passed_over=15))
    rows.add("deliveries", rows.lease(311, "leased", 15, 15, 3))


def leased_when_done(rows: Rows) -> None:
    rows.add("deliveries", rows.lease(310, "acked", 8, 8, 2, 2), rows.lease(311, "leased", 8, 8, 3, 3))


COMMON = (
    ("expect_keys_to_be_unique", twice),
    ("expect_no_ordinal_to_be_missing", renumbered),
    ("expect_date_to_be_that_of_the_time", on_another_date),
    ("expect_decisions_in_log_order", before_its_time),
)
UNUSED = {
    "operations": "repeated",
    "deliveries": "cause",
    "commit_positions": "parked",
    "rejected": "detail",
    "order_info": "invisible_time_ms",
}

FAULTS = [
    *(Fault(table, name, make(table)) for table in AUDIT_TABLES for name, make in COMMON),
    *(
        Fault(
            table,
            "expect_required_columns_to_have_values",
            without(table, column) if table != "deliveries" else lambda rows: rows.replace("deliveries", 1, cause=None),
        )
        for table, column in UNUSED.items()
    ),
    Fault("operations", "expect_known_kinds", lambda rows: rows.replace("operations", 1, kind="pull")),
    Fault(
        "operations",
        "expect_known_reasons",
        lambda rows: rows.replace("operations", 1, reason="EXPIRED_LOCALLY", code=13, applied=False),
    ),
    Fault(
        "operations",
        "expect_code_to_agree_with_reason",
        lambda rows: rows.replace("operations", 1, reason="BELOW_MIN", code=13, applied=False),
    ),
    Fault("operations", "expect_ranges_in_order", lambda rows: rows.replace("operations", 1, first_offset=5)),
    Fault(
        "operations",
        "expect_changes_to_be_answered_with_success",
        lambda rows: rows.replace("operations", 1, reason="STALE_HANDLE", code=13),
    ),
    Fault(
        "operations",
        "expect_deadlines_after_now",
        lambda rows: rows.replace("operations", 0, deadline_after_ms=NOW_MS + 1),
    ),
    Fault("operations", "expect_queue_time_never_to_fall", lambda rows: rows.replace("operations", 1, now_ms=NOW_MS)),
    Fault("deliveries", "expect_known_steps", extra("deliveries", lambda rows: rows.lease(310, "vanished", 90, 99))),
    Fault(
        "deliveries",
        "expect_ranges_and_counters_in_range",
        extra("deliveries", lambda rows: rows.lease(310, "leased", 60, 50, 3)),
    ),
    Fault(
        "deliveries",
        "expect_steps_at_their_time",
        extra("deliveries", lambda rows: rows.lease(310, "acked", 5, 5, 2, 2, at_ms=NOW_MS + 309)),
    ),
    Fault(
        "deliveries",
        "expect_leases_to_end_after_now",
        extra("deliveries", lambda rows: rows.lease(310, "leased", 50, 59, 3, deadline_ms=NOW_MS + 310)),
    ),
    Fault(
        "deliveries",
        "expect_one_live_lease_of_a_message",
        extra("deliveries", lambda rows: rows.lease(310, "leased", 7, 7, 3, 3)),
    ),
    Fault("deliveries", "expect_done_messages_to_stay_done", leased_when_done),
    Fault(
        "deliveries",
        "expect_steps_of_a_lease_that_exists",
        extra("deliveries", lambda rows: rows.lease(310, "acked", 30, 30, 2)),
    ),
    Fault(
        "deliveries",
        "expect_attempts_to_count_deliveries",
        extra("deliveries", lambda rows: rows.lease(310, "leased", 40, 40, 3, 2)),
    ),
    Fault(
        "deliveries",
        "expect_revisions_to_count_changes",
        extra("deliveries", lambda rows: rows.lease(310, "acked", 5, 5, 2, 2, revision=4)),
    ),
    Fault("deliveries", "expect_nothing_leased_below_the_commit_offset", leased_below),
    Fault(
        "commit_positions",
        "expect_positions_never_to_fall",
        extra("commit_positions", lambda rows: rows.position(310, 5, 3)),
    ),
    Fault(
        "commit_positions",
        "expect_positions_to_chain",
        extra("commit_positions", lambda rows: rows.position(310, 6, 7)),
    ),
    Fault(
        "commit_positions",
        "expect_every_message_to_be_accounted_for",
        lambda rows: rows.replace("commit_positions", 0, holes=1),
    ),
    Fault(
        "commit_positions",
        "expect_counts_to_be_possible",
        lambda rows: rows.replace("commit_positions", 0, parked=-1),
    ),
    Fault(
        "commit_positions",
        "expect_parts_not_to_exceed_the_whole",
        lambda rows: rows.replace("commit_positions", 0, passed_over=6),
    ),
    Fault(
        "commit_positions",
        "expect_leased_to_agree_with_deliveries",
        lambda rows: rows.replace("commit_positions", 0, leased=4, acked=6),
    ),
    Fault(
        "rejected",
        "expect_head_to_be_the_start_of_the_value",
        lambda rows: rows.replace("rejected", 0, value_head=b"no xxxx"),
    ),
    Fault("rejected", "expect_reasons_to_be_words", lambda rows: rows.replace("rejected", 0, reason="not JSON")),
    Fault("rejected", "expect_rejected_to_be_undecided", lambda rows: rows.replace("rejected", 0, kafka_offset=2)),
    Fault("order_info", "expect_batches_to_be_possible", lambda rows: rows.replace("order_info", 0, least_count=-1)),
    Fault(
        "order_info",
        "expect_done_batches_to_move_the_commit_offset",
        lambda rows: rows.replace("order_info", 0, acked=5, free_at_ms=None),
    ),
    Fault("order_info", "expect_blocks_to_end", lambda rows: rows.replace("order_info", 0, free_at_ms=NOW_MS)),
    Fault(
        "order_info",
        "expect_batches_to_follow_each_other",
        extra("order_info", lambda rows: rows.batch(310, epoch=1)),
    ),
    Fault("order_info", "expect_members_to_be_leased", lambda rows: rows.replace("order_info", 0, members=4)),
]


ROWS_AS_WRITTEN = "expect_rows_as_written"
"""The rule of each table that counts its rows: those with a wrong date do not come from the flusher. What else it finds
is in test_rows_as_written.py."""
FAILED = len(FAULTS) + len(AUDIT_TABLES)
COMPARED = {
    ("operations", "expect_records_of_the_log_to_have_rows"),
    ("operations", "expect_tables_to_be_fresh"),
    ("operations", "expect_refusals_that_the_job_counted"),
    ("rejected", "expect_rejections_that_the_job_counted"),
    ("commit_positions", "expect_positions_of_the_job"),
    ("commit_positions", "expect_counted_messages_to_have_units"),
    ("deliveries", "expect_delivered_messages_to_have_units"),
}
"""The rules that compare with Kafka, with the job, or with units: test_evidence.py has a fault for each."""
EXPECTATIONS = FAILED + len(COMPARED)


def write_with_wrong_date(root: Path, faults: list[Rows]) -> None:
    for table in AUDIT_TABLES:
        rows = [
            {
                **row._asdict(),
                "apply_seq": 1,
                "state_epoch": "faulty",
                "ops_topic_id": "topic-1",
                "op_date": date(2026, 11, 21) + timedelta(days=1),
            }
            for fault in faults
            for name, row in fault.wrong_date
            if name == table
        ]
        schema = arrow_schema(AUDIT_TABLES[table])
        append_rows(root, table, pa.Table.from_pylist(rows, schema))


def planted(fault: Fault) -> Rows:
    rows = good(FAULTS.index(fault))
    fault.plant(rows)
    return rows


class Validated(NamedTuple):
    root: Path
    docs: Path
    good: QualityReport
    bad: QualityReport


@pytest.fixture(scope="module")
def validated(tmp_path_factory: pytest.TempPathFactory) -> Validated:
    root = tmp_path_factory.mktemp("delta")
    docs = root.parent / "data_docs"
    decided = of_worlds()
    assert {row.step for _, row in decided["deliveries"]} == set(DeliveryStep), "the worlds have seen every step"
    by_hand = good(999)
    write(root, "good", {table: decided[table] + by_hand.tables[table] for table in AUDIT_TABLES})
    versions = {table: require_table_log(table_path(root, table)).version for table in AUDIT_TABLES}
    faulty = [planted(fault) for fault in FAULTS]
    together = {table: [row for rows in faulty for row in rows.tables[table]] for table in AUDIT_TABLES}
    # So that the rules across tables, which look only at what all tables have reached, look at everything.
    last = good(len(FAULTS))
    for table, made in last.tables.items():
        together[table] += [(9, row) for _, row in made]
    write(root, "faulty", together)
    write_with_wrong_date(root, faulty)
    with OpenedTables(root, versions=versions) as opened:
        checked_good = validate(opened, data_docs=docs, run_at=datetime(2026, 11, 21, tzinfo=UTC))
    assert checked_good.versions == versions
    with OpenedTables(root) as opened:
        return Validated(root, docs, checked_good, validate(opened, data_docs=docs))


def test_what_the_kernel_does_breaks_no_rule(validated: Validated) -> None:
    assert validated.good.failures == ()
    assert len(validated.good.outcomes) == EXPECTATIONS


@pytest.mark.long
def test_a_history_that_retention_has_cut_breaks_no_rule(tmp_path: Path) -> None:
    """The first half of each partition is ten days older, and goes: leases that began in it end in the other."""
    decided = of_worlds()
    ends: dict[int, int] = {}
    for _, row in decided["operations"]:
        ends[row.partition] = max(ends.get(row.partition, 0), row.kafka_offset)

    def aged(row: Any) -> Any:
        if row.kafka_offset >= ends[row.partition] // 2:
            return row
        times = {name: getattr(row, name) for name in row._fields if name.endswith("_ms")} | {"invisible_time_ms": None}
        return row._replace(**{name: at - 864_000_000 for name, at in times.items() if at is not None})

    write(tmp_path, "good", {table: [(seq, aged(row)) for seq, row in rows] for table, rows in decided.items()})
    newest = max(row.now_ms for _, row in decided["operations"])
    cut = datetime.fromtimestamp(newest / 1000, UTC).date() - timedelta(days=5)
    for name in ("deliveries", "operations"):
        assert delete_before(tmp_path, AUDIT_TABLES[name], cut).rows > 1_000, "the other tables have all of their rows"

    with OpenedTables(tmp_path) as opened:
        assert validate(opened).failures == ()

    DeltaTable(table_path(tmp_path, "deliveries")).delete("step = 'leased' AND attempt = 1")
    with OpenedTables(tmp_path) as opened:
        found = {(each.suite, each.expectation) for each in validate(opened).failures}
    assert ("deliveries", ROWS_AS_WRITTEN) in found


@pytest.mark.parametrize(
    "partition", range(len(FAULTS)), ids=lambda number: f"{FAULTS[number].suite}-{FAULTS[number].expectation}"
)
def test_each_expectation_finds_its_fault_and_nothing_else(validated: Validated, partition: int) -> None:
    fault = FAULTS[partition]

    (outcome,) = [
        each for each in validated.bad.outcomes if (each.suite, each.expectation) == (fault.suite, fault.expectation)
    ]

    assert not outcome.success
    assert outcome.error == ""
    assert {row["partition"] for row in outcome.sample} == {partition}
    assert outcome.unexpected_count == len(outcome.sample)


def test_every_expectation_has_its_fault() -> None:
    defined = {
        (suite.name, each.expectation_type)
        for suite in suites()
        if suite.name in AUDIT_TABLES
        for each in suite.expectations
    }

    counted = {(table, ROWS_AS_WRITTEN) for table in AUDIT_TABLES}
    assert defined == {(fault.suite, fault.expectation) for fault in FAULTS} | counted | COMPARED


def test_rows_of_another_writer_are_counted(validated: Validated) -> None:
    found = {each.suite: each.sample for each in validated.bad.failures if each.expectation == ROWS_AS_WRITTEN}
    assert found.keys() == AUDIT_TABLES.keys()
    for table, (of_table,) in found.items():
        wrong_date = sum(name == table for fault in FAULTS for name, _ in planted(fault).wrong_date)
        assert (of_table["state_epoch"], of_table["date"]) == ("faulty", "2026-11-22")
        assert (of_table["rows_written"], of_table["rows_found"]) == (0, wrong_date)


def test_each_expectation_says_what_it_expects(validated: Validated) -> None:
    assert all(outcome.description.rstrip(")").endswith(".") for outcome in validated.bad.outcomes)
    assert validated.bad.expectations_failed == FAILED


def test_an_old_version_that_is_checked_again_replaces_its_results(validated: Validated) -> None:
    """The good rows were checked by their version, after the faults had come."""

    def results() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = DeltaTable(validated.root / "quality_results").to_pyarrow_table().to_pylist()
        return found

    before = len(results())

    write_results(validated.root, replace(validated.good, run_at=datetime(2026, 11, 22, tzinfo=UTC)))

    after = results()
    assert before == len(after) == 2 * EXPECTATIONS
    assert datetime(2026, 11, 21, tzinfo=UTC) not in {row["run_at"] for row in after}, "replaced"
    failed = [row for row in after if not row["success"] and row["unexpected_count"] >= 1]
    assert len([row for row in failed if "partition" in row["observed"]]) == len(FAULTS)
    assert {row["scope"] for row in after} == {"all"}


def test_data_docs_hold_one_run(validated: Validated) -> None:
    pages = [page for page in validated.docs.rglob("*.html") if "validations" in page.parts]

    assert (validated.docs / "index.html").is_file()
    assert len(pages) == len(AUDIT_TABLES)
    assert not [each for each in validated.docs.parent.iterdir() if each.name.startswith(".data_docs")]


def test_versions_and_tables_that_are_not_there_are_refused(validated: Validated, tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="no version 99"):
        OpenedTables(validated.root, versions={"deliveries": 99})
    with pytest.raises(Invalid, match="no Delta table"):
        OpenedTables(tmp_path)
