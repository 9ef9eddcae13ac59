"""Claim: a handler that fails retries its message in time, and not for ever; and no handler takes the worker with it.

Method: the kernel itself, in memory, on a clock that the test moves.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from popstream import AsyncConsumer, BackOff, Consumer, Invalid, Message, Reject, Retry
from popstream.lease.entries import Change
from popstream.lease.retry_rules import RetryRules
from popstream.retries import MAX_ATTEMPTS
from popstream.testing.memory_job import MemoryJob
from popstream.wire.answer import Answer
from popstream.wire.command import ChangeEntry, ChangeInvisible, Command, Policy, Pop, RejectEntry
from popstream.wire.command import Reject as RejectCommand
from tests.support.threads import eventually, in_thread

HOUR_MS = 3_600_000


@pytest.fixture
def job() -> MemoryJob:
    made = MemoryJob()
    made.write("orders", 0, [b"one"])
    return made


def given_back(job: MemoryJob) -> list[ChangeEntry]:
    """The entries that gave messages back."""
    return [
        entry
        for change in job.records
        if isinstance(change, ChangeInvisible)
        for entry in change.entries
        if entry.cause is not None
    ]


def rejected(job: MemoryJob) -> list[RejectEntry]:
    return [entry for record in job.records if isinstance(record, RejectCommand) for entry in record.entries]


def attempts_left(job: MemoryJob, **options: Any) -> list[int]:
    """The attempts of the messages that can be popped now, by a consumer that declares nothing."""
    with job.consumer("billing", max_attempts=None) as other:
        return [message.attempt for message in other.pop("orders", 0, **options)]


def play(consumer: Consumer, way: str, handle: Callable[[Message], object], is_done: Callable[[], bool]) -> None:
    """Handle messages of a consumer in one of the ways of WAYS until something is done."""

    def iterate() -> None:
        for message in consumer:
            with message:
                handle(message)

    async def run() -> None:
        async def work(message: Message) -> None:
            handle(message)

        await AsyncConsumer.of(consumer).run(work)

    def sets(messages: Sequence[Message]) -> None:
        handle(messages[0])

    ways: dict[str, Callable[[], object]] = {
        "run": lambda: consumer.run(handle),
        "run_sets": lambda: consumer.run_sets(sets, set_size=1),
        "async": lambda: asyncio.run(run()),
        "iteration": iterate,
    }
    ran = in_thread(ways[way])
    eventually(is_done)
    consumer.stop()
    ran.join(60)
    assert not ran.is_alive()
    consumer.flush()


RUNNING = ["run", "run_sets", "async"]
WAYS = [*RUNNING, "iteration"]


# What is declared.


@pytest.mark.parametrize(
    ("options", "declared"),
    [
        ({}, (MAX_ATTEMPTS, None)),
        ({"back_off": [1, 2.5]}, (16, [1_000, 2_500])),
        ({"max_attempts": 3, "back_off": []}, (3, [])),
        ({"max_attempts": 0, "back_off": BackOff((1,), jitter=0.1)}, (0, None)),
        ({"max_attempts": None, "back_off": [1]}, (None, None)),
    ],
)
def test_each_pop_declares_the_retries_unless_they_are_left_to_policies(
    job: MemoryJob, options: dict[str, Any], declared: tuple[int | None, list[int] | None]
) -> None:
    with job.consumer("billing", topics=["orders"], **options) as consumer:
        consumer.pop("orders", 0)
        consumer.subscribe().take(1, timeout_s=0.0)
        eventually(lambda: sum(isinstance(record, Pop) for record in job.records) > 1)
    pops = [record for record in job.records if isinstance(record, Pop)]
    assert {(pop.max_attempts, tuple(pop.back_off_ms or ())) for pop in pops} == {
        (declared[0], tuple(declared[1] or ()))
    }
    assert all((pop.back_off_ms is None) is (declared[1] is None) for pop in pops)


@pytest.mark.parametrize(
    "options",
    [
        {"max_attempts": -1},
        {"max_attempts": 65_536},
        {"back_off": [-1]},
        {"back_off": [43_201]},
        {"back_off": [float("nan")]},
        {"back_off": [1] * 33},
    ],
)
def test_retries_out_of_range_are_invalid(job: MemoryJob, options: dict[str, Any]) -> None:
    with pytest.raises(Invalid):
        job.consumer("billing", **options)


def test_a_jitter_leaves_out_a_part_of_the_time_at_most() -> None:
    delays_ms = [BackOff((10,), jitter=0.5).delay_ms(1) for _ in range(1_000)]
    assert 5_000 <= min(delays_ms) < max(delays_ms) <= 10_000
    with pytest.raises(Invalid):
        BackOff((10,), jitter=1.5)


def test_an_exponential_back_off_that_does_not_grow_ends() -> None:
    assert BackOff.exponential(0, 60).steps_s == (0.0,)
    assert BackOff.exponential(5, 5).steps_s == (5.0,)
    assert len(BackOff.exponential(0.000_001, 43_200).steps_s) == 32


# A handler that fails.


@pytest.mark.parametrize("order", [False, True])
@pytest.mark.parametrize("way", RUNNING)
def test_a_handler_that_always_fails_ends_with_a_dead_letter(job: MemoryJob, way: str, *, order: bool) -> None:
    seen: list[int] = []

    def handle(message: Message) -> None:
        seen.append(message.attempt)
        raise ValueError(f"attempt {message.attempt}")

    def is_done() -> bool:
        if len(given_back(job)) < 3:
            job.advance(1_000)
        return len(given_back(job)) == 3

    with job.consumer("billing", topics=["orders"], order=order, max_attempts=3, back_off=[1]) as consumer:
        play(consumer, way, handle, is_done)
    assert seen == [1, 2, 3]
    assert [entry.cause for entry in given_back(job)] == [f"ValueError: attempt {number}" for number in (1, 2, 3)]
    job.advance(HOUR_MS)
    assert attempts_left(job, order=order) == []


@pytest.mark.parametrize("order", [False, True])
def test_a_message_comes_again_after_the_back_off_of_its_attempt(job: MemoryJob, *, order: bool) -> None:
    with job.consumer("billing", back_off=[2, 7]) as consumer:
        for wait_ms in (2_000, 7_000, 7_000):
            (message,) = consumer.pop("orders", 0, order=order)
            with pytest.raises(KeyError), message:
                raise KeyError("milk")
            consumer.flush()
            job.advance(wait_ms - 1)
            assert not consumer.pop("orders", 0, order=order)
            job.advance(1)
        assert attempts_left(job, order=order) == [4]


def test_the_back_off_of_a_policy_comes_before_that_of_the_consumer(job: MemoryJob) -> None:
    job.send(Policy(v=1, topic="orders", queue_id=0, group="billing", back_off_ms=[50]))
    with job.consumer("billing", back_off=BackOff((600,), jitter=0.5)) as consumer:
        (message,) = consumer.pop("orders", 0)
        with pytest.raises(KeyError), message:
            raise KeyError("milk")
        consumer.flush()
        job.advance(50)
        assert attempts_left(job) == [2]


@pytest.mark.parametrize("way", WAYS)
def test_retry_gives_a_message_back_for_a_time_of_its_own(job: MemoryJob, way: str) -> None:
    def handle(_: Message) -> None:
        try:
            raise TimeoutError("the bank sleeps")  # noqa: TRY301
        except TimeoutError as error:
            raise Retry(after_s=30) from error

    with job.consumer("billing", topics=["orders"], back_off=[1]) as consumer:
        play(consumer, way, handle, lambda: bool(given_back(job)))
    (entry,) = given_back(job)
    assert (entry.invisible_time_ms, entry.release, entry.cause) == (30_000, "after", "TimeoutError: the bank sleeps")
    job.advance(29_999)
    assert attempts_left(job) == []
    job.advance(1)
    assert attempts_left(job) == [2]


@pytest.mark.parametrize("way", WAYS)
def test_reject_sends_a_message_to_the_dead_letters_at_once(job: MemoryJob, way: str) -> None:
    def handle(_: Message) -> None:
        raise Reject("no such customer")

    with job.consumer("billing", topics=["orders"]) as consumer:
        play(consumer, way, handle, lambda: bool(rejected(job)))
    assert [entry.cause for entry in rejected(job)] == ["no such customer"]
    assert given_back(job) == []
    job.advance(HOUR_MS)
    assert attempts_left(job) == []


def no_such_customer() -> None:
    try:
        raise KeyError(4711)  # noqa: TRY301
    except KeyError as error:
        raise Reject("no such customer") from error


def no_reason() -> None:
    try:
        raise KeyError(4711)  # noqa: TRY301
    except KeyError as error:
        raise Reject from error


def reason_that_is_no_text() -> None:
    raise Reject("\udc80")


def reason_that_no_record_can_hold() -> None:
    raise Reject("x" * 5_000_000)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("fail", "cause"),
    [
        (no_such_customer, "no such customer: KeyError: 4711"),
        (no_reason, "KeyError: 4711"),
        (reason_that_is_no_text, "?"),
        (reason_that_no_record_can_hold, "x" * 256),
    ],
    ids=["from", "without a reason", "no text", "too long"],
)
def test_whatever_a_reject_says_it_arrives(job: MemoryJob, way: str, fail: Callable[[], None], cause: str) -> None:
    with job.consumer("billing", topics=["orders"]) as consumer:
        play(consumer, way, lambda _: fail(), lambda: bool(rejected(job)))
    assert [entry.cause for entry in rejected(job)] == [cause]
    job.advance(HOUR_MS)
    assert attempts_left(job) == []


def test_what_a_reject_was_raised_from_can_be_left_out(job: MemoryJob) -> None:
    with job.consumer("billing", describe_error=lambda error: type(error).__name__) as consumer:
        (message,) = consumer.pop("orders", 0)
        with message:
            no_such_customer()
        consumer.flush()
    assert [entry.cause for entry in rejected(job)] == ["no such customer: KeyError"]


@pytest.mark.parametrize("reason", ["\udc80", "x" * 5_000_000], ids=["no text", "too long"])
@pytest.mark.parametrize("by", ["message", "consumer"])
def test_a_reject_without_a_handler_arrives_as_well(job: MemoryJob, by: str, reason: str) -> None:
    with job.consumer("billing") as consumer:
        (message,) = consumer.pop("orders", 0)
        outcome = message.reject(reason).result(60) if by == "message" else consumer.reject([message], reason)[0]
    assert outcome.applied
    assert [entry.cause for entry in rejected(job)] == ["?" if len(reason) == 1 else "x" * 256]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("decision", [Retry, Reject])
def test_a_failed_message_that_cannot_be_settled_is_logged(
    job: MemoryJob,
    way: str,
    decision: type[Exception],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refused: Future[Answer] = Future()
    refused.set_exception(MemoryError())

    def handle(_: Message) -> None:
        raise decision

    with job.consumer("billing", topics=["orders"]) as consumer:
        submit = consumer._transport.submit

        def refuse(command: Command, **options: Any) -> Future[Answer]:
            settles = isinstance(command, (ChangeInvisible, RejectCommand))
            return refused if settles else submit(command, **options)

        monkeypatch.setattr(consumer._transport, "submit", refuse)
        play(consumer, way, handle, lambda: "orders/0 offset 0 could not be settled: MemoryError" in caplog.text)


def test_after_a_reject_an_orderly_handler_goes_on_with_the_next_message() -> None:
    job = MemoryJob()
    job.write("orders", 0, [b"%d" % number for number in range(4)])
    seen: list[tuple[int, int]] = []

    def handle(message: Message) -> None:
        seen.append((message.queue_offset, message.attempt))
        if message.queue_offset == 1:
            raise Reject

    with job.consumer("billing", topics=["orders"], order=True) as consumer:
        play(consumer, "run", handle, lambda: len(seen) == 4)
    assert seen == [(0, 1), (1, 1), (2, 1), (3, 1)]


def test_a_retry_says_why_by_what_it_was_raised_from_or_by_itself() -> None:
    retries = RetryRules(16, [1])
    assert retries.after_failure(Retry("later"), 1) == Change(1_000, release="back_off", cause="later")
    assert retries.after_failure(Retry(after_s=0), 1) == Change(0, release="after", cause="")
    for after in (-1, 43_201, float("nan")):
        with pytest.raises(Invalid):
            Retry(after_s=after)


def test_the_description_of_an_error_is_bounded_and_can_hide_what_it_says(caplog: pytest.LogCaptureFixture) -> None:
    def cause(error: BaseException, **options: Any) -> str | None:
        settled = RetryRules(16, [], **options).after_failure(error, 1)
        assert isinstance(settled, Change)
        return settled.cause

    assert cause(ValueError("x" * 1_000)) == f"ValueError: {'x' * 244}"
    assert cause(ValueError("\udc80")) == "ValueError: ?"
    assert cause(ValueError("card 4711"), describe=lambda error: type(error).__name__) == "ValueError"

    class Unprintable(Exception):  # noqa: N818
        def __str__(self) -> str:
            raise RuntimeError("no text")

    assert cause(Unprintable()) == "Unprintable"
    assert cause(ValueError("card 4711"), describe=lambda _: 1 / 0) == "ValueError"
    assert "4711" not in "".join(record.getMessage() for record in caplog.records)


# Handlers that do what no handler should.


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_a_handler_that_raises_no_exception_ends_run_and_its_message_is_given_back(
    job: MemoryJob, kind: type[BaseException]
) -> None:
    def handle(_: Message) -> None:
        raise kind

    with job.consumer("billing", topics=["orders"]) as consumer, pytest.raises(kind):
        consumer.run(handle)
    assert [entry.cause for entry in given_back(job)] == [kind.__name__]


def test_a_handler_that_swallows_an_interrupt_has_done_its_message(job: MemoryJob) -> None:
    done = threading.Event()

    def handle(_: Message) -> None:
        try:
            raise KeyboardInterrupt  # noqa: TRY301
        except KeyboardInterrupt:
            done.set()

    with job.consumer("billing", topics=["orders"]) as consumer:
        play(consumer, "run", handle, done.is_set)
    job.advance(HOUR_MS)
    assert attempts_left(job) == []


def test_a_handler_that_hangs_until_its_lease_is_left_to_expire_has_had_an_attempt(job: MemoryJob) -> None:
    """After three hours (RenewalPolicy.total_ms) its lease is not renewed; here it never was."""
    with job.consumer("billing", max_attempts=2, back_off=[1]) as consumer:
        (message,) = consumer.pop("orders", 0, invisible_time_ms=60_000)
        job.advance(60_000)
        assert attempts_left(job) == [], "the back-off holds for a lease that has expired, too"
        job.advance(1_000)
        with job.consumer("billing", max_attempts=None) as other:
            assert [again.attempt for again in other.pop("orders", 0, invisible_time_ms=60_000)] == [2]
            with pytest.raises(ValueError, match="too late"), message:
                raise ValueError("too late")
            consumer.flush()
            job.advance(1_000)
            assert attempts_left(job) == [], "another consumer has it"
            other.close(release=False)
        job.advance(60_000 + HOUR_MS)
        assert attempts_left(job) == [], "that was its last attempt"


def closing_in_a_handler(
    consumer: Consumer, way: str, workers: int, error: Exception | None = None, *, handlers: int = 1, **options: Any
) -> Callable[[], object]:
    """Handle messages in one of the ways of WAYS, by handlers that close the consumer with `options`.

    One calls it first, and the others while that one waits.
    """
    begun = threading.Barrier(handlers)

    def handle(_: object) -> None:
        if begun.wait(60) == 0:
            consumer.close(**options)
        else:
            eventually(lambda: consumer._is_closing)
            consumer.close(**options)
        if error is not None:
            raise error

    def iterate() -> None:
        with suppress(ValueError):
            for message in consumer:
                with message:
                    handle(message)

    async def run() -> None:
        wrapped = AsyncConsumer.of(consumer)
        all_begun = asyncio.Barrier(handlers)

        async def work(_: Message) -> None:
            if await all_begun.wait() == 0:
                await wrapped.close(**options)
            else:
                while wrapped._closing is None:
                    await asyncio.sleep(0)
                await wrapped.close(**options)
            if error is not None:
                raise error

        await wrapped.run(work, tasks=workers)

    ways: dict[str, Callable[[], object]] = {
        "run": lambda: consumer.run(handle, workers=workers),
        "run_sets": lambda: consumer.run_sets(handle, set_size=1, workers=workers),
        "async": lambda: asyncio.run(run()),
        "iteration": iterate,
    }
    return ways[way]


@pytest.mark.parametrize("order", [False, True])
@pytest.mark.parametrize("error", [None, ValueError("closed"), Retry(after_s=1), Reject("closed")])
@pytest.mark.parametrize(("way", "workers"), [*((way, count) for way in RUNNING for count in (1, 2)), ("iteration", 1)])
def test_a_handler_may_close_its_consumer(
    job: MemoryJob, way: str, workers: int, error: Exception | None, *, order: bool
) -> None:
    consumer = job.consumer("billing", topics=["orders"], order=order)
    ran = in_thread(closing_in_a_handler(consumer, way, workers, error))
    ran.join(60)
    assert not ran.is_alive()
    assert attempts_left(job, order=order) == [2], "close gave it back"


@pytest.mark.parametrize("way", RUNNING)
def test_handlers_that_close_their_consumer_at_once_do_not_wait_for_each_other(job: MemoryJob, way: str) -> None:
    job.write("orders", 0, [b"two"])
    consumer = job.consumer("billing", topics=["orders"])
    ran = in_thread(closing_in_a_handler(consumer, way, workers=2, handlers=2, timeout_ms=HOUR_MS))
    ran.join(60)
    assert not ran.is_alive()
    assert attempts_left(job) == [2], "the first one has given its message back, the other one has returned"


def test_a_handler_may_close_its_consumer_while_the_main_thread_does(job: MemoryJob) -> None:
    consumer = job.consumer("billing", topics=["orders"])
    begun = threading.Event()

    def handle(_: Message) -> None:
        begun.set()
        eventually(lambda: consumer._is_closing)
        consumer.close(timeout_ms=HOUR_MS)

    ran = in_thread(lambda: consumer.run(handle))
    assert begun.wait(60)
    closing = in_thread(lambda: consumer.close(timeout_ms=HOUR_MS))
    for thread in (closing, ran):
        thread.join(60)
        assert not thread.is_alive()
    assert attempts_left(job) == []


def test_a_task_may_close_its_consumer_while_another_one_does(job: MemoryJob) -> None:
    async def main() -> None:
        wrapped = AsyncConsumer.of(job.consumer("billing", topics=["orders"]))
        begun = asyncio.Event()

        async def handle(_: Message) -> None:
            begun.set()
            while wrapped._closing is None:
                await asyncio.sleep(0)
            await wrapped.close(timeout_ms=HOUR_MS)

        running = asyncio.create_task(wrapped.run(handle))
        await begun.wait()
        await asyncio.wait_for(wrapped.close(timeout_ms=HOUR_MS), 60)
        await running

    asyncio.run(main())
    assert attempts_left(job) == []


def test_a_handler_that_fails_after_it_has_closed_and_kept_its_lease_ends_in_order(job: MemoryJob) -> None:
    consumer = job.consumer("billing", topics=["orders"])
    closing_in_a_handler(consumer, "async", 1, ValueError("closed"), release=False)()
    assert attempts_left(job) == []
    job.advance(60_000)
    assert attempts_left(job) == [2]


FORKING = """
import asyncio, os, sys
from popstream import AsyncConsumer
from popstream.testing import MemoryJob

job = MemoryJob()
job.write("orders", 0, [b"one"])
consumer = job.consumer("billing", topics=["orders"])

def handle(message):
    child = os.fork()
    if child:
        print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        consumer.stop()
    elif sys.argv[1] == "raises":
        raise ValueError("in the child")

async def work(message):
    handle(message)

if sys.argv[2] == "async":
    asyncio.run(AsyncConsumer.of(consumer).run(work))
else:
    consumer.run(handle)
consumer.close()
job.advance(3_600_000)
with job.consumer("billing") as other:
    print("left", len(other.pop("orders", 0)))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.parametrize("way", ["run", "async"])
@pytest.mark.parametrize("how", ["returns", "raises"])
def test_the_child_of_a_handler_that_forks_settles_nothing(how: str, way: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKING, how, way],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=Path(__file__).parents[3],
    )
    assert done.stdout.splitlines() == ["child 1", "left 0"], done.stderr
    assert "that a handler forked" in done.stderr
