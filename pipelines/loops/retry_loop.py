"""Work that a job does beside deciding and cannot do without: what is decided goes to Delta."""

import threading
from collections.abc import Callable

import structlog
from py4j.protocol import Py4JNetworkError
from pyspark import InheritableThread

from pipelines.process.restarts import may_pass

__all__ = ["Insistent"]

_log = structlog.get_logger(__name__)

RETRY_S = 0.5
RETRY_S_MAX = 30.0


class Insistent:
    """Calls `work` every `interval_s` seconds in a thread of its own, and at the end; it need not have much to do.

    After most of what it raises Delta may be back in a while: it is told, and tried again for as long as it takes.

    Args:
        name: Of the thread, and of the events that tell failures.
        interval_s: Longer: larger files and older tables.
        work: Called by one thread at a time.
        on_failure: Called once with what ended the thread.
        is_due: Whether to work now, if nothing has failed.

    Attributes:
        problem: Why Delta does not take what is decided, if it does not.
    """

    def __init__(
        self,
        name: str,
        interval_s: float,
        work: Callable[[], object],
        on_failure: Callable[[BaseException], None],
        is_due: Callable[[], bool] = lambda: True,
    ) -> None:
        self._name = name
        self._interval_s = interval_s
        self._work = work
        self._on_failure = on_failure
        self._is_due = is_due
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self.problem: str | None = None
        self._thread = InheritableThread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin, with a pause."""
        self._thread.start()

    def hurry(self) -> None:
        """Cut the pause short, but not the one after a failure."""
        if self.problem is None:
            self._wake.set()

    def stop(self) -> None:
        """Work once more, then end."""
        self._stopping.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        failures = 0
        try:
            while not self._stopping.is_set():
                self._wake.wait(_pause_s(failures) or self._interval_s)
                self._wake.clear()
                if self._stopping.is_set():
                    break
                if not failures and not self._is_due():
                    continue
                try:
                    self._work()
                except Exception as error:
                    # py4j raises what it likes, and Delta may be back in a while; a JVM that is gone will not.
                    if not may_pass(error) or isinstance(error, Py4JNetworkError):
                        raise
                    failures += 1
                    self.problem = _problem_of(error)
                    _log.warning(f"{self._name}_put_off", failures=failures, error=str(error))
                else:
                    failures, self.problem = 0, None
            self._work()
        except BaseException as error:  # noqa: BLE001 - whatever it is ends the job, which says what it was
            _log.error(f"{self._name}_failed", error=str(error))
            self._on_failure(error)


def _pause_s(failures: int) -> float:
    """How long to wait after so many failures in a row; 0: as long as ever.

    >>> [_pause_s(failures) for failures in (0, 1, 2, 9)]
    [0.0, 1.0, 2.0, 30.0]
    """
    return min(RETRY_S * 2**failures, RETRY_S_MAX) if failures else 0.0


def _problem_of(error: Exception) -> str:
    return f"Delta does not take what is decided: {(str(error) or type(error).__name__).splitlines()[0][:200]}"
