"""Whether a job that ended is started again in the same process, and when."""

from broker_state.errors import Corrupt, Fenced, Invalid

__all__ = ["BARREN_MAX", "Restarts", "may_pass"]

BARREN_MAX = 5
"""Restarts in a row after which nothing more was decided; then the process ends, for whoever started it to decide."""
PAUSE_S_MAX = 30.0


def may_pass(failure: BaseException) -> bool:
    """Whether the next job may do better, with nobody changing anything.

    >>> may_pass(OSError("no space left on device")), may_pass(Corrupt("the log begins after what is decided"))
    (True, False)
    """
    return isinstance(failure, Exception) and not isinstance(failure, Corrupt | Fenced | Invalid)


class Restarts:
    """Counts the jobs that ended; a start heals whatever the last one left, so it may be tried as often as it helps."""

    def __init__(self) -> None:
        self._barren = 0
        self._decided = -1

    def pause_s(self, failure: BaseException, apply_seq: int) -> float | None:
        """How long to wait before the next job; None: there shall be none.

        Args:
            failure: What ended the last one, or kept it from starting.
            apply_seq: Of the last micro-batch that was decided.

        >>> restarts, away = Restarts(), OSError("away")
        >>> [restarts.pause_s(away, 7) for _ in range(6)]
        [0.0, 1.0, 2.0, 4.0, 8.0, None]
        >>> restarts.pause_s(away, 8)
        0.0
        >>> print(restarts.pause_s(Corrupt("no state of this log"), 9))
        None
        """
        if not may_pass(failure):
            return None
        if apply_seq != self._decided:
            self._barren, self._decided = 0, apply_seq
        self._barren += 1
        if self._barren > BARREN_MAX:
            return None
        return 0.0 if self._barren == 1 else min(2.0 ** (self._barren - 2), PAUSE_S_MAX)
