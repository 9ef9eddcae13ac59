"""What stands between an operation and its answer: the time of each stage, at steady rates.

```
append ── append_to_fetch ──> fetch, the steps of the job ── publish, answer_to_client ──> the client has it
```

`append_to_fetch` is counted for each operation, from the time that the broker gave its record: it waits for the
micro-batch in flight, and then Spark plans its own one, which is among the stages of Spark. `answer_to_client` is
counted for each record of answers, from the time that the job's producer gave it.
"""

import multiprocessing
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from typing import Any, NamedTuple

from pyspark.sql import SparkSession

from connectors.kafka.embedded import EmbeddedKafka
from pipelines.apply_ops.micro_batch import MicroBatchReport
from pipelines.apply_ops.outbox import Outbox
from pipelines.apply_ops.source import PIPELINE
from pipelines.control.metrics import Metrics
from pipelines.job_settings import JobSettings
from pipelines.process.host import Host
from popstream.exchange.kafka_link import KafkaLink
from popstream.settings import ClientSettings
from tests.benchmarks.benchmark_options import BenchOptions
from tests.benchmarks.latency import RATES, operation_latency, quantiles
from tests.support.left_behind import records_between

__all__ = ["measure_timeline"]

_PREFIX = "timeline"
_LOOK_S = 0.5
_SPARK_STAGES = ("triggerExecution", "latestOffset", "walCommit", "queryPlanning", "addBatch", "commitOffsets")
"""Names of Spark's own: a micro-batch as a whole, then its parts in their order; `addBatch` has our `fetch` in it."""


class MicroBatchTimes(NamedTuple):
    """A micro-batch with records.

    Attributes:
        began_ms: When `fetch` began, as a clock shows it.
        seconds: The seconds of each step.
        first: Kafka offset of the first record, by partition.
        end: Kafka offset after the last record, by partition.
    """

    began_ms: float
    seconds: dict[str, float]
    first: dict[int, int]
    end: dict[int, int]


class _RecordingMetrics(Metrics):
    """Keeps the times of each micro-batch."""

    def __init__(self) -> None:
        super().__init__()
        self.micro_batches: list[MicroBatchTimes] = []

    def record(self, report: MicroBatchReport, outbox: Outbox, delta_seq: int) -> None:
        """Count one micro-batch."""
        if report.records:
            self.micro_batches.append(times_of(report, time.time() - time.perf_counter()))
        super().record(report, outbox, delta_seq)


class TimedLink(KafkaLink):
    """A link that keeps how long each record of answers was on its way.

    Attributes:
        waits_ms: Milliseconds from the time of each record until it is here.
    """

    def __init__(self, settings: ClientSettings) -> None:
        super().__init__(settings)
        self.waits_ms: list[float] = []

    def open(self) -> int:
        """Connect, and measure from now on."""
        partition = super().open()
        poll = self._consumer.poll

        def timed_poll(**options: Any) -> Mapping[Any, Sequence[Any]]:
            polled: Mapping[Any, Sequence[Any]] = poll(**options)
            self.waits_ms += receipt_waits_ms(polled.values(), time.time() * 1000)
            return polled

        self._consumer.poll = timed_poll
        return partition


def measure_timeline(options: BenchOptions, kafka: EmbeddedKafka) -> dict[str, Any]:
    """Return milliseconds: of each stage, and from send to answer, at each of the rates; and report their quantiles."""
    servers = kafka.bootstrap_servers
    settings = JobSettings(folder=options.work / _PREFIX, bootstrap_servers=servers, topic_prefix=_PREFIX)
    with (
        ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as clients,
        Host(settings, var=options.var) as host,
    ):
        metrics = _RecordingMetrics()
        host.job.metrics = metrics

        def send(rate: int, seconds: int) -> Future[dict[str, Any]]:
            return clients.submit(timed_operations, servers, rate=rate, seconds=seconds)

        send(100, 30).result()  # warm
        report = {}
        for rate in RATES:
            metrics.micro_batches.clear()
            client = send(rate, options.seconds)
            spark = _spark_stages(client)
            micro_batches = list(metrics.micro_batches)
            measured = client.result()
            report[f"{rate}_a_second"] = {
                "operation": measured["operation"],
                "micro_batches": len(micro_batches),
                "append_to_fetch": quantiles(append_waits_ms(micro_batches, _appended_ms(servers, micro_batches))),
                "spark": {stage: quantiles(spark[stage]) for stage in _SPARK_STAGES},
                "job": {
                    step: quantiles([1000 * each.seconds.get(step, 0.0) for each in micro_batches])
                    for step in micro_batches[0].seconds
                },
                "answer_to_client": measured["answer_to_client"],
            }
            report_stages(rate, report[f"{rate}_a_second"], options.on_progress)
    return report


