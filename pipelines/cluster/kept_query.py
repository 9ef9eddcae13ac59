"""The queries of a job: how they end, and one that is started again when it fails."""

import threading
import time
from collections.abc import Callable

import structlog
from pyspark.sql.streaming.query import StreamingQuery

from connectors.delta.spark_errors import spark_text

__all__ = ["KeptQuery", "RunningQueries"]

_log = structlog.get_logger(__name__)

STOP_S = 20.0
DRAIN_S = 20.0
POLL_S = 0.05
PROGRESS_S = 1
PAUSE_S_MIN, PAUSE_S_MAX = 1.0, 60.0
STEADY_S = 120.0
"""A query that has run as long failed for another reason than the one before: the pauses begin anew."""


class KeptQuery:
    """A query that the job can do without for a while.

    When it fails, it is started again after a pause, and goes on with its checkpoint.

    Args:
        start: Starts the query.
        start_drain: Starts it so that it ends when it has taken what there is.
        name: For the log.
        queries: Those of the job.
    """

    def __init__(
        self,
        start: Callable[[], StreamingQuery],
        start_drain: Callable[[], StreamingQuery],
        name: str,
        queries: "RunningQueries",
    ) -> None:
        self._start = start
        self._start_drain = start_drain
        self._queries = queries
        self._name = name
        self._query: StreamingQuery | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kept-query", daemon=True)
        self._failure = ""
        self.failures = 0
        """How often it has failed."""

    @property
    def problem(self) -> str | None:
        """Why it does not run or has done nothing since it failed; None: it works."""
        return self._failure or None

    def start(self) -> None:
        """Start it, and the thread that watches it."""
        self._thread.start()

    def stop(self, *, drains: bool = False) -> None:
        """Stop both, or never start.

        Args:
            drains: Then let it take what there is, if that does not take long: who reads the checkpoint of the
                stopped job finds everything delivered. What stays, the next start takes.
        """
        self._stopping.set()
        if self._query is not None:
            self._queries.end(self._query)
        if self._thread.is_alive():
            self._thread.join(STOP_S)
        if drains and not (self._queries.are_over or self._thread.is_alive()):
            self._drain()

    def _drain(self) -> None:
        deadline_s = time.monotonic() + DRAIN_S
        try:
            query = self._queries.add(self._start_drain())
            while query.isActive and time.monotonic() < deadline_s and not self._queries.are_over:
                time.sleep(POLL_S)
            if query.isActive:
                _log.warning("query_not_drained", query=self._name, after_s=DRAIN_S)
                query.stop()
        except Exception as error:  # noqa: BLE001 - py4j raises errors of many types; what stays is taken later
            _log.warning("query_not_drained", query=self._name, error=spark_text(error))

    def _run(self) -> None:
        pause_s = PAUSE_S_MIN
        while not (self._stopping.is_set() or self._queries.are_over):
            began_s = time.monotonic()
            try:
                self._query = query = self._queries.add(self._start())
                if self._stopping.is_set():  # `stop` may have come before there was a query that it could end
                    self._queries.end(query)
                self._await(query)
            except Exception as error:  # noqa: BLE001 - whatever ends a query, its checkpoint says where to go on
                if self._stopping.is_set() or self._queries.are_over:
                    return
                self.failures += 1
                if time.monotonic() - began_s > STEADY_S:
                    pause_s = PAUSE_S_MIN
                self._failure = spark_text(error)
                _log.warning("query_failed", query=self._name, error=self._failure, again_in_s=pause_s)
            else:
                if self._stopping.is_set():
                    return
            self._stopping.wait(pause_s)
            pause_s = min(2 * pause_s, PAUSE_S_MAX)

    def _await(self, query: StreamingQuery) -> None:
        """Wait until a query ends. It works again once it has ended a micro-batch, or found nothing to do."""
        while self._failure and not query.awaitTermination(PROGRESS_S):
            if query.lastProgress is not None:
                self._failure = ""
        query.awaitTermination()


class RunningQueries:
    """The queries of a job. Safe to use from several threads."""

    def __init__(self) -> None:
        self._queries: list[StreamingQuery] = []
        self._lock = threading.Lock()
        self._over = threading.Event()

    @property
    def are_over(self) -> bool:
        """Whether `stop_at_once` was called: what is started after it is stopped."""
        return self._over.is_set()

    def add(self, query: StreamingQuery) -> StreamingQuery:
        """Take a query that was started; return it."""
        with self._lock:
            self._queries = [each for each in self._queries if each.isActive]
            self._queries.append(query)
        if self._over.is_set():
            query.stop()
        return query

    def end(self, query: StreamingQuery) -> None:
        """Stop a query between two micro-batches, if that does not take long: one in the middle would be repeated."""
        deadline_s = time.monotonic() + STOP_S
        while query.isActive and query.status["isTriggerActive"] and time.monotonic() < deadline_s:
            if self._over.wait(POLL_S):
                break
        query.stop()

    def stop_at_once(self) -> None:
        """Stop all queries in the middle of what they do, and wait until they have: the job may decide no more.

        None waits for another one: Spark stops a query only when what it has in flight has ended, such as a commit to
        a place that does not answer, and the next owner of the prefix begins within seconds.
        """
        self._over.set()
        with self._lock:
            queries = list(self._queries)
        stops = [threading.Thread(target=_stop, args=(query,), name="query-stop", daemon=True) for query in queries]
        for each in stops:
            each.start()
        for each in stops:
            each.join()


def _stop(query: StreamingQuery) -> None:
    try:
        query.stop()
    except Exception as error:  # noqa: BLE001 - py4j raises errors of many types
        _log.warning("query_not_stopped", query=query.name, error=spark_text(error))
