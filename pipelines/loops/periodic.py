"""Periodic work beside the job, which the job can do without."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

import structlog
from pyspark import InheritableThread

__all__ = ["Periodic"]

STOP_S_MAX = 10.0
FIRST_PAUSE_S_MIN = 60.0
"""Overdue work waits for this time after a start, which has more urgent work."""

_log = structlog.get_logger(__name__)


class Periodic:
    """Calls `work` every `interval_s` seconds in its own thread. An error is logged, and the next call is on schedule.

    Args:
        name: Name of the thread; with underscores, prefix of its log event.
        interval_s: Seconds between two calls; 0: never.
        work: The work.
        last_done: A folder that stores the time of the last call, so that restarts of the job do not change the
            schedule. None: each start begins with a whole interval.

    Attributes:
        failure: Why the last call failed; None: it succeeded.
    """

    def __init__(self, name: str, interval_s: float, work: Callable[[], object], last_done: Path | None = None) -> None:
        self._name = name
        self._interval_s = interval_s
        self._work = work
        self._done = None if last_done is None else last_done / name
        self._stopping = threading.Event()
        self.failure: str | None = None
        self._thread = InheritableThread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread, which waits first."""
        if self._interval_s:
            self._thread.start()

    @property
    def is_stopping(self) -> bool:
        """Whether work that has several parts should skip the rest."""
        return self._stopping.is_set()

    def stop(self) -> None:
        """End the thread. Waits at most 10 s for a call in progress."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(STOP_S_MAX)

    def _run(self) -> None:
        pause_s = self._first_pause_s()
        while not self._stopping.wait(pause_s):
            pause_s = self._interval_s
            try:
                self._work()
                if not self._stopping.is_set():  # otherwise parts may have been skipped
                    self._note()
            except Exception as error:  # noqa: BLE001 - py4j and file systems raise errors of many types
                self.failure = str(error)
                _log.error(f"{self._name.replace('-', '_')}_failed", error=str(error))
            else:
                self.failure = None

    def _first_pause_s(self) -> float:
        """Return the rest of the interval that began before this start."""
        if self._done is None:
            return self._interval_s
        try:
            if not self._done.exists():
                self._note()
            since_s = time.time() - self._done.stat().st_mtime
        except OSError as error:
            _log.warning("last_done_unreadable", path=str(self._done), error=str(error))
            return self._interval_s
        return min(self._interval_s, max(FIRST_PAUSE_S_MIN, self._interval_s - since_s))

    def _note(self) -> None:
        if self._done is not None:
            self._done.parent.mkdir(parents=True, exist_ok=True)
            self._done.touch()
