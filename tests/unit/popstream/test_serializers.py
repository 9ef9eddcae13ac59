"""Claim: a message has its deserialized value; one that cannot be deserialized is given back and stops no other.

Method: the kernel itself, in memory, and a fake KafkaProducer.
"""

from __future__ import annotations

import json
from typing import assert_type

import msgspec
import pytest

from popstream import (
    Consumer,
    FilterVerdict,
    Invalid,
    Message,
    Producer,
    Reject,
    json_deserializer,
    json_serializer,
    msgpack_deserializer,
    msgpack_serializer,
)
from popstream.payload.inner_batch import InnerMessage, encode_inner_batch
from popstream.payload.payloads import Payload
from popstream.testing._memory_kafka import MemoryKafka
from popstream.testing.memory_job import MemoryJob
from popstream.wire.command import ChangeInvisible
from popstream.wire.command import Reject as RejectCommand


class Order(msgspec.Struct):
    number: int


VALUES = [b'{"number": 0}', b"no JSON", b'{"number": 2}', b'{"number": "three"}', None, b'{"number": 5}']


@pytest.fixture
def job() -> MemoryJob:
    made = MemoryJob()
    made.write("orders", 0, VALUES)
    return made


def released(job: MemoryJob) -> list[tuple[list[tuple[int, int]], int, bool]]:
    return [
        ([*entry.offsets], entry.invisible_time_ms, entry.suspend)
        for change in job.records
        if isinstance(change, ChangeInvisible)
        for entry in change.entries
    ]


def test_a_pop_has_the_messages_that_can_be_deserialized(job: MemoryJob) -> None:
    with job.consumer("billing", value_deserializer=json_deserializer(Order), back_off=[1]) as consumer:
        popped = consumer.pop("orders", 0)
        found = [(message.queue_offset, message.body, message.value) for message in popped]
        assert found == [
            (0, Order(0), VALUES[0]),
            (2, Order(2), VALUES[2]),
            (4, None, None),
            (5, Order(5), VALUES[5]),
        ]
        assert popped.late_count == 2
        consumer.flush()
        assert released(job) == [([(1, 1)], 1_000, False), ([(3, 3)], 1_000, False)]
        job.advance(1_000)
        assert len(consumer.pop("orders", 0)) == 0
    with job.consumer("billing") as other:
        job.advance(1_000)
        assert [(message.queue_offset, message.attempt) for message in other.pop("orders", 0)][:2] == [(0, 2), (1, 3)]


def test_a_bad_deploy_does_not_send_its_backlog_to_the_dead_letters_in_seconds() -> None:
    job = MemoryJob()
    job.write("orders", 0, [b"no JSON"] * 3)
    with job.consumer("billing", value_deserializer=json_deserializer(), max_attempts=3, back_off=[1, 60]) as consumer:
        for wait_ms in (1_000, 60_000, 0):
            assert consumer.pop("orders", 0).late_count == 3
            consumer.flush()
            job.advance(max(0, wait_ms - 1))
            assert consumer.pop("orders", 0).late_count == 0
            job.advance(1)
        assert len(consumer.pop("orders", 0)) == 0
    changes = [record for record in job.records if isinstance(record, ChangeInvisible)]
    assert len(changes) == 3, "one request for each pop"
    assert {(entry.release, entry.cause) for change in changes for entry in change.entries} == {
        ("back_off", "DecodeError: JSON is malformed: invalid character (byte 4)")
    }


def test_a_deserializer_decides_as_a_handler_does(job: MemoryJob) -> None:
    def deserialize(value: bytes) -> object:
        try:
            return json.loads(value)
        except ValueError as error:
            raise Reject("not JSON") from error

    def hide(error: BaseException) -> str:
        return type(error).__name__

    with job.consumer("billing", value_deserializer=deserialize, describe_error=hide) as consumer:
        assert [message.queue_offset for message in consumer.pop("orders", 0)] == [0, 2, 3, 4, 5]
    (rejected,) = (record for record in job.records if isinstance(record, RejectCommand))
    assert [(entry.offsets, entry.cause) for entry in rejected.entries] == [([(1, 1)], "not JSON: JSONDecodeError")]


