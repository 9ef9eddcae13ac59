"""Claim: messages of a unit are messages; the job is told of the unit. Method: producer, kernel, consumer in memory."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from popstream import (
    AsyncConsumer,
    FilterVerdict,
    Message,
    OutgoingMessage,
    Producer,
    RenewalPolicy,
    all_applied,
)
from popstream.payload.payloads import Payload
from popstream.payload.redelivery import Redelivery
from popstream.testing._memory_kafka import MemoryKafka
from popstream.testing.memory_job import MemoryJob
from popstream.wire.base_errors import Invalid
from popstream.wire.command import Ack, ChangeInvisible, Command, Reject
from popstream.wire.headers import (
    BATCH_BYTES_HEADER,
    BATCH_COUNT_HEADER,
    MESSAGE_ID_HEADER,
    REDELIVERY_HEADER,
    TAG_HEADER,
)
from popstream.wire.reason import Reason
from tests.support.threads import eventually

WAIT_S = 60.0


@pytest.fixture
def job() -> MemoryJob:
    return MemoryJob()


@pytest.fixture
def kafka(job: MemoryJob) -> MemoryKafka:
    return MemoryKafka(job)


@pytest.fixture
def producer(kafka: MemoryKafka) -> Iterator[Producer]:
    with Producer("memory", kafka_producer=kafka, job_types=lambda _: "batch", batch_max_delay_ms=1) as made:
        yield made


@pytest.fixture
def unit(producer: Producer) -> None:
    """Four messages in one unit, then a plain message."""
    messages = [OutgoingMessage(topic="orders", value=b"%d" % number, key=b"k", tag="paid") for number in range(4)]
    for future in producer.send_many(messages):
        future.result(WAIT_S)
    producer.send("orders", b"plain").result(WAIT_S)


def sent(job: MemoryJob, kind: type[Command]) -> list[Any]:
    return [record for record in job.records if isinstance(record, kind)]


def append(job: MemoryJob, value: bytes, *headers: tuple[str, bytes]) -> None:
    """Write a record as a producer that is not ours may."""
    job.append("orders", 0, Payload(None, value, [*headers], job.now_ms))


def values(messages: Any) -> list[bytes | None]:
    return [message.value for message in messages]


@pytest.mark.usefixtures("unit")
def test_a_unit_is_unwrapped_with_all_that_is_known_of_its_messages(job: MemoryJob) -> None:
    with job.consumer("g") as consumer:
        result = consumer.pop("orders", 0, max_messages=8)
        assert values(result) == [b"0", b"1", b"2", b"3", b"plain"]
        assert [(m.queue_offset, m.inner_index, m.inner_count) for m in result] == [
            *((0, index, 4) for index in range(4)),
            (1, 0, 1),
        ]
        assert [message.tag for message in result] == ["paid"] * 4 + [""]
        assert len({message.message_id for message in result}) == 5
        assert all(message.key == b"k" and message.timestamp_ms for message in result.messages[:4])
        assert consumer.held_count == 2


@pytest.mark.usefixtures("unit")
def test_a_pop_counts_the_messages_of_a_unit_and_takes_one_at_least(job: MemoryJob) -> None:
    with job.consumer("g") as consumer:
        assert len(consumer.pop("orders", 0, max_messages=1)) == 4
        assert len(consumer.pop("orders", 0, max_messages=1)) == 1


@pytest.mark.usefixtures("unit")
def test_the_unit_is_acked_with_its_last_message(job: MemoryJob) -> None:
    with job.consumer("g") as consumer:
        messages = consumer.pop("orders", 0, max_messages=4).messages
        assert all_applied(consumer.ack(messages[:3]))
        assert sent(job, Ack) == []
        again, last = consumer.ack([messages[0], messages[3]])
        assert (again.reason, last.reason) == (Reason.ALREADY_ACKED, Reason.OK)
        (ack,) = sent(job, Ack)
        assert [entry.offsets for entry in ack.entries] == [[(0, 0)]]
        assert consumer.held_count == 0
        assert values(consumer.pop("orders", 0, max_messages=8)) == [b"plain"]


@pytest.mark.usefixtures("unit")
def test_one_call_may_name_messages_of_either_kind(job: MemoryJob) -> None:
    with job.consumer("g") as consumer:
        messages = consumer.pop("orders", 0, max_messages=8).messages
        assert all_applied(consumer.ack([messages[4], *messages[:4]]))
        assert consumer.held_count == 0


@pytest.mark.usefixtures("unit")
def test_one_that_is_given_back_brings_its_unit_back(job: MemoryJob) -> None:
    with job.consumer("g") as consumer:
        messages = consumer.pop("orders", 0, max_messages=4).messages
        consumer.ack(messages[:1])
        assert all_applied(consumer.change_invisible(messages[1:2], 0))
        assert all(message.is_settled for message in messages)
        late = consumer.ack(messages[2:])
        assert [outcome.applied for outcome in late] == [False, False]
        again = consumer.pop("orders", 0, max_messages=4).messages
        assert values(again) == [b"0", b"1", b"2", b"3"]
        assert {message.attempt for message in again} == {2}
        assert sent(job, Ack) == []


@pytest.mark.usefixtures("unit")
def test_a_unit_is_renewed_for_all_its_messages(job: MemoryJob) -> None:
    with job.consumer("g") as consumer:
        messages = consumer.pop("orders", 0, max_messages=4, invisible_time_ms=1_000).messages
        job.advance(500)
        assert messages[2].extend(5).result(WAIT_S).applied
        assert {message.next_visible_time_ms for message in messages} == {job.now_ms + 5_000}
        assert len({message.handle for message in messages}) == 1
        assert all_applied(consumer.change_invisible(messages, 9_000))
        assert len(sent(job, ChangeInvisible)) == 2
        assert all_applied(consumer.ack(messages))


@pytest.mark.usefixtures("unit")
def test_a_rejected_message_takes_its_unit_to_the_dead_letters_once_all_are_done(job: MemoryJob) -> None:
    with job.consumer("g") as consumer:
        messages = consumer.pop("orders", 0, max_messages=4).messages
        assert all_applied(consumer.reject(messages[1:2], "no such customer"))
        assert sent(job, Reject) == []
        consumer.ack([messages[0], *messages[2:]])
        (reject,) = sent(job, Reject)
        assert [(entry.offsets, entry.cause) for entry in reject.entries] == [([(0, 0)], "no such customer")]
        assert sent(job, Ack) == []


@pytest.mark.usefixtures("unit")
def test_a_failed_message_is_sent_again_by_itself_and_its_unit_is_done(
    job: MemoryJob, kafka: MemoryKafka, producer: Producer
) -> None:
    with job.consumer("g", resend_with=producer) as consumer:
        messages = consumer.pop("orders", 0, max_messages=8).messages
        consumer.ack([messages[0], *messages[2:]])
        assert all_applied(consumer.change_invisible(messages[1:2], 0))
        consumer.flush()
        (ack,) = [ack for ack in sent(job, Ack) if ack.entries[0].offsets[0][0] == 0]
        assert ack.entries[0].offsets == [(0, 0)]
        (again,) = consumer.pop("orders", 0, max_messages=8).messages
        before = messages[1]
        assert (again.value, again.key, again.message_id, again.tag) == (b"1", b"k", before.message_id, "paid")
        assert (again.queue_offset, again.attempt, again.inner_count) == (2, 2, 1)
    with job.consumer("others") as other:
        assert values(other.pop("orders", 0, max_messages=8)) == [b"0", b"1", b"2", b"3", b"plain"]
        other.flush()
        assert other.held_count == 5 - 3
    record = kafka.sent[-1]
    assert record["partition"] == 0
    assert sorted(name for name, _ in record["headers"]) == [MESSAGE_ID_HEADER, REDELIVERY_HEADER, TAG_HEADER]


@pytest.mark.usefixtures("unit")
def test_a_message_can_be_forwarded_with_its_headers(job: MemoryJob, kafka: MemoryKafka, producer: Producer) -> None:
    """What popstream adds to a record is about that record: its tag, its id, its group, the number of its messages."""
    traced = [
        OutgoingMessage(topic="orders", value=value, headers=[("trace", value)], tag="new") for value in (b"a", b"b")
    ]
    for future in [*producer.send_many(traced), producer.send("orders", b"c", headers=[("trace", b"c")], tag="new")]:
        future.result(WAIT_S)
    append(job, b"d", ("trace", b"d"), Redelivery("g", attempts=1).header())
    with job.consumer("g", resend_with=producer) as consumer:
        messages = consumer.pop("orders", 0, max_messages=16).messages[5:]
        assert [(one.value, one.headers, one.tag) for one in messages] == [
            (value, [("trace", value)], tag) for value, tag in ((b"a", "new"), (b"b", "new"), (b"c", "new"), (b"d", ""))
        ]
        records = consumer.read("orders", 0, 2, 9)
        assert [(one.headers, one.tag) for one in records] == [(one.headers, one.tag) for one in messages]
        for message in messages:
            headers = [(name, value or b"") for name, value in message.headers]
            producer.send("forwarded", message.value, headers=headers).result(WAIT_S)
    for record in kafka.sent[-4:]:
        assert [name for name, _ in record["headers"]] == ["trace", MESSAGE_ID_HEADER]


@pytest.mark.parametrize(
    "name", [TAG_HEADER, MESSAGE_ID_HEADER, REDELIVERY_HEADER, BATCH_COUNT_HEADER, "popstream-new"]
)
def test_a_sender_cannot_set_the_headers_of_popstream(kafka: MemoryKafka, producer: Producer, name: str) -> None:
    with pytest.raises(Invalid, match="set by the producer"):
        producer.send("orders", b"v", headers=[("trace", b"1"), (name, b"1")]).result(WAIT_S)
    assert kafka.sent == []


@pytest.mark.usefixtures("unit")
def test_a_set_that_fails_at_its_first_message_sends_all_again_and_its_unit_is_done(
    job: MemoryJob, kafka: MemoryKafka, producer: Producer
) -> None:
    with job.consumer("g", topics=["orders"], resend_with=producer) as consumer:

        def fail(messages: Any) -> None:
            if messages[0].inner_count == 4:
                raise ValueError("always")
            if values(messages) == [b"plain"]:
                eventually(lambda: len(kafka.sent) == 6)
                consumer.stop()

        consumer.run_sets(fail, set_size=4)
        consumer.flush()
    assert [record["value"] for record in kafka.sent[2:]] == [b"0", b"1", b"2", b"3"]
    resent = [Redelivery.parse(record["headers"]) for record in kafka.sent[2:]]
    assert [one and (one.attempts, one.cause) for one in resent] == [(1, "ValueError: always"), *[(0, None)] * 3]
    acked = [offsets for ack in sent(job, Ack) for entry in ack.entries for offsets in entry.offsets]
    assert min(acked)[0] == 0


@pytest.mark.usefixtures("unit")
def test_a_message_that_is_acked_twice_counts_once(job: MemoryJob) -> None:
    with job.consumer("g") as consumer:
        messages = consumer.pop("orders", 0, max_messages=4).messages
        unit = messages[0].unit
        assert unit is not None
        assert [unit.finish(messages[:1]) for _ in range(4)] == [False] * 4
        assert [unit.finish(messages[:2]), unit.finish(messages[2:]), unit.finish(messages[3:])] == [False, True, False]


@pytest.mark.usefixtures("unit")
def test_all_acks_of_a_unit_in_one_call_have_the_outcome_of_the_unit(job: MemoryJob) -> None:
    with job.consumer("g") as consumer, job.consumer("g") as other:
        messages = consumer.pop("orders", 0, max_messages=4, invisible_time_ms=1_000).messages
        job.advance(1_000)
        assert len(other.pop("orders", 0, max_messages=4)) == 4
        outcomes = consumer.ack(messages)
        assert [(outcome.applied, outcome.reason) for outcome in outcomes] == [(False, Reason.STALE_HANDLE)] * 4


@pytest.mark.usefixtures("unit")
def test_an_ack_in_an_expired_unit_claims_no_success_before_the_job_has_decided(job: MemoryJob) -> None:
    with job.consumer("g") as consumer:
        messages = consumer.pop("orders", 0, max_messages=4, invisible_time_ms=1_000).messages
        assert consumer.ack(messages[:1])[0].applied
        job.advance(1_000)
        consumer.return_client("orders", 0, "nobody")  # the answer shows the broker's time
        outcomes = consumer.ack(messages[1:3])
        assert [(outcome.applied, outcome.reason) for outcome in outcomes] == [(False, Reason.EXPIRED_LOCALLY)] * 2
        assert consumer.ack(messages[3:])[0].applied, "nobody else has got it, so the job takes the ack"
        assert values(consumer.pop("orders", 0, max_messages=8)) == [b"plain"]


@pytest.mark.usefixtures("unit")
def test_a_renewal_reaches_the_messages_of_a_unit(job: MemoryJob) -> None:
    policy = RenewalPolicy(ahead_ms=10**9)
    with job.consumer("g", renewal=policy) as consumer:
        messages = consumer.pop("orders", 0, max_messages=4, invisible_time_ms=1_000, renew=True).messages
        before = messages[1].handle
        job.advance(500)
        consumer._leases.renew_due()
        eventually(lambda: messages[1].handle != before)
        assert messages[1].next_visible_time_ms == job.now_ms + 1_000
        assert consumer.change_invisible([messages[1].receipt], 1_000)[0].applied


@pytest.mark.usefixtures("unit")
def test_a_unit_that_the_filter_returns_is_not_handed_out_in_part(job: MemoryJob) -> None:
    def verdict(message: Message) -> FilterVerdict:
        return FilterVerdict.RELEASE if message.value == b"1" else FilterVerdict.CONSUME

    with job.consumer("g", message_filter=verdict) as consumer:
        assert values(consumer.pop("orders", 0, max_messages=8)) == [b"plain"]


def test_a_unit_that_nobody_can_read_goes_to_the_dead_letters(job: MemoryJob) -> None:
    """Names that are no text, values nested without end: what Python raises for it is an outcome too."""
    header = b"\xa1\xff"
    for body in (b"\x93\x01\x00\x91\x94\xc4\x01v\x00\xc0\x91\x92" + header + b"\xc0", b"\x91" * 100_000, b""):
        append(job, body, (BATCH_COUNT_HEADER, b"1"), (BATCH_BYTES_HEADER, b"%d" % len(body)))
    append(job, b"good", (REDELIVERY_HEADER, b'{"group":"\xff"}'))
    with job.consumer("g") as consumer:
        assert values(consumer.pop("orders", 0, max_messages=8)) == [b"good"]
        consumer.flush()
        assert (
            sum(
                last - first + 1
                for reject in sent(job, Reject)
                for entry in reject.entries
                for first, last in entry.offsets
            )
            == 3
        )


@pytest.mark.usefixtures("unit")
def test_what_is_sent_again_later_comes_later_and_has_had_no_attempt_meanwhile(
    job: MemoryJob, producer: Producer
) -> None:
    with job.consumer("g", resend_with=producer) as consumer:
        messages = consumer.pop("orders", 0, max_messages=8).messages
        consumer.change_invisible(messages[:1], 5_000, suspend=False)
        assert messages[0].state.value == "open"
        messages[0].release(delay_s=5.0).result(WAIT_S)
        consumer.ack(messages[1:])
        assert len(consumer.pop("orders", 0, max_messages=8)) == 0
        consumer.flush()
        job.advance(6_000)
        (again,) = consumer.pop("orders", 0, max_messages=8).messages
        assert (again.value, again.attempt) == (b"0", 2)


@pytest.mark.usefixtures("unit")
def test_a_message_of_a_unit_is_rejected_by_itself_when_it_is_sent_again(job: MemoryJob, producer: Producer) -> None:
    with job.consumer("g", resend_with=producer) as consumer:
        messages = consumer.pop("orders", 0, max_messages=8).messages
        assert all_applied(consumer.reject(messages[1:2], "no such customer"))
        consumer.ack([messages[0], *messages[2:]])
        assert sent(job, Reject) == []
        assert len(consumer.pop("orders", 0, max_messages=8)) == 0
        consumer.flush()
        (reject,) = sent(job, Reject)
        assert [(entry.offsets, entry.cause) for entry in reject.entries] == [([(2, 2)], "no such customer")]


@pytest.mark.usefixtures("unit")
def test_what_cannot_be_sent_again_brings_its_unit_back(job: MemoryJob, kafka: MemoryKafka, producer: Producer) -> None:
    with job.consumer("g", resend_with=producer) as consumer:
        messages = consumer.pop("orders", 0, max_messages=8).messages
        consumer.ack(messages[2:])
        kafka.judge = lambda _: TimeoutError("Kafka is away")
        messages[0].release().result(WAIT_S)
        kafka.judge = lambda _: None
        assert not messages[1].ack().result(WAIT_S).applied
        job.advance(1_001)
        assert values(consumer.pop("orders", 0, max_messages=8)) == [b"0", b"1", b"2", b"3"]


def test_an_orderly_group_sends_nothing_again(job: MemoryJob, producer: Producer) -> None:
    with pytest.raises(Invalid, match="out of order"):
        job.consumer("g", order=True, topics=["orders"], resend_with=producer)


@pytest.mark.usefixtures("unit")
def test_iteration_gives_messages_one_by_one_and_acks_units(job: MemoryJob) -> None:
    with job.consumer("g", topics=["orders"]) as consumer:
        found = []
        for message in consumer:
            with message:
                found.append(message.value)
            if len(found) == 5:
                consumer.stop()
        assert sorted(value or b"" for value in found) == [b"0", b"1", b"2", b"3", b"plain"]
        consumer.flush()
        assert consumer.held_count == 0


@pytest.mark.usefixtures("unit")
def test_a_unit_that_was_given_back_is_not_handed_out_further(job: MemoryJob) -> None:
    with job.consumer("g", topics=["orders"]) as consumer:
        found: list[Message] = []
        for message in consumer:
            found.append(message)
            if (message.value, message.attempt) == (b"1", 1):
                message.release()
            else:
                message.ack()
            if len([one for one in found if one.inner_count == 4]) == 6 and len(found) == 7:
                consumer.stop()
        unit_values = [(message.value, message.attempt) for message in found if message.inner_count == 4]
        assert unit_values == [(b"0", 1), (b"1", 1), (b"0", 2), (b"1", 2), (b"2", 2), (b"3", 2)]


@pytest.mark.usefixtures("unit")
def test_workers_share_the_messages_of_a_unit(job: MemoryJob) -> None:
    found: list[bytes | None] = []
    both = threading.Barrier(2)
    with job.consumer("g", topics=["orders"]) as consumer:

        def handle(message: Message) -> None:
            if message.value in {b"0", b"1"}:
                both.wait(WAIT_S)
            found.append(message.value)
            if len(found) == 5:
                consumer.stop()

        consumer.run(handle, workers=2)
        consumer.flush()
        assert consumer.held_count == 0
    assert sorted(value or b"" for value in found) == [b"0", b"1", b"2", b"3", b"plain"]


@pytest.mark.usefixtures("unit")
def test_in_order_the_next_message_of_a_unit_waits_for_the_one_before(job: MemoryJob) -> None:
    with job.consumer("g", topics=["orders"], order=True) as consumer:
        subscription = consumer.subscribe()
        (first,) = subscription.take(1, WAIT_S)
        assert first.value == b"0"
        assert subscription.take(1, 0.1) == []
        first.ack()
        second, third = subscription.take(2, WAIT_S)
        assert values([second, third]) == [b"1", b"2"]
        second.ack()
        third.ack()
        (fourth,) = subscription.take(1, WAIT_S)
        fourth.release()
        again = subscription.take(9, WAIT_S)
        assert values(again) == [b"0", b"1", b"2", b"3", b"plain"]
        assert all_applied(consumer.ack(again))


@pytest.mark.usefixtures("unit")
def test_a_handler_that_fails_in_order_gets_the_unit_again_from_its_start(job: MemoryJob) -> None:
    found: list[bytes | None] = []
    failures = [ValueError("once")]
    with job.consumer("g", topics=["orders"], order=True) as consumer:

        def handle(message: Message) -> None:
            found.append(message.value)
            if message.value == b"2" and failures:
                raise failures.pop()
            if message.value == b"plain":
                consumer.stop()

        def pass_time() -> None:
            while found[-1:] != [b"plain"]:
                job.advance(100)
                time.sleep(0.02)

        threading.Thread(target=pass_time, daemon=True).start()
        consumer.run(handle)
    assert found == [b"0", b"1", b"2", b"0", b"1", b"2", b"3", b"plain"]


@pytest.mark.usefixtures("unit")
def test_coroutines_take_messages_of_units_in_order(job: MemoryJob, monkeypatch: pytest.MonkeyPatch) -> None:
    made = job.consumer("g", topics=["orders"], order=True)
    consumer = AsyncConsumer("memory", group="g", topics=["orders"], order=True)
    monkeypatch.setattr(consumer._client, "_make", lambda: made)
    found: list[bytes | None] = []

    async def work() -> None:
        async with consumer:

            async def handle(message: Message) -> None:
                found.append(message.value)
                if len(found) == 5:
                    consumer.stop()

            await consumer.run(handle, tasks=3)

    asyncio.run(asyncio.wait_for(work(), 30))
    assert found == [b"0", b"1", b"2", b"3", b"plain"]


@pytest.mark.usefixtures("unit")
def test_a_filter_is_asked_about_each_message(job: MemoryJob, producer: Producer) -> None:
    def verdict(message: Message) -> FilterVerdict:
        return FilterVerdict.RELEASE if message.value == b"1" else FilterVerdict.CONSUME

    with job.consumer("g", message_filter=verdict, resend_with=producer) as consumer:
        messages = consumer.pop("orders", 0, max_messages=4).messages
        assert values(messages) == [b"0", b"2", b"3"]
        assert all_applied(consumer.ack(messages))
        consumer.flush()
        assert [entry.offsets for ack in sent(job, Ack) for entry in ack.entries] == [[(0, 0)]]


@pytest.mark.usefixtures("unit")
def test_a_thread_that_ends_with_an_open_message_gives_its_unit_back(job: MemoryJob) -> None:
    with job.consumer("g", topics=["orders"], renewal=RenewalPolicy()) as consumer:
        subscription = consumer.subscribe()
        done: list[Message] = []

        def take_and_die() -> None:
            done.extend(subscription.take(1, WAIT_S))
            done.extend(subscription.take(1, WAIT_S))
            done[0].ack()

        thread = threading.Thread(target=take_and_die)
        thread.start()
        thread.join()
        consumer._leases.renew_due()
        assert done[1].is_settled


@pytest.mark.usefixtures("unit")
def test_a_thread_that_ends_with_its_messages_done_keeps_nobody_from_the_rest(job: MemoryJob) -> None:
    with job.consumer("g", topics=["orders"]) as consumer:
        subscription = consumer.subscribe()

        def take_and_ack() -> None:
            subscription.take(1, WAIT_S)[0].ack()

        thread = threading.Thread(target=take_and_ack)
        thread.start()
        thread.join()
        (mine,) = subscription.take(1, WAIT_S)
        consumer._leases.renew_due()
        assert not mine.is_settled


@pytest.mark.usefixtures("unit")
def test_reading_from_the_middle_of_a_unit_gives_what_was_asked(job: MemoryJob) -> None:
    """RocketMQ's pull delivers the messages before it again (BatchSendIT)."""
    with job.consumer("g") as consumer:
        assert values(consumer.read("orders", 0, 0, 9, inner_index=2)) == [b"2", b"3", b"plain"]
        assert values(consumer.read("orders", 0, 0, 2, inner_index=1)) == [b"1", b"2"]
        (record,) = consumer.read("orders", 0, 0, 1, inner_index=3)
        assert (record.inner_index, record.inner_count, record.message_id[-1]) == (3, 4, "3")
        assert values(consumer.read("orders", 0, 1, 9, inner_index=0)) == [b"plain"]
        assert values(consumer.read("orders", 0, 0, 1, inner_index=4)) == [b"plain"]
        assert values(consumer.read("orders", 0, 0, 9, inner_index=40)) == [b"plain"]
        assert values(consumer.read("orders", 0, 1, 9, inner_index=1)) == []


