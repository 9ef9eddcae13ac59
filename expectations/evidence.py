"""What the tables are compared with besides themselves: Kafka's own log, and what the running job counts.

```
offsets without rows ── read from the log ──> records_without_rows     a record older than `late_after_ms` has its rows
job, before and after the tables are opened ──> job_figures, job_positions     what the tables say lies in between
```

A pop that waits has no row of its own: its answer is a row of the record that ended the wait. So the records in the
gaps are read, and those of such pops are looked for by their op_id.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from connectors.delta.duckdb_tables import DuckDbTables

__all__ = ["NOTHING", "Evidence", "JobFigures", "LogRecord", "OpsLog", "PositionOfJob", "keep_evidence"]

_READ_THROUGH: Final = 2_000
"""Offsets with rows between two gaps that are read along: a seek costs more."""

_REPORTED_MAX: Final = 1_000
"""Records without rows that are reported of a partition."""

_WITHOUT_ROWS: Final = pa.schema(
    [
        ("partition", pa.int32()),
        ("kafka_offset", pa.int64()),
        ("timestamp_ms", pa.int64()),
        ("op_id", pa.string()),
        ("is_after_the_last_row", pa.bool_()),
    ]
)
_POSITIONS: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("queue_id", pa.int32()),
        ("group", pa.string()),
        ("least", pa.int64()),
        ("greatest", pa.int64()),
    ]
)
_FIGURES: Final = pa.schema(
    [
        ("what", pa.string()),
        ("state", pa.string()),
        ("since_seq", pa.int64()),
        ("least", pa.int64()),
        ("greatest", pa.int64()),
    ]
)
_DECIDED: Final = """
    SELECT partition, kafka_offset FROM {operations} WHERE ops_topic_id = $topic_id
    UNION
    SELECT partition, kafka_offset FROM {rejected} WHERE ops_topic_id = $topic_id
"""
_GAPS: Final = f"""
    SELECT partition, kafka_offset + 1 AS first, next_offset AS end_offset
    FROM (
        SELECT partition, kafka_offset, lead(kafka_offset) OVER (PARTITION BY partition ORDER BY kafka_offset)
            AS next_offset
        FROM ({_DECIDED.format(operations="new_operations", rejected="new_rejected")})
    )
    WHERE next_offset > kafka_offset + 1
    ORDER BY partition, first
"""  # noqa: S608 - constants of this module
_ENDS: Final = f"""
    SELECT partition, max(kafka_offset) + 1
    FROM ({_DECIDED.format(operations="operations", rejected="rejected")}) GROUP BY partition
"""  # noqa: S608


class LogRecord(NamedTuple):
    """A record of the ops topic.

    Attributes:
        kafka_offset: Its offset in its partition.
        timestamp_ms: When Kafka got it, ms since 1970.
        waits_until_ms: Of a pop that may wait: until when, at most; None: it is no such pop.
        op_id: Of such a pop, if it has one.
    """

    kafka_offset: int
    timestamp_ms: int
    waits_until_ms: int | None = None
    op_id: str | None = None


class OpsLog(Protocol):
    """The ops topic in Kafka."""

    @property
    def topic_id(self) -> str:
        """Kafka's id of it."""

    @property
    def first(self) -> Mapping[int, int]:
        """First offset by partition."""

    @property
    def end(self) -> Mapping[int, int]:
        """Offset after the last record, by partition."""

    def records(self, partition: int, first: int, end: int) -> Iterator[LogRecord]:
        """Yield the committed records of [first, end), in order."""


class PositionOfJob(NamedTuple):
    """Where the job is with a lane, or with a queue (`group` None), before and after the tables were opened."""

    topic: str
    queue_id: int
    group: str | None
    least: int
    greatest: int


@dataclass(frozen=True, slots=True)
class JobFigures:
    """What a running job counts, before and after the tables were opened: the tables have all rows of before.

    Args:
        state: The first characters of its state epoch.
        since_seq: The first WriteBatch that its process has counted.
        refused: Rows of `operations` with an error code since then: at least, and at most.
        rejected: Rows of `rejected` since then, likewise.
        positions: Its positions.
    """

    state: str
    since_seq: int
    refused: tuple[int, int]
    rejected: tuple[int, int]
    positions: Sequence[PositionOfJob]


@dataclass(frozen=True, slots=True)
class Evidence:
    """What there is to compare the tables with.

    Args:
        log: The ops topic; None: it is not asked.
        job: What the job counts; None: likewise.
        now_ms: The present time.
        late_after_ms: Records older than this must have their rows.
    """

    log: OpsLog | None = None
    job: JobFigures | None = None
    now_ms: int = 0
    late_after_ms: int = 0


