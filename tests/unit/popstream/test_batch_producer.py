"""Claim: a producer batches by itself, and tells of each message what is known. Method: a KafkaProducer in memory."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from kafka.errors import (
    InvalidRecordError,
    KafkaError,
    KafkaStorageError,
    KafkaTimeoutError,
    MessageSizeTooLargeError,
    NotEnoughReplicasAfterAppendError,
    NotLeaderForPartitionError,
    OutOfOrderSequenceNumberError,
    RecordListTooLargeError,
    RequestTimedOutError,
    TopicAuthorizationFailedError,
)

from popstream import NotWritten, OutcomeUnknown, OutgoingMessage, Producer
from popstream.exchange.partitioner import partition_of
from popstream.payload.inner_batch import unwrap
from popstream.send.kafka_errors import send_outcome_of
from popstream.send.ordered_sender import _first_turn
from popstream.send.shipment import SendAgain
from popstream.testing._memory_kafka import MemoryKafka
from popstream.testing.memory_job import MemoryJob
from popstream.wire.base_errors import Invalid, Unavailable
from popstream.wire.command import QueueType
from popstream.wire.headers import (
    BATCH_BASE_HEADER,
    BATCH_COUNT_HEADER,
    BATCH_KEYS_HEADER,
    DEDUP_ID_HEADER,
    DELIVER_AT_HEADER,
    MESSAGE_ID_HEADER,
    TAG_HEADER,
)
from popstream.wire.key_hash import key_hash

WAIT_S = 60.0
UNIT_HAS_ONE = "one tag, one deliver_at and one queue"
TYPES: dict[str, QueueType] = {"units": "batch", "table": "sparse"}


@pytest.fixture
def kafka() -> MemoryKafka:
    return MemoryKafka(MemoryJob(), partitions=3)


def make(kafka: MemoryKafka, **options: Any) -> Producer:
    return Producer("memory", kafka_producer=kafka, job_types=TYPES.get, **options)


@pytest.fixture
def producer(kafka: MemoryKafka) -> Iterator[Producer]:
    with make(kafka) as made:
        yield made


def is_batch(record: dict[str, Any]) -> bool:
    return BATCH_COUNT_HEADER in dict(record["headers"])


def test_messages_of_a_batch_topic_are_one_record(producer: Producer, kafka: MemoryKafka) -> None:
    futures = [
        producer.send("units", b"%d" % number, key=b"k", headers=[("n", b"1")], tag="paid", queue_id=2)
        for number in range(3)
    ]
    results = [future.result(WAIT_S) for future in futures]
    assert [(result.queue_id, result.queue_offset, result.inner_index) for result in results] == [
        (2, 0, 0),
        (2, 0, 1),
        (2, 0, 2),
    ]
    (record,) = kafka.sent
    headers = dict(record["headers"])
    assert (headers[BATCH_COUNT_HEADER], headers[TAG_HEADER], record["key"]) == (b"3", b"paid", None)
    assert headers[BATCH_BASE_HEADER].decode() == results[0].message_id
    hashes = {key_hash(text.encode()) for text in [*(result.message_id for result in results), "k"]}
    keys = headers[BATCH_KEYS_HEADER]
    assert {int.from_bytes(keys[at : at + 8], "big") for at in range(0, len(keys), 8)} == hashes
    unwrapped = unwrap(record["value"], record["headers"])
    assert unwrapped is not None
    assert [(one.value, one.key, one.headers, one.message_id) for one in unwrapped] == [
        (b"%d" % number, b"k", [("n", b"1")], results[number].message_id) for number in range(3)
    ]


def test_messages_of_other_topics_are_records_of_their_own(producer: Producer, kafka: MemoryKafka) -> None:
    results = [producer.send("orders", b"%d" % number, queue_id=1) for number in range(3)]
    assert [future.result(WAIT_S).queue_offset for future in results] == [0, 1, 2]
    assert not any(is_batch(record) for record in kafka.sent)
    ids = [dict(record["headers"])[MESSAGE_ID_HEADER].decode() for record in kafka.sent]
    assert ids == [future.result().message_id for future in results]
    assert len(set(ids)) == 3


def test_a_message_that_finds_no_company_is_a_plain_record(producer: Producer, kafka: MemoryKafka) -> None:
    assert producer.send("units", b"alone").result(WAIT_S).inner_index == 0
    assert not is_batch(kafka.sent[0])


def test_what_deletes_a_key_goes_by_itself(producer: Producer, kafka: MemoryKafka) -> None:
    producer.send("units", b"v", key=b"k")
    producer.send("units", None, key=b"k")
    producer.send("units", b"w", key=b"k")
    producer.flush()
    assert [record["value"] for record in kafka.sent] == [b"v", None, b"w"]


def test_without_batching_each_goes_at_once(kafka: MemoryKafka) -> None:
    with make(kafka, auto_batch=False, batch_max_delay_ms=30_000) as producer:
        for _ in range(3):
            assert producer.send("units", b"v").result(WAIT_S)
    assert len(kafka.sent) == 3


def test_threads_that_wait_have_their_results(producer: Producer) -> None:
    result = producer.send_and_wait("orders", b"v", key=b"k")
    assert result.queue_offset == 0
    with pytest.raises(Invalid):
        producer.send_and_wait("orders", 5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"value": "text"}, "value must be bytes, not str"),
        ({"value": {"a": 1}}, "value must be bytes, not dict"),
        ({"value": b"v", "key": 7}, "key must be bytes, not int"),
        ({"value": None}, "a message needs a value or a key"),
        ({"value": b"v", "headers": [("n", None)]}, "header"),
        ({"value": b"v", "headers": [5]}, "int"),
        ({"value": b"v", "queue_id": 9}, "no queue 9"),
        ({"value": b"v", "queue_id": -1}, "no queue"),
        ({"value": b"v", "tag": b"t"}, "tag must be str"),
        ({"value": b"v", "dedup_id": b"x"}, "dedup_id must be str"),
        ({"value": b"v", "dedup_id": ""}, "dedup_id must be 1 to 128 bytes of UTF-8, not 0"),
        ({"value": b"v", "dedup_id": "é" * 65}, "dedup_id must be 1 to 128 bytes of UTF-8, not 130"),
        ({"value": b"v", "deliver_at": 1.5}, "deliver_at must be a datetime or an int of ms since 1970, not float"),
        ({"value": b"v", "deliver_at": datetime(2026, 1, 1)}, "2026-01-01T00:00:00 has no time zone"),  # noqa: DTZ001
        ({"value": b"v", "headers": [("a",)]}, "not enough values"),
        ({"value": b"v", "headers": {"ab": b"c"}}, "header 'a'"),
    ],
)
def test_what_cannot_be_sent_is_told_by_its_future_and_harms_no_other(
    producer: Producer, arguments: dict[str, Any], told: str
) -> None:
    before = producer.send("orders", b"before")
    refused = producer.send("orders", **arguments)
    after = producer.send("orders", b"after")
    with pytest.raises(Invalid) as raised:
        refused.result(WAIT_S)
    assert told in "\n".join([raised.value.message, *raised.value.details])
    assert before.result(WAIT_S)
    assert after.result(WAIT_S)


def test_nothing_refused_stays_in_the_buffer(producer: Producer) -> None:
    """RocketMQ's leaks there until batching is silently off."""
    for _ in range(100):
        producer.send("orders", "text" * 1_000)  # type: ignore[arg-type]
    producer.flush()
    assert producer._sender._accumulator.buffered_bytes == 0


