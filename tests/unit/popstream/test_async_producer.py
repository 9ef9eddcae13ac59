"""Claim: the producer does the same for coroutines, in the order of their calls, without blocking the event loop.

Method: a KafkaProducer in memory; what would block is held until the event loop has done something else.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any, Never, assert_type

import pytest

from popstream import (
    AsyncProducer,
    ClientClosed,
    Invalid,
    NotWritten,
    OutgoingMessage,
    Producer,
    SendResult,
    json_serializer,
)
from popstream.testing._memory_kafka import MemoryKafka
from popstream.testing.memory_job import MemoryJob
from tests.support.slow_opening import SlowOpening, close_while_it_opens


class SlowKafka(MemoryKafka):
    """Knows no topic before `is_there` is set."""

    def __init__(self) -> None:
        super().__init__(MemoryJob(), partitions=2)
        self.is_there = threading.Event()
        self.is_asked = threading.Event()

    def partitions_for(self, topic: str) -> set[int]:
        self.is_asked.set()
        return super().partitions_for(topic) if self.is_there.is_set() else set()


class PartlyKnownKafka(MemoryKafka):
    """Knows some topics."""

    def __init__(self, *known: str) -> None:
        super().__init__(MemoryJob(), partitions=2)
        self.known = set(known)

    def partitions_for(self, topic: str) -> set[int]:
        return super().partitions_for(topic) if topic in self.known else set()


def make(kafka: MemoryKafka, **options: Any) -> AsyncProducer:
    return AsyncProducer("memory", kafka_producer=kafka, job_types=lambda _: None, **options)


@pytest.fixture
def kafka() -> MemoryKafka:
    return MemoryKafka(MemoryJob(), partitions=2)


def values(kafka: MemoryKafka) -> list[bytes]:
    return [record["value"] for record in kafka.sent]


def test_a_coroutine_sends_and_awaits_results(kafka: MemoryKafka) -> None:
    async def main() -> tuple[SendResult, list[SendResult]]:
        async with make(kafka) as producer:
            one = await producer.send_and_wait("orders", b"one", queue_id=1)
            many = [await producer.send("orders", b"%d" % number, queue_id=1) for number in range(20)]
            return one, await asyncio.gather(*many)

    one, many = asyncio.run(main())
    assert (one.queue_id, one.queue_offset) == (1, 0)
    assert [result.queue_offset for result in many] == list(range(1, 21))


def test_messages_wait_for_a_new_topic_in_order_and_block_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    kafka = SlowKafka()
    monkeypatch.setattr("popstream.producer.describe_topic", lambda *_: None)

    async def main() -> None:
        async with make(kafka) as producer:
            sending = [
                asyncio.create_task(producer.send_and_wait("orders", b"%d" % number, key=b"k")) for number in range(5)
            ]
            while not kafka.is_asked.is_set():
                await asyncio.sleep(0.001)
            assert not any(task.done() for task in sending)
            sending[1].cancel()
            kafka.is_there.set()
            sending.append(asyncio.create_task(producer.send_and_wait("orders", b"5", key=b"k")))
            found = await asyncio.gather(*sending, return_exceptions=True)
            assert isinstance(found[1], asyncio.CancelledError)
            assert all(isinstance(result, SendResult) for result in found[2:])

    asyncio.run(main())
    assert values(kafka) == [b"%d" % number for number in range(6)]


def test_an_unknown_topic_keeps_no_other_waiting_and_is_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    kafka = PartlyKnownKafka("orders")
    asked: list[str] = []
    may_answer = threading.Event()

    def describe(_settings: object, topic: str) -> Never:
        asked.append(topic)
        may_answer.wait()
        raise Invalid("it does not exist", subject=topic)

    monkeypatch.setattr("popstream.send.destinations.DESCRIBE_AFTER_S", 0.0)
    monkeypatch.setattr("popstream.producer.describe_topic", describe)

    async def main() -> None:
        async with make(kafka) as producer, asyncio.timeout(60):
            lost: list[asyncio.Task[Any]]
            lost = [asyncio.create_task(producer.send_and_wait("lost", b"%d" % number)) for number in range(5)]
            lost.append(asyncio.create_task(producer.send_many([OutgoingMessage(topic="lost", value=b"5")])))
            while not asked:
                await asyncio.sleep(0.001)
            assert isinstance(await producer.send_and_wait("orders", b"one"), SendResult)
            lost.append(asyncio.create_task(producer.send_and_wait("lost", b"6", wait_for_store=False)))
            await asyncio.sleep(0)
            may_answer.set()
            found = await asyncio.gather(*lost, return_exceptions=True)
            assert [type(error) for error in found] == [Invalid] * 7
            kafka.known.add("lost")
            assert isinstance(await producer.send_and_wait("lost", b"7"), SendResult)

    asyncio.run(main())
    assert asked == ["lost"] * 2
    assert values(kafka) == [b"one", b"7"]


def test_close_waits_for_messages_to_a_new_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    kafka = SlowKafka()
    monkeypatch.setattr("popstream.producer.describe_topic", lambda *_: None)

    async def main() -> None:
        producer = await make(kafka).open()
        sending = asyncio.create_task(producer.send_and_wait("orders", b"one"))
        while not kafka.is_asked.is_set():
            await asyncio.sleep(0.001)
        closing = asyncio.create_task(producer.close())
        await asyncio.sleep(0)
        kafka.is_there.set()
        await closing
        assert isinstance(await sending, SendResult)

    asyncio.run(main())


@pytest.mark.parametrize("key", [None, b"k"])
def test_many_messages_that_fill_the_buffer_block_no_coroutine(kafka: MemoryKafka, key: bytes | None) -> None:
    may_answer = threading.Event()

    def wait(_: object) -> None:
        may_answer.wait()

    messages = [OutgoingMessage(topic="orders", value=b"%d" % number, key=key) for number in range(50)]

    async def main() -> None:
        async with make(kafka, total_batch_max_bytes=2_000) as producer:
            await producer.send_and_wait("orders", b"first")
            kafka.judge = wait
            sending = asyncio.create_task(producer.send_many(messages))
            await asyncio.sleep(0)
            assert not sending.done()  # it waits for room
            may_answer.set()
            assert len(await asyncio.gather(*await sending)) == 50

    asyncio.run(main())


def test_a_full_buffer_blocks_no_coroutine(kafka: MemoryKafka) -> None:
    async def main() -> None:
        async with make(kafka, total_batch_max_bytes=2_000, batch_max_delay_ms=30) as producer:
            await asyncio.gather(*(producer.send_and_wait("orders", b"%d" % number, key=b"k") for number in range(50)))

    asyncio.run(main())
    assert values(kafka) == [b"%d" % number for number in range(50)]


def test_errors_are_those_of_a_producer(kafka: MemoryKafka) -> None:
    async def main() -> None:
        producer = await make(kafka).open()
        with pytest.raises(Invalid, match="headers that begin with popstream-"):
            await producer.send_and_wait("orders", b"one", headers=[("popstream-tag", b"x")])
        refused = await producer.send("orders", 7)  # type: ignore[arg-type]
        with pytest.raises(Invalid, match="value must be bytes, not int"):
            await refused
        await producer.close()
        with pytest.raises(ClientClosed):
            await producer.producer.send("orders", b"late")

    asyncio.run(main())


def test_a_second_close_does_nothing_and_nothing_is_sent_after_the_first(kafka: MemoryKafka) -> None:
    async def main() -> None:
        async with make(kafka, batch_max_delay_ms=30_000) as producer:
            await producer.send("orders", b"one")
            await producer.close()
            await producer.close()
            for topic in ("orders", "unknown"):
                with pytest.raises(ClientClosed):
                    await producer.send(topic, b"late")
            with pytest.raises(ClientClosed):
                await producer.flush()
        never_opened = make(kafka)
        await never_opened.close()
        with pytest.raises(ClientClosed, match="the producer is closed"):
            await never_opened.open()

    asyncio.run(main())
    assert values(kafka) == [b"one"]


def test_a_block_that_raises_flushes_and_raises(kafka: MemoryKafka) -> None:
    async def main() -> None:
        async with make(kafka, batch_max_delay_ms=30_000) as producer:
            await producer.send("orders", b"one")
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        asyncio.run(main())
    assert values(kafka) == [b"one"]


def test_batches_and_flushes(kafka: MemoryKafka) -> None:
    async def main() -> None:
        async with make(kafka, batch_max_delay_ms=30_000) as producer:
            assert await producer.send_many([]) == []
            sent = await producer.send_many([OutgoingMessage(topic="orders", value=b"a", queue_id=0)])
            later = await producer.send("orders", b"b", queue_id=0)
            await producer.flush()
            assert [(await one).queue_offset for one in (*sent, later)] == [0, 1]

    asyncio.run(main())


def test_the_types_follow_the_serializer(kafka: MemoryKafka) -> None:
    def never() -> None:
        assert_type(AsyncProducer("kafka:9092"), AsyncProducer[bytes])
        assert_type(AsyncProducer("kafka:9092", value_serializer=json_serializer), AsyncProducer[object])

    assert callable(never)

    async def main() -> None:
        opened = Producer("memory", kafka_producer=kafka, job_types=lambda _: None, value_serializer=json_serializer)
        async with AsyncProducer.of(opened) as producer:
            await producer.send_and_wait("orders", {"number": 7})

    asyncio.run(main())
    assert values(kafka) == [b'{"number":7}']


def test_a_message_that_is_late_raises_when_awaited(kafka: MemoryKafka) -> None:
    async def main() -> None:
        async with make(kafka, delivery_timeout_ms=1) as producer:
            with pytest.raises(NotWritten):  # it waits for others for 10 ms
                await producer.send_and_wait("orders", b"one")

    asyncio.run(main())


def test_a_producer_that_is_not_open_says_how_to_open_it() -> None:
    async def main() -> None:
        with pytest.raises(Invalid, match="the producer is not open: use `async with`"):
            await AsyncProducer("kafka:9092").send("orders", b"one")

    asyncio.run(main())


def slow_opening(kafka: MemoryKafka) -> tuple[AsyncProducer, SlowOpening[Producer]]:
    """Return a producer, and what lets it be opened."""
    opening = SlowOpening(lambda: Producer("memory", kafka_producer=kafka, job_types=lambda _: None))
    producer: AsyncProducer = AsyncProducer("memory")
    producer._client._make = opening
    return producer, opening


def test_producers_of_opens_that_were_cancelled_or_came_together(kafka: MemoryKafka) -> None:
    producer, slow = slow_opening(kafka)

    async def main() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(producer.open(), 0.05)
        opening = [asyncio.create_task(producer.open()) for _ in range(2)]
        slow.may_end.set()
        await asyncio.gather(*opening)
        while not any(slow.are_closed):
            await asyncio.sleep(0.001)
        await producer.close()

    asyncio.run(main())
    assert slow.are_closed == [True, True]


def test_a_producer_that_is_closed_while_it_opens_is_closed(kafka: MemoryKafka) -> None:
    producer, slow = slow_opening(kafka)
    asyncio.run(close_while_it_opens(producer, slow))
    assert slow.are_closed == [True]
