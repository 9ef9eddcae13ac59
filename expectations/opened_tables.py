"""The tables as the rules see them: one version of each, read by DuckDB, whole or from a date on.

```
<table>            every row
new_<table>        the rows that are judged: of all dates, or from a date on; `{batch}` in a rule
earlier_<table>    the others, from which rules take what a judged row continues
operations_seen, deliveries_seen     up to which apply_seq rules across tables may look
era_endings        operations that end every lease of a lane
known_positions    the judged rows of commit_positions, and of each lane or queue the last row before them
lease_steps        every step of every lease (lease_steps.py)
unequal_row_totals dates with too few, too many or other rows (row_totals.py)
history_cut        the first date that retention has left in every audit table, or null; rules that need more ask it
unit_index         the units of each queue, numbered: how many there are in a range is the difference of two numbers
records_without_rows, job_figures, job_positions     from Kafka and the running job (evidence.py); without, empty
```
"""

from __future__ import annotations

import dataclasses
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final, Self

from broker_state.audit import ERA_ENDING_KINDS
from connectors.delta.duckdb_errors import query_errors
from connectors.delta.duckdb_tables import DuckDbTables, rows_of
from connectors.delta.history_start import first_day_of
from connectors.delta.log.table_log import read_table_log, require_table_log
from connectors.delta.schemas import arrow_schema
from connectors.delta.snapshot import open_snapshot
from connectors.delta.tables import AUDIT_TABLES, CONSUME_QUEUE, TABLES, table_path
from connectors.delta.views import sql_list
from expectations.evidence import NOTHING, Evidence, keep_evidence
from expectations.lease_steps import keep_lease_steps
from expectations.row_totals import unequal_row_totals
from expectations.scope import ALL_ROWS, Scope
from popstream.wire.base_errors import Invalid

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Mapping
    from pathlib import Path

    from connectors.delta.snapshot import FileBounds, Snapshot

__all__ = ["SAMPLE_ROWS_MAX", "OpenedTables", "pinned_versions"]

SAMPLE_ROWS_MAX: Final = 20

_KEPT: Final = {
    # Tables are flushed one after the other. A flush commits all rows up to its last apply_seq, so a table with a row
    # of apply_seq n has all earlier rows. A rule on several tables judges rows up to the smallest of these; the next
    # run judges the rest.
    "operations_seen": "SELECT state_epoch, max(apply_seq) AS apply_seq FROM new_operations GROUP BY state_epoch",
    "deliveries_seen": """
        SELECT state_epoch, least(o.apply_seq, d.apply_seq) AS apply_seq
        FROM operations_seen AS o
        JOIN (SELECT state_epoch, max(apply_seq) AS apply_seq FROM new_deliveries GROUP BY state_epoch) AS d
        USING (state_epoch)
    """,
    "era_endings": f"""
        SELECT ops_topic_id, topic, queue_id, "group", partition, kafka_offset, kind
        FROM operations WHERE applied AND kind IN ({sql_list(ERA_ENDING_KINDS)})
    """,  # noqa: S608 - constants of the code
    "unit_index": """
        SELECT topic, queue_id, queue_offset,
               row_number() OVER (PARTITION BY topic, queue_id ORDER BY queue_offset) AS number
        FROM (
            SELECT DISTINCT topic, queue_id, queue_offset FROM consume_queue
            WHERE duplicate_of IS NULL AND (
                NOT EXISTS (FROM earlier_deliveries)
                OR queue_offset >= (SELECT min(first_offset) FROM new_deliveries WHERE step = 'leased')
            )
        )
    """,
    "unit_spans": """
        SELECT topic, queue_id, min(queue_offset) AS first_unit, max(queue_offset) AS last_unit
        FROM unit_index GROUP BY ALL
    """,
    "known_positions": """
        SELECT *, true AS is_new FROM new_commit_positions
        UNION ALL
        SELECT *, false FROM earlier_commit_positions
        QUALIFY row_number() OVER (
            PARTITION BY ops_topic_id, topic, queue_id, "group" ORDER BY kafka_offset DESC, ordinal DESC
        ) = 1
    """,
}


