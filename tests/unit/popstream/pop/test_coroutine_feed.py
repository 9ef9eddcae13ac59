"""Claim: a coroutine that waits for messages learns why none come any more, also when that was known before."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from popstream.awaitable import CallThreads
from popstream.pop.coroutine_feed import CoroutineFeed
from popstream.testing.memory_job import MemoryJob
from popstream.wire.base_errors import Invalid
from tests.support.threads import eventually


@pytest.mark.parametrize("has_failed", [False, True])
def test_a_subscription_that_has_ended(*, has_failed: bool) -> None:
    job = MemoryJob()
    if not has_failed:
        job.write("orders", 0, [])
    with job.consumer("billing", topics=["orders"]) as consumer:
        subscription = consumer.subscribe()
        if not has_failed:
            subscription.stop()
        eventually(lambda: subscription.is_stopped)

        async def wait_twice() -> list[type]:
            feed = CoroutineFeed(subscription, 1, CallThreads("waits"), CallThreads("settles"), set())
            found: list[Any] = await asyncio.gather(feed.next(), feed.next(), return_exceptions=True)
            return [type(each) for each in found]

        assert asyncio.run(wait_twice()) == ([Invalid, Invalid] if has_failed else [list, list])
