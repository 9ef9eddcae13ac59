"""Claim: the wire is plain, and nothing that is written to the ops topic can stop the job or vanish without a trace.

Method: one job with a real Kafka, Spark and Delta; records by Kafka's own console producer and by raw bytes; answers
are read as docs/wire.md says, rows from the Delta tables.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest
from kafka import KafkaConsumer, TopicPartition

from broker_state.audit import REJECTED_HEAD_BYTES
from connectors.kafka.topic_admin import create_message_topic
from pipelines.decide_ops.entry import ENTRY_BYTES_MAX
from popstream import Consumer, Message, Reject
from popstream.wire.base_errors import Fenced
from popstream.wire.limits import RECORD_BYTES_MAX
from tests.support.left_behind import end_offsets, records_between
from tests.support.wire import Wire, start_job, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from connectors.kafka.embedded import EmbeddedKafka
    from pipelines.process.job import Job

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

CONSOLE_PRODUCER = "org.apache.kafka.tools.ConsoleProducer"
TOPIC_ID = "11111111-2222-4333-8444-555555555555"


@pytest.fixture(scope="module")
def job(kafka: EmbeddedKafka, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    folder = tmp_path_factory.mktemp("job")
    running = start_job(spark, kafka.bootstrap_servers, folder, f"end{time.time_ns()}")
    yield running
    running.stop()
    assert running.failure is None


@pytest.fixture
def wire(job: Job) -> Iterator[Wire]:
    with Wire(job) as client:
        yield client
    assert job.failure is None


@pytest.fixture
def queue(wire: Wire, request: pytest.FixtureRequest) -> str:
    """A message topic of the test's own, declared, with offsets 0..99 written to its queue 0."""
    topic = f"q{request.node.name}"[:100]
    assert wire.ask("declare", topic, topic_id=TOPIC_ID)["applied"]
    assert wire.ask("dispatch", topic, ranges=[{"first": 0, "last": 99}])["commit_position"] == 100
    return topic


def test_console_producer_sends_and_its_answer_comes(kafka: EmbeddedKafka, wire: Wire) -> None:
    """Text typed into Kafka's own tool, whose partitioner finds the place; the answer is read by a plain consumer."""
    lines = []
    for queue_id in range(4):
        for number, operation in enumerate(
            (
                wire.operation("declare", "console", queue_id, topic_id=TOPIC_ID),
                wire.operation("dispatch", "console", queue_id, ranges=[{"first": 0, "last": 4}]),
                wire.operation("pop", "console", queue_id, group="g", max_messages=9, invisible_time_ms=60_000),
            )
        ):
            lines.append(f"console\0{queue_id}\t{json.dumps({**operation, 'op_id': f'console-{queue_id}-{number}'})}\n")
    sent = kafka.run_tool(
        CONSOLE_PRODUCER,
        [
            *("--bootstrap-server", kafka.bootstrap_servers, "--topic", wire.job.topics.ops),
            *("--reader-property", "parse.key=true", "--reader-property", "key.separator=\t"),
        ],
        input_text="".join(lines),
    )
    assert sent.returncode == 0, sent.stderr
    for queue_id in range(4):
        answer = wire.answer(f"console-{queue_id}-2")
        assert (answer["code"], answer["applied"], answer["queue_id"]) == (0, True, queue_id)
        assert answer["messages"] == [[0, 4, 1]]


@pytest.mark.parametrize("size", [20_000, pytest.param(1_000_000, marks=pytest.mark.long), RECORD_BYTES_MAX])
def test_long_operations_are_decided(size: int, wire: Wire, queue: str) -> None:
    """The source reads them in its second pass; the last one has the greatest length allowed."""
    operation = wire.operation("pop", queue, group="g", max_messages=10, invisible_time_ms=60_000)
    wire.send(operation, size - len(json.dumps(operation)))
    assert wire.answer(operation["op_id"])["messages"] == [[0, 9, 1]]
    row = wire.row("operations", op_id=operation["op_id"])
    assert (row["kind"], row["reason"], row["last_offset"]) == ("pop", "OK", 9)