class OpenedTables(AbstractContextManager["OpenedTables"]):
    """The tables of a job; nothing is written.

    Args:
        delta_root: Folder of the tables.
        versions: Version by table; by default the newest.
        scope: The rows that are judged.
        evidence: What the tables are compared with besides themselves.

    Attributes:
        delta_root: As given.
        evaluated: The rules that were evaluated so far: table, and number of unexpected rows.
        versions: Version by table. `consume_queue` is missing if the job builds no queues.
        scope: As given.
        judged: Number of judged rows by table.

    Raises:
        Invalid: A table is missing, or lacks the version.
        Corrupt: A file with judged rows is damaged or missing.
        Unavailable: Kafka does not answer.
    """

    def __init__(
        self,
        delta_root: Path,
        *,
        versions: Mapping[str, int] | None = None,
        scope: Scope = ALL_ROWS,
        evidence: Evidence = NOTHING,
    ) -> None:
        self.delta_root = delta_root
        self.versions = pinned_versions(delta_root, versions or {})
        self.scope = scope
        self.evaluated: list[tuple[str, int]] = []
        unequal = unequal_row_totals(delta_root, self.versions, scope)
        first_day = _first_whole_day(delta_root, self.versions)
        snapshots = [
            _kept(open_snapshot(table_path(delta_root, name), version=version), first_day)
            for name, version in self.versions.items()
        ]
        self._tables = DuckDbTables(snapshots)
        try:
            with query_errors([table_path(delta_root, name) for name in self.versions]):
                self._tables.keep("history_cut", "SELECT $first_day::DATE AS first_day", {"first_day": first_day})
                self._define(snapshots)
                self._tables.add("unequal_row_totals", unequal)
                keep_evidence(self._tables, evidence)
                self.judged = {
                    name: int(next(self._tables.rows(f"SELECT count(*) FROM new_{name}"))[0])  # noqa: S608 - our own name
                    for name in self.versions
                }
        except BaseException:
            self._tables.__exit__()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._tables.__exit__()

    def interrupt(self) -> None:
        """End the query that another thread runs; its rule counts as not evaluated."""
        self._tables.interrupt()

    def unexpected_rows(self, table: str, query: str) -> tuple[int, list[dict[str, Any]]]:
        """Return the number of rows of a rule's query, and the first of them. Raises duckdb.Error."""
        chosen = query.format(batch=f"new_{table}")
        counted = f"SELECT *, count(*) OVER () AS unexpected_count FROM ({chosen}) LIMIT {SAMPLE_ROWS_MAX}"  # noqa: S608
        columns = self._tables.columns(counted)
        rows = [dict(zip(columns, row, strict=True)) for row in self._tables.rows(counted)]
        count = rows[0]["unexpected_count"] if rows else 0
        for row in rows:
            del row["unexpected_count"]
        self.evaluated.append((table, count))
        return count, rows

    def _define(self, snapshots: list[Snapshot]) -> None:
        if CONSUME_QUEUE.name not in self.versions:
            self._tables.add(CONSUME_QUEUE.name, arrow_schema(CONSUME_QUEUE).empty_table())
            for name in ("new", "earlier"):
                self._tables.define(f"{name}_{CONSUME_QUEUE.name}", f"FROM {CONSUME_QUEUE.name}")
        for snapshot in snapshots:
            table = snapshot.path.name
            day = TABLES[table].partitioned_by or ""
            earlier: list[FileBounds] = []
            judged: list[FileBounds] = []
            for file in snapshot.files:
                (judged if self.scope.has(table, file.least.get(day)) else earlier).append(file)
            self._tables.define(f"new_{table}", rows_of(snapshot, judged))
            self._tables.define(f"earlier_{table}", rows_of(snapshot, earlier))
        for name, query in _KEPT.items():
            self._tables.keep(name, query)
        keep_lease_steps(self._tables)


def _first_whole_day(delta_root: Path, versions: Mapping[str, int]) -> dt.date | None:
    """Return the first date of which all audit tables have all rows; None: retention has deleted none."""
    txns = (require_table_log(table_path(delta_root, table), versions[table]).txns for table in AUDIT_TABLES)
    return max((day for day in map(first_day_of, txns) if day is not None), default=None)


def _kept(snapshot: Snapshot, first_day: dt.date | None) -> Snapshot:
    """Return an audit table without the dates before which retention has deleted rows of any of them."""
    table = snapshot.path.name
    if first_day is None or table not in AUDIT_TABLES:
        return snapshot
    column = TABLES[table].partitioned_by or ""
    files = [file for file in snapshot.files if (day := file.least.get(column)) is None or day >= first_day]
    return dataclasses.replace(snapshot, files=files)


def pinned_versions(delta_root: Path, chosen: Mapping[str, int]) -> dict[str, int]:
    """Return the version of each table: the chosen one, by default the newest.

    Raises:
        Invalid: A table is missing, or lacks the version.
    """
    versions = {}
    for table in (*AUDIT_TABLES, CONSUME_QUEUE.name):
        path = table_path(delta_root, table)
        log = read_table_log(path)
        if log is None:
            if table == CONSUME_QUEUE.name:  # a job may build no queues
                continue
            message = f"there is no Delta table at {path}: has the job run here?"
            raise Invalid(message, subject=table)
        versions[table] = chosen.get(table, log.version)
        if versions[table] > log.version:
            message = f"{table} has no version {versions[table]} yet, only up to {log.version}"
            raise Invalid(message, subject=table)
    return versions
