"""Claim: a trace goes from the producer to the handler, in the headers, by the conventions for messaging.

Method: producer and consumer in memory; OpenTelemetry's SDK with its exporter in memory.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from popstream import AsyncConsumer, Invalid, Message, OutgoingMessage, Producer
from popstream.opentelemetry import OpenTelemetryTraces
from popstream.testing._memory_kafka import MemoryKafka
from popstream.testing.memory_job import MemoryJob
from tests.support.threads import eventually


class Traced:
    """A job with a topic in memory, an observer of it, and its spans."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.traces = OpenTelemetryTraces(provider)
        self.job = MemoryJob()
        self.job.make_topic("orders", 1)
        self.kafka = MemoryKafka(self.job)

    def producer(self) -> Producer:
        return Producer(
            "memory",
            kafka_producer=self.kafka,
            job_types=lambda _: None,
            client_id="till-4",
            auto_batch=False,
            observers=[self.traces],
        )

    def spans(self, name: str) -> list[Any]:
        """The ended spans of a name, in the order of their start."""
        found = [span for span in self.exporter.get_finished_spans() if span.name == name]
        return sorted(found, key=_start_ns)

    def headers(self) -> list[list[str]]:
        return [[name for name, _ in record["headers"] if name == "traceparent"] for record in self.kafka.sent]


def _start_ns(span: ReadableSpan) -> int:
    return span.start_time or 0


@pytest.fixture
def traced() -> Traced:
    return Traced()


def test_a_handler_is_in_the_trace_of_the_producer(traced: Traced) -> None:
    with traced.producer() as producer:
        sent = producer.send_and_wait("orders", b"mocha", key=b"table-3", queue_id=0, headers=[("mine", b"1")])
    assert [name for name, _ in traced.kafka.sent[0]["headers"]][:2] == ["mine", "traceparent"]
    seen: list[Message] = []

    def handle(message: Message) -> None:
        seen.append(message)
        if message.attempt == 1:
            raise ValueError("no milk")
        consumer.stop()

    with traced.job.consumer(
        "baristas", topics=["orders"], client_id="bar-1", back_off=[0], observers=[traced.traces]
    ) as consumer:
        consumer.run(handle)
    (send,) = traced.spans("send orders")
    failed, done = traced.spans("process orders")
    assert (send.kind.name, send.parent, send.status.status_code.name) == ("PRODUCER", None, "UNSET")
    assert dict(send.attributes) == {
        "messaging.system": "kafka",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "orders",
        "messaging.client.id": "till-4",
        "messaging.kafka.message.key": "table-3",
        "messaging.destination.partition.id": "0",
        "messaging.kafka.offset": 0,
        "messaging.message.id": sent.message_id,
    }
    assert dict(done.attributes) == {
        "messaging.system": "kafka",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "orders",
        "messaging.client.id": "bar-1",
        "messaging.consumer.group.name": "baristas",
        "messaging.kafka.message.key": "table-3",
        "messaging.destination.partition.id": "0",
        "messaging.kafka.offset": 0,
        "messaging.message.id": sent.message_id,
        "popstream.attempt": 2,
    }
    assert {done.kind.name, failed.kind.name} == {"CONSUMER"}
    for span in (failed, done):
        assert (span.context.trace_id, span.parent.span_id) == (send.context.trace_id, send.context.span_id)
    assert (failed.status.status_code.name, done.status.status_code.name) == ("ERROR", "UNSET")
    assert failed.attributes["error.type"] == "ValueError"
    assert [event.attributes["exception.message"] for event in failed.events] == ["no milk"]


def test_a_set_is_linked_to_the_traces_of_its_messages(traced: Traced) -> None:
    with traced.producer() as producer:
        for value in (b"mocha", b"latte"):
            producer.send_and_wait("orders", value, queue_id=0)
    traced.job.append("orders", 0, traced.job.payloads.queue("orders", 0)[0].__class__(None, b"untraced", [], 7))

    with traced.job.consumer("baristas", topics=["orders"], observers=[traced.traces]) as consumer:
        consumer.run_sets(lambda _: consumer.stop(), set_size=10)
    (process,) = traced.spans("process orders")
    sends = traced.spans("send orders")
    assert process.parent is None
    assert {link.context.span_id for link in process.links} == {send.context.span_id for send in sends}
    assert process.attributes["messaging.batch.message_count"] == 3


def test_a_coroutine_is_in_the_trace_of_the_producer(traced: Traced) -> None:
    with traced.producer() as producer:
        producer.send_and_wait("orders", b"mocha", queue_id=0)

    async def main() -> None:
        async def handle(_: Message) -> None:
            await asyncio.sleep(0)
            consumer.stop()

        made = traced.job.consumer("baristas", topics=["orders"], observers=[traced.traces])
        async with AsyncConsumer.of(made) as consumer:
            await consumer.run(handle)

    asyncio.run(main())
    (send,), (process,) = traced.spans("send orders"), traced.spans("process orders")
    assert process.parent.span_id == send.context.span_id


def test_each_message_has_one_context_also_when_it_is_forwarded(traced: Traced) -> None:
    with traced.producer() as producer:
        producer.send_many([OutgoingMessage(topic="orders", value=b"mocha", queue_id=0)])
        producer.flush()
        headers = [(name, value) for name, value in traced.kafka.sent[0]["headers"] if name == "traceparent"]
        producer.send_and_wait("orders", b"forwarded", queue_id=0, headers=headers)
    assert traced.headers() == [["traceparent"], ["traceparent"]]
    assert headers[0] not in traced.kafka.sent[1]["headers"]


def test_a_message_that_is_refused_ends_its_span_with_the_error(traced: Traced) -> None:
    traced.kafka.raises = lambda _: ValueError("too large")
    with traced.producer() as producer, pytest.raises(Invalid):
        producer.send_and_wait("orders", None, key=b"k", queue_id=0)
    eventually(lambda: bool(traced.spans("send orders")))
    (send,) = traced.spans("send orders")
    assert send.status.status_code.name == "ERROR"
    assert send.attributes["error.type"] == "Invalid"
    assert send.attributes["messaging.kafka.message.tombstone"] is True


def test_without_the_api_the_import_says_what_to_install() -> None:
    program = """
import sys
sys.modules["opentelemetry"] = None
import popstream, popstream._api
try:
    import popstream.opentelemetry
except ModuleNotFoundError as error:
    print(error)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout == ("popstream.opentelemetry needs opentelemetry-api: pip install 'popstream[opentelemetry]'\n")
