"""Round numbers and moments for the axes of charts."""

from __future__ import annotations

import math
from datetime import datetime
from typing import TYPE_CHECKING, Final

from pipelines.times import time_of_day

if TYPE_CHECKING:
    from datetime import tzinfo

__all__ = ["durations", "moments", "number_text", "round_steps"]

_S, _MIN, _HOUR, _DAY = 1_000, 60_000, 3_600_000, 86_400_000
_STEPS_MS: Final = (
    *(1, 2, 5, 10, 20, 50, 100, 200, 500),
    *(_S, 2 * _S, 5 * _S, 10 * _S, 20 * _S, 30 * _S),
    *(_MIN, 2 * _MIN, 5 * _MIN, 10 * _MIN, 20 * _MIN, 30 * _MIN),
    *(_HOUR, 2 * _HOUR, 3 * _HOUR, 6 * _HOUR, 12 * _HOUR),
    *(days * _DAY for days in (1, 2, 7, 14, 30, 60, 180, 365)),
)


def moments(begin_ms: int, end_ms: int, zone: tzinfo) -> list[tuple[int, str]]:
    """Return round moments of a time, with their texts: as many as fit beside each other on a phone.

    >>> from datetime import UTC
    >>> moments(1_795_262_400_000, 1_795_262_441_000, UTC)[1:3]
    [(1795262410000, '12:00:10'), (1795262420000, '12:00:20')]
    >>> moments(1_795_262_400_010, 1_795_262_400_160, UTC)[0]
    (1795262400050, '12:00:00.050')
    """
    length_ms = end_ms - begin_ms
    step_ms = next(
        (step for step in _STEPS_MS if length_ms < step * _fitting(step, length_ms)),
        length_ms // (_fitting(_DAY, 0) - 1),
    )
    try:
        began = datetime.fromtimestamp(begin_ms / 1000, zone)
        datetime.fromtimestamp(end_ms / 1000, zone)
    except (ValueError, OverflowError, OSError):  # times of records are chosen by their producers
        return [(begin_ms, f"{begin_ms} ms since 1970")]
    offset_ms = round((began.utcoffset() or began - began).total_seconds() * 1000)
    first = -(-(begin_ms + offset_ms) // step_ms) * step_ms - offset_ms
    if step_ms >= _DAY:
        form = "%Y-%m-%d"
    elif length_ms > _DAY:
        form = "%m-%d %H:%M"
    else:
        form = "%H:%M:%S" if step_ms < _MIN else "%H:%M"
    found = range(first, end_ms, step_ms)
    if step_ms < _S:
        return [(at_ms, time_of_day(at_ms, zone)) for at_ms in found]
    return [(at_ms, datetime.fromtimestamp(at_ms / 1000, zone).strftime(form)) for at_ms in found]


def _fitting(step_ms: int, length_ms: int) -> int:
    """Return how many texts fit: a time of day is shorter than one with seconds, and that than one with its day."""
    if length_ms > _DAY or step_ms < _S:
        return 4
    return 5 if step_ms < _MIN else 7


def round_steps(greatest: float) -> list[float]:
    """Return round numbers from 0 on, the last one not below `greatest`, five or fewer.

    >>> round_steps(37), round_steps(0.9), round_steps(0)
    ([0, 10, 20, 30, 40], [0, 0.25, 0.5, 0.75, 1.0], [0, 1])
    """
    if greatest <= 0:
        return [0, 1]
    power = 10.0 ** math.floor(math.log10(greatest / 4))
    step = next(power * part for part in (1, 2, 2.5, 5, 10) if greatest <= power * part * 4)
    exact = int(step) if step == int(step) else step
    return [0, *(exact * number for number in range(1, math.ceil(greatest / step) + 1))]


def durations(least_ms: float, greatest_ms: float) -> list[float]:
    """Return round durations for a logarithmic axis, the first one not above `least_ms`, the last one not below.

    >>> durations(4, 2_500), durations(20_000, 50_000)
    ([1.0, 10.0, 100.0, 1000.0, 10000.0], [10000.0, 60000.0])
    """
    steps = [1, 10, 100, _S, 10 * _S, _MIN, 10 * _MIN, _HOUR, 10 * _HOUR, _DAY * 4]
    while steps[-1] < greatest_ms:
        steps.append(steps[-1] * 10)
    first = max((number for number, step in enumerate(steps) if step <= least_ms), default=0)
    last = next(number for number, step in enumerate(steps) if step >= greatest_ms)
    return [*map(float, steps[first : max(last, first + 1) + 1])]


def number_text(value: float) -> str:
    """Return a number as people read it.

    >>> number_text(0), number_text(0.25), number_text(1_234.5), number_text(2_500_000), number_text(12)
    ('0', '0.25', '1,234', '2.5 M', '12')
    """
    if abs(value) >= 1_000_000:
        return f"{value / 1_000_000:,.3g} M" if value < 1e9 else f"{value / 1_000_000:,.0f} M"
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 100 else f"{value:.3g}"
