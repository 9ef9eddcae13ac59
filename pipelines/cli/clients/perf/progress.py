"""How far a load is, in a line."""

from collections.abc import Collection
from typing import NamedTuple

from pipelines.cli.clients.perf.ledger import GroupLedger, quantiles_of
from pipelines.cli.clients.perf.plan import Plan

__all__ = ["Progress", "progress_line"]

NEWEST = 1_000
"""Messages of a group whose times until delivery are shown."""


class Progress(NamedTuple):
    """How far a load is.

    Attributes:
        at_s: When, as `time.monotonic`.
        sent: Messages that are sent.
        consumed: Messages that all workers got.
    """

    at_s: float
    sent: int
    consumed: int


def progress_line(plan: Plan, before: Progress, now: Progress, ledgers: Collection[GroupLedger]) -> str:
    """Return what was sent and consumed, the rates since `before`, and how soon the newest messages were delivered."""
    passed_s = now.at_s - before.at_s
    parts = [
        f"{now.sent:,} sent, {(now.sent - before.sent) / passed_s:,.0f} a second",
        f"{now.consumed:,} consumed, {(now.consumed - before.consumed) / passed_s:,.0f} a second",
    ]
    if plan.rate and (times := quantiles_of([ms for each in ledgers for ms in each.newest_delivery_times_ms(NEWEST)])):
        parts.append(f"from due to delivered p50 {times['p50']:,.0f} ms, p99 {times['p99']:,.0f} ms")
    return "; ".join(parts)
