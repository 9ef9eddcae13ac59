"""What somebody may try against a tenant, through our client and without it, and what he was told.

Each attempt uses rights that its sender has: those of an app of the tenant, or of the other tenant.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaError

from connectors.kafka.own_topics import Topics
from pipelines.demo.planted import tampered, with_handle
from pipelines.demo.tenant import GROUP, KEY_IDS, OPS_PARTITIONS, Tenant
from popstream import Consumer, Producer, Transport, new_op_id
from popstream.exchange.partitioner import ops_key, partition_of
from popstream.settings import read_admin_key
from popstream.wire.answer import Answer
from popstream.wire.base_errors import Invalid
from popstream.wire.command import (
    Command,
    Declare,
    Dispatch,
    ForgetLane,
    HandleRef,
    Policy,
    Pop,
    Redrive,
    ResetOffset,
    ReturnClient,
    WrittenRange,
    encode_command,
)
from popstream.wire.signing import sign_operation

__all__ = [
    "Flood",
    "Stolen",
    "flood",
    "forge_handles",
    "held_handle",
    "release_others",
    "send_copies",
    "send_foreign_operations",
    "send_unsigned_operations",
    "try_topics_of_another",
]

FORGED_COUNT = 4
COPIES = 3
LATE_MS = 10 * 60_000
FLOOD_POPS = 300
INVISIBLE_TIME_MS = 60_000
KAFKA_TIMEOUT_S = 30.0


def forge_handles(tenant: Tenant, foreign_handle: str) -> list[Answer]:
    """Pop a message, ack it with changed handles and with one of another job, and return the answers."""
    with _consumer(tenant, "forger") as consumer:
        message = next(iter(_popped(consumer, tenant, 1)))
        handles = [tampered(message.handle.text, number) for number in range(FORGED_COUNT)]
        answers = [
            consumer.request(
                with_handle(tenant.topic, message.queue_id, HandleRef(GROUP, handle), message.queue_offset)
            )
            for handle in (*handles, foreign_handle)
        ]
        consumer.ack([message])
    return answers


class Stolen(NamedTuple):
    """A handle of a message that is in hand."""

    handle: str


@contextlib.contextmanager
def held_handle(tenant: Tenant) -> Iterator[Stolen]:
    """Pop a message, and hold it meanwhile."""
    with _consumer(tenant, "victim") as consumer:
        message = next(iter(_popped(consumer, tenant, 1)))
        yield Stolen(message.handle.text)
        consumer.ack([message])


def release_others(tenant: Tenant) -> Answer:
    """Ask for the release of what another client holds, without a signature."""
    client_id = f"{tenant.name}-client"
    with Transport(tenant.client_settings(client_id="intruder")) as transport:
        return transport.request(ReturnClient(v=1, topic=tenant.topic, queue_id=0, group=GROUP, client_id=client_id))


def send_unsigned_operations(tenant: Tenant) -> list[Answer]:
    """Send each kind of operation on queues and groups but releases without a signature."""
    queue: dict[str, Any] = {"v": 1, "topic": tenant.topic, "queue_id": 0}
    commands: list[Command] = [
        Policy(**queue, group=GROUP, max_attempts=1),
        Policy(**queue, queue_pops_per_s_max=1),
        ResetOffset(**queue, group=GROUP, queue_offset=0),
        ForgetLane(**queue, group=GROUP),
        Declare(**queue, topic_id="another topic of this name"),
        Dispatch(**queue, ranges=[WrittenRange(1_000_000, 1_000_000)]),
        Dispatch(**queue, skip=[(0, 0)]),
        Redrive(**queue, group=GROUP, offsets=[(0, 0)], to="topic"),
    ]
    with Transport(tenant.client_settings(client_id="intruder")) as transport:
        return [transport.request(command) for command in commands]


def send_foreign_operations(tenant: Tenant, other: Tenant) -> list[Answer]:
    """Send to a tenant's job what the administrator of another tenant signed, with each of his keys."""
    answers = []
    for key_id in KEY_IDS:
        settings = tenant.client_settings(client_id="foreigner", admin_key=other.admin_key_file(key_id))
        with Transport(settings) as transport:
            answers.append(transport.request(Policy(v=1, topic=tenant.topic, queue_id=0, group=GROUP, max_attempts=1)))
    return answers