def timed_operations(bootstrap_servers: str, *, rate: int, seconds: int) -> dict[str, Any]:
    """Measure `operation_latency`, and in it how long the records of answers were on their way."""
    links: list[TimedLink] = []

    def make_link(settings: ClientSettings) -> TimedLink:
        links.append(TimedLink(settings))
        return links[-1]

    operation = operation_latency(bootstrap_servers, _PREFIX, rate=rate, seconds=seconds, make_link=make_link)
    return {"operation": operation, "answer_to_client": quantiles(links[0].waits_ms)}


def times_of(report: MicroBatchReport, clock_began_s: float) -> MicroBatchTimes:
    """Return the times of a micro-batch; laps count from `clock_began_s`, a time of the clock."""
    before, after = report.before.next_offset, report.after.next_offset
    first = {partition: before.get(partition, 0) for partition in after}
    return MicroBatchTimes(1000 * (clock_began_s + report.lap.began_s), dict(report.seconds), first, dict(after))


def append_waits_ms(
    micro_batches: Iterable[MicroBatchTimes], appended_ms: Mapping[tuple[int, int], int]
) -> list[float]:
    """Return for each record how long after its append the micro-batch that has it began.

    Args:
        micro_batches: The micro-batches.
        appended_ms: When each record was appended, by partition and Kafka offset.
    """
    return [
        each.began_ms - appended_ms[partition, kafka_offset]
        for each in micro_batches
        for partition, end in each.end.items()
        for kafka_offset in range(each.first[partition], end)
        if (partition, kafka_offset) in appended_ms  # an offset may have no record
    ]


def receipt_waits_ms(polled: Iterable[Sequence[Any]], now_ms: float) -> Iterator[float]:
    """Yield how long ago each record got its time."""
    return (now_ms - record.timestamp for records in polled for record in records)


def report_stages(rate: int, measured: Mapping[str, Any], on_progress: Callable[[str], None]) -> None:
    """Report the median and the 99th percentile of each stage at a rate, a line each."""
    stages = {
        "operation": measured["operation"],
        "append_to_fetch": measured["append_to_fetch"],
        **measured["spark"],
        **measured["job"],
        "answer_to_client": measured["answer_to_client"],
    }
    for name, found in stages.items():
        on_progress(f"{rate:,} a second, {name}: p50 {found['p50_ms']} ms, p99 {found['p99_ms']} ms")


def _appended_ms(servers: str, micro_batches: Sequence[MicroBatchTimes]) -> dict[tuple[int, int], int]:
    first, end = micro_batches[0].first, micro_batches[-1].end
    topic = ClientSettings(bootstrap_servers=servers, client_id="bench", prefix=_PREFIX).operations
    return {
        (record.partition, record.offset): record.timestamp for record in records_between(servers, topic, first, end)
    }


def _spark_stages(running: "Future[Any]") -> dict[str, list[float]]:
    """Collect the milliseconds of each stage of the micro-batches with records, until `running` is done."""
    (query,) = (each for each in SparkSession.active().streams.active if each.name == PIPELINE)
    seen: set[int] = set()
    stages: dict[str, list[float]] = defaultdict(list)
    while not running.done():
        time.sleep(_LOOK_S)
        for progress in query.recentProgress:
            if progress.batchId not in seen and progress.numInputRows:
                seen.add(progress.batchId)
                for stage in _SPARK_STAGES:
                    stages[stage].append(progress.durationMs.get(stage, 0))
    return stages
