"""A client that does everything wrong, and keeps a list of it: what must be rejected, what must be refused and how."""

import time
from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import Any

import msgspec
from kafka import KafkaProducer

from connectors.kafka.own_topics import Topics
from pipelines.demo import planted
from pipelines.demo.consumers import is_released, open_recorder
from pipelines.demo.journal import Journal, Planted
from pipelines.demo.lifeline import Lifeline
from pipelines.demo.orders import Orders
from pipelines.demo.planted import REASON_OF_KIND, BadRecord
from pipelines.demo.recorder import Recorder
from popstream import Message
from popstream.exchange.partitioner import ops_key, partition_of
from popstream.wire.command import Command, encode_command
from popstream.wire.limits import OPS_TOPIC_RECORD_BYTES_MAX
from popstream.wire.reason import code_of

__all__ = ["run_intruder"]

HELD_COUNT = 20
HELD_INVISIBLE_MS = 120_000
QUEUES_MAX = 4
ABANDONED_MS = 3_000
POLL_MS = 20_000
ROUND_COUNT = 50
ROUND_PAUSE_S = 0.1
"""Spread over the run: what is wrong must not disturb what is right beside it."""

CONFIRM_TIMEOUT_S = 60.0


class _Sample(msgspec.Struct, frozen=True):
    """Messages in hand, and a handle of each that was good before."""

    queue_id: int
    messages: list[Message]
    old_handle: str


def run_intruder(orders: Orders, lifeline: Lifeline) -> None:
    """Get stale handles, use them; then send what cannot be read and what must be refused, mixed."""
    with open_recorder(orders, lifeline) as (recorder, journal):
        raw = _RawOps(orders, journal)
        try:
            lifeline.wait_for_go()
            counts = planted.refused_counts(orders.refused_count)
            samples = _arm(orders, recorder)
            handles = [
                (sample.queue_id, sample.messages[0].handle.text, sample.messages[0].queue_offset) for sample in samples
            ]
            raw.plant_all(_stale(orders, samples, counts.pop("stale")))
            lifeline.tell("armed")
            for sample in samples:
                _let_go(orders, recorder, sample)
            pending = [*_mixed(orders, handles, counts)]
            for start in range(0, len(pending), ROUND_COUNT):
                raw.plant_all(pending[start : start + ROUND_COUNT])
                time.sleep(ROUND_PAUSE_S)
        finally:
            raw.close()


def _arm(orders: Orders, recorder: Recorder) -> list[_Sample]:
    """Pop, give back, pop again: the handles of the first time are stale for as long as the second time lasts."""
    samples = []
    for queue_id in range(min(orders.queues, QUEUES_MAX)):
        # Only the first queue has a message for certain.
        poll_time_ms = POLL_MS if queue_id == 0 else 500
        first = recorder.pop(queue_id, HELD_COUNT, HELD_INVISIBLE_MS, poll_time_ms)
        if not first:
            continue
        old_handle = first[0].handle.text
        recorder.change(first, 0, suspend=True)
        again = recorder.pop(queue_id, len(first), HELD_INVISIBLE_MS, POLL_MS)
        offsets = {message.queue_offset for message in first}
        held = [message for message in again if message.queue_offset in offsets]
        if held:
            samples.append(_Sample(queue_id, held, old_handle))
    if not samples:
        message = "no message came twice: other consumers of the group were not held back"
        raise RuntimeError(message)
    return samples


def _let_go(orders: Orders, recorder: Recorder, sample: _Sample) -> None:
    """Ack one half as it should be; the other half is forgotten and comes back."""
    half = len(sample.messages) // 2
    done = [message for message in sample.messages[:half] if not is_released(orders, message)]
    if done:
        recorder.ack(done).result()
    recorder.change([message for message in sample.messages if message not in done], ABANDONED_MS)


