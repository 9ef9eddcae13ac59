"""Work that a running job does now and then, beside everything else."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

import structlog
from pyspark import InheritableThread

__all__ = ["Periodic"]

STOP_S_MAX = 10.0
FIRST_PAUSE_S_MIN = 60.0
"""A start has more urgent things to do."""

_log = structlog.get_logger(__name__)


class Periodic:
    """Calls `work` every `interval_s` seconds in a thread of its own; what it raises is told, and tried again.

    Args:
        name: Of the thread, and of the event that tells a failure.
        interval_s: 0: never.
        work: Whatever it is, the job does without it.
        last_done: A folder that remembers when it was last done: a job that is started again and again does it as
            often as one that runs. None: each start begins with a whole pause.

    Attributes:
        failure: Why the last time was none; None: it was.
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
        """Begin, with a pause."""
        if self._interval_s:
            self._thread.start()

    @property
    def is_stopping(self) -> bool:
        """Whether work that has parts should leave the rest."""
        return self._stopping.is_set()

    def stop(self) -> None:
        """End; what is under way is finished, unless it takes too long: nothing of the job waits for it."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(STOP_S_MAX)

    def _run(self) -> None:
        pause_s = self._first_pause_s()
        while not self._stopping.wait(pause_s):
            pause_s = self._interval_s
            try:
                self._work()
                if not self._stopping.is_set():  # else parts may have been left
                    self._note()
            except Exception as error:  # noqa: BLE001 - py4j and file systems raise what they like
                self.failure = str(error)
                _log.error(f"{self._name}_failed", error=str(error))
            else:
                self.failure = None

    def _first_pause_s(self) -> float:
        """What is left of the pause that an earlier start began."""
        if self._done is None:
            return self._interval_s
        if not self._done.exists():
            self._note()
        since_s = time.time() - self._done.stat().st_mtime
        return min(self._interval_s, max(FIRST_PAUSE_S_MIN, self._interval_s - since_s))

    def _note(self) -> None:
        if self._done is not None:
            self._done.parent.mkdir(parents=True, exist_ok=True)
            self._done.touch()
