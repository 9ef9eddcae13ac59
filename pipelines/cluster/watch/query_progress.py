"""What the queries of a job on a cluster do, from the progress that Spark reports after each micro-batch."""

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple, Protocol

from pipelines.control.cluster_report import QueryReport
from pipelines.control.micro_batch_history import POINTS_MAX, RatePoint

__all__ = ["Progress", "ProgressWatch", "ReportingQuery", "skew_of"]

_MS_PER_S = 1_000


class ReportingQuery(Protocol):
    """A query of Spark."""

    @property
    def name(self) -> str | None:
        """Its name."""

    @property
    def lastProgress(self) -> Any:  # noqa: N802, ANN401 - Spark's name, and a mapping
        """What its last micro-batch did, or None."""


class Progress(NamedTuple):
    """A micro-batch of a query.

    Attributes:
        spark_batch_id: Its number.
        records: Records that it read.
        step_ms: Milliseconds by step, as Spark names them.
        at_ms: When it began, in ms since 1970.
        ends: By partition of the topic, the offset after its last record.
        lags: By partition, the records behind it when it was planned.
        state_keys: Keys of the state, in all shards; None: the query has none.
        state_bytes: Memory of the state store, in all executors; None likewise.
    """

    spark_batch_id: int
    records: int
    step_ms: dict[str, int]
    at_ms: int
    ends: dict[int, int]
    lags: dict[int, int]
    state_keys: int | None
    state_bytes: int | None

    @classmethod
    def of(cls, reported: Mapping[str, Any]) -> "Progress":
        """Return what Spark has reported."""
        ends: dict[int, int] = {}
        lags: dict[int, int] = {}
        for source in reported["sources"]:
            read, latest = (_offsets(source[field]) for field in ("endOffset", "latestOffset"))
            for topic, partitions in latest.items():
                for partition, end in partitions.items():
                    ends[int(partition)] = read.get(topic, {}).get(partition, 0)
                    lags[int(partition)] = max(0, end - ends[int(partition)])
        operators = reported["stateOperators"]
        return cls(
            spark_batch_id=reported["batchId"],
            records=reported["numInputRows"] or 0,
            step_ms=dict(reported["durationMs"]),
            at_ms=round(datetime.fromisoformat(reported["timestamp"]).timestamp() * _MS_PER_S),
            ends=ends,
            lags=lags,
            state_keys=sum(each["numRowsTotal"] for each in operators) if operators else None,
            state_bytes=sum(each["memoryUsedBytes"] for each in operators) if operators else None,
        )

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.step_ms.get("triggerExecution", 0) / _MS_PER_S

    def report(self, name: str) -> QueryReport:
        """Return it as the report of the job has it."""
        return QueryReport(
            name=name,
            spark_batch_id=self.spark_batch_id,
            records=self.records,
            seconds=self.seconds,
            at_ms=self.at_ms,
            behind=sum(self.lags.values()),
            state_keys=self.state_keys or 0,
            state_bytes=self.state_bytes or 0,
        )


class _Sample(NamedTuple):
    at_s: float
    spark_batch_id: int
    ends: Mapping[int, int]


class ProgressWatch:
    """Follows the queries by samples, one every two seconds or so; safe to use from several threads.

    Args:
        queries: Returns the queries that run.
        decided: By partition of the ops topic, where the deciding query goes on.
        deciding: Name of the deciding query.
        spark_batch_id: Number of its last micro-batch before.
        clock: Returns Unix time in seconds.
    """

    def __init__(
        self,
        queries: Callable[[], Iterable[ReportingQuery]],
        decided: Mapping[int, int],
        deciding: str,
        *,
        spark_batch_id: int = -1,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._queries = queries
        self._decided = dict(decided)
        self._deciding = deciding
        self._clock = clock
        self._lock = threading.Lock()
        self._last: dict[str, Progress] = {}
        self._samples = deque([_Sample(clock(), spark_batch_id, dict(decided))], maxlen=POINTS_MAX)
        self._points: deque[RatePoint] = deque(maxlen=POINTS_MAX)

    def sample(self) -> None:
        """Note how far the queries are now."""
        found = {query.name or "": query.lastProgress for query in self._queries()}
        known = {name: Progress.of(reported) for name, reported in found.items() if reported is not None}
        with self._lock:
            self._last = known
            deciding = known.get(self._deciding)
            if deciding is None:
                return
            self._decided |= deciding.ends
            sample = _Sample(self._clock(), deciding.spark_batch_id, dict(self._decided))
            if (before := self._samples[-1]).at_s < sample.at_s:
                self._points.append(_point(before, sample, deciding))
            self._samples.append(sample)

    @property
    def last(self) -> dict[str, Progress]:
        """What each query has reported last, by its name."""
        with self._lock:
            return dict(self._last)

    def decided(self) -> dict[int, int]:
        """Return, by partition of the ops topic, the first offset that is not decided."""
        with self._lock:
            return dict(self._decided)

    def recent(self) -> dict[int, int]:
        """Return, by partition, the offsets that were decided in the last ten minutes."""
        with self._lock:
            first = self._samples[0].ends
            return {partition: end - first.get(partition, 0) for partition, end in self._decided.items()}

    def points(self) -> list[RatePoint]:
        """Return rates of the last ten minutes, oldest first."""
        with self._lock:
            return list(self._points)

    def operations_per_s(self) -> float:
        """Return the records decided per second, over the last ten seconds or so."""
        with self._lock:
            points = list(self._points)[-5:]
        return round(sum(point.operations_per_s for point in points) / len(points), 1) if points else 0.0


def skew_of(recent: Mapping[int, int]) -> float | None:
    """Return what the busiest shard had as a multiple of the mean; None: no shard had anything.

    >>> skew_of({0: 30, 1: 10, 2: 20}), skew_of({0: 0})
    (1.5, None)
    """
    total = sum(recent.values())
    return round(max(recent.values()) * len(recent) / total, 2) if total else None


def _point(before: _Sample, now: _Sample, deciding: Progress) -> RatePoint:
    decided = sum(end - before.ends.get(partition, 0) for partition, end in now.ends.items())
    micro_batches = max(0, now.spark_batch_id - before.spark_batch_id)
    return RatePoint(
        at_ms=round(now.at_s * _MS_PER_S),
        operations_per_s=round(decided / (now.at_s - before.at_s), 1),
        micro_batches=micro_batches,
        step_ms={step: float(ms) for step, ms in deciding.step_ms.items() if step != "triggerExecution"}
        if micro_batches
        else {},
    )


def _offsets(reported: Any) -> Mapping[str, Mapping[str, int]]:  # noqa: ANN401 - JSON, as text or decoded
    decoded = json.loads(reported) if isinstance(reported, str) else reported
    return decoded or {}
