"""Claim: what the tables lack beside Kafka's own log, the job's counts and the units is found, and nothing else.

Method: a lane by hand, and one fault at a time. The log is a list of records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pytest

from connectors.delta.schemas import arrow_schema
from connectors.delta.tables import CONSUME_QUEUE
from expectations.evidence import NOTHING, Evidence, JobFigures, LogRecord, PositionOfJob
from expectations.opened_tables import OpenedTables
from expectations.suites import rules_of, suites
from pipelines.cli.tables.check_evidence import log_record
from popstream.wire.command import Pop
from tests.support.delta_files import append_rows, create_table
from tests.support.quality_rows import NOW_MS, Rows, write
from tests.support.unit_rows import unit_row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

SUITES = suites()
LATE_MS = 600_000
TOPIC = "topic-0"


class Log:
    """An ops topic with one partition."""

    topic_id = "topic-1"

    def __init__(self, records: Sequence[LogRecord], first: int = 0, end: int = 10) -> None:
        self._records = records
        self.first = {0: first}
        self.end = {0: end}
        self.read: list[tuple[int, int]] = []

    def records(self, partition: int, first: int, end: int) -> Iterator[LogRecord]:
        assert partition == 0
        self.read.append((first, end))
        return (record for record in self._records if first <= record.kafka_offset < end)


def lane() -> Rows:
    """0..9 are leased by record 1, 0..4 acked by record 2; record 4 could not be read; 3 and 5 have no rows."""
    rows = Rows(0)
    rows.add(
        "operations",
        rows.operation(1, "pop", 0, 9, entry=None, op_id="pop-1", deadline_after_ms=NOW_MS + 100_000),
        rows.operation(2),
        rows.operation(6, "ack", reason="STALE_HANDLE", code=13, applied=False),
    )
    rows.add("deliveries", rows.lease(1, "leased", 0, 9), rows.lease(2, "acked", 0, 4, cause="ack"))
    rows.add("commit_positions", rows.position(2, 0, 5))
    rows.add("rejected", rows.rejection(4))
    return rows


def broken(root: Path, evidence: Evidence = NOTHING, units: range = range(20), **unit: Any) -> dict[str, list[Any]]:
    write(root, "epoch-of-the-job", lane().tables)
    create_table(root, CONSUME_QUEUE.name)
    rows = [unit_row(TOPIC, offset, **unit) for offset in units]
    append_rows(root, CONSUME_QUEUE.name, pa.Table.from_pylist(rows, schema=arrow_schema(CONSUME_QUEUE)))
    with OpenedTables(root, evidence=evidence) as opened:
        found = {
            rule.expectation_type: opened.unexpected_rows(suite.name, rule.sql)[1]
            for suite in SUITES
            for rule in rules_of(suite)
        }
    del found["expect_rows_as_written"]  # the writer of the job did not write the units
    return {name: sample for name, sample in found.items() if sample}


def with_log(log: Log, now_ms: int = NOW_MS + 2 * LATE_MS) -> Evidence:
    return Evidence(log=log, now_ms=now_ms, late_after_ms=LATE_MS)


def record(kafka_offset: int, at_ms: int = 0, **more: Any) -> LogRecord:
    return LogRecord(kafka_offset, NOW_MS + at_ms, **more)


def test_without_evidence_nothing_is_compared(tmp_path: Path) -> None:
    assert broken(tmp_path) == {}


def test_offsets_that_are_no_records_need_no_rows(tmp_path: Path) -> None:
    """The markers of transactions have offsets, and are no records."""
    log = Log([record(1), record(2), record(4), record(6)])
    assert broken(tmp_path, with_log(log)) == {}
    assert (1, 4) not in log.read
    assert max(end - first for first, end in log.read) <= 4, "only what has no rows is read, and what lies between"


@pytest.mark.parametrize("first", [0, 3])
def test_a_record_of_the_log_without_rows_is_found(tmp_path: Path, first: int) -> None:
    found = broken(tmp_path, with_log(Log([record(3), record(6)], first=first)))
    assert found == {
        "expect_records_of_the_log_to_have_rows": [
            {"partition": 0, "kafka_offset": 3, "timestamp_ms": NOW_MS, "op_id": None}
        ]
    }


def test_records_that_have_left_the_log_are_not_missed(tmp_path: Path) -> None:
    log = Log([record(3)], first=4)
    assert broken(tmp_path, with_log(log)) == {}
    assert all(first >= 4 for first, _ in log.read)


def test_a_record_that_came_just_now_may_be_on_its_way(tmp_path: Path) -> None:
    assert broken(tmp_path, with_log(Log([record(3), record(7)]), now_ms=NOW_MS + LATE_MS - 1)) == {}


@pytest.mark.parametrize(
    ("pop", "is_found"),
    [
        ({"waits_until_ms": NOW_MS, "op_id": "pop-1"}, False),  # answered by another record
        ({"waits_until_ms": NOW_MS, "op_id": "pop-2"}, True),
        ({"waits_until_ms": NOW_MS + 2 * LATE_MS, "op_id": "pop-2"}, False),  # it waits
        ({"waits_until_ms": NOW_MS, "op_id": None}, False),  # it cannot be told
    ],
)
def test_a_pop_that_waits_has_the_row_of_its_answer(tmp_path: Path, pop: dict[str, Any], *, is_found: bool) -> None:
    found = broken(tmp_path, with_log(Log([record(3, **pop)])))
    assert ("expect_records_of_the_log_to_have_rows" in found) == is_found
    assert not found.keys() - {"expect_records_of_the_log_to_have_rows"}


def test_a_pop_of_the_log_tells_how_long_it_waits() -> None:
    pop = Pop(
        v=1, topic="t", queue_id=0, group="g", max_messages=1, invisible_time_ms=1, poll_time_ms=20_000, op_id="op-7"
    )
    waits = log_record(7, NOW_MS, msgspec.json.encode(pop))
    assert waits == LogRecord(7, NOW_MS, NOW_MS + 20_000, "op-7")
    at_once = msgspec.json.encode(msgspec.structs.replace(pop, poll_time_ms=0))
    for value in (at_once, b"no json", None):
        assert log_record(7, NOW_MS, value) == LogRecord(7, NOW_MS)


def test_a_job_that_does_not_decide_is_found(tmp_path: Path) -> None:
    waiting = record(7, waits_until_ms=NOW_MS, op_id="pop-9")
    found = broken(tmp_path, with_log(Log([waiting, record(8, 1), record(9, 2)])))
    assert found == {
        "expect_tables_to_be_fresh": [{"partition": 0, "kafka_offset": 8, "timestamp_ms": NOW_MS + 1, "op_id": None}]
    }


def counted(**changed: Any) -> Evidence:
    figures = JobFigures(
        state="epoch-of",
        since_seq=1,
        refused=(1, 1),
        rejected=(1, 2),
        positions=[PositionOfJob(TOPIC, 0, "g", 4, 6), PositionOfJob("other", 0, None, 9, 9)],
    )
    return Evidence(job=JobFigures(**{name: changed.get(name, getattr(figures, name)) for name in figures.__slots__}))


def test_what_the_job_counts_is_what_the_tables_have(tmp_path: Path) -> None:
    assert broken(tmp_path, counted()) == {}


@pytest.mark.parametrize(
    ("changed", "rule"),
    [
        ({"refused": (2, 3)}, "expect_refusals_that_the_job_counted"),
        ({"rejected": (0, 0)}, "expect_rejections_that_the_job_counted"),
        ({"positions": [PositionOfJob(TOPIC, 0, "g", 6, 9)]}, "expect_positions_of_the_job"),
    ],
)
def test_tables_that_say_something_else_than_the_job_are_found(
    tmp_path: Path, changed: dict[str, Any], rule: str
) -> None:
    assert broken(tmp_path, counted(**changed)).keys() == {rule}


def test_counts_of_a_restored_state_are_not_compared(tmp_path: Path) -> None:
    assert broken(tmp_path, counted(state="another", refused=(9, 9), rejected=(9, 9))) == {}


@pytest.mark.parametrize(
    ("units", "rules"),
    [
        (range(12), set()),
        (range(5), set()),  # the others are still to be flushed
        (range(5, 20), set()),  # deleted on purpose, with their dates
    ],
)
def test_units_that_may_be_missing(tmp_path: Path, units: range, rules: set[str]) -> None:
    assert broken(tmp_path, units=units).keys() == rules


WITHOUT_UNITS = {"expect_delivered_messages_to_have_units", "expect_counted_messages_to_have_units"}


@pytest.mark.parametrize(
    "units",
    [
        lambda: range(0, 20, 2),
        lambda: [offset for offset in range(20) if offset != 7],
    ],
)
def test_messages_without_units_are_found(tmp_path: Path, units: Callable[[], Any]) -> None:
    assert broken(tmp_path, units=units()).keys() == WITHOUT_UNITS


def test_a_repeated_unit_is_none_that_a_group_may_get(tmp_path: Path) -> None:
    assert broken(tmp_path, duplicate_of=0).keys() == set(), "then there is none, as of a queue that is not built"
