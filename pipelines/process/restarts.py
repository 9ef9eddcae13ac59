"""Whether a job that ended is started again in the same process, and when."""

from popstream.wire.failures import Corrupt, Fenced, Invalid, Unavailable

__all__ = ["BARREN_MAX", "Restarts", "may_pass"]

BARREN_MAX = 5
"""Restarts in a row after which nothing more was decided; then the process ends, for whoever started it to decide."""
FORGIVEN_AFTER_S = 600.0
"""A job that ran for so long was well; what ended it has nothing to do with what ended those before it."""
ANSWER_S = 2.0


def may_pass(failure: BaseException) -> bool:
    """Whether the next job may do better, with nobody changing anything.

    >>> from broker_state.store.rocks_store import StoreStopped
    >>> may_pass(StoreStopped("no space left on device")), may_pass(Corrupt("the log begins after what is decided"))
    (True, False)
    """
    return isinstance(failure, Exception) and not isinstance(failure, Corrupt | Fenced | Invalid)


class Restarts:
    """Counts the jobs that ended; a start heals whatever the last one left, so it may be tried as often as it helps."""

    def __init__(self) -> None:
        self._barren = 0
        self._decided = -1

    def pause_s(self, failure: BaseException, apply_seq: int, ran_s: float = 0.0) -> float | None:
        """How long to wait before the next job; None: there shall be none.

        Args:
            failure: What ended the last one, or kept it from starting.
            apply_seq: Of the last micro-batch that was decided.
            ran_s: How long it had run; 0: it did not start. What is not there yet is then waited for, and not counted.

        >>> restarts, away = Restarts(), OSError("away")
        >>> [restarts.pause_s(away, 7, ran_s=9) for _ in range(6)]
        [0.0, 1.0, 2.0, 4.0, 8.0, None]
        >>> restarts.pause_s(away, 8, ran_s=9)
        0.0
        >>> restarts.pause_s(away, 8, ran_s=3_600), restarts.pause_s(Unavailable("no leader yet"), 8)
        (0.0, 2.0)
        >>> print(restarts.pause_s(Corrupt("no state of this log"), 9))
        None
        """
        if not may_pass(failure):
            return None
        if not ran_s and isinstance(failure, Unavailable):
            return ANSWER_S
        if apply_seq != self._decided or ran_s >= FORGIVEN_AFTER_S:
            self._barren, self._decided = 0, apply_seq
        self._barren += 1
        if self._barren > BARREN_MAX:
            return None
        return 0.0 if self._barren == 1 else 2.0 ** (self._barren - 2)
