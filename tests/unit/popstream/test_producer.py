"""Claim: what Kafka confirms becomes poppable, whatever happens. Method: the kernel in memory, a fake KafkaProducer."""

from __future__ import annotations

import concurrent.futures
import time
from collections.abc import Iterator
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.errors import KafkaTimeoutError, MessageSizeTooLargeError
from kafka.future import Future as KafkaFuture

from popstream import ClientClosed, NotDispatched, OutgoingMessage, Producer, Transport, tag_hash
from popstream.send import dispatch_requests
from popstream.send.dispatch_requests import Dispatcher, still_to_dispatch
from popstream.testing.memory_job import MemoryJob
from popstream.topics.message_topics import MessageTopic
from popstream.wire.answer import Answer, Run
from popstream.wire.base_errors import Invalid, Unavailable
from popstream.wire.command import Declare, Dispatch, ForgetLane, Pop, WrittenRange
from popstream.wire.headers import DELIVER_AT_HEADER, MESSAGE_ID_HEADER, TAG_HEADER
from popstream.wire.limits import DELAY_MS_MAX
from popstream.wire.reason import Reason
from tests.support.threads import leaves_no_thread

TOPIC = MessageTopic("orders", "5f0f6a52-0000-0000-0000-000000000001", {0: 0, 1: 100}, {0: 0, 1: 100})


class FakeKafkaProducer:
    """Confirms at once; offsets count up from where the log of each partition starts."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.raises: Exception | None = None
        self.fails: Exception | None = None
        self.is_closed = False
        self._next = dict(TOPIC.ends)

    def partitions_for(self, topic: str) -> set[int]:
        return set(TOPIC.starts) if topic == TOPIC.name else set()

    def send(self, topic: str, **record: Any) -> KafkaFuture:
        if self.raises is not None:
            raise self.raises
        self.sent.append(record)
        if self.fails is not None:
            return KafkaFuture().failure(self.fails)
        partition = record["partition"] or 0
        offset = self._next[partition]
        self._next[partition] += 1
        return KafkaFuture().success(SimpleNamespace(topic=topic, partition=partition, offset=offset, timestamp=7))

    def flush(self, timeout: float) -> None: ...

    def close(self, timeout: float) -> None:  # noqa: ARG002 - a KafkaProducer's
        self.is_closed = True


@pytest.fixture
def job() -> MemoryJob:
    return MemoryJob()


@pytest.fixture
def transport(job: MemoryJob) -> Iterator[Transport]:
    with job.transport(resend_after_ms=50) as made:
        yield made


@pytest.fixture
def kafka() -> FakeKafkaProducer:
    return FakeKafkaProducer()


@pytest.fixture
def producer(transport: Transport, kafka: FakeKafkaProducer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Producer]:
    monkeypatch.setattr("popstream.producer.describe_topic", lambda _settings, _topic: TOPIC)
    made = Producer("memory", transport=transport, kafka_producer=kafka, dispatch=True, job_types=lambda _: "simple")
    yield made
    kafka.raises = kafka.fails = None
    made.close(timeout_ms=1_000)


def commands(job: MemoryJob, kind: type[Any]) -> list[Any]:
    return [record for record in job.records if isinstance(record, kind)]


def commit_position(job: MemoryJob, queue_id: int = 0) -> int | None:
    with job.transport() as transport:
        again = Declare(v=1, topic="orders", queue_id=queue_id, topic_id=TOPIC.topic_id)
        return transport.request(again).commit_position


def test_a_producer_that_cannot_be_made_leaves_no_thread(
    job: MemoryJob, kafka: FakeKafkaProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A constructor has nobody to close what it opened, but itself."""
    monkeypatch.setattr("popstream.producer.Transport", lambda _: job.transport())
    options: dict[str, Any] = {"kafka_producer": kafka, "dispatch": True}
    with leaves_no_thread():
        with pytest.raises(TypeError):
            Producer("memory", dispatch_delay_ms="soon", **options)  # type: ignore[arg-type]
        monkeypatch.setattr("popstream.producer.OrderedSender", interrupted)
        with pytest.raises(KeyboardInterrupt):
            Producer("memory", **options)
    assert kafka.is_closed


