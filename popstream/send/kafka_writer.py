"""Hands messages to Kafka through kafka-python, and says what an error of Kafka's proves.

| flag | producer | when the connection breaks |
|---|---|---|
| wait for store | acks=all, idempotent | kafka-python tries until `delivery_timeout_ms`; it is written once |
| no wait | acks=1, made at its first use | it is not tried again: it could be there twice |
"""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Any

from kafka.errors import (
    BrokerNotAvailableError,
    CorruptRecordError,
    IllegalStateError,
    InvalidRecordError,
    InvalidRequiredAcksError,
    InvalidTimestampError,
    InvalidTopicError,
    KafkaError,
    KafkaTimeoutError,
    LeaderNotAvailableError,
    MessageSizeTooLargeError,
    NotEnoughReplicasError,
    NotLeaderForPartitionError,
    PolicyViolationError,
    RecordListTooLargeError,
    ThrottlingQuotaExceededError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
    UnsupportedCompressionTypeError,
    UnsupportedForMessageFormatError,
)

from popstream.errors import NotWritten, OutcomeUnknown
from popstream.exchange.kafka_link import producer_options
from popstream.exchange.resilient_producer import ResilientProducer
from popstream.outcome import SendResult
from popstream.payload.inner_batch import InnerMessage, encode_inner_batch
from popstream.payload.message_id import MessageIds
from popstream.send.ordered_sender import NOT_ASKED, Retry, SendOutcome
from popstream.wire.failures import Invalid

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from popstream.send.ordered_sender import Shipment
    from popstream.settings import ClientSettings

    OnDone = Callable[[Sequence[SendOutcome]], None]
    # kafka-python has no types.
    Kafka = Any
    Answer = Any

__all__ = ["KafkaWriter", "send_outcome_of"]


BLOCK_MS = 5
"""kafka-python may wait so long for what it does not know of a topic: the guard must not wait for one."""
KAFKA_BATCH_BYTES = 256 * 1024
"""So that a load is one batch of Kafka's: kafka-python wakes its thread for every message beyond the first one."""

OF_ITS_BATCH = (
    MessageSizeTooLargeError,
    RecordListTooLargeError,
    InvalidRecordError,
    InvalidTimestampError,
    CorruptRecordError,
)
"""A message may be refused for these because of another one beside it."""
REFUSED = (
    *OF_ITS_BATCH,
    InvalidRequiredAcksError,
    InvalidTopicError,
    PolicyViolationError,
    TopicAuthorizationFailedError,
    UnsupportedCompressionTypeError,
    UnsupportedForMessageFormatError,
)
"""The broker has judged before it wrote, and will judge alike the next time."""
PASSING = (
    BrokerNotAvailableError,
    LeaderNotAvailableError,
    NotEnoughReplicasError,
    NotLeaderForPartitionError,
    ThrottlingQuotaExceededError,
    UnknownTopicOrPartitionError,
)
"""The broker has not written, and may do so the next time. Not among them: what it says after it has written."""
NOT_NOW = (KafkaTimeoutError, IllegalStateError)
"""kafka-python knows nothing of the topic, or was closed because another KafkaProducer takes over."""
POISONED = "part of a batch which had one more more invalid records"
"""How kafka-python 3 says of a good record that another of its batch was refused."""


def send_outcome_of(error: Exception, topic: str, *, is_alone: bool, is_only_try: bool = False) -> SendOutcome:
    """What an answer of Kafka proves about a message, and whether it is worth another try by itself.

    What passes says nothing about the tries before it. A refusal of a record that was tried before does not come as
    such (`ResilientProducer`).

    Args:
        error: What kafka-python gives for the record.
        topic: Where it was to go.
        is_alone: Whether it was the only message of its record and of its batch.
        is_only_try: Whether kafka-python asked once.

    >>> errors = (MessageSizeTooLargeError(), KafkaError())
    >>> [send_outcome_of(error, "orders", is_alone=False).retry.value for error in errors]
    ['alone', 'no']
    >>> send_outcome_of(KafkaTimeoutError("no answer"), "orders", is_alone=True).error
    OutcomeUnknown("whether the message was written to orders is unknown: KafkaTimeoutError('no answer')")
    """
    is_of_batch = isinstance(error, OF_ITS_BATCH) or POISONED in str(error)
    found: Exception
    if isinstance(error, REFUSED) or is_of_batch:
        found = Invalid(f"Kafka refuses the message to {topic}: {error!r}", subject=topic)
    elif isinstance(error, PASSING) and is_only_try:
        found = NotWritten(f"the message is not written to {topic}: {error!r}", subject=topic)
    else:
        found = OutcomeUnknown(f"whether the message was written to {topic} is unknown: {error!r}", subject=topic)
    found.__cause__ = error
    is_worth_it = isinstance(found, NotWritten) or (is_of_batch and not is_alone)
    return SendOutcome(error=found, retry=Retry.ALONE if is_worth_it else Retry.NO)