def test_the_types_follow_the_deserializer(job: MemoryJob) -> None:
    def typed() -> Consumer[Order]:
        return Consumer("kafka:9092", group="billing", value_deserializer=json_deserializer(Order))

    def count(message: Message) -> None: ...

    def never() -> None:
        consumer = typed()
        for message in consumer:
            assert_type(message.body, Order)
        assert_type(consumer.pop("orders").messages, list[Message[Order]])
        consumer.run(count)
        assert_type(Producer("kafka:9092"), Producer[bytes])

    assert callable(never)
    with job.consumer("billing") as plain:
        assert [message.body for message in plain.pop("orders", 0)] == VALUES


def test_an_orderly_group_waits_for_what_cannot_be_deserialized(job: MemoryJob) -> None:
    seen: list[int] = []
    with job.consumer(
        "billing", topics=["orders"], order=True, value_deserializer=json.loads, back_off=[1]
    ) as consumer:
        (message,) = consumer.subscribe().take(10, timeout_s=60)
        seen.append(message.body["number"])
        message.ack().result(60)
        consumer.flush()
    assert seen == [0]
    assert released(job)[:2] == [([(1, 1)], 1_000, False), ([(2, 5)], 0, True)]


def test_the_unit_of_a_value_that_cannot_be_deserialized_is_redelivered(job: MemoryJob) -> None:
    value, headers = encode_inner_batch(
        [InnerMessage(found, 0, None, []) for found in (b"1", b"no JSON", b"3")], created_ms=7, ids=["a", "b", "c"]
    )
    job.append("units", 0, Payload(None, value, [*headers], 7), count=3)
    with job.consumer("billing", value_deserializer=json.loads, back_off=[1]) as consumer:
        popped = consumer.pop("units", 0)
        assert (popped.messages, popped.late_count) == ([], 3)
        consumer.flush()
    assert released(job) == [([(0, 0)], 1_000, False)]


def test_a_filter_sees_the_body(job: MemoryJob) -> None:
    def judge(message: Message[Order]) -> FilterVerdict:
        is_even = message.body is not None and message.body.number % 2 == 0
        return FilterVerdict.CONSUME if is_even else FilterVerdict.REJECT

    with job.consumer("billing", value_deserializer=json_deserializer(Order), message_filter=judge) as consumer:
        assert [message.body for message in consumer.pop("orders", 0)] == [Order(0), Order(2)]


def test_a_producer_serializes_what_it_sends() -> None:
    kafka = MemoryKafka(MemoryJob())
    with Producer("memory", kafka_producer=kafka, job_types=lambda _: None, value_serializer=json_serializer) as made:
        made.send("orders", Order(7)).result(60)
        made.send_and_wait("orders", {"number": 8})
        made.send_and_wait("orders", None, key=b"k")
        refused = made.send("orders", {"number": object()})
        with pytest.raises(Invalid, match="the value cannot be serialized: TypeError") as raised:
            refused.result(60)
        assert raised.value.subject == "orders"
    assert [record["value"] for record in kafka.sent] == [b'{"number":7}', b'{"number":8}', None]


def test_message_pack_goes_from_a_producer_to_a_consumer() -> None:
    job = MemoryJob()
    with (
        job.producer(value_serializer=msgpack_serializer) as producer,
        job.consumer("billing", value_deserializer=msgpack_deserializer(Order), back_off=[1]) as consumer,
    ):
        for value in (Order(7), {"number": 8}, {"number": "nine"}):
            producer.send_and_wait("orders", value)
        popped = consumer.pop("orders")
        assert [(message.value, message.body) for message in popped] == [
            (b"\x81\xa6number\x07", Order(7)),
            (b"\x81\xa6number\x08", Order(8)),
        ]
        consumer.flush()
    assert released(job)[0] == ([(2, 2)], 1_000, False)


def test_a_serializer_that_returns_no_bytes_is_refused() -> None:
    kafka = MemoryKafka(MemoryJob())
    with (
        Producer("memory", kafka_producer=kafka, job_types=lambda _: None, value_serializer=str) as made,  # type: ignore[arg-type]
        pytest.raises(Invalid, match="value must be bytes, not str"),
    ):
        made.send_and_wait("orders", 7)  # type: ignore[arg-type]
