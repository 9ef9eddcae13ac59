"""Dead letters that are listed, and redriven to their group, a second."""

import statistics
import time
from typing import Any

import psutil

from connectors.kafka.embedded import EmbeddedKafka
from connectors.kafka.own_topics import Topics, ensure_topics
from connectors.kafka.topic_admin import create_message_topic
from popstream import DeadLetters
from popstream.kafka_connection import KafkaConnection
from popstream.payload.payloads import Payload
from popstream.topics.queue_types import QueueTypesPublisher
from popstream.wire.dead_letter import DeadLetter
from popstream.wire.dead_letter_record import copy_of
from tests.benchmarks.benchmark_options import BenchOptions
from tests.benchmarks.cpu_use import cpu_s
from tests.benchmarks.kernel import Rate
from tests.benchmarks.record_writer import open_writer

__all__ = ["measure_redrive"]

LETTERS = 20_000
VALUE_BYTES = 1_000
QUEUES = 8
RUNS = 3


def measure_redrive(options: BenchOptions, kafka: EmbeddedKafka) -> dict[str, Any]:
    """Return letters of 1,000 bytes a second, and microseconds of CPU a redriven letter (medians)."""
    listed: list[float] = []
    redriven: list[float] = []
    cpu_us: dict[str, list[float]] = {"client": [], "broker": []}
    (broker,) = (child for child in psutil.Process().children(recursive=True) if child.name() == "java")
    for run in range(RUNS):
        prefix = f"redrive-{run}"
        write_letters(kafka.bootstrap_servers, prefix)
        with DeadLetters(kafka.bootstrap_servers, prefix=prefix) as dead_letters:
            began_s = time.perf_counter()
            assert (found := sum(1 for _ in dead_letters.list())) == LETTERS, f"{found} letters are listed"
            listed.append(LETTERS / (time.perf_counter() - began_s))
            began_s = time.perf_counter()
            client_s, broker_s = time.process_time(), cpu_s(broker)
            report = dead_letters.redrive()
            assert report.letters == LETTERS, f"{report}"
            cpu_us["client"].append((time.process_time() - client_s) / LETTERS * 1e6)
            cpu_us["broker"].append((cpu_s(broker) - broker_s) / LETTERS * 1e6)
            redriven.append(LETTERS / (time.perf_counter() - began_s))
        options.on_progress(
            f"redrive: {redriven[-1]:,.0f} letters a second,"
            f" {cpu_us['client'][-1]:.0f} µs of CPU a letter, the broker {cpu_us['broker'][-1]:.0f}"
        )
    return {
        "listed": Rate.of("letters", listed),
        "redriven": Rate.of("letters", redriven),
        "cpu_us": {name: round(statistics.median(each), 1) for name, each in cpu_us.items()},
    }


def write_letters(servers: str, prefix: str) -> None:
    """Write dead letters of a topic that a job builds, as the job writes them."""
    topics, topic = Topics.of(prefix), f"{prefix}-orders"
    ensure_topics(KafkaConnection(servers), topics)
    facts = create_message_topic(KafkaConnection(servers), topic, QUEUES)
    publisher = QueueTypesPublisher(KafkaConnection(servers), topics.queue_types)
    publisher.publish({(topic, facts.topic_id, "simple")})
    publisher.close()
    message = Payload(b"table-3", b"x" * VALUE_BYTES, [("trace", b"1")], 0)
    with open_writer(KafkaConnection(servers)) as writer:
        for number in range(LETTERS):
            letter = DeadLetter(topic, number % QUEUES, "g", number, number, "attempt_limit", 16, 1, 5, 6, 0, number)
            copied = copy_of(letter, number, message)
            writer.send(topics.dead_letters, copied.value, key=copied.key, headers=copied.headers)