class KafkaWriter:
    """Writes plain records, and records that carry many messages. Safe for use by many threads.

    Args:
        settings: Names and time-outs.
        compression_type: Of kafka-python.
        on_written: Told of each record that is written, and how many messages it carries; must be short.
        on_connected: Called when a further KafkaProducer was made.
        kafka_producer: Used for everything, instead of making any.
    """

    def __init__(
        self,
        settings: ClientSettings,
        *,
        compression_type: str | None,
        on_written: Callable[[SendResult, str | None, int], None],
        on_connected: Callable[[], None],
        kafka_producer: Kafka = None,
    ) -> None:
        """Connect.

        Raises:
            Unavailable: Kafka does not answer.
        """
        self._settings = settings
        self._on_written = on_written
        self._ids = MessageIds()
        self._tries_once = kafka_producer is None
        """Whether a KafkaProducer that does not wait for the store is one of ours, which never tries twice."""
        self._partitions: dict[str, Collection[int]] = {}
        options = {
            **producer_options(settings),
            "client_id": settings.client_id,
            "compression_type": compression_type,
            "linger_ms": 0,
            "batch_size": KAFKA_BATCH_BYTES,
            "max_block_ms": BLOCK_MS,
        }
        make = partial(ResilientProducer, refusals=REFUSED, on_connected=on_connected, kafka_producer=kafka_producer)
        self._producers = {
            True: make(options),
            # One request at a time: it has no numbers by which Kafka keeps the order of several.
            False: make(
                {
                    **options,
                    "acks": 1,
                    "enable_idempotence": False,
                    "retries": 0,
                    "max_in_flight_requests_per_connection": 1,
                }
            ),
        }
        """By whether to wait for the store."""
        self._producers[True].open()

    def partitions(self, topic: str, *, wait_for_store: bool = True) -> Collection[int]:
        """The partitions of a topic, as far as this is known without waiting for longer than 5 ms.

        Raises:
            Unavailable: The first message that need not wait for the store needs a connection, and Kafka is away.
        """
        producer = self._producers[wait_for_store]
        producer.open()
        kafka = producer.current
        try:
            found: set[int] = kafka.partitions_for(topic) if kafka is not None else set()
        except (KafkaError, ValueError):  # ValueError: no topic can have this name
            found = set()
        if found:
            self._partitions[topic] = found
        return self._partitions.get(topic, ())

    def queue_ids(self, topic: str) -> Sequence[int]:
        """The queues that a message may go to which asks for none."""
        return sorted(self._partitions.get(topic, ()))

    def write(self, shipment: Shipment, on_done: OnDone) -> bool:
        """Begin; `on_done` is told the outcome of each message, in a thread of kafka-python or at once.

        False: Kafka is away, or has forgotten the topic.
        """
        kafka = shipment.kafka = self._producers[shipment.wait_for_store].current
        if kafka is None:
            on_done([NOT_ASKED] * len(shipment.messages))
            return False
        ids = self._ids.take(len(shipment.messages))
        if shipment.is_unit:
            return self._write_unit(kafka, shipment, ids, on_done)
        return self._write_records(kafka, shipment, ids, on_done)

    def give_up(self, shipment: Shipment) -> None:
        """Its sender waits no longer for an answer."""
        self._producers[shipment.wait_for_store].replace(shipment.kafka)

    def close(self) -> None:
        """Wait for what is on its way, within the delivery time-out, and disconnect."""
        for producer in self._producers.values():
            producer.close(self._settings.delivery_timeout_ms / 1000)

    def _write_records(self, kafka: Kafka, shipment: Shipment, ids: Sequence[str], on_done: OnDone) -> bool:
        outcomes = _Fates(len(shipment.messages), on_done)
        for index, (outgoing, fresh_id) in enumerate(zip(shipment.messages, ids, strict=True)):
            message = outgoing.message
            outgoing.message_id = outgoing.message_id or message.message_id or fresh_id
            try:
                sent = kafka.send(
                    shipment.topic,
                    value=message.value,
                    key=message.key,
                    headers=message.record_headers(outgoing.message_id),
                    partition=shipment.queue_id,
                    timestamp_ms=outgoing.created_ms,
                )
            except NOT_NOW as error:
                # Nor does it take the others now, and to ask for each would take as long.
                for left in range(index, len(ids)):
                    outcomes.tell(left, _not_taken(error, shipment.topic, is_alone=True))
                return False
            except Exception as error:  # noqa: BLE001 - it reaches the sender through the future
                outcomes.tell(index, _not_taken(error, shipment.topic, is_alone=True))
            else:
                on_answer = partial(self._on_record, kafka, shipment, outcomes, index)
                sent.add_callback(on_answer).add_errback(on_answer)
        return True

    def _on_record(self, kafka: Kafka, shipment: Shipment, outcomes: _Fates, index: int, answer: Answer) -> None:
        if isinstance(answer, Exception):
            outcomes.tell(index, self._fate(kafka, shipment, answer))
        elif answer.offset < 0:
            outcomes.tell(index, _without_place(shipment.topic))
        else:
            result = SendResult(
                answer.topic, answer.partition, answer.offset, answer.timestamp, shipment.messages[index].message_id
            )
            self._on_written(result, shipment.tag, 1)
            outcomes.tell(index, SendOutcome(result))

    def _write_unit(self, kafka: Kafka, shipment: Shipment, ids: Sequence[str], on_done: OnDone) -> bool:
        created_ms = shipment.messages[0].created_ms
        inner: list[InnerMessage] = []
        for outgoing, message_id in zip(shipment.messages, ids, strict=True):
            message = outgoing.message
            outgoing.message_id = message_id
            inner.append(
                InnerMessage(message.value, outgoing.created_ms - created_ms, message.key, list(message.headers))
            )
        try:
            value, headers = encode_inner_batch(inner, created_ms=created_ms, ids=ids, tag=shipment.tag)
            sent = kafka.send(
                shipment.topic, value=value, headers=headers, partition=shipment.queue_id, timestamp_ms=created_ms
            )
        except Exception as error:  # noqa: BLE001 - it reaches the senders through the futures
            on_done([_not_taken(error, shipment.topic, is_alone=False)] * len(inner))
            return not isinstance(error, NOT_NOW)
        on_answer = partial(self._on_unit, kafka, shipment, on_done)
        sent.add_callback(on_answer).add_errback(on_answer)
        return True

    def _on_unit(self, kafka: Kafka, shipment: Shipment, on_done: OnDone, answer: Answer) -> None:
        if isinstance(answer, Exception):
            on_done([self._fate(kafka, shipment, answer)] * len(shipment.messages))
        elif answer.offset < 0:
            on_done([_without_place(shipment.topic)] * len(shipment.messages))
        else:
            place = answer.topic, answer.partition, answer.offset, answer.timestamp
            results = [
                SendResult(*place, outgoing.message_id, index) for index, outgoing in enumerate(shipment.messages)
            ]
            self._on_written(results[0], shipment.tag, len(results))
            on_done([SendOutcome(result) for result in results])

    def _fate(self, kafka: Kafka, shipment: Shipment, error: Exception) -> SendOutcome:
        is_alone = len(shipment.messages) == 1
        outcome = send_outcome_of(
            error, shipment.topic, is_alone=is_alone, is_only_try=self._tries_once and not shipment.wait_for_store
        )
        if isinstance(outcome.error, OutcomeUnknown):
            self._producers[shipment.wait_for_store].replace(kafka)
        return outcome


