"""Claim: observers see what is popped, settled, handled and answered, and harm nothing.

Method: the kernel itself, in memory.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from popstream import (
    AsyncConsumer,
    Message,
    NotWritten,
    Observed,
    Observer,
    OutgoingMessage,
    RenewalPolicy,
    SendResult,
    Settled,
)
from popstream.prometheus import PrometheusMetrics
from popstream.testing.memory_job import MemoryJob
from tests.support.threads import eventually, in_thread


class Seen(Observer):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, ...]] = Counter()
        self.consumers: list[Observed] = []
        self.handled: list[tuple[list[int], str]] = []

    def opened(self, consumer: Observed) -> None:
        self.consumers.append(consumer)

    def closed(self, consumer: Observed) -> None:
        self.consumers.remove(consumer)

    def popped(self, group: str, topic: str, count: int) -> None:
        self.counts["popped", group, topic] += count

    def settled(self, group: str, topic: str, how: Settled, count: int) -> None:
        self.counts[how, group, topic] += count

    def answered(self, operation: str, seconds: float) -> None:
        assert seconds >= 0
        self.counts[("answered", operation)] += 1

    @contextmanager
    def handling(self, consumer: Observed, messages: Sequence[Message]) -> Iterator[None]:
        assert consumer.group == "billing"
        offsets = [message.queue_offset for message in messages]
        try:
            yield
        except BaseException as error:
            self.handled.append((offsets, repr(error)))
            raise
        self.handled.append((offsets, "ok"))


class Broken(Observer):
    """Raises whenever it is told something."""

    def opened(self, consumer: Observed) -> None:
        raise RuntimeError(consumer)

    closed = opened

    def popped(self, group: str, topic: str, count: int) -> None:
        raise RuntimeError(group, topic, count)

    def settled(self, group: str, topic: str, how: Settled, count: int) -> None:
        raise RuntimeError(group, topic, how, count)

    def answered(self, operation: str, seconds: float) -> None:
        raise RuntimeError(operation, seconds)

    @contextmanager
    def handling(self, consumer: Observed, messages: Sequence[Message]) -> Iterator[None]:
        try:
            yield
        finally:
            raise RuntimeError(consumer, messages)


@pytest.fixture
def job() -> MemoryJob:
    made = MemoryJob()
    made.write("orders", 0, [b"%d" % number for number in range(10)])
    return made


def test_what_is_popped_and_settled_is_counted_when_the_job_has_confirmed_it(job: MemoryJob) -> None:
    seen = Seen()
    with job.consumer("billing", observers=[Broken(), seen], renewal=RenewalPolicy(ahead_ms=10**7)) as consumer:
        messages = consumer.pop("orders", 0, renew=True).messages
        consumer.ack(messages[:3])
        consumer.ack(messages[:3])  # not applied
        messages[3].release().result(60)
        messages[4].release(delay_s=5).result(60)
        consumer.change_invisible(messages[5:6], 0)
        consumer.reject(messages[6:8])
        messages[8].extend(90).result(60)
        consumer._leases.renew_due()
        consumer.flush()
    # The last two are released when it is closed.
    assert seen.counts == {
        ("popped", "billing", "orders"): 10,
        ("acked", "billing", "orders"): 3,
        ("released", "billing", "orders"): 5,
        ("rejected", "billing", "orders"): 2,
        ("answered", "pop"): 1,
        ("answered", "ack"): 2,
        ("answered", "reject"): 1,
        ("answered", "change_invisible"): seen.counts[("answered", "change_invisible")],
    }
    assert seen.consumers == []


def test_each_call_of_a_handler_is_seen_with_its_error(job: MemoryJob) -> None:
    seen = Seen()

    def handle(message: Message) -> None:
        if message.queue_offset == 3 and message.attempt == 1:
            raise ValueError("not yet")

    with job.consumer("billing", topics=["orders"], back_off=[0], observers=[Broken(), seen]) as consumer:
        ran = in_thread(lambda: consumer.run(handle))
        eventually(lambda: len(seen.handled) == 11)
        assert seen.consumers == [consumer]
        assert consumer.prefetch_window_size >= 10
        consumer.stop()
        ran.join(60)
    assert sorted(seen.handled) == sorted([*(([offset], "ok") for offset in range(10)), ([3], "ValueError('not yet')")])


def test_each_call_of_a_handler_of_sets_is_seen(job: MemoryJob) -> None:
    seen = Seen()
    with job.consumer("billing", topics=["orders"], observers=[seen]) as consumer:
        ran = in_thread(lambda: consumer.run_sets(lambda _: None, set_size=10))
        eventually(lambda: sum(len(offsets) for offsets, _ in seen.handled) == 10)
        consumer.stop()
        ran.join(60)
    assert {result for _, result in seen.handled} == {"ok"}


def test_each_call_of_a_coroutine_is_seen(job: MemoryJob) -> None:
    seen = Seen()

    async def handle(_: Message) -> None:
        await asyncio.sleep(0.001)

    async def main() -> None:
        async with AsyncConsumer.of(job.consumer("billing", topics=["orders"], observers=[seen])) as consumer:
            running = asyncio.create_task(consumer.run(handle, tasks=3))
            while len(seen.handled) < 10:
                await asyncio.sleep(0.005)
            consumer.stop()
            await running

    asyncio.run(main())
    assert sorted(seen.handled) == [([offset], "ok") for offset in range(10)]


class AddsText(Observer):
    """Adds a header that Kafka does not take."""

    def sending(self, client_id: str, message: OutgoingMessage, headers: list[tuple[str, bytes]]) -> None:  # noqa: ARG002
        headers.append(("trace", "text"))  # type: ignore[arg-type]


class AddsBytes(Observer):
    def sending(self, client_id: str, message: OutgoingMessage, headers: list[tuple[str, bytes]]) -> None:  # noqa: ARG002
        headers.append(("span", b"7"))


def test_a_header_that_cannot_be_sent_harms_no_message(job: MemoryJob, caplog: pytest.LogCaptureFixture) -> None:
    job.write("tea", 0, [])
    with job.producer(observers=[AddsText(), AddsBytes()]) as producer:
        producer.send_and_wait("tea", b"earl grey", queue_id=0)
    with job.consumer("billing") as consumer:
        (message,) = consumer.pop("tea").messages
    assert [header for header in message.headers if header[0] in ("trace", "span")] == [("span", b"7")]
    assert "header 'trace' must be a name and bytes, not str" in caplog.text


def test_prometheus_gets_counters_gauges_and_histograms(job: MemoryJob) -> None:
    registry = CollectorRegistry()
    metrics = PrometheusMetrics(registry)

    def handle(message: Message) -> None:
        if message.queue_offset == 9:
            consumer.stop()
            raise ValueError("not yet")

    with job.consumer("billing", topics=["orders"], observers=[metrics], client_id="till-4") as consumer:
        consumer.run(handle)
        consumer.flush()
        labels = {"group": "billing", "topic": "orders"}
        assert registry.get_sample_value("popstream_client_popped_messages_total", labels) == 10
        assert registry.get_sample_value("popstream_client_acked_messages_total", labels) == 9
        assert registry.get_sample_value("popstream_client_released_messages_total", labels) == 1
        assert registry.get_sample_value("popstream_client_rejected_messages_total", labels) is None
        calls = [
            registry.get_sample_value("popstream_client_handler_seconds_count", {**labels, "result": result})
            for result in ("ok", "failed")
        ]
        assert calls == [9, 1]
        assert registry.get_sample_value("popstream_client_answer_seconds_count", {"operation": "ack"}) is not None
        gauges = {"group": "billing", "client_id": "till-4"}
        assert registry.get_sample_value("popstream_client_held_messages", gauges) == 0
        assert registry.get_sample_value("popstream_client_prefetch_window_messages", gauges) == 16
    assert registry.get_sample_value("popstream_client_held_messages", gauges) is None
    exposed = generate_latest(registry).decode()
    assert "# TYPE popstream_client_popped_messages_total counter" in exposed
    assert "# TYPE popstream_client_handler_seconds histogram" in exposed


def test_prometheus_gets_the_time_of_each_send(job: MemoryJob) -> None:
    registry = CollectorRegistry()
    job.write("tea", 0, [])
    metrics = PrometheusMetrics(registry)
    with job.producer(observers=[metrics]) as producer:
        producer.send_and_wait("tea", b"earl grey", queue_id=0)
        producer.send_and_wait("tea", b"assam", queue_id=0)
    refused: Future[SendResult] = Future()
    refused.set_exception(NotWritten("Kafka is away"))
    metrics.sending("till-4", OutgoingMessage(topic="tea", value=b"oolong"), [])(refused)
    counts = [
        registry.get_sample_value("popstream_client_send_seconds_count", {"topic": "tea", "result": result})
        for result in ("ok", "failed")
    ]
    assert counts == [2, 1]


def test_the_metrics_of_a_process_are_made_once() -> None:
    registry = CollectorRegistry()
    PrometheusMetrics(registry)
    with pytest.raises(ValueError, match="Duplicated timeseries"):
        PrometheusMetrics(registry)
