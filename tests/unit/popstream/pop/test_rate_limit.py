"""Claim: a consumer with a rate limit hands out no more than that, to all its workers, and prefetches accordingly.

Method: the bucket by itself on a clock of the test; the consumer with limits of which one cannot be met within a test
(a message in 1,000 seconds), so that what comes is what came at once.
"""

from __future__ import annotations

import asyncio

import pytest

from popstream import AsyncConsumer, Invalid, Message
from popstream.pop.rate_limit import RateLimit
from popstream.testing.memory_job import MemoryJob
from tests.support.threads import eventually, in_thread

SLOWEST = 0.001


@pytest.fixture
def job() -> MemoryJob:
    made = MemoryJob()
    for queue_id in range(4):
        made.write("orders", queue_id, [b"%d" % number for number in range(100)])
    return made


@pytest.mark.parametrize("per_s", [0.3, 1, 7, 50, 999])
def test_no_second_brings_more_than_the_limit_and_a_burst(per_s: float) -> None:
    rate, now_s, taken_at_s = RateLimit(per_s, now_s=0.0), 0.0, list[float]()
    while now_s < 30:
        allowed = rate.allowed(now_s)
        rate.took(allowed)
        taken_at_s += [now_s] * allowed
        now_s += rate.pause_s(now_s)
    burst = max(1, per_s / 10)
    for start_s in range(29):
        within = [at_s for at_s in taken_at_s if start_s <= at_s < start_s + 1]
        assert len(within) <= per_s + burst
    assert len(taken_at_s) >= 30 * per_s - burst


def test_what_cannot_be_divided_is_made_up_for() -> None:
    rate = RateLimit(10, now_s=0.0)
    rate.took(3)
    assert (rate.allowed(0.0), rate.allowed(0.2), rate.allowed(0.3)) == (0, 0, 1)


@pytest.mark.parametrize("order", [False, True])
def test_all_workers_together_get_what_is_allowed(job: MemoryJob, *, order: bool) -> None:
    seen: list[Message] = []
    with job.consumer("billing", topics=["orders"], rate_limit=SLOWEST, order=order) as consumer:
        ran = in_thread(lambda: consumer.run(seen.append, workers=4))
        eventually(lambda: len(seen) == 1)
        assert consumer.subscribe().take(1, timeout_s=0.2) == []
        consumer.stop()
        ran.join(60)
    assert len(seen) == 1


def test_coroutines_get_what_is_allowed(job: MemoryJob) -> None:
    seen: list[Message] = []

    async def handle(message: Message) -> None:
        await asyncio.sleep(0)
        seen.append(message)

    async def main() -> None:
        async with AsyncConsumer.of(job.consumer("billing", topics=["orders"], rate_limit=SLOWEST)) as consumer:
            running = asyncio.create_task(consumer.run(handle, tasks=4))
            while not seen:
                await asyncio.sleep(0.005)
            consumer.stop()
            await running

    asyncio.run(main())
    assert len(seen) == 1


@pytest.mark.parametrize("order", [False, True])
def test_a_limit_that_is_not_reached_changes_nothing(job: MemoryJob, *, order: bool) -> None:
    seen: list[Message] = []
    with job.consumer("billing", topics=["orders"], rate_limit=1e9, order=order) as consumer:
        ran = in_thread(lambda: consumer.run(seen.append, workers=2))
        eventually(lambda: len(seen) == 400)
        consumer.stop()
        ran.join(60)
    assert len({(message.queue_id, message.queue_offset) for message in seen}) == 400


def test_no_more_is_prefetched_than_is_handed_out_in_a_quarter_of_the_lease(job: MemoryJob) -> None:
    with job.consumer("billing", topics=["orders"], rate_limit=0.5, invisible_time_ms=40_000) as consumer:
        subscription = consumer.subscribe()
        ran = in_thread(lambda: consumer.run(lambda _: None, workers=4))
        eventually(lambda: consumer.held_count + subscription.asked_count == 5)
        assert subscription._window.bound == 5
        consumer.stop()
        ran.join(60)


@pytest.mark.parametrize("rate_limit", [0, -1, float("nan"), float("inf")])
def test_a_limit_that_lets_nothing_through_is_refused(job: MemoryJob, rate_limit: float) -> None:
    with pytest.raises(
        Invalid, match=f"rate_limit must be a number of messages a second, more than 0, not {rate_limit}"
    ):
        job.consumer("billing", topics=["orders"], rate_limit=rate_limit)
