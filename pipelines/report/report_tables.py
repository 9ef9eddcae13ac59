"""The tables of a report: opened once, with the files that may have rows of its period, and bounded to its scope."""

from __future__ import annotations

import dataclasses
from datetime import UTC
from typing import TYPE_CHECKING, Any, Final, Self

from connectors.delta.duckdb_tables import DuckDbTables
from connectors.delta.snapshot import Snapshot, open_snapshot
from connectors.delta.tables import TABLES, table_path
from connectors.delta.views import ENDS_ERA
from pipelines.report.period import Period
from pipelines.times import moment_text
from popstream.wire.base_errors import Invalid

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pipelines.report.report_data import Scope

__all__ = ["ENDS_LEASE", "INTERVAL", "IN_PERIOD", "STEPS", "ReportTables", "open_tables"]

_DATED: Final = ("operations", "deliveries", "commit_positions", "rejected")
"""Tables with rows of the period; of the others those from before count as well."""

_BEFORE_MS: Final = 86_400_000
"""A lease that began longer than this before the period is as one whose beginning the tables lack."""

STEPS: Final = f"""
    steps AS (
        SELECT hash(topic, queue_id, "group") AS lane, topic, queue_id, "group", step, cause, client_id, epoch, attempt,
               first_offset, last_offset, last_offset - first_offset + 1 AS messages, at_ms, kafka_offset, ordinal
        FROM deliveries
        WHERE now_ms < $until_ms AND {{scope}} AND NOT ({ENDS_ERA})
    )
"""  # noqa: S608 - constants
"""Steps of leases, each of a number of messages; `{scope}` is filled in by `ReportTables`."""

ENDS_LEASE: Final = (
    "step IN ('acked', 'expired', 'released', 'dead_lettered', 'expired_from_log') AND cause <> 'attempt_limit'"
)
"""SQL condition: a step that ends a lease. A dead letter at the attempt limit follows the step that did."""

IN_PERIOD: Final = "at_ms >= $since_ms AND at_ms < $until_ms"
INTERVAL: Final = "CAST((at_ms - $begin_ms) // $width_ms AS INTEGER)"
"""SQL: the number of the interval of `at_ms`, which is within the period."""

_SCOPE: Final = """(CAST($topic AS VARCHAR) IS NULL OR topic = $topic)
                   AND (CAST($group AS VARCHAR) IS NULL OR "group" = $group)"""
_TOPIC_SCOPE: Final = "(CAST($topic AS VARCHAR) IS NULL OR topic = $topic)"


class ReportTables:
    """The tables with a period and a scope, which are the values of `$since_ms`, `$group` and the like in queries.

    Args:
        tables: The open tables.
        period: The period.
        scope: What the report is asked about.
        known_since_ms: When the first row of the tables was decided.
    """

    def __init__(self, tables: DuckDbTables, period: Period, scope: Scope, known_since_ms: int) -> None:
        self._tables = tables
        self.period = period
        self.scope = scope
        self.known_since_ms = known_since_ms
        self._values: dict[str, object] = {
            "since_ms": period.since_ms,
            "until_ms": period.until_ms,
            "begin_ms": period.begin_ms,
            "width_ms": period.width_ms,
            "group": scope.group,
            "topic": scope.topic,
        }

    @property
    def versions(self) -> dict[str, int]:
        """The versions of the tables that there are."""
        return {name: found.version for name, found in self._tables.snapshots.items() if found.version >= 0}

    def rows(self, sql: str, **values: object) -> list[tuple[Any, ...]]:
        """Return the rows of a query, of which there have to be few. Raises duckdb.Error, as all that reads."""
        return list(self._tables.rows(*self._filled(sql, values)))

    def keep(self, name: str, sql: str) -> None:
        """Keep the rows of a query as a table."""
        self._tables.keep(name, *self._filled(sql, {}))

    def interrupt(self) -> None:
        """End the query that another thread runs."""
        self._tables.interrupt()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._tables.__exit__()

    def _filled(self, sql: str, values: Mapping[str, object]) -> tuple[str, dict[str, object]]:
        filled = sql.replace("{scope}", _SCOPE).replace("{topic_scope}", _TOPIC_SCOPE)
        return filled, {name: value for name, value in (self._values | dict(values)).items() if f"${name}" in filled}


