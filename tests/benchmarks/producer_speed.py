"""The producer: batches against kafka-python, waiting senders by their number, added delay, memory without Kafka.

`python -m tests.benchmarks.producer_speed` runs these alone, on an embedded Kafka, and prints the chart of
docs/batching.md.
"""

import gc
import json
import os
import signal
import statistics
import tempfile
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from kafka import KafkaProducer

from connectors.jars.resolve import kafka_jars
from connectors.kafka.embedded import EmbeddedKafka
from connectors.kafka.topic_admin import create_message_topic
from popstream import Producer
from popstream.wire.command import QueueType
from tests.benchmarks.benchmark_options import BenchOptions

__all__ = ["chart", "measure_producer"]

_VALUE = b"m" * 100
_THREADS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_BUFFER_BYTES = 32 * 1024 * 1024
_names = (f"producer-{number}" for number in range(1_000_000))


def measure_producer(
    _options: BenchOptions | None, kafka: EmbeddedKafka, messages: int = 100_000, rounds: int = 5, seconds: int = 10
) -> dict[str, Any]:
    """Measure all of it. Rates are messages of 100 bytes a second, with acks=all, on one queue, for each round."""
    rates: dict[str, list[int]] = {
        "kafka_python_async": [],
        "kafka_python_waited": [],
        "async_batch_topic": [],
        "async_simple_topic": [],
    }
    for _ in range(rounds):
        rates["kafka_python_async"].append(_kafka_python(kafka, messages, is_waited=False))
        rates["kafka_python_waited"].append(_kafka_python(kafka, min(messages, 300), is_waited=True))
        rates["async_batch_topic"].append(_async(kafka, messages, "batch"))
        rates["async_simple_topic"].append(_async(kafka, messages, "simple"))
    medians = {name: statistics.median(found) for name, found in rates.items()}
    waited = {str(count): _waited(kafka, count, seconds) for count in _THREADS}
    return {
        "messages": messages,
        "rates": rates,
        "batch_topic_to_kafka_python_async": round(medians["async_batch_topic"] / medians["kafka_python_async"], 2),
        "batch_topic_to_kafka_python_waited": round(medians["async_batch_topic"] / medians["kafka_python_waited"], 1),
        "simple_topic_to_kafka_python_async": round(medians["async_simple_topic"] / medians["kafka_python_async"], 2),
        "waited_by_threads": waited,
        "batching_pays_from_threads": next(
            (count for count in _THREADS if waited[str(count)]["batched"] > waited[str(count)]["one_by_one"]), None
        ),
        "delay_ms_at_50_messages_a_second": _delay(kafka, seconds),
        "memory_while_kafka_is_away": _memory(kafka),
    }


def chart(measured: dict[str, Any]) -> str:
    """Return the rates of waiting senders as a Mermaid chart.

    >>> print(chart({"waited_by_threads": {"1": {"batched": 70, "one_by_one": 300}}}))
    xychart-beta
        title "Messages a second of threads that wait for each result"
        x-axis "threads" [1]
        y-axis "messages a second" 0 --> 300
        line "batched" [70]
        line "one by one" [300]
    """
    waited = measured["waited_by_threads"]
    top = max(max(found.values()) for found in waited.values())
    lines = [
        "xychart-beta",
        '    title "Messages a second of threads that wait for each result"',
        f'    x-axis "threads" [{", ".join(waited)}]',
        f'    y-axis "messages a second" 0 --> {top}',
        *(
            f'    line "{name.replace("_", " ")}" [{", ".join(str(found[name]) for found in waited.values())}]'
            for name in ("batched", "one_by_one")
        ),
    ]
    return "\n".join(lines)


def _topic(kafka: EmbeddedKafka) -> str:
    name = next(_names)
    create_message_topic(kafka.connection, name, 1)
    return name


def _producer(kafka: EmbeddedKafka, topic: str, queue_type: QueueType, **options: Any) -> Producer:
    producer = Producer(kafka.bootstrap_servers, job_types={topic: queue_type}.get, **options)
    producer.send(topic, _VALUE).result()
    gc.collect()
    return producer


def _kafka_python(kafka: EmbeddedKafka, messages: int, *, is_waited: bool) -> int:
    topic = _topic(kafka)
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap_servers, acks="all", linger_ms=10)
    producer.send(topic, _VALUE).get(30)
    gc.collect()
    began = time.perf_counter()
    sent = []
    for _ in range(messages):
        sent.append(producer.send(topic, _VALUE))
        if is_waited:
            sent[-1].get(30)
    producer.flush()
    assert all(one.succeeded() for one in sent)
    rate = round(messages / (time.perf_counter() - began))
    producer.close()
    return rate