def test_operations_of_all_lengths_are_decided_in_the_order_of_the_log(wire: Wire, queue: str) -> None:
    """Short and long ones alternate, more than one slice of 24 MiB at once; each pop gets what is next."""
    operations = [wire.operation("pop", queue, group="g", max_messages=1, invisible_time_ms=600_000) for _ in range(40)]
    futures = []
    for number, operation in enumerate(operations):
        text = json.dumps(operation).encode()
        padding = b" " * [0, 3_900_000, 2_000, 40_000][number % 4]
        key, partition = wire.place(queue, 0)
        futures.append(wire.producer.send(wire.job.topics.ops, text[:-1] + padding + b"}", key, partition=partition))
    for future in futures:
        future.get(60)
    for number, operation in enumerate(operations):
        assert wire.answer(operation["op_id"])["messages"] == [[number, number, 1]]


@pytest.mark.parametrize("size", [RECORD_BYTES_MAX + 1, pytest.param(5_000_000, marks=pytest.mark.long), 8_000_000])
def test_records_over_the_cap_are_rows(size: int, wire: Wire, queue: str) -> None:
    """The row has the whole value's size and hash and its head; nobody is answered, for nobody can be read."""
    operation = wire.operation("pop", queue, group="g", max_messages=10, invisible_time_ms=60_000)
    text = json.dumps(operation).encode()
    value = text[:-1] + b" " * (size - len(text)) + b"}"
    key, partition = wire.place(queue, 0)
    offset = wire.write(value, key, partition)
    row = wire.row("rejected", partition=partition, kafka_offset=offset)
    assert (row["reason"], row["value_bytes"]) == ("TOO_LARGE", size)
    assert row["value_sha256"] == hashlib.sha256(value).hexdigest()
    assert row["value_head"] == value[:REJECTED_HEAD_BYTES]
    assert wire.ask("pop", queue, group="g", max_messages=1, invisible_time_ms=1)["messages"] == [[0, 0, 1]]
    assert wire.parts(operation["op_id"]) == []


UNREADABLE = [
    (None, "EMPTY"),
    (b"", "EMPTY"),
    (b"{nope", "NOT_JSON"),
    (b"\xff\xfe\x00", "NOT_JSON"),
    (bytes(range(256)) * 40, "NOT_JSON"),
    (b"[" * 100_000, "NOT_JSON"),
    (b'{"v":1,"type":"tick","topic":"a","queue_id":0} {}', "NOT_JSON"),
    (b"[]", "NOT_AN_OBJECT"),
    (b"null", "NOT_AN_OBJECT"),
    (b"{}", "BAD_FIELD"),
    (b'{"v":1,"type":"tick","topic":"a","queue_id":"0"}', "BAD_FIELD"),
    (b'{"v":1,"type":"tick","topic":"a","queue_id":0,"more":1}', "BAD_FIELD"),
    (b'{"v":2,"type":"tick","topic":"a","queue_id":0}', "UNKNOWN_VERSION"),
    (b'{"v":1,"type":"x","topic":"a","queue_id":0}', "UNKNOWN_TYPE"),
]


@pytest.fixture(scope="module")
def unreadable_offsets(job: Job) -> list[int]:
    """The Kafka offset of each unreadable value: written together, so that one flush has the rows of all."""
    with Wire(job) as wire:
        return [wire.write(value, b"any key", 0) for value, _ in UNREADABLE]


@pytest.mark.parametrize("number", range(len(UNREADABLE)), ids=[f"{n}-{r}" for n, (_, r) in enumerate(UNREADABLE)])
def test_what_cannot_be_read_is_a_row(number: int, wire: Wire, unreadable_offsets: list[int]) -> None:
    value, reason = UNREADABLE[number]
    row = wire.row("rejected", partition=0, kafka_offset=unreadable_offsets[number])
    assert row["reason"] == reason
    assert row["value_bytes"] == len(value or b"")
    assert row["value_head"] == (value or b"")[:REJECTED_HEAD_BYTES]
    assert row["value_sha256"] == hashlib.sha256(value or b"").hexdigest()


