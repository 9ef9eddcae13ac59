"""Which settings fit a group, judged by its leases. Pure: the same figures give the same recommendations."""

from collections.abc import Iterator

import msgspec

from pipelines.times import duration_text
from pipelines.tuning.lease_figures import CLIENT_MESSAGES_MIN, Figures
from popstream.wire.limits import INVISIBLE_TIME_MS_MAX

__all__ = ["ACKS_MIN", "FAILED_MIN", "Recommendation", "recommendations"]

ACKS_MIN = 1_000
"""Acks that a 99th percentile needs: ten are above it."""
FAILED_MIN = 20
"""Messages that came more than once, for attempts."""
PREFETCH_MAX = 10_000

_MARGIN = 1.5
"""An invisible time is this much longer than the 99th percentile of what is acked."""
_LONG, _LONG_MS_LEAST = 20, 60_000
"""It is too long when it is this much longer, and than a minute: after a kill messages wait for nothing."""
_STEPS_MS = [
    *(
        seconds * 1_000 for seconds in (3, 5, 10, 15, 20, 30, 45)
    ),  # shorter ones may end before the client learns of them
    *(minutes * 60_000 for minutes in (1, 2, 3, 5, 10, 15, 20, 30, 45)),
    *(hours * 3_600_000 for hours in (1, 2, 3, 6)),
    INVISIBLE_TIME_MS_MAX,
]
_ATTEMPTS_LEAST, _ATTEMPTS_SPARE = 3, 2
_DONE_SHARE = 0.999


class Recommendation(msgspec.Struct, frozen=True, kw_only=True):
    """A setting for a group in a topic.

    Attributes:
        setting: `invisible_time_ms`, `max_attempts` or `prefetch`.
        now: What it is, as far as the tables tell.
        proposed: What it should be; None: nothing is proposed.
        why: The reason, with the figures.
        sample: Number of acks, or messages, behind it.
        sql: The query that gives the figures.
    """

    setting: str
    now: int | None
    proposed: int | None
    why: str
    sample: int
    sql: str


def recommendations(figures: Figures) -> Iterator[Recommendation]:
    """Yield a recommendation for each setting."""
    yield _invisible_time(figures)
    yield _max_attempts(figures)
    yield _prefetch(figures)


def _invisible_time(figures: Figures) -> Recommendation:
    delays = figures.delays
    lease_ms, needed_ms = delays.lease_ms, max(_STEPS_MS[0], round(delays.p99_ms * _MARGIN))
    found = (
        f"half of the acks came within {duration_text(delays.p50_ms)} of the lease, 99 of 100 within"
        f" {duration_text(delays.p99_ms)}, the last after {duration_text(delays.max_ms)}; {delays.late:,} after the"
        f" lease had ended, and {delays.in_vain:,} in vain, for the message had been delivered again"
    )
    proposed: int | None = next((step for step in _STEPS_MS if step >= needed_ms), INVISIBLE_TIME_MS_MAX)
    if delays.acks < ACKS_MIN:
        proposed, why = None, f"not enough evidence: {delays.acks:,} acks, and {ACKS_MIN:,} are needed; {found}"
    elif delays.renewals:
        proposed, why = (
            None,
            (
                f"its clients renew leases ({delays.renewals:,} times), so that it only says how long the messages of a"
                f" killed client wait; {found}"
            ),
        )
    elif lease_ms is not None and needed_ms <= lease_ms <= max(needed_ms * _LONG, _LONG_MS_LEAST):
        proposed, why = lease_ms, f"it fits; {found}"
    else:
        is_short = lease_ms is None or lease_ms < needed_ms
        why = f"{'too short' if is_short else 'longer than needed: what a killed client held waits for it'}; {found}"
    return Recommendation(
        setting="invisible_time_ms", now=lease_ms, proposed=proposed, why=why, sample=delays.acks, sql=delays.sql
    )


def _max_attempts(figures: Figures) -> Recommendation:
    attempts = figures.attempts
    again = {attempt: count for attempt, count in attempts.acked.items() if attempt > 1}
    dead = sum(attempts.dead_letters.values())
    failed = sum(again.values()) + dead
    found = (
        f"of {failed:,} messages that failed once, {sum(again.values()):,} were acked later"
        + "".join(f", {count:,} at attempt {attempt}" for attempt, count in sorted(again.items())[:5])
        + f"; {dead:,} reached the limit; the highest attempt was {attempts.highest}"
    )
    proposed: int | None = None
    if failed < FAILED_MIN:
        why = f"not enough evidence: {FAILED_MIN} messages that came more than once are needed; {found}"
    elif not again:
        proposed, why = _ATTEMPTS_LEAST, f"no further attempt has helped; {found}"
    else:
        proposed = max(_ATTEMPTS_LEAST, _enough(again) + _ATTEMPTS_SPARE)
        why = f"further attempts help up to the one at which 99.9 % are acked, and {_ATTEMPTS_SPARE} to spare; {found}"
    limit = min(attempts.dead_letters, default=None)
    return Recommendation(
        setting="max_attempts", now=limit, proposed=proposed, why=why, sample=failed, sql=attempts.sql
    )


def _enough(again: dict[int, int]) -> int:
    """Return the attempt up to which nearly all are acked.

    >>> _enough({2: 900, 3: 100, 9: 1})
    3
    """
    left = sum(again.values()) * _DONE_SHARE
    for attempt, count in sorted(again.items()):
        left -= count
        if left <= 0:
            return attempt
    return max(again)


def _prefetch(figures: Figures) -> Recommendation:
    slowest, delays = figures.slowest, figures.delays
    if slowest is None or delays.lease_ms is None:
        why = f"not enough evidence: no client has acked {CLIENT_MESSAGES_MIN} messages"
        return Recommendation(setting="prefetch", now=None, proposed=None, why=why, sample=delays.acks, sql=delays.sql)
    lease_ms = delays.lease_ms
    proposed = max(1, min(PREFETCH_MAX, int(slowest.per_s * lease_ms / 1000 / 2)))
    why = (
        f"at most, so that the last one is acked when half of a lease of {duration_text(lease_ms)} is over: the slowest"
        f" of {slowest.clients:,} clients, {slowest.client_id}, acks {slowest.per_s:,} messages a second when busy"
    )
    return Recommendation(
        setting="prefetch", now=None, proposed=proposed, why=why, sample=slowest.messages, sql=slowest.sql
    )
