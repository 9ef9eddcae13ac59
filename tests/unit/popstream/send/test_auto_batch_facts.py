"""Claim: batches are what RocketMQ's tests say of them, but where a difference is named here.

Method: every ACC and WIRE fact of tests/data/rocketmq_auto_batch_facts.json, its figures read from there. RocketMQ's
outer batch is our load of plain records, its inner batch our unit; its offsets are message offsets: base and place.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from popstream import OutgoingMessage, Producer
from popstream.payload.inner_batch import InnerMessage, encode_inner_batch, unwrap
from popstream.send.accumulator import BatchLimits, OpenBatch
from popstream.send.outgoing import Destination
from popstream.testing._memory_kafka import MemoryKafka
from popstream.testing.memory_job import MemoryJob
from popstream.wire.base_errors import Invalid

FACTS: dict[str, dict[str, Any]] = {
    fact["id"]: fact
    for fact in json.loads((Path(__file__).parents[3] / "data" / "rocketmq_auto_batch_facts.json").read_text())[
        "vectors"
    ]
}
WITHOUT_COUNTERPART = {
    "WIRE-03": "hosts are not part of a record: Kafka keeps none",
}
WAIT_S = 60.0
TYPES = {"BatchCQ": "batch", "SimpleCQ": "simple"}
SETTINGS = {
    "batchMaxDelayMs": "hold_ms",
    "batchMaxBytes": "batch_bytes_max",
    "totalBatchMaxBytes": "total_bytes_max",
}
Check = Callable[[dict[str, Any]], None]


def make(job: MemoryJob, queue_type: str, **options: Any) -> tuple[Producer, MemoryKafka]:
    kafka = MemoryKafka(job)
    options = {"job_types": lambda _: queue_type, **options}
    return Producer("memory", kafka_producer=kafka, **options), kafka


def accumulates(fact: dict[str, Any]) -> None:
    """Sends within the hold time are one batch, in the order of the calls."""
    job = MemoryJob()
    (op,) = fact["ops"]
    given = fact["given"]
    producer, kafka = make(job, "batch", batch_max_delay_ms=1_000, batch_max_bytes=given["holdSize"])
    with producer:
        bodies = [b"m" * length for length in op["bodies_len"]]
        futures = [producer.send("orders", body) for body in bodies]
        producer.flush()
        assert all(future.result(fact["expect"]["first_callback_within_ms"] / 1000) for future in futures)
    assert len(kafka.sent) == fact["expect"]["batches_sent"]
    unwrapped = unwrap(kafka.sent[0]["value"], kafka.sent[0]["headers"])
    assert unwrapped is not None
    assert [one.value for one in unwrapped] == bodies


def goes_to_the_named_queue(fact: dict[str, Any]) -> None:
    queue_id = fact["given"]["mq"][2]
    producer, kafka = make(MemoryJob(), "batch")
    with producer:
        for op in fact["ops"]:
            if op["op"] == "add_sync":
                producer.send_and_wait("orders", b"v", queue_id=queue_id)
            else:
                producer.send("orders", b"v", queue_id=queue_id).result(WAIT_S)
    assert [record["partition"] for record in kafka.sent] == [queue_id] * len(fact["ops"])


def may_be_one_batch(fact: dict[str, Any]) -> None:
    """What is sent again, or later, carries a header that only `Producer.send_again` sets, which takes one message."""
    (op,) = fact["ops"]
    topics = op.get("topics", ["topic1", "topic1"])
    flags = op.get("wait", [True, True])
    delays = op.get("delayLevel", [0, 0])

    def messages() -> list[OutgoingMessage]:
        return [
            OutgoingMessage(
                topic=topic,
                value=b"v",
                queue_id=0,
                wait_for_store=flag,
                headers=[("popstream-resent", b'{"group":"g"}')] if delay or topic.startswith("%RETRY%") else [],
            )
            for topic, flag, delay in zip(topics, flags, delays, strict=True)
        ]

    producer, kafka = make(MemoryJob(), "batch")
    with producer:
        if fact["expect"].get("ok"):
            producer.send_many(messages())[0].result(WAIT_S)
            assert len(kafka.sent) == 1
        else:
            with pytest.raises(Invalid):
                producer.send_many(messages())
            assert kafka.sent == []


def is_read_from_the_middle(fact: dict[str, Any]) -> None:
    """Ours gives what was asked for, and nothing before it: RocketMQ's inner batches come as a whole (BatchSendIT)."""
    job = MemoryJob()
    queue_type = TYPES[fact["given"]["topic"]]
    producer, kafka = make(job, queue_type)
    send, pull = fact["ops"]
    with producer:
        for number in range(send["times"]):
            first = number * send["messages_each"]
            batch = [
                OutgoingMessage(topic="t", value=b"%d" % (first + index), queue_id=0)
                for index in range(send["messages_each"])
            ]
            results = [future.result(WAIT_S) for future in producer.send_many(batch)]
            scale = send["messages_each"] if queue_type == "batch" else 1
            assert results[0].queue_offset * scale == eval(fact["expect"]["send_i"]["queueOffset"], {"i": number})  # noqa: S307
            assert len({result.message_id for result in results}) == send["messages_each"]
    assert len(kafka.sent) == send["times"] * (1 if queue_type == "batch" else send["messages_each"])
    at, count = pull["offset"], pull["max"]
    with job.consumer("g") as consumer:
        if queue_type == "batch":
            queue_offset, inner_index = divmod(at, send["messages_each"])
        else:
            queue_offset, inner_index = at, 0
        found = consumer.read("t", 0, queue_offset, count, inner_index=inner_index)
    last = send["times"] * send["messages_each"]
    assert [int(record.value or b"-1") for record in found] == list(range(at, last))
    if queue_type == "simple":
        assert len(found) == fact["expect"]["pull"]["count"]


