"""How a job ends: by its first failure, or because it is stopped."""

import threading

import structlog

from connectors.delta.spark_errors import SPARK_ERRORS, SparkError, spark_text

__all__ = ["JobEnd"]

_log = structlog.get_logger(__name__)


class JobEnd:
    """The end of a job; any thread may bring it about, and any may wait for it."""

    def __init__(self) -> None:
        self.failure: BaseException | None = None
        """The error that ended the job, if any."""
        self.is_stopping = False
        """While the job stops, errors of what it cancels are no failures."""
        self._event = threading.Event()

    def set(self) -> None:
        """Note that the job has ended; those who wait for it go on."""
        self._event.set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the job has ended or failed. False: it still runs after `timeout_s`."""
        return self._event.wait(timeout_s)

    def fail(self, error: BaseException) -> None:
        """End the job because a part that it needs has ended."""
        if self.failure is None:
            self.failure = SparkError(spark_text(error)) if isinstance(error, SPARK_ERRORS) else error
            _log.error("job_failed", error=str(self.failure), kind=type(error).__name__)
        self.set()

    def fail_unless_stopping(self, error: BaseException) -> None:
        """Likewise, unless the job stops."""
        if not self.is_stopping:
            self.fail(error)