def _async(kafka: EmbeddedKafka, messages: int, queue_type: QueueType) -> int:
    topic = _topic(kafka)
    with _producer(kafka, topic, queue_type) as producer:
        began = time.perf_counter()
        sent = [producer.send(topic, _VALUE) for _ in range(messages)]
        producer.flush()
        assert all(one.exception(0) is None for one in sent)
        return round(messages / (time.perf_counter() - began))


def _waited(kafka: EmbeddedKafka, threads: int, seconds: int) -> dict[str, int]:
    """Return the rates of `threads` threads, each of which waits for every result, on a batch topic."""
    rates = {}
    for name, auto_batch in (("batched", True), ("one_by_one", False)):
        topic = _topic(kafka)
        with _producer(kafka, topic, "batch", auto_batch=auto_batch) as producer:
            rates[name] = round(_in_threads(threads, seconds / 3, lambda: producer.send_and_wait(topic, _VALUE)))  # noqa: B023
    return rates


def _in_threads(threads: int, seconds: float, work: Callable[[], object]) -> float:
    """Return how many times a second all threads together do the work."""
    counts = [0] * threads
    until = time.perf_counter() + seconds

    def run(number: int) -> None:
        while time.perf_counter() < until:
            work()
            counts[number] += 1

    running = [threading.Thread(target=run, args=[number]) for number in range(threads)]
    began = time.perf_counter()
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return sum(counts) / (time.perf_counter() - began)


def _delay(kafka: EmbeddedKafka, seconds: int) -> dict[str, list[float]]:
    """Return the milliseconds from a send to its result, [median, 99 of 100], at 50 a second."""
    found: dict[str, list[float]] = {}
    for name, auto_batch in (("batched", True), ("one_by_one", False)):
        topic = _topic(kafka)
        waits: list[float] = []
        with _producer(kafka, topic, "batch", auto_batch=auto_batch) as producer:
            for _ in _paced(50, seconds):
                began = time.perf_counter()
                sent = producer.send(topic, _VALUE)
                sent.add_done_callback(
                    lambda _, began=began, waits=waits: waits.append((time.perf_counter() - began) * 1000)  # type: ignore[misc]
                )
        waits.sort()
        found[name] = [round(waits[len(waits) * part // 100], 1) for part in (50, 99)]
    pairs = zip(found["batched"], found["one_by_one"], strict=True)
    return {**found, "added": [round(one - other, 1) for one, other in pairs]}


def _paced(rate: int, seconds: int) -> Iterator[int]:
    began = time.perf_counter()
    for number in range(rate * seconds):
        time.sleep(max(0.0, began + number / rate - time.perf_counter()))
        yield number


def _memory(kafka: EmbeddedKafka) -> dict[str, int | float]:
    """Return the memory in use when a producer has filled its buffer and Kafka does not answer."""
    topic = _topic(kafka)
    sent_count = 0
    is_over = threading.Event()
    with _producer(kafka, topic, "batch", total_batch_max_bytes=_BUFFER_BYTES) as producer:
        tracemalloc.start()
        before, _ = tracemalloc.get_traced_memory()
        os.kill(kafka.pid, signal.SIGSTOP)
        try:

            def send() -> None:
                nonlocal sent_count
                while not is_over.is_set():
                    producer.send(topic, _VALUE)
                    sent_count += 1

            sending = threading.Thread(target=send, daemon=True)
            sending.start()
            last = -1
            while last != sent_count:
                last = sent_count
                time.sleep(1)
            held, _ = tracemalloc.get_traced_memory()
        finally:
            is_over.set()
            os.kill(kafka.pid, signal.SIGCONT)
            tracemalloc.stop()
        sending.join()
    return {
        "messages": sent_count,
        "bytes": held - before,
        "of_the_buffer": round((held - before) / _BUFFER_BYTES, 2),
    }


def main() -> None:
    """Measure and print."""
    with (
        tempfile.TemporaryDirectory() as folder,
        EmbeddedKafka(Path(folder) / "kafka", jars=kafka_jars(Path("var"))) as kafka,
    ):
        measured = measure_producer(None, kafka)
    print(json.dumps(measured, indent=2))
    print(chart(measured))


if __name__ == "__main__":
    main()