def test_a_sparse_topic_takes_no_message_without_a_key(producer: Producer) -> None:
    with pytest.raises(Invalid, match="needs one"):
        producer.send("table", b"v").result(WAIT_S)
    assert producer.send("table", b"v", key=b"k").result(WAIT_S)


def test_a_batch_to_a_topic_of_another_type_is_refused(kafka: MemoryKafka) -> None:
    with make(kafka, queue_types={"table": "batch", "unbuilt": "batch"}) as producer:
        with pytest.raises(
            Invalid, match="table is a sparse topic, but the queue_types of this producer name it batch"
        ):
            producer.send("table", b"v", key=b"k").result(WAIT_S)
        with pytest.raises(Invalid, match="table is a sparse topic"):
            producer.send_many([OutgoingMessage(topic="table", value=b"v", key=b"k")])
        futures = producer.send_many([OutgoingMessage(topic="unbuilt", value=b"v", queue_id=0)] * 2)
        assert [future.result(WAIT_S).inner_index for future in futures] == [0, 1]


def test_a_refused_batch_is_sent_again_one_by_one(producer: Producer, kafka: MemoryKafka) -> None:
    def judge(record: dict[str, Any]) -> Exception | None:
        value: bytes = record["value"]
        is_refused = is_batch(record) or len(value) > 100
        return MessageSizeTooLargeError("larger than max.message.bytes") if is_refused else None

    kafka.judge = judge
    futures = [producer.send("units", b"v" * size, queue_id=0) for size in (10, 200, 20)]
    assert [futures[0].result(WAIT_S).queue_offset, futures[2].result(WAIT_S).queue_offset] == [0, 1]
    with pytest.raises(Invalid, match="larger than"):
        futures[1].result(WAIT_S)
    assert producer._sender._accumulator.buffered_bytes == 0


