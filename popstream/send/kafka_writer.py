"""Hands messages to Kafka through kafka-python.

| wait for store | producer | when the connection breaks |
|---|---|---|
| yes | acks=all, idempotent | kafka-python retries until `delivery_timeout_ms`; the record is written once |
| no | acks=1, made at its first use | no retry, which could write the record twice |
"""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Any

from kafka.errors import KafkaError

from popstream.errors import OutcomeUnknown
from popstream.exchange.kafka_link import producer_options
from popstream.exchange.resilient_producer import ResilientProducer
from popstream.outcome import SendResult
from popstream.payload.inner_batch import InnerMessage, encode_inner_batch
from popstream.payload.message_id import MessageIds
from popstream.send.kafka_errors import NOT_NOW, REFUSED, not_accepted, send_outcome_of, without_offset
from popstream.send.shipment import NOT_ASKED, SendOutcome

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from popstream.send.shipment import Shipment
    from popstream.settings import ClientSettings

    OnDone = Callable[[Sequence[SendOutcome]], None]
    # kafka-python has no types.
    Kafka = Any
    Answer = Any

__all__ = ["KafkaWriter"]

BLOCK_MS = 5
"""How long kafka-python may wait for the metadata of a topic: the send thread must not wait for one topic."""
KAFKA_BATCH_BYTES = 256 * 1024
"""A load fits into one batch of Kafka: kafka-python wakes its thread for each message beyond the first batch."""


