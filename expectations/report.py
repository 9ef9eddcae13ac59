"""The outcome of a validation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from expectations.scope import ALL_ROWS, Scope

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

__all__ = ["ExpectationResult", "QualityReport"]


@dataclass(frozen=True, slots=True)
class ExpectationResult:
    """The outcome of one expectation for one version of its table.

    Args:
        suite: Suite, named like its table.
        expectation: Name within the suite, in Great Expectations' spelling (`expect_...`).
        description: The rule as a sentence.
        table_version: Delta version of the table.
        success: Whether the rule holds.
        unexpected_count: Rows that violate it; -1: it could not be evaluated.
        sample: The first of those rows.
        error: Why it could not be evaluated; empty: it was.
    """

    suite: str
    expectation: str
    description: str
    table_version: int
    success: bool
    unexpected_count: int
    sample: Sequence[Mapping[str, object]]
    error: str = ""


@dataclass(frozen=True, slots=True)
class QualityReport:
    """The outcome of a run.

    Args:
        run_at: Time of the run.
        versions: Pinned Delta version of each table.
        outcomes: Every expectation, in the order of the suites.
        scope: What was judged: all rows, or those from a date on.
        judged: Number of judged rows by table.
        not_written: Why its results, or Data Docs, could not be written; usually empty.
    """

    run_at: datetime
    versions: Mapping[str, int]
    outcomes: Sequence[ExpectationResult]
    scope: Scope = ALL_ROWS
    judged: Mapping[str, int] = field(default_factory=dict)
    not_written: Sequence[str] = ()

    @property
    def failures(self) -> tuple[ExpectationResult, ...]:
        """The expectations that do not hold, or could not be evaluated."""
        return tuple(outcome for outcome in self.outcomes if not outcome.success)

    @property
    def expectations_failed(self) -> int:
        """The number of failures."""
        return len(self.failures)
