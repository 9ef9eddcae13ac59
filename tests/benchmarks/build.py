"""The builder: the time until a filled topic is poppable, and until a single message is."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from connectors.kafka.embedded import EmbeddedKafka
from connectors.kafka.topic_admin import create_message_topic
from pipelines.control.lane_views import queues_in
from pipelines.job_settings import JobSettings
from pipelines.process.host import Host
from pipelines.process.job import Job
from popstream.kafka_connection import KafkaConnection
from tests.benchmarks.benchmark_options import QUEUES, BenchOptions
from tests.benchmarks.latency import quantiles
from tests.benchmarks.record_writer import open_writer

__all__ = ["fill_topic", "measure_build"]

_VALUE = b"m" * 100
_SAMPLE_S = 0.02


def measure_build(options: BenchOptions, kafka: EmbeddedKafka) -> dict[str, Any]:
    """Measure both."""
    messages = 2 * options.operations
    fill_topic(kafka.bootstrap_servers, "filled", messages, QUEUES, options.on_progress)
    filled = _build_filled_topic(kafka, "filled", options.work / "filled", options.var, messages)
    settings = JobSettings(
        folder=options.work / "poppable",
        bootstrap_servers=kafka.bootstrap_servers,
        topic_prefix="poppable",
        message_topics="poppable-*",
    )
    with Host(settings, var=options.var) as host:
        _message_to_poppable(host.job, "poppable-warm", rate=10, seconds=options.seconds)
        poppable = _message_to_poppable(host.job, "poppable-10", rate=10, seconds=options.seconds)
    return {"filled": filled, "poppable": poppable}


def fill_topic(
    bootstrap_servers: str, topic: str, messages: int, partitions: int, on_progress: Callable[[str], None]
) -> None:
    """Create a topic, and write `messages` messages of 100 bytes to it."""
    connection = KafkaConnection(bootstrap_servers)
    create_message_topic(connection, topic, partitions)
    with open_writer(connection, on_progress=on_progress) as writer:
        for number in range(messages):
            writer.send(topic, _VALUE, partition=number % partitions)


def _build_filled_topic(
    kafka: EmbeddedKafka, topic: str, folder: Path, var: Path, messages: int
) -> dict[str, float | int]:
    """Time a cold builder until the last message is poppable, and until the last row is in Delta."""
    settings = JobSettings(
        folder=folder, bootstrap_servers=kafka.bootstrap_servers, topic_prefix="build", message_topics=topic
    )
    started = time.perf_counter()
    with Host(settings, var=var) as host:
        ready_s = time.perf_counter() - started
        job = host.job
        first_s = _until(job, lambda: _poppable(job, topic) > 0)
        poppable_s = _until(job, lambda: _poppable(job, topic) >= messages)
        in_delta_s = poppable_s + _until(job, lambda: _rows(job) >= messages)
    return {
        "messages": messages,
        "start_s": round(ready_s, 1),
        "seconds_until_first_poppable": round(first_s, 2),
        "seconds_until_poppable": round(first_s + poppable_s, 2),
        "messages_per_s": round(messages / (first_s + poppable_s)),
        "messages_per_s_after_the_first_micro_batch": round(messages / max(poppable_s, 1e-9)),
        "seconds_until_in_delta": round(first_s + in_delta_s, 1),
    }


def _message_to_poppable(job: Job, topic: str, *, rate: int, seconds: int) -> dict[str, Any]:
    """Return the milliseconds from the send of a message until the job's commit position is beyond it; one queue."""
    create_message_topic(job.connection, topic, 1)
    sent_at: dict[int, float] = {}
    waits: list[float] = []
    done = threading.Event()

    def watch() -> None:
        position = 0
        while not done.is_set() or position < len(sent_at):
            now = time.perf_counter()
            reached = _poppable(job, topic)
            while position < reached:
                waits.append((now - sent_at[position]) * 1000)
                position += 1
            time.sleep(0.002)

    with open_writer(job.connection, acks="all", linger_ms=0) as writer:
        writer.send(topic, b"", partition=0)
        writer.finish()
        _until(job, lambda: _poppable(job, topic) == 1)
        sent_at[0] = time.perf_counter()
        watching = threading.Thread(target=watch, daemon=True)
        watching.start()
        began = time.perf_counter()
        for number in range(1, rate * seconds + 1):
            time.sleep(max(0.0, began + number / rate - time.perf_counter()))
            sent_at[number] = time.perf_counter()
            writer.send(topic, _VALUE, partition=0)
    done.set()
    watching.join(60)
    assert len(waits) == len(sent_at), f"{len(waits)} of {len(sent_at)} messages were poppable in time"
    return {"rate": rate, "messages": len(waits) - 1, **quantiles(waits[1:])}


def _poppable(job: Job, topic: str) -> int:
    return sum(queue.commit_position - queue.holes for queue in queues_in(job.store) if queue.topic == topic)


def _rows(job: Job) -> int:
    return 0 if job.builder is None else job.builder.unit_flush.flushed_rows


def _until(job: Job, condition: Callable[[], bool]) -> float:
    began = time.perf_counter()
    while not condition():
        if job.failure is not None:
            raise job.failure
        time.sleep(_SAMPLE_S)
    return time.perf_counter() - began
