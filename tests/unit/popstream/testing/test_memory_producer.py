"""Claim: what a producer of a `MemoryJob` sends can be popped there, in topics of every type."""

from __future__ import annotations

import pytest

from popstream import Invalid
from popstream.testing import MemoryJob
from popstream.wire.command import Dispatch, WrittenRange
from popstream.wire.limits import DELAY_MS_MAX


def test_messages_are_poppable_when_they_have_their_results() -> None:
    job = MemoryJob()
    job.make_topic("orders", 2)
    with job.producer() as producer, job.consumer("billing") as consumer:
        results = [
            producer.send_and_wait("orders", b"%d" % number, queue_id=number % 2, tag="paid", headers=[("n", b"1")])
            for number in range(4)
        ]
        assert [(result.queue_id, result.queue_offset) for result in results] == [(0, 0), (1, 0), (0, 1), (1, 1)]
        assert len(consumer.pop("orders", 0, tags=["other"])) == 0
        found = consumer.pop("orders", 1, tags=["paid"]).messages
        assert [(message.value, message.tag, message.headers) for message in found] == [
            (b"1", "paid", [("n", b"1")]),
            (b"3", "paid", [("n", b"1")]),
        ]
        assert [message.message_id for message in found] == [results[1].message_id, results[3].message_id]


def test_a_topic_of_the_type_batch_has_units() -> None:
    job = MemoryJob()
    with job.producer(queue_types={"units": "batch"}) as producer, job.consumer("billing") as consumer:
        sent = [producer.send("units", b"%d" % number) for number in range(3)]
        producer.flush()
        assert {future.result().queue_offset for future in sent} == {0}
        assert [(message.value, message.inner_index) for message in consumer.pop("units", 0)] == [
            (b"0", 0),
            (b"1", 1),
            (b"2", 2),
        ]


def test_a_queue_that_does_not_exist_is_refused() -> None:
    with MemoryJob().producer() as producer, pytest.raises(Invalid, match="topic orders has no queue 7, only 1"):
        producer.send_and_wait("orders", b"one", queue_id=7)


def test_what_is_to_be_delivered_later_is_dispatched_with_its_time() -> None:
    """Times are those of the job's clock."""
    job = MemoryJob()
    with job.producer(queue_types={"units": "batch"}) as producer, job.consumer("billing") as consumer:
        for topic in ("orders", "units"):
            for number in range(2):
                producer.send(topic, b"%d" % number, queue_id=0, deliver_at=job.now_ms + 60_000)
            producer.flush()
        with pytest.raises(Invalid, match="deliver_at is 604,800,001 ms ahead"):
            producer.send_and_wait("orders", b"far", deliver_at=job.now_ms + DELAY_MS_MAX + 1)
        ranges = [written for command in job.records if isinstance(command, Dispatch) for written in command.ranges]
        assert ranges == [
            WrittenRange(0, 0, deliver_at_ms=1_060_000),
            WrittenRange(1, 1, deliver_at_ms=1_060_000),
            WrittenRange(0, 0, count=2, deliver_at_ms=1_060_000),
        ]
        job.advance(60_000)
        for topic in ("orders", "units"):
            assert [message.deliver_at_ms for message in consumer.pop(topic, 0)] == [1_060_000] * 2
            assert [record.deliver_at_ms for record in consumer.read(topic, 0, 0, count=9)] == [1_060_000] * 2


def test_duplicates_are_dropped_for_five_minutes_after_the_first_one() -> None:
    job = MemoryJob()
    with job.producer() as producer, job.consumer("billing") as consumer:
        for wait_ms in (0, 299_999, 1, 0):
            job.advance(wait_ms)
            producer.send_and_wait("orders", b"%d" % job.now_ms, dedup_id="order-17")
        producer.send_and_wait("orders", b"another", dedup_id="order-18")
        assert [message.value for message in consumer.pop("orders", 0)] == [b"1000000", b"1300000", b"another"]
