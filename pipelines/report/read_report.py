"""Reads a report from the tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipelines.report.lane_pops import read_lane_leases, require_known
from pipelines.report.listed import (
    read_dead_letters,
    read_lanes,
    read_quality,
    read_redelivered,
    read_refusals,
    read_rejected,
    read_slowest,
)
from pipelines.report.report_data import Report, Totals
from pipelines.report.time_series import POPS, keep_pops, read_latencies, read_traffic
from pipelines.times import moment_text

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import tzinfo

    from pipelines.report.report_tables import ReportTables

__all__ = ["read_report"]


def read_report(tables: ReportTables, name: str, made_ms: int, zone: tzinfo) -> Report:
    """Return the report of a job; `name` says which.

    Raises:
        Invalid: The tables know nothing of what was asked for.
        duckdb.Error: They cannot be read, or would take more memory or disk than a query may.
    """
    require_known(tables)
    keep_pops(tables)
    latencies = read_latencies(tables)
    lanes, lanes_count, lag = read_lanes(tables)
    redelivered, redelivered_count = read_redelivered(tables)
    dead_letters, dead_letter_kinds = read_dead_letters(tables)
    refusals, refusal_kinds = read_refusals(tables)
    rejected, rejected_kinds = read_rejected(tables)
    lane = tables.scope.lane
    return Report(
        name=name,
        made_ms=made_ms,
        versions=tables.versions,
        scope=tables.scope,
        period=tables.period,
        notices=list(_notices(tables, zone)),
        traffic=read_traffic(tables),
        waiting=latencies["waiting"],
        handling=latencies["handling"],
        total=latencies["total"],
        lanes=lanes,
        slowest=read_slowest(tables),
        redelivered=redelivered,
        dead_letters=dead_letters,
        refusals=refusals,
        rejected=rejected,
        quality=read_quality(tables),
        totals=Totals(
            lanes=lanes_count,
            lag=lag,
            redelivered=redelivered_count,
            dead_letter_kinds=dead_letter_kinds,
            refusal_kinds=refusal_kinds + rejected_kinds,
        ),
        leases=None if lane is None else read_lane_leases(tables, lane),
    )


def _notices(tables: ReportTables, zone: tzinfo) -> Iterator[str]:
    known_since_ms, asked = tables.known_since_ms, tables.scope.since_ms
    since = moment_text(known_since_ms, zone)
    if asked is not None and asked < known_since_ms:
        yield f"The tables know nothing from before {since}: the report begins there."
    ((cut,),) = tables.rows(f"SELECT count(*) FROM {POPS} WHERE leased IS NULL")  # noqa: S608 - our name
    if cut and tables.period.since_ms == known_since_ms:
        yield (
            f"Leases of {cut:,} pops end in the tables and do not begin there: what came before {since} was deleted."
            " How long these took is not known."
        )
    if "consume_queue" not in tables.versions:
        yield "There is no table consume_queue: how long messages waited for their first delivery is not known."