def open_tables(delta_root: Path, scope: Scope) -> ReportTables:
    """Open the tables of a job at their newest versions, for the period that they know and that was asked for.

    A table that there is not counts as one without rows.

    Raises:
        Invalid: There are no tables, they have no rows yet, or none of the period.
        Corrupt: A file of a table is damaged or missing.
    """
    found = {name: _snapshot(delta_root, name) for name in TABLES}
    if all(snapshot.version < 0 for snapshot in found.values()):
        message = f"there are no tables in {delta_root}: has the job run here?"
        raise Invalid(message, subject=str(delta_root))
    known = _known(found)
    if known is None:
        message = f"the tables in {delta_root} have no rows yet: there is nothing to report"
        raise Invalid(message, subject=str(delta_root))
    period = _period(scope, known)
    tables = DuckDbTables(_of_period(snapshot, period) for snapshot in found.values())
    return ReportTables(tables, period, scope, known.since_ms)


def _snapshot(delta_root: Path, name: str) -> Snapshot:
    """Return a table with every column that it has today: those that an older version wrote may lack some."""
    path = table_path(delta_root, name)
    columns = {column.name: column.kind.value for column in TABLES[name].columns}
    if not (path / "_delta_log").is_dir():
        return Snapshot(path, -1, columns, (), [])
    snapshot = open_snapshot(path)
    return dataclasses.replace(snapshot, columns=columns | snapshot.columns)


def _known(found: Mapping[str, Snapshot]) -> Period | None:
    """Return the time of which the tables have decisions, by the statistics of their files; None: they have no rows."""
    bounds = [
        bound
        for name in _DATED
        for file in found[name].files
        for bound in (file.least.get("now_ms"), file.greatest.get("now_ms"))
        if bound is not None
    ]
    if bounds:
        return Period(min(bounds), max(bounds) + 1)
    with DuckDbTables(found[name] for name in _DATED) as tables:
        union = " UNION ALL ".join(f"SELECT now_ms FROM {name}" for name in _DATED)  # noqa: S608 - our names
        ((least, greatest),) = tables.rows(f"SELECT min(now_ms), max(now_ms) FROM ({union})")  # noqa: S608
    return None if least is None else Period(least, greatest + 1)


def _period(scope: Scope, known: Period) -> Period:
    asked_since = known.since_ms if scope.since_ms is None else scope.since_ms
    asked_until = known.until_ms if scope.until_ms is None else scope.until_ms
    if scope.since_ms is not None and scope.until_ms is not None and asked_since >= asked_until:
        message = "the period ends before it begins: --until has to be after --since"
        raise Invalid(message)
    if asked_since >= known.until_ms or asked_until <= known.since_ms:
        first, last = (moment_text(at_ms, UTC) for at_ms in (known[0], known[1] - 1))
        message = f"the tables have no rows of this period: they have rows from {first} to {last}, UTC"
        raise Invalid(message)
    return Period(max(asked_since, known.since_ms), min(asked_until, known.until_ms))


def _of_period(snapshot: Snapshot, period: Period) -> Snapshot:
    """Return a table with the files that matter. The position of a lane may have moved long before the period."""
    name = snapshot.path.name
    if name not in _DATED:
        return snapshot
    since_ms = None if name == "commit_positions" else period.since_ms - _BEFORE_MS
    files = [file for file in snapshot.files if file.may_have("now_ms", since_ms, period.until_ms - 1)]
    return dataclasses.replace(snapshot, files=files)
