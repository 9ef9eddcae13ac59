"""Figures by interval: how many messages went where, how many were in flight, and how long it took."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Final

from broker_state.audit import HANDLER_CAUSE
from connectors.delta.views import ENDS_ERA
from pipelines.report.report_data import Latency, Quantiles, Traffic
from pipelines.report.report_tables import ENDS_LEASE, IN_PERIOD, INTERVAL, STEPS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pipelines.report.report_tables import ReportTables

__all__ = ["POPS", "RESET_POPS", "keep_pops", "read_latencies", "read_traffic"]

POPS: Final = "pops"
"""A kept table: of each pop of a lane when it began, how many messages it leased, how many leases ended, and when."""

_POPS: Final = f"""
    WITH {STEPS}
    SELECT lane, epoch, min(at_ms) FILTER (step = 'leased') AS began_ms,
           sum(messages) FILTER (step = 'leased') AS leased,
           coalesce(sum(messages) FILTER ({ENDS_LEASE}), 0) AS ended,
           max(at_ms) FILTER ({ENDS_LEASE}) AS ended_ms
    FROM steps GROUP BY lane, epoch
"""  # noqa: S608 - constants

RESET_POPS: Final = "reset_pops"
"""A kept table: of each pop of which the end of an era ended leases, how many, and when."""

# Epochs go on through eras: a pop is of the first one that ended at its epoch or a later one.
_RESET_POPS: Final = f"""
    WITH eras AS (
        SELECT hash(topic, queue_id, "group") AS lane, epoch, min(at_ms) AS reset_ms FROM deliveries
        WHERE now_ms < $until_ms AND {{scope}} AND {ENDS_ERA} GROUP BY topic, queue_id, "group", epoch
    )
    SELECT held.lane, held.epoch, reset_ms, leased - ended AS messages
    FROM (SELECT * FROM {POPS} WHERE leased > ended) AS held
    ASOF JOIN eras ON held.lane = eras.lane AND held.epoch <= eras.epoch
"""  # noqa: S608

_TRAFFIC: Final = f"""
    WITH {STEPS}
    SELECT {INTERVAL} AS interval_no,
           sum(messages) FILTER (step = 'leased') AS delivered,
           sum(messages) FILTER (step = 'leased' AND attempt > 1) AS redelivered,
           sum(messages) FILTER (step = 'acked') AS done,
           sum(messages) FILTER (step = 'dead_lettered') AS dead,
           sum(messages) FILTER (step = 'expired') AS expired,
           sum(messages) FILTER (step = 'released' AND starts_with(cause, '{HANDLER_CAUSE}')) AS failed,
           sum(messages) FILTER (step = 'released' AND cause = 'change_invisible') AS released_by_client,
           sum(messages) FILTER (step = 'released' AND cause <> 'change_invisible'
                                 AND NOT starts_with(cause, '{HANDLER_CAUSE}')) AS released_otherwise
    FROM steps WHERE {IN_PERIOD} GROUP BY interval_no
"""  # noqa: S608 - constants
_TRAFFIC_COLUMNS: Final = (
    *("delivered", "redelivered", "done", "dead"),
    *("expired", "failed", "released_by_client", "released_otherwise"),
)

_POPPABLE: Final = f"""
    SELECT {INTERVAL} AS interval_no, sum(to_offset - from_offset)
    FROM (SELECT now_ms AS at_ms, from_offset, to_offset FROM commit_positions
          WHERE "group" IS NULL AND to_offset > from_offset AND {{topic_scope}})
    WHERE {IN_PERIOD} GROUP BY interval_no
"""  # noqa: S608

# A message may end twice, as one that is acked after its lease has expired: what exceeds its pop is added again at the
# end of the pop. What the tables lack the beginning of was in flight from the first. The end of an era ends the rest.
_IN_FLIGHT: Final = f"""
    WITH {STEPS},
    changes AS (
        SELECT at_ms, messages AS change FROM steps WHERE step = 'leased'
        UNION ALL
        SELECT at_ms, -messages FROM steps WHERE {ENDS_LEASE}
        UNION ALL
        SELECT ended_ms, ended - leased FROM {POPS} WHERE ended > leased
        UNION ALL
        SELECT $begin_ms - 1, ended FROM {POPS} WHERE leased IS NULL
        UNION ALL
        SELECT reset_ms, -messages FROM {RESET_POPS}
    )
    SELECT CASE WHEN at_ms < $begin_ms THEN -1 ELSE {INTERVAL} END AS interval_no, CAST(sum(change) AS BIGINT)
    FROM changes WHERE at_ms < $until_ms GROUP BY interval_no