def test_one_that_kafka_python_does_not_take_fails_alone(producer: Producer, kafka: MemoryKafka) -> None:
    """Before anything is handed over: a unit too long for a request, a header that is no UTF-8."""
    kafka.raises = lambda record: MessageSizeTooLargeError("request") if len(record["value"] or b"") > 100 else None
    futures = [producer.send("units", b"v" * size, queue_id=0) for size in (10, 200, 20)]
    futures.append(producer.send("units", b"v", headers=[("\ud800", b"")], queue_id=0))
    assert [futures[index].result(WAIT_S).queue_offset for index in (0, 2)] == [0, 1]
    with pytest.raises(Invalid, match="request"):
        futures[1].result(WAIT_S)
    assert isinstance(futures[3].exception(WAIT_S), Invalid | None)


def test_a_callback_must_not_wait(producer: Producer) -> None:
    found: list[BaseException | None] = []
    done = threading.Event()

    def wait(_: object) -> None:
        for call in (lambda: producer.send_and_wait("orders", b"v"), producer.flush, producer.close):
            try:
                call()
            except Invalid as error:
                found.append(error)
        done.set()

    producer.send("orders", b"v").add_done_callback(wait)
    assert done.wait(WAIT_S)
    assert len(found) == 3
    assert producer.send("orders", b"v").result(WAIT_S)


def test_types_and_transactions_that_cannot_be_are_refused_at_once(kafka: MemoryKafka) -> None:
    with pytest.raises(Invalid, match="not Batch"):
        make(kafka, queue_types={"orders": "Batch"})
    with pytest.raises(Invalid, match="does not send in transactions"):
        Producer("memory", kafka_producer=kafka, kafka={"transactional_id": "t"})


def test_an_empty_tag_is_no_tag_however_it_is_sent(producer: Producer, kafka: MemoryKafka) -> None:
    tags: list[str | None] = ["", None]
    producer.send_many([OutgoingMessage(topic="units", value=b"v", queue_id=0, tag=tag) for tag in tags])
    for tag in tags:
        producer.send("orders", b"v", tag=tag)
    producer.flush()
    assert [is_batch(record) for record in kafka.sent] == [True, False, False]
    assert not any(TAG_HEADER in dict(record["headers"]) for record in kafka.sent)


def test_messages_of_one_time_of_delivery_are_a_unit(producer: Producer, kafka: MemoryKafka) -> None:
    """On other topics each record has its own."""
    times: list[datetime | int | None] = [datetime(1970, 1, 1, 0, 0, 5, tzinfo=UTC), 5_000, 6_000, None]
    for topic in ("units", "orders"):
        for number, deliver_at in enumerate(times):
            producer.send(topic, b"%d" % number, queue_id=0, deliver_at=deliver_at)
        producer.flush()
    sent = [
        (record["topic"], is_batch(record), dict(record["headers"]).get(DELIVER_AT_HEADER)) for record in kafka.sent
    ]
    assert sent == [
        ("units", True, b"5000"),
        ("units", False, b"6000"),
        ("units", False, None),
        ("orders", False, b"5000"),
        ("orders", False, b"5000"),
        ("orders", False, b"6000"),
        ("orders", False, None),
    ]
    unwrapped = unwrap(kafka.sent[0]["value"], kafka.sent[0]["headers"])
    assert unwrapped is not None
    assert [one.deliver_at_ms for one in unwrapped] == [5_000, 5_000]


def test_an_id_chooses_the_queue_where_nothing_else_does(producer: Producer, kafka: MemoryKafka) -> None:
    for number in range(12):
        for fields in ({}, {}, {"key": b"k"}, {"queue_id": 2}):
            producer.send("orders", b"v", dedup_id=f"order-{number}", **fields)
    producer.flush()
    assert all(dict(record["headers"])[DEDUP_ID_HEADER].startswith(b"order-") for record in kafka.sent)
    places: dict[bytes, set[int]] = {}
    for record in kafka.sent:
        if record["key"] is None and record["value"] == b"v":
            places.setdefault(dict(record["headers"])[DEDUP_ID_HEADER], set()).add(record["partition"])
    assert {queue_id for found in places.values() for queue_id in found} == {0, 1, 2}
    assert all(partition_of(name, 3) in found <= {partition_of(name, 3), 2} for name, found in places.items())
    keyed = {record["partition"] for record in kafka.sent if record["key"]}
    assert keyed == {partition_of(b"k", 3)}