class _Fates:
    """The outcomes of several records, which come one by one, from several threads."""

    def __init__(self, count: int, on_done: OnDone) -> None:
        self._fates = [SendOutcome()] * count
        self._left_count = count
        self._on_done = on_done
        self._lock = threading.Lock()

    def tell(self, index: int, outcome: SendOutcome) -> None:
        with self._lock:
            self._fates[index] = outcome
            self._left_count -= 1
            is_last = not self._left_count
        if is_last:
            self._on_done(self._fates)


def _not_taken(error: Exception, topic: str, *, is_alone: bool) -> SendOutcome:
    """What it means that kafka-python takes no record: it is not written in any case."""
    found: Exception
    if isinstance(error, NOT_NOW):
        found, retry = NotWritten(f"{topic} cannot be sent to now: {error!r}", subject=topic), Retry.TOGETHER
    else:
        found = Invalid(f"the message cannot be sent to {topic}: {error!r}", subject=topic)
        retry = Retry.NO if is_alone else Retry.ALONE
    found.__cause__ = error
    return SendOutcome(error=found, retry=retry)


def _without_place(topic: str) -> SendOutcome:
    """Kafka has the record already, from an earlier try, and has forgotten where."""
    message = f"the message is written to {topic}, but Kafka does not tell where"
    return SendOutcome(error=OutcomeUnknown(message, subject=topic))