class KafkaWriter:
    """Writes records with one message, and units with several. Safe for use by many threads.

    Args:
        settings: Names and time-outs.
        compression_type: Option of kafka-python.
        on_written: Called with each written record, its tag, its number of messages, and when they can be popped (ms
            since 1970; 0: at once); must be short.
        on_connected: Called after each KafkaProducer that was made.
        kafka_producer: Use this one for all messages.

    Raises:
        Unavailable: Kafka does not answer.
        Invalid: The installed release of kafka-python is not supported.
    """

    def __init__(
        self,
        settings: ClientSettings,
        *,
        compression_type: str | None,
        on_written: Callable[[SendResult, str | None, int, int], None],
        on_connected: Callable[[], None],
        kafka_producer: Kafka = None,
    ) -> None:
        if kafka_producer is None:
            settings.reach_kafka()
        self._settings = settings
        self._on_written = on_written
        self._ids = MessageIds()
        self._tries_once = kafka_producer is None
        """Whether the KafkaProducer without `wait_for_store` is one of ours, which never retries."""
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
            # One request at a time: without sequence numbers Kafka does not keep the order of several.
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
        """By `wait_for_store`."""
        self._producers[True].open()

    def partitions(self, topic: str, *, wait_for_store: bool = True) -> Collection[int]:
        """Return the partitions of a topic, as far as they are known within 5 ms.

        Raises:
            Unavailable: Kafka does not answer, and the first message without `wait_for_store` needs a connection.
        """
        producer = self._producers[wait_for_store]
        producer.open()
        kafka = producer.current
        try:
            found: set[int] = kafka.partitions_for(topic) if kafka is not None else set()
        except (KafkaError, ValueError):  # ValueError: the name is not a valid topic name
            found = set()
        if found:
            self._partitions[topic] = found
        return self._partitions.get(topic, ())

    def queue_ids(self, topic: str) -> Sequence[int]:
        """Return the queues for messages without a key or queue id."""
        return sorted(self._partitions.get(topic, ()))

    def write(self, shipment: Shipment, on_done: OnDone) -> bool:
        """Start to write; `on_done` gets the outcome of each message, on a thread of kafka-python or at once.

        Returns False when Kafka was not asked, because it does not answer or has no metadata of the topic.
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
        """Replace the KafkaProducer that owes the answer about a shipment."""
        self._producers[shipment.wait_for_store].replace(shipment.kafka)

    def close(self) -> None:
        """Wait for records in flight, at most for the delivery time-out, and disconnect."""
        for producer in self._producers.values():
            producer.close(self._settings.delivery_timeout_ms / 1000)

    def _write_records(self, kafka: Kafka, shipment: Shipment, ids: Sequence[str], on_done: OnDone) -> bool:
        outcomes = _RecordOutcomes(len(shipment.messages), on_done)
        for index, (outgoing, fresh_id) in enumerate(zip(shipment.messages, ids, strict=True)):
            message = outgoing.message
            outgoing.message_id = outgoing.message_id or fresh_id
            try:
                sent = kafka.send(
                    shipment.topic,
                    value=message.value,
                    key=message.key,
                    headers=outgoing.record_headers,
                    partition=shipment.queue_id,
                    timestamp_ms=outgoing.created_ms,
                )
            except NOT_NOW as error:
                # It would not accept the others either, after the same wait for each.
                for left in range(index, len(ids)):
                    outcomes.set(left, not_accepted(error, shipment.topic, is_alone=True))
                return False
            except Exception as error:  # noqa: BLE001 - it reaches the sender through the future
                outcomes.set(index, not_accepted(error, shipment.topic, is_alone=True))
            else:
                on_answer = partial(self._on_record, kafka, shipment, outcomes, index)
                sent.add_callback(on_answer).add_errback(on_answer)
        return True

    def _on_record(
        self, kafka: Kafka, shipment: Shipment, outcomes: _RecordOutcomes, index: int, answer: Answer
    ) -> None:
        if isinstance(answer, Exception):
            outcomes.set(index, self._outcome(kafka, shipment, answer))
        elif answer.offset < 0:
            outcomes.set(index, without_offset(shipment.topic))
        else:
            outgoing = shipment.messages[index]
            result = SendResult(answer.topic, answer.partition, answer.offset, answer.timestamp, outgoing.message_id)
            self._on_written(result, shipment.tag, 1, outgoing.message.deliver_at_ms)
            outcomes.set(index, SendOutcome(result))

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
            value, headers = encode_inner_batch(
                inner, created_ms=created_ms, ids=ids, tag=shipment.tag, deliver_at_ms=shipment.deliver_at_ms
            )
            sent = kafka.send(
                shipment.topic, value=value, headers=headers, partition=shipment.queue_id, timestamp_ms=created_ms
            )
        except Exception as error:  # noqa: BLE001 - it reaches the senders through the futures
            on_done([not_accepted(error, shipment.topic, is_alone=False)] * len(inner))
            return not isinstance(error, NOT_NOW)
        on_answer = partial(self._on_unit, kafka, shipment, on_done)
        sent.add_callback(on_answer).add_errback(on_answer)
        return True

    def _on_unit(self, kafka: Kafka, shipment: Shipment, on_done: OnDone, answer: Answer) -> None:
        if isinstance(answer, Exception):
            on_done([self._outcome(kafka, shipment, answer)] * len(shipment.messages))
        elif answer.offset < 0:
            on_done([without_offset(shipment.topic)] * len(shipment.messages))
        else:
            place = answer.topic, answer.partition, answer.offset, answer.timestamp
            results = [
                SendResult(*place, outgoing.message_id, index) for index, outgoing in enumerate(shipment.messages)
            ]
            self._on_written(results[0], shipment.tag, len(results), shipment.deliver_at_ms)
            on_done([SendOutcome(result) for result in results])

    def _outcome(self, kafka: Kafka, shipment: Shipment, error: Exception) -> SendOutcome:
        is_alone = len(shipment.messages) == 1
        outcome = send_outcome_of(
            error, shipment.topic, is_alone=is_alone, is_only_try=self._tries_once and not shipment.wait_for_store
        )
        if isinstance(outcome.error, OutcomeUnknown):
            self._producers[shipment.wait_for_store].replace(kafka)
        return outcome


class _RecordOutcomes:
    """Collects the outcomes of several records, which arrive one by one, on several threads."""

    def __init__(self, count: int, on_done: OnDone) -> None:
        self._outcomes = [SendOutcome()] * count
        self._left_count = count
        self._on_done = on_done
        self._lock = threading.Lock()

    def set(self, index: int, outcome: SendOutcome) -> None:
        with self._lock:
            self._outcomes[index] = outcome
            self._left_count -= 1
            is_last = not self._left_count
        if is_last:
            self._on_done(self._outcomes)
