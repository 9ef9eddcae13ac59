"""Claim: `run` acks what is done soon and together, gives back what it has not begun, and keeps no worker waiting.

Method: the kernel itself, in memory; an ack delay of a minute shows that something else than time sends the acks.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from popstream import AsyncConsumer, Consumer, Message, Reject, Retry
from popstream.testing.memory_job import MemoryJob
from popstream.wire.command import Ack, ChangeInvisible, Command
from tests.support.threads import eventually, in_thread

MINUTE_MS = 60_000


@pytest.fixture
def job() -> MemoryJob:
    made = MemoryJob()
    made.write("orders", 0, [b"%d" % number for number in range(10)])
    return made


def acked(job: MemoryJob) -> list[list[tuple[int, int]]]:
    """The ranges of each ack record."""
    return [[*entry.offsets] for ack in job.records if isinstance(ack, Ack) for entry in ack.entries]


def left(job: MemoryJob) -> list[tuple[int, int]]:
    """(offset, attempt) of what can be popped now."""
    with job.consumer("billing") as other:
        return [(message.queue_offset, message.attempt) for message in other.pop("orders", 0, 1_000)]


def run_until(consumer: Consumer, handle: Callable[[Message], object], is_done: Callable[[], bool]) -> None:
    ran = in_thread(lambda: consumer.run(handle))
    eventually(is_done)
    consumer.stop()
    ran.join(60)
    assert not ran.is_alive()


@pytest.mark.parametrize("order", [False, True])
def test_the_ack_of_a_message_does_not_wait_for_a_handler_that_hangs(job: MemoryJob, *, order: bool) -> None:
    hanging = threading.Event()

    def handle(message: Message) -> None:
        if message.queue_offset == 3:
            assert hanging.wait(60)

    with job.consumer("billing", topics=["orders"], order=order) as consumer:
        ran = in_thread(lambda: consumer.run(handle))
        eventually(lambda: sum(last - first + 1 for ranges in acked(job) for first, last in ranges) == 3)
        assert consumer.held_count == 7
        hanging.set()
        consumer.stop()
        ran.join(60)


@pytest.mark.parametrize("order", [False, True])
def test_handled_messages_are_acked_together(job: MemoryJob, *, order: bool) -> None:
    done: list[int] = []
    with job.consumer("billing", topics=["orders"], order=order, ack_delay_ms=MINUTE_MS) as consumer:
        run_until(consumer, lambda message: done.append(message.queue_offset), lambda: len(done) == 10)
        assert acked(job) == []
        consumer.flush()
    assert acked(job) == [[(0, 9)]]


@pytest.mark.parametrize("order", [False, True])
def test_a_handler_that_fails_sends_the_acks_that_wait(job: MemoryJob, *, order: bool) -> None:
    failed = threading.Event()

    def handle(message: Message) -> None:
        if message.queue_offset == 3 and not failed.is_set():
            failed.set()
            raise ValueError("not yet")

    with job.consumer("billing", topics=["orders"], order=order, ack_delay_ms=MINUTE_MS) as consumer:
        run_until(consumer, handle, failed.is_set)
        kinds: list[type[Command]] = [
            type(record) for record in job.records if isinstance(record, (Ack, ChangeInvisible))
        ]
        assert kinds[:2] == [Ack, ChangeInvisible]
        assert acked(job)[0] == [(0, 2)]


@pytest.mark.parametrize("error", [ValueError("after that"), Retry(after_s=1), Reject("after that")])
@pytest.mark.parametrize("settle", [Message.ack, Message.reject])
def test_an_error_after_the_message_was_settled_counts_against_no_other(
    job: MemoryJob, settle: Callable[[Message], object], error: Exception
) -> None:
    seen: list[tuple[int, int]] = []

    def handle(message: Message) -> None:
        seen.append((message.queue_offset, message.attempt))
        if message.queue_offset == 3:
            settle(message)
            raise error

    with job.consumer("billing", topics=["orders"], order=True) as consumer:
        run_until(consumer, handle, lambda: len(seen) >= 10)
    assert seen == [(offset, 1) for offset in range(10)]


@pytest.mark.parametrize("error", [ValueError("after that"), None])
def test_what_follows_a_message_that_its_handler_releases_comes_after_it(
    job: MemoryJob, error: Exception | None
) -> None:
    seen: list[tuple[int, int]] = []

    def handle(message: Message) -> None:
        seen.append((message.queue_offset, message.attempt))
        if seen[-1] == (3, 1):
            message.release()
            if error is not None:
                raise error

    with job.consumer("billing", topics=["orders"], order=True) as consumer:
        run_until(consumer, handle, lambda: len(seen) >= 11)
    assert seen == [(0, 1), (1, 1), (2, 1), (3, 1), (3, 2), *((offset, 1) for offset in range(4, 10))]


def test_a_handler_that_acks_and_ends_its_thread_costs_the_others_no_attempt(job: MemoryJob) -> None:
    def handle(message: Message) -> None:
        message.ack()
        raise SystemExit

    with job.consumer("billing", topics=["orders"], order=True) as consumer, pytest.raises(SystemExit):
        consumer.run(handle)
    with job.consumer("billing") as other:
        again = other.pop("orders", 0, 1_000, order=True)
        assert [(message.queue_offset, message.attempt) for message in again] == [(n, 1) for n in range(1, 10)]


@pytest.mark.parametrize("way", ["run", "run_sets", "async"])
def test_an_error_after_the_message_was_settled_is_logged(
    job: MemoryJob, caplog: pytest.LogCaptureFixture, way: str
) -> None:
    def fail_settled(message: Message) -> None:
        message.ack()
        consumer.stop()
        raise ValueError("after that")

    async def run() -> None:
        async def handle(message: Message) -> None:
            fail_settled(message)

        await AsyncConsumer.of(consumer).run(handle)

    with job.consumer("billing", topics=["orders"]) as consumer:
        if way == "run":
            consumer.run(fail_settled)
        elif way == "run_sets":
            consumer.run_sets(lambda messages: fail_settled(messages[0]), set_size=1)
        else:
            asyncio.run(run())
    assert "the handler of orders/0 offset 0 failed after its message was settled" in caplog.text
    assert left(job) == [(offset, 1) for offset in range(1, 10)]


@pytest.mark.parametrize("order", [False, True])
def test_a_stop_ends_run_after_the_message_at_hand(job: MemoryJob, *, order: bool) -> None:
    seen: list[int] = []
    with job.consumer("billing", topics=["orders"], order=order) as consumer:

        def handle(message: Message) -> None:
            seen.append(message.queue_offset)
            if message.queue_offset == 2:
                consumer.stop()

        consumer.run(handle)
        eventually(lambda: consumer.held_count == 0)
        consumer.flush()
        assert seen == [0, 1, 2]
    with job.consumer("billing") as other:
        again = other.pop("orders", 0, 1_000, order=order)
        assert [(message.queue_offset, message.attempt) for message in again] == [(n, 1) for n in range(3, 10)]


def lapse(consumer: Consumer, queue_offset: int) -> None:
    """Let the lease of a held message end, as far as the consumer knows."""
    for holding in consumer._leases.held.holdings():
        if holding.receipt.queue_offset == queue_offset:
            holding.until_s = 0.0


def test_a_message_whose_lease_ended_while_it_waited_is_not_begun(job: MemoryJob) -> None:
    seen: list[tuple[int, int]] = []
    with job.consumer("billing", topics=["orders"]) as consumer:

        def handle(message: Message) -> None:
            if not seen:
                lapse(consumer, 5)
            seen.append((message.queue_offset, message.attempt))

        ran = in_thread(lambda: consumer.run(handle))
        eventually(lambda: len(seen) == 9)
        consumer.flush()
        job.advance(60_000)
        eventually(lambda: len(seen) == 10)
        consumer.stop()
        ran.join(60)
    assert seen == [*((offset, 1) for offset in range(10) if offset != 5), (5, 2)]


def test_what_follows_it_in_an_orderly_pop_is_not_begun_either(job: MemoryJob) -> None:
    seen: list[tuple[int, int]] = []
    with job.consumer("billing", topics=["orders"], order=True) as consumer:

        def handle(message: Message) -> None:
            if not seen:
                lapse(consumer, 5)
            seen.append((message.queue_offset, message.attempt))

        run_until(consumer, handle, lambda: len(seen) == 10)
    (change,) = (record for record in job.records if isinstance(record, ChangeInvisible))
    assert [(entry.offsets, entry.invisible_time_ms, entry.suspend) for entry in change.entries] == [
        ([(5, 9)], 0, True)
    ]
    assert seen == [(offset, 1) for offset in range(10)]


def test_slow_messages_are_shared_by_all_workers(job: MemoryJob) -> None:
    job.write("orders", 0, [b"x"] * 190)
    together = threading.Barrier(4)
    workers: list[str] = []

    def handle(_: Message) -> None:
        together.wait(60)
        workers.append(threading.current_thread().name)

    with job.consumer("billing", topics=["orders"]) as consumer:
        ran = in_thread(lambda: consumer.run(handle, workers=4))
        eventually(lambda: len(workers) == 200)
        consumer.stop()
        ran.join(60)
    assert {workers.count(name) for name in workers} == {50}
    assert left(job) == []


def test_many_tasks_ack_together_as_well(job: MemoryJob) -> None:
    async def main() -> None:
        done: list[int] = []

        async def handle(message: Message) -> None:
            done.append(message.queue_offset)

        consumer = AsyncConsumer.of(job.consumer("billing", topics=["orders"], ack_delay_ms=MINUTE_MS))
        async with consumer:
            running = asyncio.create_task(consumer.run(handle, tasks=3))
            while len(done) < 10:
                await asyncio.sleep(0.005)
            assert acked(job) == []
            consumer.stop()
            await running

    asyncio.run(main())
    assert acked(job) == [[(0, 9)]]


def test_a_task_that_never_waits_lets_the_others_run(job: MemoryJob) -> None:
    async def main() -> list[int]:
        done: list[int] = []

        async def handle(message: Message) -> None:
            done.append(message.queue_offset)

        async with AsyncConsumer.of(job.consumer("billing", topics=["orders"])) as consumer:
            running = asyncio.create_task(consumer.run(handle))
            while not done:
                await asyncio.sleep(0)
            consumer.stop()
            await running
        return done

    assert len(asyncio.run(main())) < 10
