"""A client that sends invalid operations, and records their offsets and expected outcomes."""

import time
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, NamedTuple

import msgspec
from kafka import KafkaProducer

from connectors.kafka.own_topics import Topics
from pipelines.demo.consumers import open_consumer, without_poison
from pipelines.demo.planted import Planted, PlantedRecord, malformed, operation, refused, tampered, with_handle
from pipelines.demo.tasks import Task
from popstream import Consumer, Message
from popstream.exchange.partitioner import ops_key, partition_of
from popstream.wire.command import HandleRef
from popstream.wire.limits import OPS_TOPIC_RECORD_BYTES_MAX
from popstream.wire.reason import Reason

__all__ = ["run_intruder"]

HELD_COUNT = 20
HELD_INVISIBLE_TIME_MS = 120_000
ABANDONED_TIME_MS = 3_000
POLL_TIME_MS = 20_000
QUEUES_MAX = 4
CONFIRM_TIMEOUT_S = 60.0
ROUND_COUNT = 50
ROUND_PAUSE_S = 0.1
"""Spread over the run: the faults must not disturb the consumers beside them."""


class _Sample(NamedTuple):
    """Messages of one queue in hand, and a handle of their delivery before."""

    queue_id: int
    messages: list[Message]
    old_handle: str


def run_intruder(task: Task) -> None:
    """Get handles that have become stale and use them; then send malformed and refused records, mixed."""
    with open_consumer(task) as (consumer, processed):
        writer = _OpsWriter(task)
        try:
            samples = _pop_twice(task, consumer)
            fifth = task.refused_count // 5
            writer.write(_with_handles(task, samples, fifth, Reason.STALE_HANDLE))
            task.armed_file.touch()
            for sample in samples:
                half = len(sample.messages) // 2
                done = without_poison(task, consumer, sample.messages[:half])
                processed.add(done)
                consumer.ack(done)
                consumer.change_invisible(sample.messages[half:], ABANDONED_TIME_MS)  # and they expire
            others = [*refused(task.topic, task.group, task.queues, task.refused_count - 2 * fifth)]
            writer.write(record for record in others if not record.reason)
            records = [
                *_with_handles(task, samples, fifth, Reason.NO_PERMISSION),
                *malformed(task.topic, task.group, task.queues, task.malformed_count),
                *(record for record in others if record.reason),
            ]
            step = 7
            mixed = iter([record for first in range(step) for record in records[first::step]])
            while round_of_records := list(islice(mixed, ROUND_COUNT)):
                writer.write(round_of_records)
                time.sleep(ROUND_PAUSE_S)
        finally:
            writer.close()


def _pop_twice(task: Task, consumer: Consumer) -> list[_Sample]:
    """Pop, release, pop again: the handles of the first time are stale while the second lease lasts."""
    samples = []
    for queue_id in range(min(task.queues, QUEUES_MAX)):
        # Only the first queue has a message for certain.
        poll_time_ms = POLL_TIME_MS if queue_id == 0 else 500
        first = consumer.pop(task.topic, queue_id, HELD_COUNT, HELD_INVISIBLE_TIME_MS, poll_time_ms).messages
        if not first:
            continue
        old_handle = first[0].handle.text
        consumer.change_invisible(first, 0, suspend=True)
        again = consumer.pop(task.topic, queue_id, len(first), HELD_INVISIBLE_TIME_MS, POLL_TIME_MS).messages
        queue_offsets = {message.queue_offset for message in first}
        if held := [message for message in again if message.queue_offset in queue_offsets]:
            samples.append(_Sample(queue_id, held, old_handle))
    if not samples:
        message = "no message came twice: other consumers of the group were not held back"
        raise RuntimeError(message)
    return samples


def _with_handles(task: Task, samples: Sequence[_Sample], count: int, reason: Reason) -> Iterable[PlantedRecord]:
    """Yield acks with handles that are stale, or forged (`NO_PERMISSION`)."""
    for number in range(count):
        queue_id, messages, old_handle = samples[number % len(samples)]
        message = messages[number // len(samples) % len(messages)]
        handle = old_handle if reason is Reason.STALE_HANDLE else tampered(message.handle.text, number)
        command = with_handle(task.topic, queue_id, HandleRef(task.group, handle), message.queue_offset)
        yield operation(queue_id, command, reason)


class _OpsWriter:
    """Writes to the ops topic without the client, which would not let most of this through."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._topic = Topics.of(task.prefix).ops
        self._file = task.planted_file.open("wb")
        self._producer = KafkaProducer(
            **task.connection.for_kafka_python(),
            client_id=f"{task.name}-raw",
            acks="all",
            enable_idempotence=True,
            max_request_size=OPS_TOPIC_RECORD_BYTES_MAX,
            allow_auto_create_topics=False,
        )

    def write(self, records: Iterable[PlantedRecord]) -> None:
        """Write records, and note the position of each when Kafka has it."""
        sent = [(record, self._send(record)) for record in records]
        for record, future in sent:
            metadata = future.get(timeout=CONFIRM_TIMEOUT_S)
            if record.reason:
                planted = Planted(metadata.partition, metadata.offset, record.reason, record.code)
                self._file.write(msgspec.json.encode(planted) + b"\n")
        self._file.flush()

    def close(self) -> None:
        """Disconnect."""
        self._producer.close(timeout=10)
        self._file.close()

    def _send(self, record: PlantedRecord) -> Any:  # noqa: ANN401 - kafka-python has no types
        key = ops_key(self._task.topic, record.queue_id)
        partition = partition_of(key, self._task.ops_partitions)
        if record.reason == Reason.MISROUTED:
            partition = (partition + 1) % self._task.ops_partitions
        return self._producer.send(self._topic, key=key, value=record.value, partition=partition)