@pytest.mark.usefixtures("unit")
def test_stopping_returns_a_unit_as_if_it_had_not_come(job: MemoryJob) -> None:
    with job.consumer("g", topics=["orders"]) as consumer:
        (message,) = consumer.subscribe().take(1, WAIT_S)
        assert message.attempt == 1
    with job.consumer("g") as consumer:
        again = consumer.pop("orders", 0, max_messages=8).messages
        assert values(again) == [b"0", b"1", b"2", b"3", b"plain"]


@pytest.mark.usefixtures("unit")
def test_stopping_sends_again_what_was_not_handed_out_of_a_unit_with_a_message_at_work(
    job: MemoryJob, producer: Producer
) -> None:
    with job.consumer("g", topics=["orders"], resend_with=producer) as consumer:

        def handle(message: Message) -> None:
            assert message.value == b"0"
            consumer.stop()
            unit = message.unit
            assert unit is not None
            eventually(lambda: all(other.is_settled for other in unit.messages[1:]))
            assert not message.is_settled

        consumer.run(handle)
    (ack,) = sent(job, Ack)
    assert [entry.offsets for entry in ack.entries] == [[(0, 0)]]
    with job.consumer("g") as consumer:
        again = consumer.pop("orders", 0, max_messages=8).messages
        assert [(one.value, one.attempt) for one in again] == [(b"plain", 1), (b"1", 1), (b"2", 1), (b"3", 1)]


