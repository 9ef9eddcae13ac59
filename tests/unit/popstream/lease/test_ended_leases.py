"""Claim: work that ends after its lease still counts, unless the message was leased again; a failure does not.

Method: the kernel in memory. Its clock moves without a record of the queue: the lease is over, and nobody else has the
message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

import pytest

from popstream import AsyncConsumer, Consumer, Message, OutgoingMessage, Reject, RenewalPolicy
from popstream.message import MessageState
from popstream.testing.memory_job import MemoryJob
from popstream.wire.command import Ack, ChangeInvisible
from popstream.wire.reason import Reason

WAYS = ["run", "run_sets", "async", "iteration"]
LEASE_S = 60


@pytest.fixture
def job() -> MemoryJob:
    made = MemoryJob()
    made.write("orders", 0, [b"x"])
    made.write("clock", 0, [])
    return made


def pass_time(job: MemoryJob, consumer: Consumer, seconds: float) -> None:
    """Let time pass for the job and for the leases of a consumer, which learns of it and checks them."""
    job.now_ms += round(seconds * 1_000)
    consumer.return_client("clock", 0, "nobody")
    for holding in consumer._leases.held.holdings():
        holding.since_s -= seconds
        holding.until_s -= seconds
    consumer._leases.renew_due()


def handle_one(consumer: Consumer, way: str, handle: Callable[[Message], object]) -> None:
    """Handle one message in one of the WAYS."""
    subscription = consumer.subscribe()

    def handle_last(message: Message) -> None:
        subscription.close(60)  # a pop that waits would get the message
        handle(message)

    def iterate() -> None:
        for message in consumer:
            with suppress(ValueError), message:
                handle_last(message)

    async def run() -> None:
        async def work(message: Message) -> None:
            handle_last(message)

        await AsyncConsumer.of(consumer).run(work)

    def sets(messages: Sequence[Message]) -> None:
        handle_last(messages[0])

    ways: dict[str, Callable[[], object]] = {
        "run": lambda: consumer.run(handle_last),
        "run_sets": lambda: consumer.run_sets(sets, set_size=1),
        "async": lambda: asyncio.run(run()),
        "iteration": iterate,
    }
    ways[way]()
    consumer.flush()


def attempts_left(job: MemoryJob, *, order: bool = False) -> list[int]:
    with job.consumer("billing", max_attempts=None) as other:
        return [message.attempt for message in other.pop("orders", 0, order=order)]


@pytest.mark.parametrize(("renewal", "order"), [(None, False), (RenewalPolicy(), False), (RenewalPolicy(), True)])
@pytest.mark.parametrize("way", WAYS)
def test_it_is_acked(job: MemoryJob, way: str, renewal: RenewalPolicy | None, *, order: bool) -> None:
    with job.consumer("billing", topics=["orders"], renewal=renewal, order=order) as consumer:

        def handle(message: Message) -> None:
            pass_time(job, consumer, LEASE_S)
            assert message.state is MessageState.LAPSED

        handle_one(consumer, way, handle)
    assert attempts_left(job, order=order) == []


@pytest.mark.parametrize("way", WAYS)
def test_an_ack_does_not_touch_the_lease_of_another_consumer(job: MemoryJob, way: str) -> None:
    with job.consumer("billing", topics=["orders"]) as consumer, job.consumer("billing") as other:
        again: list[Message] = []

        def handle(_: Message) -> None:
            pass_time(job, consumer, LEASE_S)
            again.extend(other.pop("orders", 0))

        handle_one(consumer, way, handle)
        assert sum(isinstance(record, Ack) for record in job.records) == 1
        assert [message.ack().result(60).reason for message in again] == [Reason.OK]


@pytest.mark.parametrize("way", WAYS)
def test_a_failure_is_not_sent(job: MemoryJob, way: str) -> None:
    with job.consumer("billing", topics=["orders"]) as consumer:

        def handle(_: Message) -> None:
            pass_time(job, consumer, LEASE_S)
            raise ValueError("no milk")

        handle_one(consumer, way, handle)
        assert not any(isinstance(record, ChangeInvisible) for record in job.records)
    assert attempts_left(job) == [2]


@pytest.mark.parametrize("way", WAYS)
def test_a_reject_counts(job: MemoryJob, way: str) -> None:
    with job.consumer("billing", topics=["orders"]) as consumer:

        def handle(_: Message) -> None:
            pass_time(job, consumer, LEASE_S)
            raise Reject("no such customer")

        handle_one(consumer, way, handle)
    assert attempts_left(job) == []
    assert [letter.reason for letter in job.dead_letters().list()] == ["no such customer"]


def test_a_message_of_a_unit_is_not_sent_again_as_its_whole_unit_comes(job: MemoryJob) -> None:
    with job.producer(queue_types={"units": "batch"}) as producer:
        for sent in producer.send_many([OutgoingMessage(topic="units", value=b"x") for _ in range(3)]):
            sent.result(60)
        with job.consumer("billing", resend_with=producer) as consumer:
            first, second, third = consumer.pop("units", 0)
            assert first.ack().result(60).applied
            pass_time(job, consumer, LEASE_S)
            for unsent in (second.release(), third.reject()):
                assert unsent.result(60).reason is Reason.EXPIRED_LOCALLY
            assert len(job.payloads.queue("units", 0)) == 1
            assert [message.attempt for message in consumer.pop("units", 0)] == [2, 2, 2]


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_handler_that_outlasts_all_renewals_is_acked_unless_another_consumer_was_faster(
    job: MemoryJob, *, is_lost: bool
) -> None:
    policy = RenewalPolicy(total_ms=100_000)
    with job.consumer("billing", topics=["orders"], renewal=policy) as consumer, job.consumer("billing") as other:
        again: list[Message] = []

        def handle(message: Message) -> None:
            pass_time(job, consumer, 55)
            consumer.flush()
            assert message.next_visible_time_ms == job.now_ms + LEASE_S * 1_000, "it was renewed"
            pass_time(job, consumer, 55)
            pass_time(job, consumer, 5)
            assert message.state is MessageState.LAPSED
            if is_lost:
                again.extend(other.pop("orders", 0))

        handle_one(consumer, "run", handle)
        assert sum(isinstance(record, ChangeInvisible) for record in job.records) == 1
        assert [message.attempt for message in again] == ([2] if is_lost else [])
        assert all(message.ack().result(60).applied for message in again)
    assert attempts_left(job) == []
