"""Claim: a consumer pops as many messages as keep its workers busy, and leaves the others to other consumers.

Method: the window by itself; then consumers of the kernel in memory, whose handlers wait for what the test claims.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter

import pytest

from popstream import AsyncConsumer, Consumer, Message
from popstream.pop.prefetch_window import PrefetchWindow
from popstream.testing.memory_job import MemoryJob
from tests.support.threads import eventually, in_thread


@pytest.fixture
def window() -> PrefetchWindow:
    return PrefetchWindow(bound=1_000, invisible_time_ms=60_000)


def grow(window: PrefetchWindow, size: int) -> None:
    while window.size < size:
        window.pop_ended(asked_count=window.size, got_count=window.size, has_worker_waited=True)


def test_it_doubles_with_each_round_trip_up_to_its_bound(window: PrefetchWindow) -> None:
    sizes = [window.size]
    for _ in range(8):
        in_flight = [window.size // 4] * 4  # the pops of four queues
        for count in in_flight:
            window.pop_ended(asked_count=count, got_count=count, has_worker_waited=True)
        sizes.append(window.size)
    assert sizes == [16, 32, 64, 128, 256, 512, 1_000, 1_000, 1_000]


@pytest.mark.parametrize(
    ("asked", "got", "has_waited"),
    [(16, 16, False), (16, 15, True), (1, 1, True)],
    ids=["no worker has waited", "there are no more", "one message shows nothing"],
)
def test_it_stays(window: PrefetchWindow, *, asked: int, got: int, has_waited: bool) -> None:
    window.pop_ended(asked_count=asked, got_count=got, has_worker_waited=has_waited)
    assert window.size == 16


def test_messages_at_work_take_no_room_from_the_next(window: PrefetchWindow) -> None:
    window.used_up()
    assert window.size == 32
    for _ in range(100):
        window.used_up()
    assert window.size == 1_000


def test_old_leases_shrink_it_once_for_all_messages_that_were_popped_before(window: PrefetchWindow) -> None:
    grow(window, 1_000)
    window.claimed(1, age_ms=15_000)
    assert window.size == 1_000
    window.claimed(100, age_ms=30_000)
    assert window.size == 500
    for _ in range(9):
        window.claimed(100, age_ms=60_000)
    assert window.size == 500
    window.claimed(100, age_ms=60_000)
    assert window.size == 125


def test_it_keeps_its_least_size(window: PrefetchWindow) -> None:
    window.claimed(1, age_ms=3_600_000)
    assert window.size == 16


def test_a_second_is_not_old_for_the_shortest_lease() -> None:
    window = PrefetchWindow(bound=1_000, invisible_time_ms=2_000)
    grow(window, 1_000)
    window.claimed(1, age_ms=1_000)
    assert window.size == 1_000


def test_pops_can_wait_at_every_queue_within_the_bound(window: PrefetchWindow) -> None:
    sizes = []
    for queues in (3, 100, 300, 5):
        window.found_queues(queues)
        sizes.append(window.size)
    assert sizes == [16, 400, 1_000, 1_000]
    assert PrefetchWindow(bound=7, invisible_time_ms=60_000).size == 7


@pytest.fixture
def job() -> MemoryJob:
    made = MemoryJob()
    made.write("orders", 0, [b"x"] * 200)
    return made


def test_two_consumers_share_a_small_backlog_of_slow_messages(job: MemoryJob) -> None:
    both_work = threading.Event()
    done: dict[str, list[int]] = {"first": [], "second": []}
    begun = {name: threading.Event() for name in done}

    def work(name: str) -> threading.Thread:
        def handle(message: Message) -> None:
            begun[name].set()
            assert both_work.wait(60)
            done[name].append(message.queue_offset)

        return in_thread(lambda: consumers[name].run(handle, workers=4))

    with (
        job.consumer("billing", topics=["orders"]) as first,
        job.consumer("billing", topics=["orders"]) as second,
    ):
        consumers = {"first": first, "second": second}
        threads = []
        for name, started in begun.items():
            threads.append(work(name))
            assert started.wait(60)
        both_work.set()
        eventually(lambda: len(done["first"]) + len(done["second"]) == 200)
        for consumer in consumers.values():
            consumer.stop()
        for thread in threads:
            thread.join(60)
    assert sorted(done["first"] + done["second"]) == list(range(200))


def test_each_of_four_consumers_gets_some_of_a_small_backlog_of_slow_messages(job: MemoryJob) -> None:
    """All work at the same pace, until one of them finds nothing more.

    How many each gets depends on how late it comes: while a worker has not begun, what is popped for it doubles.
    """
    turn = threading.Barrier(4)
    done: Counter[str] = Counter()

    def work(consumer: Consumer) -> threading.Thread:
        def handle(_: Message) -> None:
            with contextlib.suppress(threading.BrokenBarrierError):
                turn.wait(60)
            done[consumer.client_id] += 1

        return in_thread(lambda: consumer.run(handle))

    with contextlib.ExitStack() as opened:
        consumers = [opened.enter_context(job.consumer("billing", topics=["orders"])) for _ in range(4)]
        threads = [work(consumer) for consumer in consumers]

        def is_one_without_work() -> bool:
            held = [consumer.held_count for consumer in consumers]
            return min(held) == 0 and sum(held) + done.total() >= 200

        eventually(is_one_without_work)
        turn.abort()
        eventually(lambda: done.total() == 200)
        for consumer, thread in zip(consumers, threads, strict=True):
            consumer.stop()
            thread.join(60)
    assert len(done) == 4


def test_messages_that_are_taken_and_not_settled_leave_room_for_more(job: MemoryJob) -> None:
    with job.consumer("billing", topics=["orders"]) as consumer:
        collected = []
        for message in consumer:
            collected.append(message)
            if len(collected) == 200:
                break
        assert all(outcome.applied for outcome in consumer.ack(collected))


def test_every_task_gets_a_message_though_some_queues_are_empty(job: MemoryJob) -> None:
    for queue_id in range(1, 8):
        job.write("orders", queue_id, [])

    async def main() -> None:
        all_work = asyncio.Event()
        working = 0

        async def handle(_: Message) -> None:
            nonlocal working
            working += 1
            if working == 150:
                all_work.set()
            await all_work.wait()

        async with AsyncConsumer.of(job.consumer("billing", topics=["orders"])) as consumer:
            running = asyncio.create_task(consumer.run(handle, tasks=150))
            await asyncio.wait_for(all_work.wait(), 60)
            consumer.stop()
            await running

    asyncio.run(main())


def test_the_prefetch_of_a_consumer_bounds_it(job: MemoryJob) -> None:
    with job.consumer("billing", topics=["orders"], prefetch=20) as consumer:
        subscription = consumer.subscribe()
        taken: list[Message] = []
        while len(taken) < 20:
            taken += subscription.take(100)
        assert subscription.take(1, timeout_s=0.1) == []
        assert consumer.held_count + subscription.asked_count == 20