ANSWERABLE: list[tuple[dict[str, Any], int]] = [
    ({"v": 9}, 3),
    ({"type": "surprise"}, 3),
    ({"max_messages": "many"}, 29),
    ({"tags": "x" * 300_000}, 29),
    ({"init": "y" * 300_000}, 29),
    ({"queue_id": 1.5}, 29),
]


@pytest.fixture(scope="module")
def answered(job: Job) -> Iterator[tuple[Wire, list[str]]]:
    """A client that has sent all of these together, and their op_ids."""
    with Wire(job) as wire:
        op_ids = []
        for fields, code in ANSWERABLE:
            pop = wire.operation("pop", group="g", max_messages=1, invisible_time_ms=1)
            op_ids.append(f"{pop['op_id']}-{code}-{next(iter(fields))}")
            wire.write(json.dumps({**pop, "op_id": op_ids[-1], **fields}).encode(), *wire.place("orders", 0))
        yield wire, op_ids


@pytest.mark.parametrize("number", range(len(ANSWERABLE)), ids=[next(iter(fields)) for fields, _ in ANSWERABLE])
def test_who_can_be_answered_is(number: int, answered: tuple[Wire, list[str]]) -> None:
    """Unreadable, but op_id and reply_to can be read; however much of the value an error message could quote."""
    wire, op_ids = answered
    op_id, code = op_ids[number], ANSWERABLE[number][1]
    answer = wire.answer(op_id)
    assert (answer["code"], answer["applied"]) == (code, False)
    assert len(json.dumps(answer)) < 4096
    assert wire.row("rejected", op_id=op_id)["reply_to"] == wire.reply_to


def test_records_in_the_wrong_place_are_misrouted(wire: Wire, queue: str) -> None:
    """On another partition, with another queue's key, with none: no state is touched, and the sender hears of it."""
    key, partition = wire.place(queue, 0)
    op_ids = []
    for wrong_key, wrong_partition in (
        (key, 1 - partition),
        (key + b"1", partition),
        (None, partition),
        (b"", partition),
    ):
        operation = wire.operation("pop", queue, group="g", max_messages=1, invisible_time_ms=60_000)
        wire.write(json.dumps(operation).encode(), wrong_key, wrong_partition)
        answer = wire.answer(operation["op_id"])
        assert (answer["code"], answer["reason"], answer["applied"]) == (13, "MISROUTED", False)
        op_ids.append(operation["op_id"])
    assert [wire.row("operations", op_id=op_id)["reason"] for op_id in op_ids] == ["MISROUTED"] * 4
    answer = wire.ask("pop", queue, group="g", max_messages=1, invisible_time_ms=60_000)
    assert answer["messages"] == [[0, 0, 1]]


@pytest.mark.parametrize(
    ("topic", "queue_id"), [("", 0), ("a\0b", 0), ("orders", -1), ("t" * 300, 0), ("orders", 2**70)]
)
def test_names_that_no_queue_can_have_are_refused(topic: str, queue_id: int, wire: Wire) -> None:
    """Once such a record stopped the job for good: its key could not be made."""
    for kind, fields in (
        ("declare", {"topic_id": TOPIC_ID}),
        ("pop", {"group": "g", "max_messages": 1, "invisible_time_ms": 1}),
    ):
        operation = {**wire.operation(kind, **fields), "topic": topic, "queue_id": queue_id}
        wire.write(json.dumps(operation).encode(), f"{topic}\0{queue_id}".encode(), 0)
    assert wire.ask("declare", "after-it", topic_id=TOPIC_ID)["reason"] == "OK"


