"""A query that is the job: its end ends the job. It is stopped for as long as what it decides could be lost."""

import threading
from collections.abc import Callable

import structlog
from pyspark.sql.streaming.query import StreamingQuery

from pipelines.cluster.kept_query import STOP_S, RunningQueries

__all__ = ["HeldBackQuery"]

_log = structlog.get_logger(__name__)

LOOK_S = 1


class HeldBackQuery:
    """Back-pressure on a query: the sources of Spark have none that may change while it runs.

    Args:
        name: For the log.
        start: Starts the query, to go on with its checkpoint.
        is_held_back: Whether it must not run now. Asked every second.
        queries: Those of the job.
        on_end: Called when the query has ended by itself, with the error, or None.
        after_stop: Called when the query was stopped, each time.
    """

    def __init__(
        self,
        name: str,
        start: Callable[[], StreamingQuery],
        is_held_back: Callable[[], bool],
        queries: RunningQueries,
        on_end: Callable[[BaseException | None], None],
        after_stop: Callable[[], None] = lambda: None,
    ) -> None:
        self._name = name
        self._start = start
        self._is_held_back = is_held_back
        self._queries = queries
        self._on_end = on_end
        self._after_stop = after_stop
        self._query: StreamingQuery | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="held-back-query", daemon=True)

    @property
    def is_starting(self) -> bool:
        """Whether it runs, and has neither ended a micro-batch nor found nothing to do yet."""
        query = self._query
        return query is not None and query.lastProgress is None

    def start(self) -> None:
        """Start the query, unless it is held back, and the thread that watches it. Raises what `start` raises."""
        if self._is_held_back():
            _log.warning("query_held_back", query=self._name)
        else:
            self._query = self._queries.add(self._start())
        self._thread.start()

    def stop(self) -> None:
        """Stop both."""
        self._stopping.set()
        if (query := self._query) is not None:  # the thread may be stopping it as well
            self._queries.end(query)
        self._thread.join(STOP_S)
        self._after_stop()

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                if self._query is None:
                    self._wait()
                elif self._query.awaitTermination(LOOK_S):
                    self._on_end(None)
                    return
                elif self._is_held_back():
                    _log.warning("query_held_back", query=self._name)
                    self._queries.end(self._query)
                    self._after_stop()
                    self._query = None
        except Exception as error:  # noqa: BLE001 - py4j raises errors of many types; the job has ended either way
            self._on_end(error)

    def _wait(self) -> None:
        """Start the query if nothing holds it back any more; else wait for a second."""
        if self._is_held_back():
            self._stopping.wait(LOOK_S)
            return
        _log.info("query_goes_on", query=self._name)
        self._query = self._queries.add(self._start())
        if self._stopping.is_set():  # `stop` may have come before there was a query that it could end
            self._queries.end(self._query)
