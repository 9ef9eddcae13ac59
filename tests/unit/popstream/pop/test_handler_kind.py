"""Claim: `run` ends with a handler that it cannot run, and no message of it is acked or has had an attempt.

Method: the kernel itself, in memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest

from popstream import AsyncConsumer, Message
from popstream.observer import Observer
from popstream.testing import run_handler
from popstream.testing.memory_job import MemoryJob
from popstream.wire.base_errors import Invalid
from popstream.wire.command import Ack, Pop


@pytest.fixture
def job() -> MemoryJob:
    made = MemoryJob()
    made.write("orders", 0, [b"%d" % number for number in range(10)])
    return made


def left(job: MemoryJob) -> list[tuple[int, int]]:
    """(offset, attempt) of what can be popped now."""
    with job.consumer("billing") as other:
        return [(message.queue_offset, message.attempt) for message in other.pop("orders", 0, 1_000)]


ALL = [(offset, 1) for offset in range(10)]

worked_on: list[object] = []


async def work(message: object) -> None:
    worked_on.append(message)


async def work_with(_: str, message: object) -> None:
    worked_on.append(message)


class Work:
    async def __call__(self, message: object) -> None:
        worked_on.append(message)

    async def work(self, message: object) -> None:
        worked_on.append(message)


COROUTINE_FUNCTIONS = [work, Work(), Work().work, partial(work_with, "a till"), partial(Work())]


@pytest.mark.parametrize("sets", [False, True], ids=["run", "run_sets"])
@pytest.mark.parametrize("handler", COROUTINE_FUNCTIONS)
def test_a_coroutine_function_is_refused_before_anything_is_popped(
    job: MemoryJob, handler: Callable[[Any], object], *, sets: bool
) -> None:
    with job.consumer("billing", topics=["orders"]) as consumer, pytest.raises(Invalid, match="use AsyncConsumer"):
        consumer.run_sets(handler, set_size=4) if sets else consumer.run(handler)
    assert not any(isinstance(record, Pop) for record in job.records)


@pytest.mark.parametrize("observers", [(), (Observer(),)], ids=["alone", "observed"])
@pytest.mark.parametrize("order", [False, True])
@pytest.mark.parametrize("sets", [False, True], ids=["run", "run_sets"])
def test_a_coroutine_that_a_handler_returns_is_not_taken_for_its_success(
    job: MemoryJob, observers: Sequence[Observer], *, sets: bool, order: bool
) -> None:
    options: dict[str, Any] = {"topics": ["orders"], "order": order, "max_attempts": 1, "observers": observers}
    with job.consumer("billing", **options) as consumer:
        run: Any = partial(consumer.run_sets, set_size=4) if sets else consumer.run
        with pytest.raises(Invalid, match="use AsyncConsumer"):
            run(lambda handled: work(handled))  # noqa: PLW0108 - not a coroutine function, unlike `work`
    assert worked_on == []
    with job.consumer("billing") as other:
        again = [(message.queue_offset, message.attempt) for message in other.pop("orders", 0, 1_000, order=order)]
    assert again == ALL


def test_run_ends_with_it_also_when_the_message_is_settled(job: MemoryJob) -> None:
    def ack_and_forget(message: Message) -> object:
        message.ack()
        return work(message)

    with job.consumer("billing", topics=["orders"]) as consumer, pytest.raises(Invalid, match="use AsyncConsumer"):
        consumer.run(ack_and_forget)
    assert left(job) == ALL[1:]


def test_a_test_of_a_handler_finds_it_as_well(job: MemoryJob) -> None:
    with job.consumer("billing", topics=["orders"]) as consumer, pytest.raises(Invalid, match="use AsyncConsumer"):
        run_handler(consumer, work)
    assert left(job) == ALL


@pytest.mark.parametrize("handler", [Message.ack, lambda message: message.ack(), Mock()])
def test_what_else_a_handler_returns_is_ignored(job: MemoryJob, handler: Callable[[Message], object]) -> None:
    """The future of an outcome can be awaited, but need not be."""
    with job.consumer("billing", topics=["orders"]) as consumer:
        run_handler(consumer, handler, count=10)
    assert left(job) == []


@pytest.mark.parametrize("observers", [(), (Observer(),)], ids=["alone", "observed"])
@pytest.mark.parametrize("sets", [False, True], ids=["run", "run_sets"])
@pytest.mark.parametrize("settles", [False, True])
def test_what_a_coroutine_cannot_await_is_called_once(
    job: MemoryJob, observers: Sequence[Observer], *, sets: bool, settles: bool
) -> None:
    called: list[Message] = []

    def handle(message: Message) -> None:
        called.append(message)
        if settles:
            message.ack()

    async def main() -> None:
        made = job.consumer("billing", topics=["orders"], max_attempts=1, observers=observers)
        async with AsyncConsumer.of(made) as consumer:
            run: Any = partial(consumer.run_sets, set_size=1) if sets else consumer.run
            with pytest.raises(Invalid, match="use Consumer"):
                await run((lambda messages: handle(messages[0])) if sets else handle)

    asyncio.run(main())
    assert len(called) == 1
    assert any(isinstance(record, Ack) for record in job.records) == settles
    assert left(job) == ALL[settles:]


def test_any_function_that_returns_something_to_await_will_do(job: MemoryJob) -> None:
    async def main() -> None:
        async with AsyncConsumer.of(job.consumer("billing", topics=["orders"])) as consumer:

            def handle(message: Message) -> Awaitable[object]:
                if message.queue_offset == 9:
                    consumer.stop()
                return message.ack()

            await consumer.run(handle)

    asyncio.run(main())
    assert left(job) == []
