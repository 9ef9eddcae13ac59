"""The time that is left until a deadline."""

import time

__all__ = ["left_s"]


def left_s(deadline_s: float) -> float:
    """Return the seconds until a time of the monotonic clock, 0 when it is over.

    >>> left_s(time.monotonic() - 5), 4 < left_s(time.monotonic() + 5) <= 5
    (0.0, True)
    """
    return max(0.0, deadline_s - time.monotonic())
