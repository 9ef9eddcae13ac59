"""The consumer's own cost: renewal of its leases, bytes on the wire, memory while it drains large records."""

import resource
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from connectors.kafka.topic_admin import create_message_topic
from popstream import Consumer, Producer, RenewalPolicy
from popstream.kafka_connection import KafkaConnection
from popstream.testing.memory_job import MemoryJob
from popstream.wire.command import Ack, encode_command
from tests.benchmarks.benchmark_options import BenchOptions

__all__ = ["drain_large_records", "measure_client"]

_TOPIC = "bench"
_QUEUES = 10
_POP_MAX = 10_000
_LARGE_TOPIC = "bench-large"
_LARGE_QUEUES = 4
_RECORD_BYTES_MAX = 2 * 1024 * 1024
_ACKED_EVERY = 0.02
_MIB = 1024 * 1024


def measure_client(_: BenchOptions) -> dict[str, Any]:
    """Measure renewal and acks; large records need a job, and are a part of the latency."""
    return {"renewal": _renewal_cpu(100_000), "ack_bytes_a_message": _ack_bytes_a_message()}


def _renewal_cpu(held: int, rounds: int = 3) -> dict[str, Any]:
    """Return the CPU seconds of a client that renews its messages, without those of the job in the same process."""
    job = MemoryJob()
    policy = RenewalPolicy(ahead_ms=10**9, check_ms=10**9)
    spent: list[float] = []
    with job.consumer("group", renewal=policy) as consumer:
        for queue_id in range(_QUEUES):
            job.write(_TOPIC, queue_id, [b""] * (held // _QUEUES))
            while consumer.pop(_TOPIC, queue_id, _POP_MAX, renew=True).messages:
                pass
        assert consumer.held_count == held
        for _ in range(rounds):
            job.advance(1_000)
            records = len(job.records)
            began = time.process_time() - job.cpu_s
            consumer._leases.renew_due()
            consumer.flush()
            spent.append(time.process_time() - job.cpu_s - began)
            assert len(job.records) - records == _QUEUES, "a record for each queue"
    return {"held": held, "cpu_s": [round(value, 3) for value in spent]}


def _ack_bytes_a_message(messages: int = 1_000) -> float:
    """Return the bytes per message of the records that ack one pop, when each message is acked by its own call."""
    job = MemoryJob()
    job.write(_TOPIC, 0, [b""] * messages)
    with job.consumer("group") as consumer:
        futures = [message.ack() for message in consumer.pop(_TOPIC, 0, messages)]
        assert all(future.result().applied for future in futures)
        return sum(len(encode_command(record)) for record in job.records if isinstance(record, Ack)) / messages


def drain_large_records(
    bootstrap_servers: str, prefix: str, *, records: int = 2_000, record_bytes: int = _MIB, prefetch_mib: int = 64
) -> dict[str, Any]:
    """Fill a topic, drain it with one consumer, and return how much this process grows. Run it in its own process.

    A handler holds a message for 20 ms, so that the consumer could read far ahead of it.
    """
    create_message_topic(
        KafkaConnection(bootstrap_servers),
        _LARGE_TOPIC,
        _LARGE_QUEUES,
        configs={"max.message.bytes": str(_RECORD_BYTES_MAX)},
    )
    with Producer(bootstrap_servers, prefix=prefix, dispatch=True) as producer:
        for start in range(0, records, 16):
            sent = [producer.send(_LARGE_TOPIC, bytes(record_bytes)) for _ in range(start, min(start + 16, records))]
            for future in sent:
                future.result()
    with (
        Consumer(
            bootstrap_servers, group="group", prefix=prefix, topics=[_LARGE_TOPIC], prefetch_bytes=prefetch_mib * _MIB
        ) as consumer,
        _peak_growth() as growth,
    ):
        began = time.perf_counter()
        for count, message in enumerate(consumer, 1):
            time.sleep(_ACKED_EVERY)
            message.ack()
            if count == records:
                break
        consumer.flush()
        took_s = time.perf_counter() - began
        counts = consumer.fetch_counts()
    return {
        "records": records,
        "record_bytes": record_bytes,
        "prefetch_mib": prefetch_mib,
        "rss_growth_mib": round(growth[0], 1),
        "seconds": round(took_s, 1),
        "bytes_read_to_delivered": round(counts.bytes_read / counts.bytes_delivered, 4),
    }


@contextmanager
def _peak_growth() -> Iterator[list[float]]:
    """Sample the resident memory; the list has its greatest growth in MiB when the block ends."""
    ended = threading.Event()
    start = _resident_mib()
    peak = [0.0]

    def sample() -> None:
        while not ended.wait(0.05):
            peak[0] = max(peak[0], _resident_mib() - start)

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        ended.set()
        thread.join()


def _resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / _MIB
