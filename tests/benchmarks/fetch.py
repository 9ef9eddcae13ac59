"""Reading the records of messages: the Kafka clients alone, and the client's fetcher with each of them."""

import multiprocessing
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as ConfluentPartition
from kafka import KafkaConsumer, TopicPartition

from connectors.kafka.embedded import EmbeddedKafka
from popstream.payload.kafka_payloads import KafkaPayloads
from popstream.settings import ClientSettings, FetchClient
from tests.benchmarks.benchmark_options import QUEUES, BenchOptions
from tests.benchmarks.build import fill_topic

__all__ = ["measure_fetch"]

_TOPIC = "fetch"
_RANGE = 500
_ROUNDS = 3
_TIMEOUT_S = 60.0


def measure_fetch(options: BenchOptions, kafka: EmbeddedKafka) -> dict[str, Any]:
    """Measure each way in turns, each time in a process of its own."""
    messages, servers = options.operations // 10, kafka.bootstrap_servers
    fill_topic(servers, _TOPIC, messages, QUEUES, options.on_progress)
    measured: dict[str, list[dict[str, float]]] = {way: [] for way in _WAYS}
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn, max_tasks_per_child=1) as processes:
        for _ in range(_ROUNDS):
            for way, rounds in measured.items():
                rounds.append(processes.submit(_measure, way, servers, messages).result())
    return {
        way: {name: round(statistics.median(one[name] for one in rounds), 2) for name in rounds[0]}
        for way, rounds in measured.items()
    } | {"messages": messages}


def _measure(way: str, servers: str, messages: int) -> dict[str, float]:
    """Return the CPU of this process a message, with all its threads, and the rate."""
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    _WAYS[way](servers, messages)
    cpu_s, took_s = time.process_time() - began_cpu_s, time.perf_counter() - began_s
    return {"cpu_us": cpu_s * 1e6 / messages, "messages_a_second": messages / took_s}


def _read_by_kafka_python(servers: str, messages: int) -> None:
    consumer = KafkaConsumer(
        bootstrap_servers=servers, group_id=None, auto_offset_reset="earliest", isolation_level="read_committed"
    )
    consumer.assign([TopicPartition(_TOPIC, queue_id) for queue_id in range(QUEUES)])
    count = 0
    while count < messages:
        count += sum(map(len, consumer.poll(timeout_ms=100, max_records=_RANGE).values()))
    consumer.close(autocommit=False)


def _read_by_librdkafka(servers: str, messages: int) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": _TOPIC,
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    consumer.assign([ConfluentPartition(_TOPIC, queue_id, 0) for queue_id in range(QUEUES)])
    count = 0
    while count < messages:
        # As `KafkaConsumer.poll` does: a record is an object with all its fields.
        for message in consumer.consume(_RANGE, 0.1):
            assert message.error() is None
            _ = message.offset(), message.key(), message.value(), message.headers(), message.timestamp()
            count += 1
    consumer.close()


def _fetch(fetch_client: FetchClient, servers: str, messages: int) -> None:
    payloads = KafkaPayloads(ClientSettings(bootstrap_servers=servers, client_id="bench", fetch_client=fetch_client))
    for first in range(0, messages // QUEUES, _RANGE):
        last = min(first + _RANGE, messages // QUEUES) - 1
        for queue_id in range(QUEUES):
            fetched = payloads.fetch(_TOPIC, queue_id, [(first, last)], _TIMEOUT_S)
            assert len(fetched.payloads) == last + 1 - first
    payloads.close()


_WAYS: dict[str, Callable[[str, int], None]] = {
    "kafka_python_alone": _read_by_kafka_python,
    "fetcher_with_kafka_python": partial(_fetch, "kafka-python"),
    "librdkafka_alone": _read_by_librdkafka,
    "fetcher_with_librdkafka": partial(_fetch, "librdkafka"),
}
