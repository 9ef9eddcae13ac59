"""The job drains a topic that was filled before it started: single operations, batches of entries, whole pops."""

import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import psutil

from connectors.kafka.embedded import EmbeddedKafka
from connectors.kafka.own_topics import Topics, TopicSettings, ensure_topics
from pipelines.apply_ops.outbox import Outbox
from pipelines.decide_ops.entry import EntryKind
from pipelines.job_settings import JobSettings
from pipelines.process.host import Host
from popstream.exchange.partitioner import ops_key, partition_of
from popstream.wire.command import Command, encode_command
from tests.benchmarks.benchmark_options import QUEUES, BenchOptions
from tests.benchmarks.cpu_use import CpuUse, is_spark
from tests.benchmarks.measured_operations import declare_queue, single_entry_ops, whole_pop_ops
from tests.benchmarks.record_writer import open_writer

__all__ = ["drain", "fill", "fill_with_single_entries", "is_answered", "measure_batches", "measure_drain"]

_TOPIC = "bench"
_GROUP = "group"
_SAMPLE_S = 0.5


def measure_drain(options: BenchOptions, kafka: EmbeddedKafka) -> dict[str, Any]:
    """Fill a topic once with operations of one entry, and drain it with flushes to Delta meanwhile, and afterwards."""
    records = fill_with_single_entries(options, kafka, "bench", options.operations)
    return {
        name: drain(kafka, "bench", options.work / name, options.var, records, flush_interval_s=interval_s)
        for name, interval_s in (("delta_beside", 5.0), ("delta_after", 3600.0))
    }


def measure_batches(options: BenchOptions, kafka: EmbeddedKafka) -> dict[str, Any]:
    """Drain acks of 1,000 entries, and then pops of 10,000 messages that one entry acks as a whole.

    A message counts twice in `messages_per_s_until_answered`: it is leased, and acked. `acked_per_s` counts acks alone.
    """
    report: dict[str, Any] = {}
    for name, messages_a_pop, entry_offsets, operations in (
        ("entries", 1_000, 1, options.operations * 5),
        ("whole_pops", 10_000, 10_000, options.operations * 20),
    ):
        pops = max(1, operations // messages_a_pop // QUEUES)
        streams = [
            whole_pop_ops(
                _TOPIC, queue_id, _GROUP, pops, messages_a_pop, entry_offsets=entry_offsets, reply_to=queue_id
            )
            for queue_id in range(QUEUES)
        ]
        records = fill(kafka, name, _TOPIC, pops * messages_a_pop, streams, options.on_progress)
        drained = drain(kafka, name, options.work / name, options.var, records, flush_interval_s=5.0)
        messages = pops * messages_a_pop * QUEUES
        acked_per_s = round(messages / drained["seconds_until_answered"])
        report[name] = {
            "messages": messages,
            "acked_per_s": acked_per_s,
            "messages_per_s_until_answered": 2 * acked_per_s,
            **drained,
        }
    return report


def fill_with_single_entries(options: BenchOptions, kafka: EmbeddedKafka, prefix: str, operations: int) -> int:
    """Write operations of one entry to a new ops topic; return the number of records."""
    messages = operations // 2 // QUEUES
    streams = [single_entry_ops(_TOPIC, queue_id, _GROUP, messages, reply_to=queue_id) for queue_id in range(QUEUES)]
    return fill(kafka, prefix, _TOPIC, messages, streams, options.on_progress)


def fill(
    kafka: EmbeddedKafka,
    prefix: str,
    topic: str,
    messages: int,
    streams: Sequence[Iterable[Command]],
    on_progress: Callable[[str], None],
) -> int:
    """Write operations to a new ops topic, those of the streams by turns; return how many records Kafka has taken.

    Before them come the records that declare a queue of `messages` for each stream.
    """
    topics = Topics.of(prefix)
    facts = ensure_topics(kafka.connection, topics, TopicSettings())[topics.ops]
    declared = (command for number in range(len(streams)) for command in declare_queue(topic, number, messages))
    in_turn = itertools.chain.from_iterable(zip(*streams, strict=True))
    with open_writer(kafka.connection, on_progress=on_progress) as writer:
        for command in itertools.chain(declared, in_turn):
            key = ops_key(command.topic, command.queue_id)
            partition = partition_of(key, facts.partition_count)
            writer.send(topics.ops, encode_command(command), key=key, partition=partition)
        return writer.finish()


def drain(
    kafka: EmbeddedKafka,
    prefix: str,
    folder: Path,
    var: Path,
    records: int,
    *,
    flush_interval_s: float,
    **more: Any,
) -> dict[str, Any]:
    """Start a job on the filled topic; return the rates until Kafka has all answers, and Delta all rows.

    `more` are further settings of the job.
    """
    config_file = kafka.connection.config_file
    settings = JobSettings(
        folder=folder,
        bootstrap_servers=kafka.bootstrap_servers,
        kafka_config=Path(config_file) if config_file else None,
        topic_prefix=prefix,
        flush_interval_s=flush_interval_s,
        **more,
    )
    with Host(settings, var=var, take_over=True) as host:  # from the drain before
        started, cpu = time.perf_counter(), CpuUse()
        answered_s = 0.0
        lags: list[tuple[float, int]] = []
        own = psutil.Process()
        # Found once: to look for it costs more than the memory of both, in an interpreter that the job needs.
        processes = {"jvm": next(each for each in own.children(recursive=True) if is_spark(each)), "python": own}
        peaks = dict.fromkeys(processes, 0)
        while True:
            _note_memory(peaks, processes)
            totals = host.job.metrics.totals()
            now = time.perf_counter() - started
            lags.append((round(now, 1), host.job.outbox.undelivered_bytes))
            if not answered_s and totals.records >= records and is_answered(host.job.outbox):
                answered_s = now
            if answered_s and host.job.flush.delivered_seq >= totals.apply_seq:
                break
            if answered_s and flush_interval_s > 60:
                host.job.flush.flush()
                continue
            if host.job.failure is not None:
                raise host.job.failure
            time.sleep(_SAMPLE_S)
        delta_s = time.perf_counter() - started
        cpu_us = cpu.us_per_record(records)
        seconds = host.job.metrics.step_seconds()
    third = len(lags) // 3
    return {
        "records": records,
        "seconds_until_answered": round(answered_s, 1),
        "ops_per_s_until_answered": round(records / answered_s),
        "seconds_until_in_delta": round(delta_s, 1),
        "ops_per_s_until_in_delta": round(records / delta_s),
        "outbox_bytes_by_third": [
            max((lag for _, lag in lags[i * third : (i + 1) * third]), default=0) for i in range(3)
        ],
        "us_per_record_by_step": {step: round(s * 1e6 / records, 2) for step, s in seconds.items()},
        "cpu_us_per_record": cpu_us,
        "write_batch_bytes_max": totals.write_batch_bytes_max,
        "resident_bytes_max": peaks,
    }


def is_answered(outbox: Outbox) -> bool:
    """Return whether Kafka has taken every answer to what is decided: a decided record is only on its way there."""
    return next(outbox.undelivered(EntryKind.ANSWERS), None) is None


def _note_memory(peaks: dict[str, int], processes: dict[str, psutil.Process]) -> None:
    for name, process in processes.items():
        peaks[name] = max(peaks[name], process.memory_info().rss)
