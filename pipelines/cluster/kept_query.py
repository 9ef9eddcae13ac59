"""Keeps a query running: when it fails, it is started again after a pause, and goes on with its checkpoint."""

import threading
import time
from collections.abc import Callable

import structlog
from pyspark.sql.streaming.query import StreamingQuery

from connectors.delta.spark_errors import spark_text

__all__ = ["KeptQuery", "stop_between_batches"]

_log = structlog.get_logger(__name__)

STOP_S = 20.0
PAUSE_S_MIN, PAUSE_S_MAX = 1.0, 60.0
STEADY_S = 120.0
"""A query that has run as long failed for another reason than the one before: the pauses begin anew."""


class KeptQuery:
    """A query that the job can do without for a while.

    Args:
        start: Starts the query.
        name: For the log.
    """

    def __init__(self, start: Callable[[], StreamingQuery], name: str) -> None:
        self._start = start
        self._name = name
        self._query: StreamingQuery | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kept-query", daemon=True)
        self.failures = 0
        """How often it has failed."""

    def start(self) -> None:
        """Start it, and the thread that watches it."""
        self._thread.start()

    def stop(self) -> None:
        """Stop both."""
        self._stopping.set()
        if self._query is not None:
            stop_between_batches(self._query)
        self._thread.join(STOP_S)

    def _run(self) -> None:
        pause_s = PAUSE_S_MIN
        while not self._stopping.is_set():
            began_s = time.monotonic()
            try:
                self._query = self._start()
                self._query.awaitTermination()
            except Exception as error:  # noqa: BLE001 - whatever ends a query, its checkpoint says where to go on
                if self._stopping.is_set():
                    return
                self.failures += 1
                if time.monotonic() - began_s > STEADY_S:
                    pause_s = PAUSE_S_MIN
                _log.warning("query_failed", query=self._name, error=spark_text(error), again_in_s=pause_s)
            else:
                if self._stopping.is_set():
                    return
            self._stopping.wait(pause_s)
            pause_s = min(2 * pause_s, PAUSE_S_MAX)


def stop_between_batches(query: StreamingQuery) -> None:
    """Stop a query between two micro-batches, if that does not take long: one in the middle would be repeated."""
    deadline_s = time.monotonic() + STOP_S
    while query.isActive and query.status["isTriggerActive"] and time.monotonic() < deadline_s:
        time.sleep(0.05)
    query.stop()
