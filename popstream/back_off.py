"""Exponential back-off: the pause between attempts of work that fails."""

__all__ = ["back_off_s"]

# A float overflows after 1,024 doublings.
DOUBLINGS_MAX = 32


def back_off_s(failures: int, *, first_s: float, max_s: float) -> float:
    """Return the seconds to wait after this number of failures in a row, from 1.

    >>> [back_off_s(failures, first_s=0.5, max_s=5) for failures in (1, 2, 3, 10_000)]
    [0.5, 1.0, 2.0, 5]
    """
    return min(first_s * float(1 << min(failures - 1, DOUBLINGS_MAX)), max_s)