def test_a_long_answer_comes_in_parts_that_can_be_joined(wire: Wire, queue: str) -> None:
    """10,000 runs in frames of at most 256 KiB; the same bytes again get the same parts again."""
    wire.ask("dispatch", queue, ranges=[{"first": 100, "last": 9_999}])
    popped = wire.ask("pop", queue, group="g", max_messages=10_000, invisible_time_ms=600_000)
    assert popped["messages"] == [[0, 9_999, 1]]
    handles = [{"group": "g", "handle": popped["handle"]}]
    order = [n for n in range(10_000) if n % 2] + [n for n in range(10_000) if not n % 2]
    ack = wire.operation("ack", queue, handles=handles, entries=[{"handle": 0, "offsets": [[n, n] for n in order]}])
    wire.send(ack)
    answer = wire.answer(ack["op_id"])
    parts = wire.parts(ack["op_id"])
    assert len(parts) > 2
    assert all(len(frame) <= ENTRY_BYTES_MAX for frame in wire.frames)
    assert [run["first"] for run in answer["runs"]] == order
    assert all(run["applied"] and run["reason"] == "OK" for run in answer["runs"])
    assert answer["commit_offsets"] == {"g": 10_000}
    wire.forget(ack["op_id"])
    wire.send(ack)
    assert wire.answer(ack["op_id"]) == answer
    assert sorted(wire.parts(ack["op_id"]), key=number_of) == sorted(parts, key=number_of)


def number_of(part: dict[str, Any]) -> int:
    return int(part.get("part", 0))


def test_a_reply_partition_that_is_not_there_harms_nobody(wire: Wire, queue: str) -> None:
    """The operation is decided and in the audit; only its answer has nowhere to go."""
    op_ids = []
    for reply_to in (-1, 4, 2**31, 2**63, -(2**70)):
        operation = wire.operation("pop", queue, group="g", max_messages=1, invisible_time_ms=60_000)
        op_ids.append(f"nowhere {reply_to}")
        wire.send({**operation, "reply_to": reply_to, "op_id": op_ids[-1]})
    assert [wire.row("operations", op_id=op_id)["reason"] for op_id in op_ids] == ["OK"] * 5
    assert wire.ask("pop", queue, group="g", max_messages=1, invisible_time_ms=60_000)["messages"] == [[5, 5, 1]]
    assert [wire.parts(op_id) for op_id in op_ids] == [[]] * 5


def test_a_dead_letter_of_a_topic_that_is_not_there_says_so(wire: Wire, queue: str) -> None:
    """Once this stopped the job: Kafka was asked for the offsets of a partition that it does not have."""
    job = wire.job
    before = end_offsets(str(job.connection), job.topics.dead_letters)
    popped = wire.ask("pop", queue, group="g", max_messages=2, invisible_time_ms=60_000)
    handles = [{"group": "g", "handle": popped["handle"]}]
    answer = wire.ask("reject", queue, handles=handles, entries=[{"handle": 0, "offsets": [[0, 1]], "cause": "why"}])
    assert answer["applied"]

    def letters() -> list[Any]:
        after = end_offsets(str(job.connection), job.topics.dead_letters)
        found = list(records_between(str(job.connection), job.topics.dead_letters, before, after))
        return found if len(found) == 2 else []

    for letter in wait_for(letters, job):
        headers = dict(letter.headers)
        assert letter.value == b""
        assert headers["popstream.reason"] == b"why"
        assert headers["popstream.topic"] == queue.encode()
        assert "popstream.gone" in headers


@pytest.fixture
def topic(wire: Wire, topic_prefix: str) -> str:
    """A topic in Kafka with two messages in its only queue, which can be popped."""
    facts = create_message_topic(wire.job.connection, topic_prefix, 1)
    for value in (b"espresso", b"mocha"):
        wire.producer.send(topic_prefix, value, partition=0).get(30)
    assert wire.ask("declare", topic_prefix, topic_id=facts.topic_id)["applied"]
    assert wire.ask("dispatch", topic_prefix, ranges=[{"first": 0, "last": 1}])["commit_position"] == 2
    return topic_prefix


