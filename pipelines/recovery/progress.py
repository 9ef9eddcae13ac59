"""How far work in processes is, at which rate, and how long it will take; one line at intervals."""

import time
from collections.abc import Callable

import msgspec

from pipelines.times import duration_text

__all__ = ["Progress", "ProgressReport"]

INTERVAL_S = 5.0


class ProgressReport(msgspec.Struct, frozen=True, kw_only=True):
    """What is printed: a line of JSON with `--json`.

    Attributes:
        doing: What is being done.
        done: Records of the ops topic, and units, that are done.
        total: Of all to do.
        per_s: Per second, since this process began.
        seconds_left: An estimate; None: there is none yet.
    """

    doing: str
    done: int = 0
    total: int = 0
    per_s: int = 0
    seconds_left: int | None = None

    def __str__(self) -> str:
        """Return the line for people.

        >>> print(ProgressReport(doing="comparing", done=1_500, total=6_000, per_s=500, seconds_left=9))
        comparing: 1,500 of 6,000 (25 %), 500/s, 9 s left
        >>> print(ProgressReport(doing="reading the tables"))
        reading the tables
        """
        if not self.total:
            return self.doing
        left = f", {duration_text(1_000 * self.seconds_left)} left" if self.seconds_left else ""
        return (
            f"{self.doing}: {self.done:,} of {self.total:,} ({100 * self.done // self.total} %), {self.per_s:,}/s{left}"
        )


class Progress:
    """Collects what each process reports of its work, and passes it on every `INTERVAL_S`.

    Args:
        on_report: Called with each report.
        clock: Seconds of a monotonic clock.
    """

    def __init__(
        self, on_report: Callable[[ProgressReport], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._on_report = on_report
        self._clock = clock
        self._began: dict[str, tuple[float, int]] = {}
        """By work, when it was first heard of, and what was done then."""
        self._works: dict[str, tuple[int, int]] = {}
        self._reported_at = clock()

    def begin(self, doing: str) -> None:
        """Report at once that something without a measure begins."""
        self._on_report(ProgressReport(doing=doing))

    def note(self, work: str, doing: str, done: int, total: int) -> None:
        """Note how far a work is, and report if it is time."""
        now = self._clock()
        self._began.setdefault(work, (now, done))
        self._works[work] = (done, total)
        if now - self._reported_at >= INTERVAL_S:
            self._reported_at = now
            self._on_report(self.report(doing))

    def report(self, doing: str) -> ProgressReport:
        """Return how far all works are together. The slowest of them says when it will end."""
        now = self._clock()
        per_s, seconds_left = 0.0, None
        for work, (done, total) in self._works.items():
            began_at, before = self._began[work]
            if now > began_at and done > before:
                rate = (done - before) / (now - began_at)
                per_s += rate if done < total else 0
                seconds_left = max(seconds_left or 0, round((total - done) / rate))
        return ProgressReport(
            doing=doing,
            done=sum(done for done, _ in self._works.values()),
            total=sum(total for _, total in self._works.values()),
            per_s=round(per_s),
            seconds_left=seconds_left,
        )
