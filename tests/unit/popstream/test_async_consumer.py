"""Claim: the consumer does the same for coroutines. Method: the kernel itself, in memory."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING, Never

import pytest

from popstream import AsyncConsumer, ClientClosed, Message, Refused, Reject
from popstream.pop.subscription import Subscription
from popstream.testing.memory_job import MemoryJob
from popstream.wire.base_errors import Invalid
from popstream.wire.command import Cancel, Pop
from popstream.wire.command import Reject as RejectCommand
from tests.support.held_back_job import HeldBackJob
from tests.support.slow_opening import SlowOpening, close_while_it_opens

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from popstream.consumer import Consumer


@pytest.fixture
def job() -> MemoryJob:
    made = MemoryJob()
    for queue_id in range(2):
        made.write("orders", queue_id, [b"%d-%d" % (queue_id, number) for number in range(10)])
    return made


def left_of(job: MemoryJob, *, order: bool = False) -> list[tuple[bytes | None, int]]:
    with job.consumer("billing") as other:
        return [
            (message.value, message.attempt)
            for queue_id in range(2)
            for message in other.pop("orders", queue_id, order=order)
        ]


def test_messages_come_by_iteration_until_the_consumer_is_told_to_stop(job: MemoryJob) -> None:
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
                first.ack(), second.extend(90), third.release(delay_s=5), fourth.reject("bad")
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


def test_a_run_that_has_ended_has_handed_over_what_its_handlers_gave_up(
    job: MemoryJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle = Subscription.fail

    def fail_late(subscription: Subscription, messages: Sequence[Message], error: BaseException) -> None:
        time.sleep(0.3)
        settle(subscription, messages, error)

    monkeypatch.setattr(Subscription, "fail", fail_late)

    async def main(consumer: AsyncConsumer) -> None:
        async def handle(_: Message) -> Never:
            consumer.stop()
            raise Reject("no such customer")

        await consumer.run(handle)

    with job.consumer("billing", topics=["orders"]) as consumer:
        asyncio.run(main(AsyncConsumer.of(consumer)))
        consumer.flush()
        assert any(isinstance(record, RejectCommand) for record in job.records)


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
            while consumer.consumer.held_count:  # also what it had prefetched, before the consumer is closed
                await asyncio.sleep(0.005)

    asyncio.run(main())
    job.advance(1_000)
    left = left_of(job)
    assert (len(left), {attempt for _, attempt in left}) == (20, {1})  # the cancellation was about none of them


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
    assert (b"late", 1) in left_of(job)  # nobody has seen it


def test_a_pop_that_is_cancelled_before_its_answer_counts_no_attempt() -> None:
    job = HeldBackJob()
    job.write("orders", 0, [b"x"])

    async def main() -> None:
        async with AsyncConsumer.of(job.consumer("billing", max_attempts=2)) as consumer:
            for _ in range(3):
                job.holds_back = True
                waiting = asyncio.create_task(consumer.pop("orders", 0))
                while not consumer.consumer._pops._in_flight:
                    await asyncio.sleep(0.005)
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting
                job.deliver()
                while consumer.consumer._pops._in_flight or consumer.consumer.held_count:
                    await asyncio.sleep(0.005)
            assert [message.attempt for message in await consumer.pop("orders", 0)] == [1]

    asyncio.run(main())


@pytest.mark.parametrize("queue_id", [0, None])
@pytest.mark.parametrize("is_answered", [False, True])
def test_a_cancelled_pop_is_in_flight_no_longer(queue_id: int | None, *, is_answered: bool) -> None:
    job = HeldBackJob()
    for one in range(2):
        job.write("orders", one, [])
    job.holds_back = not is_answered

    async def main() -> None:
        consumer = AsyncConsumer.of(job.consumer("billing"))
        for _ in range(40):
            waiting = asyncio.create_task(consumer.pop("orders", queue_id, poll_time_ms=600_000))
            async with asyncio.timeout(60):
                while not consumer.consumer._pops._in_flight:
                    await asyncio.sleep(0.001)
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting
                while consumer.consumer._pops._in_flight:
                    await asyncio.sleep(0.001)
        job.deliver()
        await consumer.close()

    asyncio.run(main())
    popped = {record.op_id for record in job.records if isinstance(record, Pop)}
    assert {record.target_op_id for record in job.records if isinstance(record, Cancel)} == popped


def test_a_popped_message_with_a_renewed_lease_belongs_to_the_event_loop(job: MemoryJob) -> None:
    async def main() -> None:
        async with AsyncConsumer.of(job.consumer("billing", topics=["orders"])) as consumer:
            await anext(aiter(consumer))
            consumer.stop()
            await consumer.pop("orders", renew=True)
            owners = {holding.owner for holding in consumer.consumer._leases.held.holdings()}
            assert owners - {None} == {threading.current_thread()}

    asyncio.run(main())


def test_requests_that_wait_for_their_answers_keep_nothing_else_waiting() -> None:
    job = HeldBackJob()
    job.write("orders", 0, [b"%d" % number for number in range(40)])

    async def main() -> None:
        consumer = AsyncConsumer.of(job.consumer("billing"))
        held = (await consumer.pop("orders", 0, max_messages=40)).messages
        job.holds_back = True
        waiting = [asyncio.create_task(consumer.change_invisible([one], 30_000)) for one in held[:20]]
        waiting += [asyncio.create_task(consumer.reject([one])) for one in held[20:]]
        async with asyncio.timeout(60):
            while consumer.consumer._transport.waiting_count < 40:
                await asyncio.sleep(0.001)
            await consumer.close(timeout_ms=100)
            assert all(
                isinstance(found, ClientClosed) for found in await asyncio.gather(*waiting, return_exceptions=True)
            )

    asyncio.run(main())


def test_after_close_every_call_says_so(job: MemoryJob) -> None:
    async def main() -> None:
        async with AsyncConsumer.of(job.consumer("billing", topics=["orders"])) as consumer:
            held = (await consumer.pop("orders", 0)).messages
        with pytest.raises(ClientClosed):
            await consumer.pop("orders", 0)
        with pytest.raises(ClientClosed):
            await consumer.ack(held)
        with pytest.raises(ClientClosed):
            await consumer.change_invisible(held, 1_000)
        with pytest.raises(ClientClosed):
            await consumer.reject(held)
        with pytest.raises(ClientClosed):
            await consumer.run(Message.ack)
        with pytest.raises(ClientClosed):
            await anext(aiter(consumer))
        never_opened: AsyncConsumer = AsyncConsumer("kafka:9092", group="billing")
        await never_opened.close()
        with pytest.raises(ClientClosed):
            await never_opened.open()

    asyncio.run(main())


def test_pops_that_wait_keep_nothing_else_waiting(job: MemoryJob) -> None:
    async def main() -> None:
        consumer = AsyncConsumer.of(job.consumer("billing"))
        held = (await consumer.pop("orders", 0)).messages
        pops = [asyncio.create_task(consumer.pop("orders", 0, poll_time_ms=600_000)) for _ in range(40)]
        while len(consumer.consumer._pops._in_flight) < 40:
            await asyncio.sleep(0.005)
        async with asyncio.timeout(60):
            assert all(outcome.applied for outcome in await consumer.change_invisible(held, 30_000))
            await consumer.close()
            await asyncio.gather(*pops, return_exceptions=True)

    asyncio.run(main())


@pytest.mark.parametrize("tasks", [1, 3])
def test_run_raises_what_its_consumer_would(job: MemoryJob, tasks: int) -> None:
    with job.consumer("billing") as other:
        other.pop("orders", 0, order=True)

    async def main() -> None:
        async with AsyncConsumer.of(job.consumer("billing", topics=["orders"])) as consumer:
            with pytest.raises(Refused):
                await consumer.run(Message.ack, tasks=tasks)

    asyncio.run(main())


def test_run_ends_with_any_error_of_the_subscription(job: MemoryJob, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_args: object, **_options: object) -> Never:
        raise OSError(28, "No space left on device")

    async def main() -> None:
        async with AsyncConsumer.of(job.consumer("billing", topics=["orders"])) as consumer:
            monkeypatch.setattr(consumer.consumer._transport, "submit", fail)
            with pytest.raises(OSError, match="No space left"):
                await consumer.run(Message.ack)
            monkeypatch.undo()

    asyncio.run(main())


@pytest.mark.parametrize("order", [False, True])
def test_sets_are_acked_together_and_of_a_failed_one_only_the_first_counts(job: MemoryJob, *, order: bool) -> None:
    sizes: list[int] = []
    attempts: dict[bytes | None, int] = {}

    async def main() -> None:
        async with AsyncConsumer.of(job.consumer("billing", topics=["orders"], order=order, back_off=[])) as consumer:

            async def handle(messages: Sequence[Message]) -> None:
                sizes.append(len(messages))
                assert not order or len({message.queue_id for message in messages}) == 1
                if messages[0].queue_offset == 0 and messages[0].attempt == 1:
                    raise ValueError("no milk")
                messages[-1].ack()
                attempts.update((message.value, message.attempt) for message in messages)
                if len(attempts) == 20:
                    consumer.stop()

            await consumer.run_sets(handle, set_size=4, tasks=2)

    asyncio.run(main())
    assert max(sizes) == 4
    assert {value for value, attempt in attempts.items() if attempt > 1} == {b"0-0", b"1-0"}
    assert left_of(job, order=order) == []


def test_a_consumer_that_is_not_open_says_how_to_open_it() -> None:
    async def main() -> None:
        with pytest.raises(Invalid, match="the consumer is not open: use `async with`"):
            await AsyncConsumer("kafka:9092", group="billing").pop("orders", 0)

    asyncio.run(main())


def test_run_needs_a_task(job: MemoryJob) -> None:
    async def main() -> None:
        async with AsyncConsumer.of(job.consumer("billing", topics=["orders"])) as consumer:
            with pytest.raises(Invalid, match="at least one task"):
                await consumer.run(Message.ack, tasks=0)
            with pytest.raises(Invalid, match="one message"):
                await consumer.run_sets(asyncio.sleep, set_size=0)  # type: ignore[arg-type]

    asyncio.run(main())


def test_a_handler_whose_own_task_is_not_cancelled_has_failed_like_any_other(job: MemoryJob) -> None:
    done: list[bytes | None] = []

    async def main() -> None:
        async with AsyncConsumer.of(job.consumer("billing", topics=["orders"], back_off=[60])) as consumer:

            async def handle(message: Message) -> None:
                if message.value in (b"0-3", b"1-3"):
                    inner = asyncio.create_task(asyncio.sleep(3_600))
                    inner.cancel()
                    await inner
                done.append(message.value)
                if len(done) == 18:
                    consumer.stop()

            await consumer.run(handle, tasks=2)

    asyncio.run(main())
    job.advance(60_000)
    assert sorted(left_of(job)) == [(b"0-3", 2), (b"1-3", 2)]


def test_closing_while_handlers_fail(job: MemoryJob) -> None:
    for queue_id in range(2):
        job.write("orders", queue_id, [b"%d" % number for number in range(1_000)])
    failed = 0

    async def main() -> None:
        async def fail(_: Message) -> Never:
            nonlocal failed
            failed += 1
            raise ValueError("no milk")

        consumer = AsyncConsumer.of(job.consumer("billing", topics=["orders"], back_off=[60]))
        running = asyncio.create_task(consumer.run(fail, tasks=200))
        while failed < 300:
            await asyncio.sleep(0.001)
        await consumer.close()
        await running
        assert consumer.consumer.held_count == 0

    asyncio.run(main())


def consumer_of(make: Callable[[], Consumer]) -> AsyncConsumer:
    consumer: AsyncConsumer = AsyncConsumer("kafka:9092", group="billing")
    consumer._client._make = make
    return consumer


def test_a_consumer_that_was_made_for_a_cancelled_open_is_closed(job: MemoryJob) -> None:
    made: list[Consumer] = []

    def make() -> Consumer:
        time.sleep(0.2)
        made.append(job.consumer("billing"))
        return made[0]

    async def main() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(consumer_of(make).open(), 0.05)
        while not made or not made[0]._is_closed:
            await asyncio.sleep(0.01)

    asyncio.run(main())


def test_two_opens_at_once_make_one_consumer(job: MemoryJob) -> None:
    made: list[Consumer] = []

    def make() -> Consumer:
        made.append(job.consumer("billing"))
        return made[-1]

    async def main() -> None:
        consumer = consumer_of(make)
        await asyncio.gather(consumer.open(), consumer.open())
        await consumer.close()

    asyncio.run(main())
    assert [one._is_closed for one in made] == [True]


def test_a_consumer_that_is_closed_while_it_opens_is_closed(job: MemoryJob) -> None:
    slow = SlowOpening(lambda: job.consumer("billing"))
    asyncio.run(close_while_it_opens(consumer_of(slow), slow))
    assert slow.are_closed == [True]