"""  # noqa: S608

_BIN_RATIO: Final = 1.02
"""Durations whose ratio is smaller than this are counted together."""
_BIN: Final = f"CAST(floor(ln(greatest(took_ms, 0) + 1) / ln({_BIN_RATIO})) AS INTEGER)"

_HANDLING: Final = f"""
    WITH {STEPS}
    SELECT 'handling', {INTERVAL} AS interval_no, {_BIN} AS bin, sum(messages)
    FROM (SELECT at_ms, at_ms - began_ms AS took_ms, messages FROM steps JOIN {POPS} USING (lane, epoch)
          WHERE step = 'acked' AND began_ms IS NOT NULL AND {IN_PERIOD})
    GROUP BY interval_no, bin
"""  # noqa: S608

# A range counts by its first message. Of a topic that was recreated only the present messages have a time.
_SINCE_POPPABLE: Final = f"""
    WITH {STEPS},
    present AS (SELECT topic, queue_id, arg_max(topic_id, build_seq) AS topic_id FROM consume_queue
                WHERE {{topic_scope}} GROUP BY topic, queue_id),
    units AS (
        SELECT topic, queue_id, queue_offset, greatest(store_time_ms, coalesce(deliver_at_ms, 0)) AS ready_ms
        FROM consume_queue JOIN present USING (topic, queue_id, topic_id)
    )
    SELECT CASE step WHEN 'acked' THEN 'total' ELSE 'waiting' END AS kind, {INTERVAL} AS interval_no, {_BIN} AS bin,
           sum(messages)
    FROM (SELECT step, at_ms, at_ms - ready_ms AS took_ms, messages
          FROM (SELECT * FROM steps WHERE {IN_PERIOD} AND (step = 'acked' OR step = 'leased' AND attempt = 1)) AS found
          JOIN units ON units.topic = found.topic AND units.queue_id = found.queue_id
          AND units.queue_offset = found.first_offset AND ready_ms <= at_ms)
    GROUP BY kind, interval_no, bin
"""  # noqa: S608


def keep_pops(tables: ReportTables) -> None:
    """Keep the tables `POPS` and `RESET_POPS`, which others of these queries read."""
    tables.keep(POPS, _POPS)
    tables.keep(RESET_POPS, _RESET_POPS)


def read_traffic(tables: ReportTables) -> Traffic:
    """Return the messages by interval."""
    count = tables.period.intervals
    columns = {name: [0] * count for name in _TRAFFIC_COLUMNS}
    for number, *values in tables.rows(_TRAFFIC):
        for name, value in zip(_TRAFFIC_COLUMNS, values, strict=True):
            columns[name][number] = int(value or 0)
    poppable = [0] * count
    for number, value in tables.rows(_POPPABLE):
        poppable[number] = int(value)
    return Traffic(poppable=poppable, in_flight=_in_flight(tables), **columns)


def _in_flight(tables: ReportTables) -> list[int]:
    changes = dict(tables.rows(_IN_FLIGHT))
    now = changes.get(-1, 0)
    found = []
    for number in range(tables.period.intervals):
        now += changes.get(number, 0)
        found.append(max(0, now))
    return found


def read_latencies(tables: ReportTables) -> dict[str, Latency]:
    """Return how long messages took: `waiting` until they were delivered, `handling`, and in `total`."""
    counts: dict[tuple[str, int], Counter[int]] = defaultdict(Counter)
    for kind, number, bin_no, messages in [*tables.rows(_HANDLING), *tables.rows(_SINCE_POPPABLE)]:
        counts[kind, number][bin_no] += int(messages)
    return {kind: _latency(kind, counts, tables.period.intervals) for kind in ("waiting", "handling", "total")}


def _latency(kind: str, counts: Mapping[tuple[str, int], Counter[int]], count: int) -> Latency:
    intervals = [counts.get((kind, number), Counter()) for number in range(count)]
    return Latency(_quantiles(sum(intervals, Counter())), [_quantiles(each) for each in intervals])


def _quantiles(bins: Mapping[int, int]) -> Quantiles:
    if not bins:
        return Quantiles()
    return Quantiles(*(_quantile(sorted(bins.items()), share) for share in (0.5, 0.95, 0.99)))


def _quantile(bins: Sequence[tuple[int, int]], share: float) -> float:
    """Return the duration that a share of those in the bins do not exceed.

    >>> round(_quantile([(0, 98), (348, 2)], 0.5)), round(_quantile([(0, 98), (348, 2)], 0.99))
    (0, 992)
    """
    wanted = math.ceil(share * sum(messages for _, messages in bins))
    for bin_no, messages in bins:
        wanted -= messages
        if wanted <= 0:
            return float(_BIN_RATIO ** (bin_no + 0.5)) - 1
    return 0.0