def interrupted(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


def test_written_messages_are_declared_once_and_dispatched_as_ranges(job: MemoryJob, producer: Producer) -> None:
    results = [producer.send("orders", b"v", queue_id=queue_id) for queue_id in (0, 1, 0, 1, 0)]
    assert [future.result(60).queue_offset for future in results] == [0, 100, 1, 101, 2]
    producer.flush()
    producer.send("orders", b"v", queue_id=0)
    producer.flush()
    declares = {declare.queue_id: declare for declare in commands(job, Declare)}
    assert len(commands(job, Declare)) == len(declares) == 2
    assert (declares[1].min_offset, declares[1].topic_id) == (100, TOPIC.topic_id)
    first = next(dispatch for dispatch in commands(job, Dispatch) if dispatch.queue_id == 0)
    assert first.ranges == [WrittenRange(0, 2)]
    assert commit_position(job) == 4
    assert commit_position(job, 1) == 102


def test_tags_travel_as_header_and_as_hash(job: MemoryJob, producer: Producer, kafka: FakeKafkaProducer) -> None:
    for tag in ("paid", "paid", None):
        producer.send("orders", b"v", headers=[("trace", b"1")], tag=tag, queue_id=0)
    producer.flush()
    sent = [[header for header in record["headers"] if header[0] != MESSAGE_ID_HEADER] for record in kafka.sent]
    assert sent == [[("trace", b"1"), (TAG_HEADER, b"paid")]] * 2 + [[("trace", b"1")]]
    (dispatch,) = commands(job, Dispatch)
    assert dispatch.ranges == [WrittenRange(0, 1, tag_hash("paid")), WrittenRange(2, 2)]


def test_the_time_of_delivery_travels_as_header_and_in_the_dispatch(
    job: MemoryJob, producer: Producer, kafka: FakeKafkaProducer
) -> None:
    time = datetime.fromtimestamp(job.now_ms / 1000 + 60, UTC)
    for deliver_at in (time, job.now_ms + 60_000, None, 0, -5, datetime(1969, 1, 1, tzinfo=UTC), 7):
        producer.send("orders", b"v", deliver_at=deliver_at, queue_id=0)
    producer.flush()
    headers = [dict(record["headers"]).get(DELIVER_AT_HEADER) for record in kafka.sent]
    assert headers == [b"1060000", b"1060000", None, None, None, None, b"7"]
    times = {
        at: written.deliver_at_ms
        for dispatch in commands(job, Dispatch)
        for written in dispatch.ranges
        for at in range(written.first, written.last + 1)
    }
    assert times == {0: 1_060_000, 1: 1_060_000, **dict.fromkeys(range(2, 6), 0), 6: 7}


def test_a_producer_that_dispatches_takes_no_ids(producer: Producer, kafka: FakeKafkaProducer) -> None:
    with pytest.raises(Invalid, match="makes every message poppable, also duplicates"):
        producer.send("orders", b"v", dedup_id="order-1").result(60)
    with pytest.raises(Invalid, match="makes every message poppable, also duplicates"):
        producer.send_many([OutgoingMessage(topic="orders", value=b"v", dedup_id="order-1")])
    assert kafka.sent == []


def test_more_than_seven_days_ahead_by_the_brokers_clock_is_refused(
    job: MemoryJob, producer: Producer, kafka: FakeKafkaProducer
) -> None:
    """The clock of the job shows 1970 here, which the producer knows after an answer."""
    far = OutgoingMessage(topic="orders", value=b"v", queue_id=0, deliver_at=job.now_ms + DELAY_MS_MAX + 60_000)
    assert producer.send_many([far])[0].result(60).queue_offset == 0
    producer.flush()
    with pytest.raises(Invalid, match="ms ahead, and may be 604,800,000"):
        producer.send_many([far])
    with pytest.raises(Invalid, match="ms ahead"):
        producer.send("orders", b"v", deliver_at=far.deliver_at).result(60)
    producer.send("orders", b"v", deliver_at=job.now_ms + DELAY_MS_MAX).result(60)
    assert len(kafka.sent) == 2


def test_more_than_seven_days_ahead_by_the_producers_clock_is_refused(kafka: FakeKafkaProducer) -> None:
    now = datetime.now(UTC)
    with Producer("nowhere", kafka_producer=kafka, job_types=lambda _: None) as producer:
        producer.send("orders", b"v", deliver_at=now + timedelta(days=7)).result(60)
        with pytest.raises(Invalid, match="ms ahead"):
            producer.send("orders", b"v", deliver_at=now + timedelta(days=7, minutes=1)).result(60)
    assert len(kafka.sent) == 1


def test_a_producer_that_only_sends_needs_no_job(kafka: FakeKafkaProducer) -> None:
    with Producer("nowhere", kafka_producer=kafka, job_types=lambda _: None) as producer:
        assert producer.send("orders", b"v").result(60).timestamp_ms == 7


def test_a_message_that_is_not_confirmed_is_not_dispatched(
    job: MemoryJob, producer: Producer, kafka: FakeKafkaProducer
) -> None:
    kafka.fails = KafkaTimeoutError("slow")
    with pytest.raises(Unavailable, match="unknown"):
        producer.send("orders", b"v").result(60)
    producer.flush()
    assert job.records == []


def test_what_kafka_refuses_is_told_by_the_future(producer: Producer, kafka: FakeKafkaProducer) -> None:
    kafka.raises = MessageSizeTooLargeError("large")
    with pytest.raises(Invalid, match="large"):
        producer.send("orders", b"v").result(60)


def test_no_two_results_share_a_lock(producer: Producer) -> None:
    """`concurrent.futures.wait` acquires the locks of all its futures, in an order of its own."""
    one, other = producer.send("orders", b"1", queue_id=0), producer.send("orders", b"2", queue_id=0)
    assert one._condition is not other._condition
    assert concurrent.futures.wait([one, other], 60).not_done == set()


def test_a_closed_producer_sends_nothing(kafka: FakeKafkaProducer) -> None:
    producer = Producer("nowhere", kafka_producer=kafka, job_types=lambda _: None)
    producer.close()
    with pytest.raises(ClientClosed):
        producer.send("orders", b"v")


def dispatcher_on(transport: Transport, topics: list[MessageTopic | Exception]) -> Dispatcher:
    def describe(_name: str) -> MessageTopic:
        found = topics.pop(0) if len(topics) > 1 else topics[0]
        if isinstance(found, Exception):
            raise found
        return found

    return Dispatcher(transport, describe=describe, delay_ms=1)


def test_a_dispatch_too_far_ahead_is_tried_again_until_it_fits(job: MemoryJob, transport: Transport) -> None:
    """The window is 4,194,304 by default: offset 5,000,000 fits only when what lies before it is written."""
    dispatcher = dispatcher_on(transport, [TOPIC])
    dispatcher.written("orders", 0, 5_000_000, 0)
    with pytest.raises(NotDispatched, match="not dispatched after") as raised:
        dispatcher.flush(0.2)
    assert raised.value.ranges == {("orders", 0): [(5_000_000, 5_000_000)]}
    for first in range(0, 5_000_000, 1_000_000):
        job.send(Dispatch(v=1, topic="orders", queue_id=0, ranges=[WrittenRange(first, first + 999_999)]))
    dispatcher.flush(15)
    assert commit_position(job) == 5_000_001
    dispatcher.close()


class Refuses:
    """A transport whose job answers each dispatch with the next reason, while there is one."""

    def __init__(self, transport: Transport, reasons: list[Reason]) -> None:
        self.settings = transport.settings
        self.reasons = reasons

    def submit(self, command: Any) -> Future[Answer]:
        future: Future[Answer] = Future()
        is_dispatch = isinstance(command, Dispatch)
        reason = self.reasons.pop(0) if is_dispatch and self.reasons else Reason.OK
        future.set_result(
            Answer(op_id="o", type="dispatch", code=0, reason=reason, applied=True, topic="t", queue_id=0, now_ms=0)
        )
        return future


def test_the_pause_grows_with_each_dispatch_that_must_be_sent_again(
    transport: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures: list[int] = []

    def back_off_s(count: int, **_: float) -> float:
        failures.append(count)
        return 0.001

    monkeypatch.setattr(dispatch_requests, "back_off_s", back_off_s)
    reasons = [Reason.AHEAD_OF_WINDOW, Reason.QUOTA_EXCEEDED, Reason.TOPIC_NOT_EXIST, Reason.OK, Reason.QUOTA_EXCEEDED]
    refuses: Any = Refuses(transport, reasons)
    dispatcher = dispatcher_on(refuses, [TOPIC])
    for offset in (0, 1):
        dispatcher.written("orders", 0, offset, 0)
        dispatcher.flush(60)
    assert failures == [1, 2, 3, 1]
    dispatcher.close()


def test_kafka_that_does_not_answer_delays_the_declaration(job: MemoryJob, transport: Transport) -> None:
    dispatcher = dispatcher_on(transport, [Unavailable("no broker"), Unavailable("no broker"), TOPIC])
    dispatcher.written("orders", 0, 0, 0)
    dispatcher.flush(5)
    assert commit_position(job) == 1
    dispatcher.close()


def test_a_topic_that_does_not_exist_is_told_by_flush(transport: Transport, caplog: pytest.LogCaptureFixture) -> None:
    dispatcher = dispatcher_on(transport, [Invalid("no such topic")])
    dispatcher.written("orders", 0, 3, 0)
    with pytest.raises(NotDispatched, match="refused") as raised:
        dispatcher.flush(5)
    assert raised.value.ranges == {("orders", 0): [(3, 3)]}
    assert "no such topic" in caplog.text
    dispatcher.close()


def test_a_queue_the_job_has_forgotten_is_declared_again(transport: Transport) -> None:
    """As after a restore to a state before the declaration: another job answers at the same address."""
    dispatcher = dispatcher_on(transport, [TOPIC])
    dispatcher.written("orders", 0, 0, 0)
    dispatcher.flush(5)
    fresh = MemoryJob()
    link = fresh.link()
    old = transport._link
    old._answer, link.bring = fresh._decide, old.bring  # type: ignore[attr-defined, method-assign]
    dispatcher.written("orders", 0, 1, 0)
    dispatcher.written("orders", 0, 0, 0)
    dispatcher.flush(5)
    assert commit_position(fresh) == 2
    dispatcher.close()


def test_after_close_nothing_is_tried_again(transport: Transport) -> None:
    dispatcher = dispatcher_on(transport, [Unavailable("no broker")])
    dispatcher.written("orders", 0, 0, 0)
    dispatcher.close()
    time.sleep(0.1)
    with pytest.raises(ClientClosed):
        dispatcher.written("orders", 0, 1, 0)
    with pytest.raises(NotDispatched):
        dispatcher.flush(0.01)


def test_each_range_is_judged_by_its_own_run() -> None:
    ranges = [WrittenRange(first, first) for first in range(4)]
    reasons = (Reason.OK, Reason.AHEAD_OF_WINDOW, Reason.INVALID_PARAMETER, Reason.BELOW_MIN)
    runs = [
        Run(entry=index, first=index, last=index, code=0, reason=reason, applied=False)
        for index, reason in enumerate(reasons)
    ]
    answer = Answer(
        op_id="o", type="dispatch", code=2, reason=Reason.AHEAD_OF_WINDOW, applied=True, topic="t", queue_id=0,
        now_ms=0, runs=runs,
    )  # fmt: skip
    assert still_to_dispatch(answer, ranges) == ([ranges[1]], [ranges[2]])


def test_a_popped_tag_is_the_senders(job: MemoryJob, producer: Producer) -> None:
    for tag in ("paid", "open", "paid"):
        producer.send("orders", b"v", tag=tag, queue_id=0)
    producer.flush()
    pop = Pop(
        v=1, topic="orders", queue_id=0, group="g", max_messages=9, invisible_time_ms=1_000, tags=[tag_hash("paid")]
    )
    with job.transport() as transport:
        leased = transport.request(pop).messages
        transport.request(ForgetLane(v=1, topic="orders", queue_id=0, group="g"))
    assert [(found.first, found.last) for found in leased] == [(0, 0), (2, 2)]