def send_copies(tenant: Tenant) -> tuple[str, str]:
    """Write a signed record several times, and one that was signed long ago; return the op_ids of both."""
    key = read_admin_key(tenant.admin_key_file(KEY_IDS[0]))
    topic = Topics.of(tenant.name).ops
    now_ms = int(time.time() * 1000)
    op_ids = new_op_id(), new_op_id()
    values = []
    for op_id, at_ms, count in zip(op_ids, (now_ms, now_ms - LATE_MS), (COPIES, 1), strict=True):
        command = Policy(v=1, topic=tenant.topic, queue_id=0, group="copied", max_attempts=7, op_id=op_id, reply_to=0)
        values += [sign_operation(encode_command(command), key, ops_topic=topic, at_ms=at_ms)] * count
    record_key = ops_key(tenant.topic, 0)
    with contextlib.closing(KafkaProducer(**_kafka(tenant))) as producer:
        for value in values:
            partition = partition_of(record_key, OPS_PARTITIONS)
            producer.send(topic, key=record_key, value=value, partition=partition).get(KAFKA_TIMEOUT_S)
    return op_ids


class Flood(NamedTuple):
    """The answers to a flood of pops, by which each was asked; and how many messages another group got meanwhile."""

    answers: list[Answer]
    served: int


def flood(tenant: Tenant, group: str, client_id: str) -> Flood:
    """Send many pops of one client at once, and let another group pop in the middle of them."""
    with (
        _consumer(tenant, "bystander") as bystander,
        Transport(tenant.client_settings(client_id=client_id)) as transport,
    ):
        pop = Pop(
            v=1,
            topic=tenant.topic,
            queue_id=0,
            group=group,
            max_messages=1,
            invisible_time_ms=INVISIBLE_TIME_MS,
            client_id=client_id,
        )
        first = [transport.submit(pop) for _ in range(FLOOD_POPS // 2)]
        messages = _popped(bystander, tenant, 1)
        bystander.ack(messages)
        second = [transport.submit(pop) for _ in range(FLOOD_POPS // 2)]
        return Flood([future.result() for future in (*first, *second)], len(messages))


def try_topics_of_another(tenant: Tenant, other: Tenant) -> dict[str, int | str]:
    """Try to use the topics of another tenant; return by attempt Kafka's error code, or what our client said.

    An attempt that is not refused has the code 0.
    """
    prefix = {"prefix": other.name}
    tried: dict[str, int | str] = {
        "open a consumer": _refusal(
            lambda: Consumer(**tenant.client_options | prefix, group=GROUP, topics=[other.topic])
        ),
        "open a producer": _refusal(lambda: Producer(**tenant.client_options | prefix)),
    }
    topics = (*sorted(Topics.of(other.name).names), other.topic)
    with contextlib.closing(KafkaProducer(**_kafka(tenant), max_block_ms=5_000)) as producer:
        for topic in topics:
            sent = msgspec.json.encode({"from": tenant.name})
            tried[f"write to {topic}"] = _kafka_code(
                lambda topic=topic, sent=sent: producer.send(topic, value=sent, partition=0).get(KAFKA_TIMEOUT_S)  # type: ignore[misc]
            )
    with contextlib.closing(KafkaConsumer(**_kafka(tenant))) as consumer:
        for topic in topics:
            place = TopicPartition(topic, 0)
            consumer.assign([place])
            tried[f"read {topic}"] = _kafka_code(lambda place=place: consumer.beginning_offsets([place]))  # type: ignore[misc]
    return tried


def _consumer(tenant: Tenant, client_id: str) -> Consumer:
    return Consumer(
        **tenant.client_options, group=GROUP, client_id=client_id, release_earlier_leases=False, exit_on_sigterm=False
    )


def _popped(consumer: Consumer, tenant: Tenant, count: int) -> Sequence[Any]:
    """Send a message, and return what the group gets: at least that one."""
    with Producer(**tenant.client_options) as producer:
        producer.send(tenant.topic, b"one more", queue_id=0).result(KAFKA_TIMEOUT_S)
    messages = consumer.pop(tenant.topic, 0, count, INVISIBLE_TIME_MS, int(KAFKA_TIMEOUT_S * 1000)).messages
    if not messages:
        message = f"the job of {tenant.name} gave no message"
        raise Invalid(message, subject=tenant.topic)
    return messages


def _kafka(tenant: Tenant) -> dict[str, Any]:
    return tenant.client_settings().connection.for_kafka_python()


def _refusal(attempt: Callable[[], Any]) -> int | str:
    try:
        attempt().close()
    except Invalid as error:
        return str(error)
    return 0


def _kafka_code(attempt: Callable[[], object]) -> int:
    try:
        attempt()
    except KafkaError as error:
        return int(error.errno)
    return 0
