"""Latencies: from operation to answer at a steady rate, from send to the handler of a waiting consumer, and more."""

import multiprocessing
import statistics
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from typing import Any

from connectors.kafka.embedded import EmbeddedKafka
from connectors.kafka.topic_admin import create_message_topic
from pipelines.job_settings import JobSettings
from pipelines.process.host import Host
from popstream import Consumer, Producer, Transport
from popstream.exchange.kafka_link import KafkaLink
from popstream.exchange.transport import Link
from popstream.kafka_connection import KafkaConnection
from popstream.settings import ClientSettings
from popstream.wire.answer import Answer
from popstream.wire.command import Ack, AckEntry, Declare, Dispatch, HandleRef, Pop, WrittenRange
from tests.benchmarks.benchmark_options import BenchOptions
from tests.benchmarks.client_cost import drain_large_records

__all__ = ["RATES", "measure_latency", "operation_latency", "quantiles"]

RATES = (500, 5_000)
"""Operations a second."""
_QUEUES = 8


def measure_latency(options: BenchOptions, kafka: EmbeddedKafka) -> dict[str, Any]:
    """Measure all latencies, and what needs a running job besides."""
    seconds, servers = options.seconds, kafka.bootstrap_servers
    settings = JobSettings(folder=options.work / "latency", bootstrap_servers=servers, topic_prefix="latency")
    clients = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))

    def measure(function: Callable[..., dict[str, Any]], rate: int, for_s: int) -> dict[str, Any]:
        """Measure in a process of its own, as clients are: they must not share the job's interpreter lock."""
        return clients.submit(function, servers, "latency", rate=rate, seconds=for_s).result()

    with clients, Host(settings, var=options.var):
        measure(operation_latency, 100, 30)  # warm
        return {
            "operation": {f"{rate}_a_second": measure(operation_latency, rate, seconds) for rate in RATES},
            "message": measure(message_latency, 20, seconds),
            "wake_up": measure(wake_up_latency, 1, seconds),
            "large_records": clients.submit(drain_large_records, servers, "latency").result(),
        }


def operation_latency(
    bootstrap_servers: str,
    prefix: str,
    *,
    rate: int,
    seconds: int,
    make_link: Callable[[ClientSettings], Link] = KafkaLink,
) -> dict[str, Any]:
    """Pop and ack single messages at `rate` operations a second; return the milliseconds from send to answer."""
    topic = "latency"
    settings = ClientSettings(bootstrap_servers=bootstrap_servers, client_id="bench", prefix=prefix)
    waits: list[float] = []
    lock = threading.Lock()
    with Transport(settings, link=make_link(settings)) as transport:
        for queue_id in range(_QUEUES):
            transport.request(Declare(topic=topic, queue_id=queue_id, v=1, topic_id="latency"))
            transport.request(Dispatch(topic=topic, queue_id=queue_id, v=1, ranges=[WrittenRange(0, 999_999)]))

        def send(command: Pop | Ack) -> None:
            began = time.perf_counter()
            transport.submit(command).add_done_callback(lambda future: answered(command, began, future))

        def answered(command: Pop | Ack, began: float, future: Future[Answer]) -> None:
            answer = future.result()
            with lock:
                waits.append((time.perf_counter() - began) * 1000)
                if isinstance(command, Pop):
                    popped.append(answer)

        popped: list[Answer] = []
        began = time.perf_counter()
        for number in range(rate * seconds):
            time.sleep(max(0.0, began + number / rate - time.perf_counter()))
            with lock:
                done = popped.pop() if popped else None
            if done is not None and done.handle is not None:
                first = done.messages[0].first
                send(
                    Ack(
                        topic=topic,
                        queue_id=done.queue_id,
                        v=1,
                        handles=[HandleRef("group", done.handle)],
                        entries=[AckEntry(0, [(first, first)])],
                    )
                )
            else:
                send(
                    Pop(
                        topic=topic,
                        queue_id=number % _QUEUES,
                        v=1,
                        group="group",
                        max_messages=1,
                        invisible_time_ms=600_000,
                    )
                )
        while transport.waiting_count:
            time.sleep(0.05)
    return {"rate": rate, "operations": len(waits), **quantiles(waits)}


def wake_up_latency(bootstrap_servers: str, prefix: str, *, rate: int, seconds: int) -> dict[str, Any]:
    """Wait for an orderly lane that a lease blocks; return the milliseconds from the lease's end to the answer."""
    topic = "latency-orderly"
    settings = ClientSettings(bootstrap_servers=bootstrap_servers, client_id="bench", prefix=prefix)
    waits: list[float] = []
    with Transport(settings) as transport:
        transport.request(Declare(topic=topic, queue_id=0, v=1, topic_id="latency"))
        transport.request(Dispatch(topic=topic, queue_id=0, v=1, ranges=[WrittenRange(0, 0)]))

        def pop(poll_time_ms: int) -> Future[Answer]:
            command = Pop(
                topic=topic,
                queue_id=0,
                v=1,
                group="group",
                max_messages=1,
                invisible_time_ms=1_000 // rate,
                poll_time_ms=poll_time_ms,
                order=True,
            )
            return transport.submit(command)

        free_ms = 0.0
        began = time.perf_counter()
        while time.perf_counter() - began < seconds:
            answer = pop(30_000).result()
            answered_ms = time.time() * 1000
            if free_ms:
                waits.append(answered_ms - free_ms)
            assert answer.pop_time_ms is not None, "a pop that waits 30 s is served"
            free_ms = float(answer.pop_time_ms + 1_000 // rate)
    return {"rounds": len(waits), **quantiles(waits)}


def message_latency(bootstrap_servers: str, prefix: str, *, rate: int, seconds: int) -> dict[str, Any]:
    """Send messages at `rate` a second to a consumer that waits in a pop; return the milliseconds until it has each."""
    topic = "latency-messages"
    create_message_topic(KafkaConnection(bootstrap_servers), topic, 1)
    waits: list[float] = []
    stop = threading.Event()

    def consume() -> None:
        with Consumer(bootstrap_servers, group="group", prefix=prefix) as consumer:
            while not stop.is_set():
                popped = consumer.pop(topic, 0, max_messages=100, invisible_time_ms=60_000, poll_time_ms=2_000)
                now = time.perf_counter()
                waits.extend((now - float(message.value or b"0")) * 1000 for message in popped)
                if len(popped):
                    consumer.ack_async(list(popped))

    with Producer(bootstrap_servers, prefix=prefix, dispatch=True) as producer:
        producer.send(topic, b"0", queue_id=0).result(timeout=60)
        producer.flush()
        thread = threading.Thread(target=consume, daemon=True)
        thread.start()
        began = time.perf_counter()
        for number in range(rate * seconds):
            time.sleep(max(0.0, began + number / rate - time.perf_counter()))
            producer.send(topic, repr(time.perf_counter()).encode(), queue_id=0)
        producer.flush()
        deadline = time.perf_counter() + 30
        while len(waits) < rate * seconds + 1 and time.perf_counter() < deadline:
            time.sleep(0.1)
        stop.set()
        thread.join(timeout=30)
    return {"rate": rate, "messages": len(waits) - 1, **quantiles(waits[1:])}


def quantiles(waits_ms: list[float]) -> dict[str, float]:
    """Return the quantiles of milliseconds that reports have."""
    cuts = statistics.quantiles(waits_ms, n=100, method="inclusive")
    return {
        "p50_ms": round(cuts[49], 1),
        "p95_ms": round(cuts[94], 1),
        "p99_ms": round(cuts[98], 1),
        "max_ms": round(max(waits_ms), 1),
    }
