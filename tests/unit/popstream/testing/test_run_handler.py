"""Claim: a test runs a handler for a number of messages, and leaves no client open. Method: the kernel in memory."""

from __future__ import annotations

import pytest

from popstream import ClientClosed, Message
from popstream.testing import MemoryJob, run_handler
from tests.support.threads import leaves_no_thread


def test_the_handler_is_called_as_often_as_asked_and_its_messages_are_settled() -> None:
    seen: list[int] = []

    def handle(message: Message) -> None:
        seen.append(message.queue_offset)
        if message.queue_offset == 1 and message.attempt == 1:
            raise ValueError("not yet")

    with MemoryJob() as job:
        job.write("orders", 0, [b"%d" % number for number in range(5)])
        consumer = job.consumer("billing", topics=["orders"], order=True, back_off=[7])
        run_handler(consumer, handle, count=2)
        job.advance(7_000)
        run_handler(consumer, handle, count=2)
        assert seen == [0, 1, 1, 2]
        assert [message.attempt for message in consumer.pop("orders", 0, order=True)] == [1, 1]


def test_a_message_that_does_not_come_fails_the_test() -> None:
    with MemoryJob() as job:
        job.make_topic("orders", 1)
        with (
            job.consumer("billing", topics=["orders"]) as consumer,
            pytest.raises(AssertionError, match=r"0 messages came within 0\.1 s, not 2"),
        ):
            run_handler(consumer, lambda _: None, count=2, timeout_s=0.1)


def test_a_job_closes_what_a_test_has_left_open() -> None:
    with leaves_no_thread(soon=True):
        with MemoryJob() as job:
            job.write("orders", 0, [b"one"])
            consumer, producer = job.consumer("billing", topics=["orders"]), job.producer()
            next(iter(consumer))
            job.silent.add(("orders", 0))
        with pytest.raises(ClientClosed):
            consumer.pop("orders", 0)
        with pytest.raises(ClientClosed):
            producer.send("orders", b"two")
