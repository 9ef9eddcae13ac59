"""Decides whether and when a job that failed is started again in the same process."""

from popstream.back_off import back_off_s
from popstream.wire.base_errors import Unavailable, is_transient

__all__ = ["NO_PROGRESS_MAX", "Restarts"]

NO_PROGRESS_MAX = 5
"""Restarts in a row without a new WriteBatch; after these the process ends and its supervisor decides."""
HEALTHY_AFTER_S = 600.0
"""A job that ran this long was healthy: its failure is unrelated to the failures before it."""
RESTART_S = 1.0
"""Pause before the second restart without progress; it doubles with each further one."""
NOT_STARTED_RETRY_S = 2.0
"""Pause after a start that failed because a service did not respond."""


class Restarts:
    """Counts failed jobs. Each start repairs what the last job left unfinished, so a retry is safe."""

    def __init__(self) -> None:
        self._no_progress = 0
        self._decided_seq = -1

    def pause_s(self, failure: BaseException, apply_seq: int, ran_s: float = 0.0) -> float | None:
        """Return the seconds to wait before the next job, or None when no other job may be started.

        Args:
            failure: What ended the last job, or kept it from starting.
            apply_seq: Number of the last WriteBatch.
            ran_s: Seconds that the last job ran; 0: it did not start. An `Unavailable` start is retried without limit.

        >>> restarts, away = Restarts(), OSError("away")
        >>> [restarts.pause_s(away, 7, ran_s=9) for _ in range(6)]
        [0.0, 1.0, 2.0, 4.0, 8.0, None]
        >>> restarts.pause_s(away, 8, ran_s=9)
        0.0
        >>> restarts.pause_s(away, 8, ran_s=3_600), restarts.pause_s(Unavailable("no leader yet"), 8)
        (0.0, 2.0)
        >>> from broker_state.store.rocks_store import StoreStopped
        >>> restarts.pause_s(StoreStopped("no space left on device"), 9, ran_s=1)
        0.0
        >>> from popstream.wire.base_errors import Corrupt
        >>> print(restarts.pause_s(Corrupt("no state of this log"), 9))
        None
        """
        if not is_transient(failure):
            return None
        if not ran_s and isinstance(failure, Unavailable):
            return NOT_STARTED_RETRY_S
        if apply_seq != self._decided_seq or ran_s >= HEALTHY_AFTER_S:
            self._no_progress, self._decided_seq = 0, apply_seq
        self._no_progress += 1
        if self._no_progress > NO_PROGRESS_MAX:
            return None
        if self._no_progress == 1:
            return 0.0
        return back_off_s(self._no_progress - 1, first_s=RESTART_S, max_s=HEALTHY_AFTER_S)