def test_a_dead_letter_says_what_its_handler_raised(wire: Wire, topic: str) -> None:
    job = wire.job
    before = end_offsets(str(job.connection), job.topics.dead_letters)

    def handle(message: Message) -> None:
        if message.value == b"espresso":
            raise ConnectionError("the bank is away")
        consumer.stop()
        raise Reject("no chocolate") from KeyError("cocoa")

    prefix = job.settings.topic_prefix
    with Consumer(str(job.connection), group="g", prefix=prefix, topics=[topic], max_attempts=1) as consumer:
        consumer.run(handle)

    def letters() -> list[Any]:
        after = end_offsets(str(job.connection), job.topics.dead_letters)
        found = list(records_between(str(job.connection), job.topics.dead_letters, before, after))
        return found if len(found) == 2 else []

    headers = {letter.value: dict(letter.headers) for letter in wait_for(letters, job)}
    espresso, mocha = headers[b"espresso"], headers[b"mocha"]
    assert espresso["popstream.reason"] == b"attempt_limit"
    assert espresso["popstream.cause"] == b"handler: ConnectionError: the bank is away"
    assert mocha["popstream.reason"] == b"no chocolate: KeyError: 'cocoa'"
    assert "popstream.cause" not in mocha


HOLDING = """
import sys, time
from popstream import Consumer

servers, prefix, topic = sys.argv[1:]

def handle(message):
    print("held", flush=True)
    time.sleep(3_600)

with Consumer(servers, group="g", prefix=prefix, topics=[topic], invisible_time_ms=10_000) as consumer:
    consumer.run(handle)
"""


@pytest.mark.long
def test_a_message_of_a_killed_consumer_comes_again_when_its_lease_is_over(wire: Wire, topic: str) -> None:
    """Its lease is as long as it asked for, however often it was renewed; by RocketMQ's ladder it took a minute."""
    job = wire.job
    arguments = (str(job.connection), job.settings.topic_prefix, topic)
    command = [sys.executable, "-c", HOLDING, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holding:
        try:
            assert holding.stdout is not None
            assert holding.stdout.readline() == "held\n"
            wire.rows("deliveries", topic=topic, step="changed", revision=2)  # renewed twice
        finally:
            holding.kill()
    with Consumer(str(job.connection), group="g", prefix=arguments[1]) as consumer:
        popped = consumer.pop(topic, 0, max_messages=1, poll_time_ms=60_000)
        assert [(message.value, message.attempt) for message in popped] == [(b"espresso", 2)]
    ended = wire.rows("deliveries", topic=topic, step="expired")
    renewals = wire.rows("deliveries", topic=topic, step="changed")
    assert {row["deadline_ms"] - row["at_ms"] for row in renewals} == {10_000}
    for row in ended:
        of_lease = [renewal for renewal in renewals if renewal["epoch"] == row["epoch"] and covers(renewal, row)]
        assert row["at_ms"] == max(renewal["deadline_ms"] for renewal in of_lease)
    (again,) = wire.rows("deliveries", topic=topic, step="leased", attempt=2)
    assert again["at_ms"] >= min(row["at_ms"] for row in ended if covers(row, again))


def covers(row: dict[str, Any], other: dict[str, Any]) -> bool:
    """Tell whether a row of `deliveries` is about the first message of another one."""
    return bool(
        row["queue_id"] == other["queue_id"] and row["first_offset"] <= other["first_offset"] <= row["last_offset"]
    )


def test_two_jobs_cannot_share_a_folder(spark: SparkSession, job: Job) -> None:
    with pytest.raises(Fenced, match="runs the job in"):
        start_job(spark, str(job.connection), job.folder.root, job.settings.topic_prefix)


def test_results_of_a_stranger_are_none_of_ours(wire: Wire, queue: str) -> None:
    """Answers go to the partition that was asked for, and to no other."""
    job = wire.job
    consumer = KafkaConsumer(bootstrap_servers=str(job.connection))
    others = [TopicPartition(job.topics.results, n) for n in range(4) if n != wire.reply_to]
    before = consumer.end_offsets(others)
    wire.ask("pop", queue, group="g", max_messages=1, invisible_time_ms=1)
    assert consumer.end_offsets(others) == before
    consumer.close()