@pytest.mark.usefixtures("unit")
@pytest.mark.parametrize("count", [1, 4])
def test_a_release_takes_along_no_message_of_a_unit_that_its_caller_has_kept(
    job: MemoryJob, producer: Producer, count: int
) -> None:
    with job.consumer("g", resend_with=producer) as consumer:
        messages = consumer.pop("orders", 0, max_messages=4).messages
        assert all_applied(consumer.change_invisible(messages[:count], 0, suspend=True))
        assert [message.is_settled for message in messages] == [True] * count + [False] * (4 - count)
        assert all_applied(consumer.ack(messages[count:]))
        consumer.flush()
        assert len(sent(job, ChangeInvisible)) == (count == 4), "released as it was leased, by one operation"
        again = consumer.pop("orders", 0, max_messages=8).messages
        assert sorted(value or b"" for value in values(again)) == [*[b"0", b"1", b"2", b"3"][:count], b"plain"]
        assert {one.attempt for one in again} == {1}


@pytest.mark.usefixtures("unit")
def test_closing_sends_again_what_is_not_settled_of_a_unit_that_was_begun(job: MemoryJob, producer: Producer) -> None:
    with job.consumer("g", resend_with=producer) as consumer:
        messages = consumer.pop("orders", 0, max_messages=4).messages
        assert all_applied(consumer.ack(messages[:2]))
    with job.consumer("g") as consumer:
        again = consumer.pop("orders", 0, max_messages=8).messages
        assert [(one.value, one.attempt) for one in again] == [(b"plain", 1), (b"2", 2), (b"3", 2)]