@pytest.mark.parametrize("topic", ["units", "table"])
def test_an_id_is_refused_where_no_duplicate_is_dropped(producer: Producer, kafka: MemoryKafka, topic: str) -> None:
    message = OutgoingMessage(topic=topic, value=b"v", key=b"k", dedup_id="order-1")
    with pytest.raises(Invalid, match="whose duplicates the job does not drop"):
        producer.send_and_wait(topic, b"v", b"k", dedup_id="order-1")
    with pytest.raises(Invalid, match="whose duplicates the job does not drop"):
        producer.send_many([message])
    assert kafka.sent == []


def test_what_kafka_python_does_not_take_is_not_written(producer: Producer, kafka: MemoryKafka) -> None:
    """It raises before it keeps anything; a time-out may pass, so that is tried again."""
    asked = []

    def forget_twice(record: dict[str, Any]) -> Exception | None:
        asked.append(record["value"])
        return KafkaTimeoutError("no metadata") if len(asked) < 3 else None

    kafka.raises = forget_twice
    futures = [producer.send("orders", b"%d" % number, queue_id=0) for number in range(5)]
    assert [future.result(WAIT_S).queue_offset for future in futures] == [0, 1, 2, 3, 4]
    assert asked == [b"0", b"0", b"0", b"1", b"2", b"3", b"4"]
    kafka.raises = lambda _: KafkaError("nonsense")
    with pytest.raises(Invalid, match="nonsense"):
        producer.send("orders", b"v").result(WAIT_S)


def test_written_at_an_unknown_place_is_an_unknown_outcome(producer: Producer, kafka: MemoryKafka) -> None:
    kafka._job.append = lambda *_, **__: -1  # type: ignore[method-assign]
    for topic in ("orders", "units"):
        futures = [producer.send(topic, b"v", queue_id=0) for _ in range(2)]
        for future in futures:
            with pytest.raises(OutcomeUnknown, match="does not return its offset"):
                future.result(WAIT_S)


@pytest.mark.parametrize(
    ("error", "alone", "kind", "retried"),
    [
        (MessageSizeTooLargeError("m"), False, Invalid, True),
        (MessageSizeTooLargeError("m"), True, Invalid, False),
        (RecordListTooLargeError("m"), False, Invalid, True),
        (InvalidRecordError("m"), False, Invalid, True),
        (KafkaError("it was part of a batch which had one more more invalid records"), False, Invalid, True),
        (TopicAuthorizationFailedError("m"), False, Invalid, False),
        (NotLeaderForPartitionError("m"), True, OutcomeUnknown, False),
        (NotEnoughReplicasAfterAppendError("m"), True, OutcomeUnknown, False),
        (RequestTimedOutError("m"), True, OutcomeUnknown, False),
        (KafkaTimeoutError("m"), False, OutcomeUnknown, False),
        (OutOfOrderSequenceNumberError("m"), True, OutcomeUnknown, False),
        (KafkaStorageError("disk"), False, OutcomeUnknown, False),
    ],
)
def test_what_an_error_of_kafka_proves(error: Exception, alone: bool, kind: type[Exception], retried: bool) -> None:  # noqa: FBT001
    outcome = send_outcome_of(error, "orders", is_alone=alone)
    assert type(outcome.error) is kind
    assert outcome.retry is (SendAgain.ALONE if retried else SendAgain.NO)
    assert outcome.error is not None
    assert outcome.error.__cause__ is error


def test_what_passes_proves_something_only_of_the_only_try() -> None:
    outcome = send_outcome_of(NotLeaderForPartitionError("m"), "orders", is_alone=True, is_only_try=True)
    assert type(outcome.error) is NotWritten
    assert outcome.retry is SendAgain.ALONE


