"""The time that a report is about, cut into intervals."""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = ["Period"]

_S, _MIN, _HOUR, _DAY = 1_000, 60_000, 3_600_000, 86_400_000
_WIDTHS_MS: Final = (
    *(_S, 2 * _S, 5 * _S, 10 * _S, 15 * _S, 30 * _S),
    *(_MIN, 2 * _MIN, 5 * _MIN, 10 * _MIN, 15 * _MIN, 30 * _MIN),
    *(_HOUR, 2 * _HOUR, 3 * _HOUR, 6 * _HOUR, 12 * _HOUR, _DAY, 7 * _DAY),
)
_INTERVALS_MAX: Final = 120


class Period(NamedTuple):
    """The time from `since_ms` on, up to but without `until_ms`; in ms since 1970.

    >>> period = Period(90_500, 200_000)
    >>> period.width_ms, period.begin_ms, period.intervals
    (1000, 90000, 110)
    >>> period.seconds(0), period.seconds(1)
    (0.5, 1.0)
    """

    since_ms: int
    until_ms: int

    @property
    def width_ms(self) -> int:
        """Length of an interval: a round one, so that there are 120 intervals at most."""
        length_ms = self.until_ms - self.since_ms
        for width_ms in _WIDTHS_MS:
            if length_ms <= width_ms * (_INTERVALS_MAX - 1):
                return width_ms
        weeks = -(-length_ms // (_WIDTHS_MS[-1] * (_INTERVALS_MAX - 1)))
        return _WIDTHS_MS[-1] * weeks

    @property
    def begin_ms(self) -> int:
        """Beginning of the first interval, which may be before the period."""
        return self.since_ms - self.since_ms % self.width_ms

    @property
    def intervals(self) -> int:
        """Number of intervals."""
        return -(-(self.until_ms - self.begin_ms) // self.width_ms)

    def start_ms(self, interval: int) -> int:
        """Return the beginning of an interval."""
        return self.begin_ms + interval * self.width_ms

    def seconds(self, interval: int) -> float:
        """Return how much of an interval is within the period: the first and the last one may be cut."""
        start_ms = max(self.start_ms(interval), self.since_ms)
        end_ms = min(self.start_ms(interval + 1), self.until_ms)
        return (end_ms - start_ms) / 1000