def is_ready(fact: dict[str, Any]) -> None:
    limits = BatchLimits(hold_ms=fact["given"]["holdMs"], batch_bytes_max=fact["given"]["holdSize"])
    destination = Destination("t", 0, True, None)
    found = [
        OpenBatch(destination, 0.0, [], set(), op["size"]).is_ready(limits, op["age_ms"] / 1000) for op in fact["ops"]
    ]
    assert found == fact["expect"]


def settings_have_ranges(fact: dict[str, Any]) -> None:
    for op, expected in zip(fact["ops"], fact["expect"], strict=True):
        ((name, value),) = op.items()
        if expected == "ok":
            BatchLimits(**{SETTINGS[name]: value})
        else:
            with pytest.raises(Invalid):
                BatchLimits(**{SETTINGS[name]: value})


def results_are_split(fact: dict[str, Any]) -> None:
    """Each message has a place and an id of its own, also inside a unit, where RocketMQ gives all the same result."""
    for op, expected in zip(fact["ops"], fact["expect"], strict=True):
        if expected == "IllegalArgument":
            continue  # ids are not joined with commas here, so none can be missing
        queue_type = "simple" if "," in op["msgId"] else "batch"
        producer, _ = make(MemoryJob(), queue_type)
        with producer:
            messages = [OutgoingMessage(topic="t", value=b"v", queue_id=0)] * op["count"]
            results = [future.result(WAIT_S) for future in producer.send_many(messages)]
        places = [result.queue_offset + result.inner_index for result in results]
        assert places == list(range(op["count"]))
        assert len({result.message_id for result in results}) == len(expected)


def message_is_no_longer_than_theirs(fact: dict[str, Any]) -> None:
    """What a further message adds to a batch; the properties that theirs carries are headers of the record here."""
    body = bytes.fromhex(fact["given"]["body_hex"])
    sizes = [
        len(encode_inner_batch([InnerMessage(body, 0)] * count, created_ms=0, ids=["a-0"] * count)[0])
        for count in (1, 2)
    ]
    assert sizes[1] - sizes[0] == 6 + len(body)
    assert sizes[1] - sizes[0] < fact["expect"]["len"] - len(fact["given"]["props"]) * 11


CHECKS: dict[str, Check] = {
    "ACC-01": accumulates,
    "ACC-03": goes_to_the_named_queue,
    "ACC-04": may_be_one_batch,
    "ACC-06": may_be_one_batch,
    "ACC-07": may_be_one_batch,
    "ACC-09": is_read_from_the_middle,
    "ACC-10": is_read_from_the_middle,
    "ACC-12": is_ready,
    "ACC-13": settings_have_ranges,
    "ACC-15": results_are_split,
    "WIRE-01": message_is_no_longer_than_theirs,
}


@pytest.mark.parametrize("name", sorted(CHECKS))
def test_a_producer_agrees_with_each_fact_of_rocketmq(name: str) -> None:
    CHECKS[name](FACTS[name])


def test_every_fact_is_checked_or_has_no_counterpart() -> None:
    assert FACTS.keys() == CHECKS.keys() | WITHOUT_COUNTERPART.keys()