def test_order_of_each_key_is_kept_however_kafka_refuses(kafka: MemoryKafka) -> None:
    """Batches are refused at random, and messages by themselves; what is written of a key is in order."""
    chance = random.Random(7)
    kafka.judge = lambda record: (
        MessageSizeTooLargeError("random") if chance.random() < (0.5 if is_batch(record) else 0.1) else None
    )
    with make(kafka, batch_max_delay_ms=1, batch_max_bytes=30) as producer:
        futures = [
            producer.send("units", b"%d" % number, key=b"k%d" % (number % 5), tag="ab"[number % 2])
            for number in range(2_000)
        ]
        producer.flush()
    written: dict[int, list[int]] = {}
    for number, future in enumerate(futures):
        error = future.exception(0)
        assert error is None or isinstance(error, Invalid | Unavailable)
        if error is None:
            result = future.result(0)
            written.setdefault(number % 5, []).append(result.queue_offset * 10_000 + result.inner_index)
    assert sum(map(len, written.values())) > 1_000
    assert any(future.exception(0) for future in futures)
    for places in written.values():
        assert places == sorted(places)
    carried = sum(int(dict(record["headers"]).get(BATCH_COUNT_HEADER, b"1")) for record in kafka.written)
    assert carried == sum(map(len, written.values()))


def test_manual_batches_are_units_on_batch_topics_and_records_on_others(producer: Producer, kafka: MemoryKafka) -> None:
    for topic, count in (("units", 1), ("orders", 4)):
        kafka.sent.clear()
        messages = [OutgoingMessage(topic=topic, value=b"%d" % number, queue_id=0) for number in range(4)]
        results = [future.result(WAIT_S) for future in producer.send_many(messages)]
        assert len(kafka.sent) == count
        assert len({result.message_id for result in results}) == 4
        assert [result.queue_offset + result.inner_index for result in results] == [0, 1, 2, 3]


def test_a_manual_batch_keeps_its_place_behind_what_waits(producer: Producer, kafka: MemoryKafka) -> None:
    producer.send("orders", b"before", queue_id=0)
    producer.send_many([OutgoingMessage(topic="orders", value=b"batch", queue_id=0)])
    producer.flush()
    assert [record["value"] for record in kafka.sent] == [b"before", b"batch"]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (({"tag": "a"}, {"tag": "b"}), UNIT_HAS_ONE),
        (({"deliver_at": 5}, {"deliver_at": 6}), UNIT_HAS_ONE),
        (({"deliver_at": 5}, {}), UNIT_HAS_ONE),
        (({"queue_id": 0}, {"queue_id": 1}), UNIT_HAS_ONE),
        (({"key": b"table-1", "queue_id": None}, {"key": b"table-2", "queue_id": None}), UNIT_HAS_ONE),
    ],
)
def test_a_unit_has_one_queue_one_tag_and_one_time(
    producer: Producer, kafka: MemoryKafka, changes: tuple[dict[str, Any], ...], told: str
) -> None:
    messages = [OutgoingMessage(**{"topic": "units", "value": b"v", "queue_id": 0, **change}) for change in changes]
    with pytest.raises(Invalid, match=told):
        producer.send_many(messages)
    assert kafka.sent == []
    assert producer.send_many([]) == []


def test_keyless_messages_of_short_lived_producers_are_in_all_queues(
    kafka: MemoryKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each process sends one batch, and turns of its own would put all of them into the first queue."""
    places = iter((4, 0, 65_535))
    monkeypatch.setattr("popstream.send.ordered_sender._first_turn", lambda: next(places))
    for number in range(3):
        with make(kafka, auto_batch=False) as producer:
            producer.send("orders", b"%d" % number)
            producer.send("orders", b"%d" % number)
    assert [record["partition"] for record in kafka.sent] == [1, 2, 0, 1, 0, 1]


def test_keyless_messages_are_dealt_out_over_the_queues_of_a_simple_topic() -> None:
    kafka = MemoryKafka(MemoryJob(), partitions=8, type_of=lambda _: "simple")
    with make(kafka, auto_batch=True) as producer:
        sent = [producer.send("orders", b'{"number": %d}' % number) for number in range(1_000)]
        producer.flush()
    counts = Counter(one.result().queue_id for one in sent)
    assert {queue_id: counts[queue_id] for queue_id in range(8)} == dict.fromkeys(range(8), 125)
    assert sorted(record["value"] for record in kafka.sent) == sorted(b'{"number": %d}' % n for n in range(1_000))


def test_a_manual_batch_without_keys_is_dealt_out_as_well() -> None:
    kafka = MemoryKafka(MemoryJob(), partitions=3, type_of=lambda _: "simple")
    with make(kafka) as producer:
        for _ in range(2):
            producer.send_many([OutgoingMessage(topic="orders", value=b"%d" % number) for number in range(4)])
    assert sorted(Counter(record["partition"] for record in kafka.sent).values()) == [2, 3, 3]


def test_where_a_producer_begins_differs() -> None:
    assert len({_first_turn() % 8 for _ in range(1_000)}) == 8
