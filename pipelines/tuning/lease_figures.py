"""Figures about the leases of a group in a topic, each with the SQL that gives it: `popstream query` takes it.

A row of `deliveries` or `operations` is about neighbours that were leased or acked together: it counts once.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

__all__ = ["LANES_SQL", "AckDelays", "Attempts", "ClientRate", "Figures", "figures_of"]

Rows = Callable[[str], Iterator[tuple[Any, ...]]]
"""Runs a query."""

LANES_SQL = 'SELECT DISTINCT "group", topic FROM deliveries WHERE step = $$leased$$ ORDER BY ALL'


class AckDelays(msgspec.Struct, frozen=True, kw_only=True):
    """How long after its lease began a message was acked.

    Attributes:
        acks: Number of acks, in time or not.
        p50_ms: The median.
        p99_ms: 99 of 100 came within it.
        max_ms: The longest.
        late: Acks that came after the lease had ended, and before the message was delivered again.
        in_vain: Acks that came after it was delivered again; of leases that nobody changed.
        lease_ms: The most frequent length of a lease; None: there is no lease.
        leases: Number of leases.
        renewals: Number of changes that made a lease longer.
        sql: The query.
    """

    acks: int
    p50_ms: int
    p99_ms: int
    max_ms: int
    late: int
    in_vain: int
    lease_ms: int | None
    leases: int
    renewals: int
    sql: str


class Attempts(msgspec.Struct, frozen=True, kw_only=True):
    """At which attempt messages were done.

    Attributes:
        acked: Messages acked, by attempt.
        dead_letters: Messages that became dead letters at the attempt limit, by attempt.
        highest: The highest attempt of any delivery.
        sql: The query.
    """

    acked: dict[int, int]
    dead_letters: dict[int, int]
    highest: int
    sql: str


class ClientRate(msgspec.Struct, frozen=True, kw_only=True):
    """The client that acks the fewest messages a second while it is busy.

    Attributes:
        client_id: The client.
        messages: Messages that it acked.
        per_s: Messages a second, from its first ack on; gaps between its acks count as idle from the length of a lease
            on.
        clients: Number of clients with enough acks.
        sql: The query.
    """

    client_id: str
    messages: int
    per_s: float
    clients: int
    sql: str


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """All about a group in a topic. `slowest` None: no client has enough acks."""

    group: str
    topic: str
    delays: AckDelays
    attempts: Attempts
    slowest: ClientRate | None


CLIENT_MESSAGES_MIN = 100


def figures_of(rows: Rows, group: str, topic: str, since_ms: int | None) -> Figures:
    """Return the figures of a group in a topic, of leases that began at a time or later; None: of all.

    Raises:
        duckdb.Error: A query fails.
    """
    where = _lane("", group, topic)
    since = "" if since_ms is None else f" AND at_ms >= {since_ms}"
    delays_sql = _DELAYS.strip().format(
        where=where,
        of_ack=_lane("a.", group, topic),
        of_pop=_lane("p.", group, topic),
        since=since,
        pop_since=since.replace("at_ms", "p.now_ms"),
    )
    (delays,) = rows(delays_sql)
    acks, p50, p99, longest, late, in_vain, lease_ms, leases, renewals = delays
    attempts_sql = _ATTEMPTS.strip().format(where=where, since=since)
    by_attempt = list(rows(attempts_sql))
    return Figures(
        group=group,
        topic=topic,
        delays=AckDelays(
            acks=acks,
            p50_ms=round(p50 or 0),
            p99_ms=round(p99 or 0),
            max_ms=longest or 0,
            late=late,
            in_vain=in_vain,
            lease_ms=lease_ms,
            leases=leases,
            renewals=renewals,
            sql=delays_sql,
        ),
        attempts=Attempts(
            acked={attempt: int(count) for attempt, _, count, _ in by_attempt if count},
            dead_letters={attempt: int(count) for attempt, _, _, count in by_attempt if count},
            highest=max((attempt for attempt, *_ in by_attempt), default=0),
            sql=attempts_sql,
        ),
        slowest=None if lease_ms is None else _slowest(rows, where, since, lease_ms),
    )


def _slowest(rows: Rows, where: str, since: str, lease_ms: int) -> ClientRate | None:
    sql = _RATES.strip().format(where=where, since=since, lease_ms=lease_ms, least=CLIENT_MESSAGES_MIN)
    found: Sequence[tuple[Any, ...]] = list(rows(sql))
    if not found:
        return None
    client_id, messages, per_s = found[0]
    return ClientRate(
        client_id=client_id, messages=int(messages), per_s=round(float(per_s), 2), clients=len(found), sql=sql
    )


def _lane(alias: str, group: str, topic: str) -> str:
    return f'{alias}"group" = {_text(group)} AND {alias}topic = {_text(topic)}'


def _text(text: str) -> str:
    """Return a text as SQL that a shell takes between single quotes.

    >>> _text("billing"), _text("a$$b")
    ('$$billing$$', "'a$$b'")
    """
    doubled = text.replace("'", "''")
    return f"'{doubled}'" if "$$" in text or text.endswith("$") else f"$${text}$$"


_DELAYS = """
WITH leases AS (SELECT * FROM deliveries WHERE {where} AND step = $$leased$${since}),
acks AS (
  SELECT a.at_ms - l.at_ms AS ms, coalesce(a.deadline_ms <= a.at_ms, true) AS is_late, false AS in_vain
  FROM deliveries a JOIN leases l USING (queue_id, epoch)
  WHERE {of_ack} AND a.step = $$acked$$ AND a.first_offset BETWEEN l.first_offset AND l.last_offset
  UNION ALL
  SELECT a.now_ms - p.now_ms, true, true
  FROM operations a JOIN operations p ON a.handle_before = p.handle_after AND a.queue_id = p.queue_id
  WHERE {of_ack} AND a.kind = $$ack$$ AND a.reason IN ($$STALE_HANDLE$$, $$ALREADY_ACKED$$)
    AND {of_pop} AND p.kind = $$pop$$ AND a.first_offset BETWEEN p.first_offset AND p.last_offset
    AND a.now_ms > p.deadline_after_ms{pop_since}
)
SELECT count(*) AS acks, quantile_cont(ms, 0.5) AS p50_ms, quantile_cont(ms, 0.99) AS p99_ms, max(ms) AS max_ms,
  count(*) FILTER (is_late AND NOT in_vain) AS late, count(*) FILTER (in_vain) AS in_vain,
  (SELECT mode(deadline_ms - at_ms) FROM leases) AS lease_ms, (SELECT count(*) FROM leases) AS leases,
  (SELECT count(*) FROM deliveries WHERE {where} AND step = $$changed$${since}) AS renewals
