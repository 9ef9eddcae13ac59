"""Which settings are recommended for which figures."""

from __future__ import annotations

from typing import Any

import duckdb
import pytest

from pipelines.tuning.lease_figures import AckDelays, Attempts, ClientRate, Figures, figures_of
from pipelines.tuning.recommendation import Recommendation, recommendations


def advice(
    setting: str,
    *,
    acked: dict[int, int] | None = None,
    dead: dict[int, int] | None = None,
    per_s: float = 0,
    **delays: Any,
) -> Recommendation:
    known: dict[str, Any] = {
        "acks": 5_000,
        "p50_ms": 1_000,
        "p99_ms": 8_000,
        "max_ms": 60_000,
        "late": 3,
        "in_vain": 2,
        "lease_ms": 30_000,
        "leases": 5_000,
        "renewals": 0,
        "sql": "SELECT 1",
    }
    slowest = ClientRate(client_id="c", messages=500, per_s=per_s, clients=2, sql="SELECT 3") if per_s else None
    figures = Figures(
        group="g",
        topic="t",
        delays=AckDelays(**{**known, **delays}),
        attempts=Attempts(acked=acked or {}, dead_letters=dead or {}, highest=9, sql="SELECT 2"),
        slowest=slowest,
    )
    return next(each for each in recommendations(figures) if each.setting == setting)


@pytest.mark.parametrize(
    ("p99_ms", "lease_ms", "proposed", "why"),
    [
        (8_000, 30_000, 30_000, "it fits"),
        (25_000, 30_000, 45_000, "too short"),
        (40_000, 30_000, 60_000, "too short"),
        (30, 60_000, 60_000, "it fits"),
        (30, 1_000, 3_000, "too short"),
        (30, 600_000, 3_000, "longer than needed"),
        (40_000_000, 30_000, 43_200_000, "too short"),
    ],
)
def test_an_invisible_time_has_half_of_the_99th_percentile_to_spare(
    p99_ms: int, lease_ms: int, proposed: int, why: str
) -> None:
    found = advice("invisible_time_ms", p99_ms=p99_ms, lease_ms=lease_ms)
    assert (found.now, found.proposed, found.sample, found.sql) == (lease_ms, proposed, 5_000, "SELECT 1")
    assert found.why.startswith(why)
    assert "3 after the lease had ended, and 2 in vain" in found.why


def test_too_few_acks_and_renewed_leases_give_no_invisible_time() -> None:
    assert advice("invisible_time_ms", acks=999).proposed is None
    assert "999 acks, and 1,000 are needed" in advice("invisible_time_ms", acks=999).why
    renewed = advice("invisible_time_ms", p99_ms=90_000, renewals=7)
    assert (renewed.proposed, "renew leases (7 times)" in renewed.why) == (None, True)


@pytest.mark.parametrize(
    ("acked", "dead", "proposed", "now"),
    [
        ({1: 900, 2: 15, 3: 5}, {}, 5, None),
        ({1: 900, 2: 30}, {16: 4}, 4, 16),
        ({1: 900}, {16: 25}, 3, 16),
        ({1: 900, 2: 19}, {}, None, None),
        ({1: 900}, {}, None, None),
    ],
)
def test_attempts_go_as_far_as_they_help(
    acked: dict[int, int], dead: dict[int, int], proposed: int | None, now: int | None
) -> None:
    found = advice("max_attempts", acked=acked, dead=dead)
    assert (found.proposed, found.now, found.sql) == (proposed, now, "SELECT 2")
    assert ("not enough evidence" in found.why) == (proposed is None)


@pytest.mark.parametrize(("per_s", "proposed"), [(0.01, 1), (2.5, 37), (5_000, 10_000)])
def test_a_prefetch_is_done_when_half_of_the_lease_is_over(per_s: float, proposed: int) -> None:
    found = advice("prefetch", per_s=per_s)
    assert (found.proposed, found.sample, found.sql) == (proposed, 500, "SELECT 3")


def test_no_busy_client_gives_no_prefetch() -> None:
    found = advice("prefetch")
    assert (found.proposed, "no client has acked 100 messages" in found.why) == (None, True)


def test_the_slowest_client_is_that_with_the_fewest_messages_a_second_whatever_its_number_of_acks() -> None:
    """Of a client with one ack nothing is known: how long it took for it."""
    with duckdb.connect() as tables:
        tables.execute("CREATE TABLE operations (handle_before TEXT, handle_after TEXT, queue_id INT, reason TEXT,"
                       ' "group" TEXT, topic TEXT, kind TEXT, first_offset INT, last_offset INT, now_ms BIGINT,'
                       " deadline_after_ms BIGINT)")  # fmt: skip
        tables.execute(
            "CREATE TABLE deliveries AS WITH acks AS ("
            " SELECT 'fast' AS client_id, i AS first_offset, i AS last_offset, i * 20 AS at_ms FROM range(101) AS t(i)"
            " UNION ALL SELECT 'slow', i + 1_000, i + 1_000, i * 100 FROM range(2_000) AS t(i)"
            " UNION ALL SELECT 'once', 5_000, 5_200, 7 FROM range(1) AS t(i))"
            """ SELECT *, 'g' AS "group", 't' AS topic, 0 AS queue_id, 'acked' AS step, 'ack' AS cause, 1 AS attempt,"""
            " 0 AS epoch, at_ms + 30_000 AS deadline_ms FROM acks"
            " UNION ALL SELECT 'fast', 0, 9_999, 0, 'g', 't', 0, 'leased', 'pop', 1, 0, 30_000"
        )
        found = figures_of(lambda sql: iter(tables.execute(sql).fetchall()), "g", "t", None).slowest
    assert found is not None
    assert (found.client_id, found.messages, found.per_s, found.clients) == ("slow", 2_000, 10.0, 2)
