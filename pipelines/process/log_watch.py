"""Watches whether Kafka answers, whether the ops topic is unchanged, and how far the job lags behind it."""

import threading
import time
from collections.abc import Callable, Mapping

import structlog
from kafka import KafkaConsumer, TopicPartition

from checkpoints.reconcile import require_same_topic
from connectors.kafka.topic_admin import TopicFacts, describe, retention_ms
from pipelines.loops.periodic import Periodic
from popstream.kafka_connection import KafkaConnection
from popstream.wire.base_errors import Corrupt, Unavailable

__all__ = ["REQUEST_TIMEOUT_S", "LogWatch", "StallClock", "due_offsets"]

_log = structlog.get_logger(__name__)

INTERVAL_S = 2.0
REQUEST_TIMEOUT_S = 5.0
TOPIC_INTERVAL_S = 10.0


class StallClock:
    """Measures for how long records have waited without a decision.

    >>> clock = StallClock(60.0)
    >>> clock.look(0.0, lag=5, decided={0: 7}), clock.look(59.0, lag=6, decided={0: 7})
    (None, None)
    >>> clock.look(60.0, lag=6, decided={0: 7})
    'nothing has been decided for 60 s; records waiting: 6'

    Args:
        patience_s: How long records may wait; 0: for ever.
    """

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._decided: dict[int, int] | None = None
        self._moved_at_s = 0.0

    def look(self, now_s: float, *, lag: int, decided: Mapping[int, int]) -> str | None:
        """Return what to report; None while records are decided, or none waits, or they wait for a short time."""
        if not lag or decided != self._decided:
            self._decided, self._moved_at_s = dict(decided), now_s
        stalled_s = now_s - self._moved_at_s
        if not self._patience_s or stalled_s < self._patience_s:
            return None
        return f"nothing has been decided for {stalled_s:.0f} s; records waiting: {lag:,}"


def due_offsets(
    consumer: KafkaConsumer,
    end: Mapping[TopicPartition, int],
    keeps_ms: int | None,
    now_ms: float,
    *,
    share: float = 0.5,
) -> dict[TopicPartition, int]:
    """Return the first offsets that are younger than a share of the retention of their topic.

    Args:
        consumer: Asks Kafka.
        end: The ends of the partitions.
        keeps_ms: The retention; None: for ever, and nothing is due.
        now_ms: The time.
        share: The share of the retention.
    """
    due_ms = now_ms - (float("inf") if keeps_ms is None else keeps_ms) * share
    if due_ms < 0:
        return {}
    asked = dict.fromkeys(end, int(due_ms))
    younger = consumer.offsets_for_times(asked, timeout_ms=REQUEST_TIMEOUT_S * 1000)
    return {at: end[at] if first is None else first.offset for at, first in younger.items()}


class LogWatch:
    """Asks Kafka in its own threads: Spark and the producers retry for minutes before they report an outage.

    Args:
        connection: The Kafka of the job.
        ops: The ops topic.
        decided: Returns the next offset to decide, by partition.
        stall_s: Records that wait for longer while nothing is decided are a problem; 0: never.
        on_failure: Called with the error when the job cannot continue with this topic.
    """

    def __init__(
        self,
        connection: KafkaConnection,
        ops: TopicFacts,
        decided: Callable[[], Mapping[int, int]],
        stall_s: float,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._connection = connection
        self._ops = ops
        self._stall_clock = StallClock(stall_s)
        self._stall: str | None = None
        self._on_failure = on_failure
        self._partitions = [TopicPartition(ops.name, number) for number in range(ops.partition_count)]
        self._decided = decided
        self._stopping = threading.Event()
        self._problem: str | None = None
        self._away_since = 0.0
        self._lags: dict[int, int] = {}
        self._overdue = 0
        self._retention_ms: int | None = None
        self._thread = threading.Thread(target=self._run, name="log-watch", daemon=True)
        # In a thread of its own: during an outage these requests take longer than the other thread may.
        self._topic = Periodic("ops-topic-watch", TOPIC_INTERVAL_S, self._check_topic)

    @property
    def problem(self) -> str | None:
        """How long Kafka has not answered, or nothing was decided while records waited; None: neither."""
        if self._problem is None:
            return self._stall
        return f"Kafka has not answered for {time.monotonic() - self._away_since:.0f} s: {self._problem}"

    @property
    def lag(self) -> int:
        """Offsets of the ops topic that were not decided at the last request, control records included."""
        return sum(self._lags.values())

    @property
    def lags(self) -> dict[int, int]:
        """The same by partition; empty before the first request."""
        return dict(self._lags)

    @property
    def overdue(self) -> int:
        """Those of `lag` that were older than half of the topic's retention."""
        return self._overdue

    def start(self) -> None:
        """Start the threads."""
        self._thread.start()
        self._topic.start()

    def stop(self) -> None:
        """End the threads, within the time of one request."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        self._topic.stop()

    def _run(self) -> None:
        consumer = None
        while not self._stopping.is_set():
            asked_at = time.monotonic()
            try:
                if consumer is None:
                    consumer = KafkaConsumer(**self._connection.for_kafka_python(), enable_auto_commit=False)
                end = consumer.end_offsets(self._partitions, timeout_ms=REQUEST_TIMEOUT_S * 1000)
                lags = self._behind(end)
                lag = sum(lags.values())
                due = due_offsets(consumer, end, self._retention_ms, time.time() * 1000) if lag else {}
                overdue = sum(self._behind(due).values())
            except Exception as error:  # noqa: BLE001 - any error leaves the end of the log unknown
                if self._problem is None:
                    self._away_since = asked_at
                    _log.warning("kafka_unreachable", error=str(error))
                self._problem = str(error) or type(error).__name__
            else:
                if self._problem is not None:
                    _log.info("kafka_reachable", after_s=round(time.monotonic() - self._away_since, 1))
                self._problem, self._lags = None, lags
                self._set_stall(self._stall_clock.look(asked_at, lag=lag, decided=self._decided()))
                self._set_overdue(overdue)
            self._stopping.wait(INTERVAL_S)
        if consumer is not None:
            consumer.close(autocommit=False)

    def _behind(self, offsets: Mapping[TopicPartition, int]) -> dict[int, int]:
        """Return, by partition, the number of offsets below these that are not decided."""
        decided = self._decided()
        return {at.partition: max(0, offset - decided.get(at.partition, 0)) for at, offset in offsets.items()}

    def _set_stall(self, stall: str | None) -> None:
        if stall and not self._stall:
            _log.warning("nothing_decided", lag=self.lag)
        if self._stall and not stall:
            _log.info("deciding_again")
        self._stall = stall

    def _set_overdue(self, overdue: int) -> None:
        if overdue and not self._overdue:
            _log.warning("ops_overdue", records=overdue, retention_ms=self._retention_ms)
        if self._overdue and not overdue:
            _log.info("ops_no_longer_overdue")
        self._overdue = overdue

    def _check_topic(self) -> None:
        try:
            found = describe(self._connection, [self._ops.name]).get(self._ops.name)
            if found is not None:  # a deleted topic ends Spark's query
                before, now = ((facts.topic_id, facts.partition_count) for facts in (self._ops, found))
                require_same_topic(self._ops.name, before, now)
                # It can be changed while the job runs.
                self._retention_ms = retention_ms(self._connection, self._ops.name)
        except Corrupt as error:
            self._on_failure(error)
        except Unavailable:
            return  # the other thread reports it