NOTHING: Final = Evidence()


def keep_evidence(tables: DuckDbTables, evidence: Evidence) -> None:
    """Keep `records_without_rows`, `job_figures` and `job_positions`; without evidence they are empty.

    Raises:
        Unavailable: Kafka does not answer.
    """
    missing = [] if evidence.log is None else list(_records_without_rows(tables, evidence.log, evidence))
    tables.add("records_without_rows", pa.Table.from_pylist(missing, _WITHOUT_ROWS))
    job = evidence.job
    positions = [] if job is None else [position._asdict() for position in job.positions]
    tables.add("job_positions", pa.Table.from_pylist(positions, _POSITIONS))
    figures: list[dict[str, Any]] = []
    if job is not None:
        for what, (least, greatest) in (("refused", job.refused), ("rejected", job.rejected)):
            figures.append(
                {"what": what, "state": job.state, "since_seq": job.since_seq, "least": least, "greatest": greatest}
            )
    tables.add("job_figures", pa.Table.from_pylist(figures, _FIGURES))


def _records_without_rows(tables: DuckDbTables, log: OpsLog, evidence: Evidence) -> Iterator[dict[str, Any]]:
    parameters = {"topic_id": log.topic_id}
    gaps: dict[int, list[tuple[int, int]]] = {}
    for partition, first, end in tables.rows(_GAPS, parameters):
        if end > log.first.get(partition, 0):
            gaps.setdefault(partition, []).append((max(first, log.first.get(partition, 0)), end))
    ends = dict(tables.rows(_ENDS, parameters))
    due_ms = evidence.now_ms - evidence.late_after_ms
    for partition, log_end in log.end.items():
        found = list(_waiting_or_missing(log, partition, gaps.get(partition, []), due_ms))
        answered = _answered(tables, [op_id for record, op_id in found if op_id is not None])
        for record, op_id in found:
            if op_id not in answered:
                yield _row(partition, record, is_last=False)
        begin = max(ends.get(partition, 0), log.first.get(partition, 0))
        # Those that wait have no row until they are answered.
        late = (record for record in log.records(partition, begin, log_end) if record.waits_until_ms is None)
        oldest = next(late, None)
        if oldest is not None and oldest.timestamp_ms <= due_ms:
            yield _row(partition, oldest, is_last=True)


def _waiting_or_missing(
    log: OpsLog, partition: int, gaps: Sequence[tuple[int, int]], due_ms: int
) -> Iterator[tuple[LogRecord, str | None]]:
    """Yield the records in the gaps that must have rows by now; with the op_id of those of which the answer has one."""
    reported = 0
    for stretch in _stretches(gaps):
        within = iter(stretch)
        gap = next(within)
        for record in log.records(partition, stretch[0][0], stretch[-1][1]):
            while gap is not None and record.kafka_offset >= gap[1]:
                gap = next(within, None)  # type: ignore[assignment]
            if gap is None or record.kafka_offset < gap[0]:
                continue
            if record.waits_until_ms is None and record.timestamp_ms <= due_ms:
                reported += 1
                yield record, None
            elif record.waits_until_ms is not None and record.waits_until_ms <= due_ms and record.op_id is not None:
                yield record, record.op_id
            if reported >= _REPORTED_MAX:
                return


def _stretches(gaps: Sequence[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
    """Yield gaps that are read together.

    >>> list(_stretches([(1, 2), (5, 6), (9_000, 9_001)]))
    [[(1, 2), (5, 6)], [(9000, 9001)]]
    """
    stretch: list[tuple[int, int]] = []
    for gap in gaps:
        if stretch and gap[0] - stretch[-1][1] > _READ_THROUGH:
            yield stretch
            stretch = []
        stretch.append(gap)
    if stretch:
        yield stretch


def _answered(tables: DuckDbTables, op_ids: Sequence[str]) -> set[str]:
    if not op_ids:
        return set()
    tables.add("waited_op_ids", pa.table({"op_id": pa.array(op_ids, pa.string())}), replace=True)
    return {
        op_id for (op_id,) in tables.rows("SELECT DISTINCT op_id FROM operations SEMI JOIN waited_op_ids USING (op_id)")
    }


def _row(partition: int, record: LogRecord, *, is_last: bool) -> dict[str, Any]:
    return {
        "partition": partition,
        "kafka_offset": record.kafka_offset,
        "timestamp_ms": record.timestamp_ms,
        "op_id": record.op_id,
        "is_after_the_last_row": is_last,
    }
