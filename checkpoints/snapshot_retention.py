"""Which snapshots are kept: the newest by number, and the last of each hour, day and week."""

from collections.abc import Collection

import msgspec

__all__ = ["SnapshotRetention"]

_HOUR_MS = 3_600_000
_DAY_MS = 24 * _HOUR_MS
_WEEK_MS = 7 * _DAY_MS
_FIRST_MONDAY_MS = 4 * _DAY_MS
"""1 January 1970 was a Thursday."""


class SnapshotRetention(msgspec.Struct, frozen=True, kw_only=True):
    """The rule, like `--keep-last`, `--keep-hourly`, `--keep-daily` and `--keep-weekly` of restic.

    Hours, days and weeks are those of UTC; those without a snapshot do not count. A snapshot may be kept by several
    parts of the rule, so fewer are kept than the sum.

    Attributes:
        newest: Number of newest snapshots.
        hourly: Number of hours of which the last snapshot is kept.
        daily: Number of days, likewise.
        weekly: Number of weeks, from Monday on, likewise.
    """

    newest: int
    hourly: int = 0
    daily: int = 0
    weekly: int = 0

    def kept(self, taken_at_ms: Collection[int]) -> set[int]:
        """Return the times of the snapshots to keep.

        >>> hour = 3_600_000
        >>> quarters = [hour * quarter // 4 for quarter in range(13)]
        >>> [time / hour for time in sorted(SnapshotRetention(newest=2, hourly=3).kept(quarters))]
        [1.75, 2.75, 3.0]
        """
        newest_first = sorted(taken_at_ms, reverse=True)
        kept = set(newest_first[: self.newest])
        for count, period_ms in ((self.hourly, _HOUR_MS), (self.daily, _DAY_MS), (self.weekly, _WEEK_MS)):
            last_of: dict[int, int] = {}
            for time_ms in newest_first:
                last_of.setdefault((time_ms - _FIRST_MONDAY_MS) // period_ms, time_ms)
            kept.update(list(last_of.values())[:count])
        return kept

    def age_ms_max(self, interval_ms: int) -> int:
        """Return the age of the oldest kept snapshot at most, if one is taken every `interval_ms`.

        >>> SnapshotRetention(newest=4, daily=7).age_ms_max(900_000) / 86_400_000
        7.0
        """
        parts = ((self.newest, 0), (self.hourly, _HOUR_MS), (self.daily, _DAY_MS), (self.weekly, _WEEK_MS))
        return max(count * max(period_ms, interval_ms) for count, period_ms in parts)
