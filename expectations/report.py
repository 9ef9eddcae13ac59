"""What a validation found, as values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

__all__ = ["Outcome", "Report"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one expectation on one version of its table.

    Args:
        suite: Suite, which is named like its table.
        expectation: Name within the suite, in Great Expectations' spelling (`expect_...`).
        description: The rule in a sentence.
        table_version: Delta version of the table.
        success: Whether it held.
        unexpected_count: Rows that broke it; -1 when it could not be evaluated.
        sample: The first of those rows.
        error: Why it could not be evaluated, else empty.
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
class Report:
    """A whole run.

    Args:
        run_at: When it ran.
        versions: Pinned Delta version of each table.
        outcomes: Every expectation, in the order of the suites.
    """

    run_at: datetime
    versions: Mapping[str, int]
    outcomes: Sequence[Outcome]

    @property
    def failures(self) -> tuple[Outcome, ...]:
        """The expectations that did not hold, or could not be evaluated."""
        return tuple(outcome for outcome in self.outcomes if not outcome.success)

    @property
    def expectations_failed(self) -> int:
        """How many expectations did not hold; for the metric of that name."""
        return len(self.failures)
