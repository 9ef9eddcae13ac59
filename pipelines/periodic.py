"""Work that a running job does now and then, beside everything else."""

import threading
from collections.abc import Callable

import structlog
from pyspark import InheritableThread

__all__ = ["Periodic"]

STOP_S_MAX = 10.0

_log = structlog.get_logger(__name__)


class Periodic:
    """Calls `work` every `interval_s` seconds in a thread of its own; what it raises is told, and tried again.

    Args:
        name: Of the thread, and of the event that tells a failure.
        interval_s: 0: never.
        work: Whatever it is, the job does without it.

    Attributes:
        failure: Why the last time was none; None: it was.
    """

    def __init__(self, name: str, interval_s: float, work: Callable[[], object]) -> None:
        self._name = name
        self._interval_s = interval_s
        self._work = work
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
        while not self._stopping.wait(self._interval_s):
            try:
                self._work()
            except Exception as error:  # noqa: BLE001 - py4j and file systems raise what they like
                self.failure = str(error)
                _log.error(f"{self._name}_failed", error=str(error))
            else:
                self.failure = None