@pytest.mark.usefixtures("unit")
def test_closing_after_a_break_delivers_no_message_twice(job: MemoryJob, producer: Producer) -> None:
    with job.consumer("g", topics=["orders"], resend_with=producer) as consumer:
        assert next(iter(consumer)).value == b"0"
    with job.consumer("g") as consumer:
        again = consumer.pop("orders", 0, max_messages=8).messages
        assert sorted(value or b"" for value in values(again)) == [b"0", b"1", b"2", b"3", b"plain"]
        assert {one.value: one.attempt for one in again}[b"0"] == 2


@pytest.mark.usefixtures("unit")
def test_in_order_nothing_is_handed_out_behind_a_unit_that_was_lost(job: MemoryJob) -> None:
    with job.consumer("g", topics=["orders"], order=True) as consumer:
        subscription = consumer.subscribe()
        (first,) = subscription.take(1, WAIT_S)
        first.ack()
        consumer._leases.held.release([first.leased])
        (again,) = subscription.take(1, WAIT_S)
        assert (again.value, again.inner_index) == (b"0", 0)


@pytest.mark.usefixtures("unit")
def test_stopping_returns_what_was_held_back_of_an_orderly_unit(job: MemoryJob) -> None:
    with job.consumer("g", topics=["orders"], order=True) as consumer:
        (first,) = consumer.subscribe().take(1, WAIT_S)
        first.ack()
        consumer.stop()
        eventually(lambda: consumer.held_count == 0)
        # It waits: what the client has let go of may still be on its way to the job.
        again = consumer.pop("orders", 0, max_messages=8, poll_time_ms=10_000, order=True).messages
        assert values(again) == [b"0", b"1", b"2", b"3", b"plain"]
        assert {message.attempt for message in again} == {1}


def test_a_header_that_nobody_can_read_is_no_matter(job: MemoryJob) -> None:
    append(job, b"v", (REDELIVERY_HEADER, b"{"))
    append(job, b"w", Redelivery("else").header())
    with job.consumer("g") as consumer:
        assert values(consumer.pop("orders", 0, max_messages=8)) == [b"v"]
