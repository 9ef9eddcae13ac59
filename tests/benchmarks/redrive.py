"""Dead letters that are listed, and redriven to their group, a second."""

import multiprocessing
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from typing import Any, NamedTuple

import psutil

from connectors.kafka.embedded import EmbeddedKafka
from connectors.kafka.own_topics import Topics
from connectors.kafka.topic_admin import create_message_topic
from pipelines.job_settings import JobSettings
from pipelines.process.host import Host
from popstream import DeadLetters
from popstream.kafka_connection import KafkaConnection
from popstream.payload.payloads import Payload
from popstream.wire.dead_letter import DeadLetter
from popstream.wire.dead_letter_record import copy_of
from tests.benchmarks.benchmark_options import BenchOptions
from tests.benchmarks.cpu_use import cpu_s
from tests.benchmarks.kernel import Rate
from tests.benchmarks.record_writer import open_writer

__all__ = ["measure_redrive"]

_PREFIX = "redrive"
_TOPIC = "redriven"
_LETTERS = 20_000
_VALUE_BYTES = 1_000
_QUEUES = 8
_RUNS = 3


class _Redriven(NamedTuple):
    """What a client has measured; seconds."""

    listed_s: float
    redriven_s: float
    client_cpu_s: float


def measure_redrive(options: BenchOptions, kafka: EmbeddedKafka) -> dict[str, Any]:
    """Return letters of 1,000 bytes a second, and microseconds of CPU a redriven letter (medians).

    The job builds the topic, and audits each redrive before it is sent.
    """
    servers = kafka.bootstrap_servers
    (broker,) = (child for child in psutil.Process().children(recursive=True) if child.name() == "java")
    create_message_topic(KafkaConnection(servers), _TOPIC, _QUEUES)
    settings = JobSettings(
        folder=options.work / _PREFIX, bootstrap_servers=servers, topic_prefix=_PREFIX, message_topics=_TOPIC
    )
    runs: list[_Redriven] = []
    broker_cpu_s: list[float] = []
    # A client must not share the interpreter lock of the job.
    clients = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"), max_tasks_per_child=1)
    with clients, Host(settings, var=options.var):
        for run in range(_RUNS):
            _write_letters(servers, run)
            before_s = cpu_s(broker)
            runs.append(clients.submit(_redrive, servers).result())
            broker_cpu_s.append(cpu_s(broker) - before_s)
            options.on_progress(f"redrive: {_LETTERS / runs[-1].redriven_s:,.0f} letters a second")
    cpu = {"client": [run.client_cpu_s for run in runs], "broker": broker_cpu_s}
    return {
        "listed": Rate.of("letters", [_LETTERS / run.listed_s for run in runs]),
        "redriven": Rate.of("letters", [_LETTERS / run.redriven_s for run in runs]),
        "cpu_us": {name: round(statistics.median(each) / _LETTERS * 1e6, 1) for name, each in cpu.items()},
    }


def _redrive(servers: str) -> _Redriven:
    with DeadLetters(servers, prefix=_PREFIX) as dead_letters:
        began_s = time.perf_counter()
        assert (found := sum(1 for _ in dead_letters.list())) == _LETTERS, f"{found} letters are listed"
        listed_s, cpu_began_s = time.perf_counter(), time.process_time()
        report = dead_letters.redrive()
        assert report.letters == _LETTERS, f"{report}"
        ended_s, cpu_ended_s = time.perf_counter(), time.process_time()
        dead_letters.erase()  # else the next run would read them, too
    return _Redriven(listed_s - began_s, ended_s - listed_s, cpu_ended_s - cpu_began_s)


def _write_letters(servers: str, run: int) -> None:
    """Write dead letters as the job writes them; those of a run are others than those before."""
    message = Payload(b"table-3", b"x" * _VALUE_BYTES, [("trace", b"1")], 0)
    with open_writer(KafkaConnection(servers)) as writer:
        for number in range(run * _LETTERS, (run + 1) * _LETTERS):
            letter = DeadLetter(_TOPIC, number % _QUEUES, "g", number, number, "attempt_limit", 16, 1, 5, 6, 0, number)
            copied = copy_of(letter, number, message)
            writer.send(Topics.of(_PREFIX).dead_letters, copied.value, key=copied.key, headers=copied.headers)
