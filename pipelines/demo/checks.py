"""Checks with which a demo ends, and how they are printed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

__all__ = ["Check", "checks_of", "failure_lines", "verdict_line"]

SAMPLES_MAX = 5


class Check(msgspec.Struct, frozen=True):
    """One claim, how often it does not hold, and examples of that."""

    name: str
    failures: int
    samples: list[str] = []


def checks_of(claims: Mapping[str, Iterable[str]]) -> list[Check]:
    """Return a check for each claim, of what contradicts it."""
    found = {name: [*findings] for name, findings in claims.items()}
    return [Check(name, len(samples), samples[:SAMPLES_MAX]) for name, samples in found.items()]


def failure_lines(checks: Iterable[Check]) -> Iterator[str]:
    """Yield the lines about checks that do not hold."""
    for check in checks:
        if check.failures:
            yield f"  FAILED: {check.name} ({check.failures} times)"
            yield from (f"    {sample}" for sample in check.samples)


def verdict_line(verdict: str, checks: int, failed: Sequence[Check]) -> str:
    """Return the last line.

    >>> verdict_line("ok", 7, [])
    'verdict: ok (7 of 7 checks hold)'
    """
    return f"verdict: {verdict} ({checks - len(failed)} of {checks} checks hold)"
