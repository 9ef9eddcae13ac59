"""Repeats work of a job that is due at all times, and retries it while it fails: the flush of audit rows to Delta."""

import threading
from collections.abc import Callable

import structlog
from py4j.protocol import Py4JNetworkError
from pyspark import InheritableThread

from broker_state.store.rocks_store import StoreStopped
from popstream.back_off import back_off_s
from popstream.wire.base_errors import is_transient

__all__ = ["RetryLoop"]

_log = structlog.get_logger(__name__)

RETRY_S = 1.0
RETRY_S_MAX = 30.0


class RetryLoop:
    """Calls `work` every `interval_s` seconds in its own thread, and once more when it stops.

    A transient error is logged, and the work is retried with exponential back-off, without limit. Any other error ends
    the thread, as does one of the store, which has to be reopened.

    Args:
        name: Name of the thread; with underscores, prefix of its log events.
        interval_s: Seconds between two calls. Longer: larger files and older tables.
        work: Called by one thread at a time.
        on_failure: Called once with the error that ended the thread.
        problem_prefix: First words of `problem`: what does not work while the work fails.

    Attributes:
        problem: Why the last call failed; None: it succeeded.
    """

    def __init__(
        self,
        name: str,
        interval_s: float,
        work: Callable[[], object],
        on_failure: Callable[[BaseException], None],
        *,
        problem_prefix: str,
    ) -> None:
        self._event_prefix = name.replace("-", "_")
        self._interval_s = interval_s
        self._work = work
        self._on_failure = on_failure
        self._problem_prefix = problem_prefix
        self._stopping = threading.Event()
        self.problem: str | None = None
        self._thread = InheritableThread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread, which waits for one interval first."""
        self._thread.start()

    def stop(self, limit_s: float | None = None) -> None:
        """Call the work once more, then end the thread. Waits no longer than a limit, if there is one."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(limit_s)

    def _pause_s(self, failures: int) -> float:
        return back_off_s(failures, first_s=RETRY_S, max_s=RETRY_S_MAX) if failures else self._interval_s

    def _run(self) -> None:
        failures = 0
        try:
            while not self._stopping.wait(self._pause_s(failures)):
                try:
                    self._work()
                except Exception as error:
                    # py4j raises errors of many types when Delta is away. A JVM that has ended does not come back.
                    if not is_transient(error) or isinstance(error, Py4JNetworkError | StoreStopped):
                        raise
                    failures += 1
                    self._note(error)
                    _log.warning(f"{self._event_prefix}_retried", failures=failures, error=str(error))
                else:
                    failures, self.problem = 0, None
            self._work()
        except BaseException as error:  # noqa: BLE001 - any error ends the job, which reports it
            self._note(error)
            _log.error(f"{self._event_prefix}_failed", error=str(error))
            self._on_failure(error)

    def _note(self, error: BaseException) -> None:
        self.problem = f"{self._problem_prefix}: {_first_line(error)}"


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:200]