def _stale(orders: Orders, samples: Sequence[_Sample], count: int) -> "Iterator[_Wrong]":
    for number in range(count):
        sample = samples[number % len(samples)]
        message = sample.messages[number // len(samples) % len(sample.messages)]
        command = planted.stale(
            orders.topic, sample.queue_id, orders.group, sample.old_handle, message.queue_offset, number
        )
        yield _Wrong("stale", sample.queue_id, command)


class _Wrong(msgspec.Struct, frozen=True):
    """An operation to be refused (`kind` says how), one that opens the way for it, or a record nobody can read."""

    kind: str
    queue_id: int
    command: Command | BadRecord


def _mixed(orders: Orders, handles: Sequence[tuple[int, str, int]], counts: dict[str, int]) -> Iterator[_Wrong]:
    """Everything else, in an order that mixes the kinds."""
    op_ids = [f"{orders.name}-{queue_id}" for queue_id in range(orders.queues)]
    for queue_id, op_id in enumerate(op_ids):
        yield _Wrong("", queue_id, planted.first_use(orders.topic, queue_id, op_id))
    wrongs: list[_Wrong] = []
    for number, bad in enumerate(planted.rejected_records(orders.topic, 0, orders.group, orders.rejected_count)):
        wrongs.append(_Wrong("rejected", number % orders.queues, bad))
    for kind, count in counts.items():
        wrongs += [_refused(orders, kind, number, handles, op_ids) for number in range(count)]
    step = 7
    for first in range(step):
        yield from wrongs[first::step]


def _refused(
    orders: Orders, kind: str, number: int, handles: Sequence[tuple[int, str, int]], op_ids: Sequence[str]
) -> _Wrong:
    queue_id = number % orders.queues
    if kind == "forged":
        queue_id, handle, offset = handles[number % len(handles)]
        return _Wrong(kind, queue_id, planted.forged(orders.topic, queue_id, orders.group, handle, offset, number))
    if kind == "reused":
        return _Wrong(kind, queue_id, planted.reused(orders.topic, queue_id, orders.group, op_ids[queue_id], number))
    if kind == "misrouted":
        command = planted.reused(orders.topic, queue_id, orders.group, f"{orders.name}-misrouted-{number}", 0)
        return _Wrong(kind, queue_id, command)
    return _Wrong(kind, queue_id, planted.out_of_range(orders.topic, queue_id, orders.group, number))


class _RawOps:
    """Writes to the ops topic without the client, which would not let most of this through."""

    def __init__(self, orders: Orders, journal: Journal) -> None:
        self._orders = orders
        self._journal = journal
        self._topic = Topics.of(orders.prefix).ops
        self._producer = KafkaProducer(
            bootstrap_servers=orders.bootstrap_servers.split(","),
            client_id=f"{orders.name}-raw",
            acks="all",
            enable_idempotence=True,
            max_request_size=OPS_TOPIC_RECORD_BYTES_MAX,
            allow_auto_create_topics=False,
        )

    def plant_all(self, wrongs: "Sequence[_Wrong] | Iterator[_Wrong]") -> None:
        """Write records, and write down where each is once Kafka has it."""
        sent = [(wrong, self._send(wrong)) for wrong in wrongs]
        for wrong, future in sent:
            metadata = future.get(timeout=CONFIRM_TIMEOUT_S)
            if wrong.kind:
                self._journal.write(_planted(wrong, metadata.partition, metadata.offset))

    def close(self) -> None:
        """Disconnect."""
        self._producer.close(timeout=10)

    def _send(self, wrong: _Wrong) -> Any:  # noqa: ANN401 - kafka-python has no types
        key = ops_key(self._orders.topic, wrong.queue_id)
        partition = partition_of(key, self._orders.partitions)
        if wrong.kind == "misrouted":
            partition = (partition + 1) % self._orders.partitions
        return self._producer.send(self._topic, key=key, value=_value(wrong), partition=partition)


def _value(wrong: _Wrong) -> bytes | None:
    return wrong.command.value if isinstance(wrong.command, BadRecord) else encode_command(wrong.command)


def _planted(wrong: _Wrong, partition: int, kafka_offset: int) -> Planted:
    if isinstance(wrong.command, BadRecord):
        value = wrong.command.value or b""
        return Planted(
            wrong.command.kind,
            partition,
            kafka_offset,
            wrong.command.reason,
            sha256=sha256(value).hexdigest(),
            value_bytes=len(value),
        )
    reason = REASON_OF_KIND[wrong.kind]
    return Planted(wrong.kind, partition, kafka_offset, reason, code_of(reason))
