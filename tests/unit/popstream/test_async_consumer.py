"""Claim: the consumer does the same for coroutines. Method: the kernel itself, in memory."""

from __future__ import annotations

import asyncio

import pytest

from popstream import AsyncConsumer, Message
from popstream.testing.memory_job import MemoryJob


@pytest.fixture
def job() -> MemoryJob:
    made = MemoryJob()
    for queue_id in range(2):
        made.write("orders", queue_id, [b"%d-%d" % (queue_id, number) for number in range(10)])
    return made


def left_of(job: MemoryJob) -> list[tuple[bytes | None, int]]:
    with job.consumer("billing") as other:
        return [(message.value, message.attempt) for queue_id in range(2) for message in other.pop("orders", queue_id)]


def test_iteration(job: MemoryJob) -> None:
    async def main() -> set[bytes | None]:
        found = set()
        async with AsyncConsumer.of(job.consumer("billing", topics=["orders"])) as consumer:
            async for message in consumer:
                found.add(message.value)
                assert (await message.ack()).applied
                if len(found) == 20:
                    consumer.stop()
        return found

    assert len(asyncio.run(main())) == 20
    assert left_of(job) == []


def test_what_a_message_asks_for_can_be_awaited(job: MemoryJob) -> None:
    async def main() -> None:
        async with AsyncConsumer.of(job.consumer("billing")) as consumer:
            first, second, third, fourth = (await consumer.pop("orders", 0, max_messages=4)).messages
            outcomes = await asyncio.gather(
                first.ack(), second.extend(90), third.release(delay=5), fourth.reject("bad")
            )
            assert [outcome.applied for outcome in outcomes] == [True] * 4
            assert second.next_visible_time_ms == job.now_ms + 90_000
            assert not (await first.ack()).applied
            waiting = asyncio.create_task(_awaited(second))
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting

    asyncio.run(main())


async def _awaited(message: Message) -> None:
    await message.ack()


def test_a_handler_in_many_tasks(job: MemoryJob) -> None:
    done: list[bytes] = []
    all_done = asyncio.Event()
    at_once: list[int] = []
    working = 0

    async def handle(message: Message) -> None:
        nonlocal working
        working += 1
        at_once.append(working)
        await asyncio.sleep(0.01)
        working -= 1
        if message.value == b"1-7" and message.attempt == 1:
            raise ValueError("not yet")
        done.append(message.value or b"")
        if len(done) == 20:
            all_done.set()

    async def main() -> None:
        async with AsyncConsumer.of(job.consumer("billing", topics=["orders"], back_off=[])) as consumer:
            running = asyncio.create_task(consumer.run(handle, tasks=5))
            await all_done.wait()
            consumer.stop()
            await running

    asyncio.run(main())
    assert sorted(done) == sorted(b"%d-%d" % (queue_id, number) for queue_id in range(2) for number in range(10))
    assert max(at_once) == 5
    assert left_of(job) == []


def test_what_a_cancelled_run_had_at_hand_goes_back(job: MemoryJob) -> None:
    async def main() -> None:
        begun = asyncio.Event()

        async def hang(_: Message) -> None:
            begun.set()
            await asyncio.sleep(3_600)

        async with AsyncConsumer.of(job.consumer("billing", topics=["orders"])) as consumer:
            running = asyncio.create_task(consumer.run(hang))
            await begun.wait()
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running

    asyncio.run(main())
    job.advance(1_000)
    assert len(left_of(job)) == 20


@pytest.mark.parametrize("fails", [False, True])
def test_close_waits_for_the_handlers_at_work(job: MemoryJob, *, fails: bool) -> None:
    done: list[bytes | None] = []

    async def main() -> None:
        working = asyncio.Semaphore(0)

        async def handle(message: Message) -> None:
            working.release()
            await asyncio.sleep(0.3)
            if fails:
                raise ValueError("no milk")
            assert (await message.ack()).applied
            done.append(message.value)

        consumer = await AsyncConsumer.of(job.consumer("billing", topics=["orders"], back_off=[60])).open()
        running = asyncio.create_task(consumer.run(handle, tasks=2))
        await working.acquire()
        await working.acquire()
        await asyncio.gather(consumer.close(), consumer.close())
        assert len(done) == (0 if fails else 2)
        assert len(left_of(job)) == 18
        await running

    asyncio.run(main())
    job.advance(60_000)
    assert len(left_of(job)) == (20 if fails else 18)


def test_close_may_be_called_again_in_another_event_loop(job: MemoryJob) -> None:
    consumer = AsyncConsumer.of(job.consumer("billing"))
    for _ in range(2):
        asyncio.run(consumer.close())
    assert len(left_of(job)) == 20


def test_pops_and_batches(job: MemoryJob) -> None:
    async def main() -> None:
        async with AsyncConsumer.of(job.consumer("billing")) as consumer:
            first, second = await asyncio.gather(consumer.pop("orders", 0), consumer.pop("orders", 1, max_messages=4))
            assert (len(first), len(second)) == (10, 4)
            assert all(outcome.applied for outcome in await consumer.ack([*first, *second.messages[:2]]))
            assert all(outcome.applied for outcome in await consumer.change_invisible(second.messages[2:3], 0))
            assert all(outcome.applied for outcome in await consumer.reject(second.messages[3:], "bad"))

    asyncio.run(main())
    assert [value for value, _ in left_of(job)] == [b"1-2", *(b"1-%d" % number for number in range(4, 10))]


def test_a_cancelled_pop_keeps_nothing(job: MemoryJob) -> None:
    async def main() -> None:
        async with AsyncConsumer.of(job.consumer("billing")) as consumer:
            await consumer.ack((await consumer.pop("orders", 0)).messages)
            waiting = asyncio.create_task(consumer.pop("orders", 0, poll_time_ms=60_000))
            while not consumer.consumer._pops._in_flight:
                await asyncio.sleep(0.005)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            job.write("orders", 0, [b"late"])
            while consumer.consumer._pops._in_flight or consumer.consumer.held_count:
                await asyncio.sleep(0.005)

    asyncio.run(main())
    assert (b"late", 2) in left_of(job)