FROM acks
"""

_ATTEMPTS = """
SELECT attempt, count(*) FILTER (step = $$leased$$) AS leases,
  coalesce(sum(last_offset - first_offset + 1) FILTER (step = $$acked$$), 0) AS acked,
  coalesce(sum(last_offset - first_offset + 1) FILTER (step = $$dead_lettered$$ AND cause = $$attempt_limit$$), 0)
    AS dead_letters
FROM deliveries WHERE {where} AND attempt > 0{since} GROUP BY attempt ORDER BY attempt
"""

_RATES = """
SELECT client_id, sum(messages) AS messages,
  sum(messages) FILTER (gap_ms IS NOT NULL)
    / greatest(sum(least(gap_ms, {lease_ms})) FILTER (gap_ms IS NOT NULL), 1) * 1000 AS per_s
FROM (
  SELECT client_id, sum(last_offset - first_offset + 1) AS messages,
    at_ms - lag(at_ms) OVER (PARTITION BY client_id ORDER BY at_ms) AS gap_ms
  FROM deliveries WHERE {where} AND step = $$acked$$ AND client_id IS NOT NULL{since} GROUP BY client_id, at_ms
)
GROUP BY client_id HAVING sum(messages) >= {least} AND count(gap_ms) > 0 ORDER BY per_s, client_id
"""
