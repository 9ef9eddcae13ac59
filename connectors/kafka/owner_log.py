"""The owner of a prefix, in the compacted topic `<prefix>.owner` with one partition.

Its last committed record names the owner. To take a prefix is a compare-and-set: the producers of all contenders have
the same transactional id, so `open_for_writing` fences every earlier producer. A contender that reads the last record
after it, and then commits another one, has replaced what it read.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import msgspec
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaError, TransactionalIdAuthorizationFailedError

from popstream.exchange.resilient_producer import close_producer
from popstream.exchange.transactions import commit, is_fenced, require_bounded_transactions
from popstream.wire.base_errors import Invalid, Unavailable
from popstream.wire.decode_errors import DECODE_ERRORS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from popstream.kafka_connection import KafkaConnection

__all__ = ["LastRecord", "OwnerLog", "SupersededError"]

KEY = b"owner"
CLIENT_ID = "popstream-owner"
TAIL_OFFSETS = 64
"""Offsets that are read first. A transaction takes two, one of them for its control record."""
TIMEOUT_S = 5.0
FIRST_TRANSACTION_S = 15.0
"""The first transaction of a cluster creates Kafka's own topic for transactions."""
TRANSACTION_TIMEOUT_MS = 10_000

Value = TypeVar("Value")


class SupersededError(Exception):
    """Another producer has opened the topic for writing since. The record is not committed."""


class LastRecord(NamedTuple, Generic[Value]):
    """The last committed record, and its Kafka offset, by which equal records differ."""

    kafka_offset: int
    value: Value


class OwnerLog(Generic[Value]):
    """Reads and writes the topic. Not thread-safe.

    Args:
        connection: Which Kafka.
        topic: The topic.
        value_type: Type of the values, which are JSON.
    """

    def __init__(self, connection: KafkaConnection, topic: str, value_type: type[Value]) -> None:
        self._connection = connection
        self._topic = topic
        self._value_type = value_type
        self._producer: Any = None

    @property
    def is_open(self) -> bool:
        """Whether `write` may be called: after `open_for_writing`, until an error."""
        return self._producer is not None

    def last(self) -> LastRecord[Value] | None:
        """Return the last committed record, or None if there is none.

        Raises:
            Unavailable: Kafka does not answer.
            Invalid: The record cannot be decoded.
        """
        with self._errors_translated(), _consumer(self._connection) as consumer:
            found = _last_record(consumer, TopicPartition(self._topic, 0))
        if found is None:
            return None
        try:
            return LastRecord(found.offset, msgspec.json.decode(found.value, type=self._value_type))
        except DECODE_ERRORS as error:
            message = f"the last record of {self._topic} cannot be decoded, perhaps a newer version wrote it: {error}"
            raise Invalid(message, subject=self._topic) from error

    def open_for_writing(self) -> None:
        """Fence every earlier producer of the topic, and abort its open transaction.

        Raises:
            SupersededError: Another producer did the same meanwhile.
            Unavailable: Kafka does not answer.
            Invalid: Kafka does not allow it.
        """
        self.close()
        with self._closed_after_errors(), self._errors_translated():
            self._producer = KafkaProducer(
                **self._connection.for_kafka_python(),
                client_id=CLIENT_ID,
                transactional_id=self._topic,
                transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
                allow_auto_create_topics=False,
                bootstrap_timeout_ms=int(TIMEOUT_S * 1000),
                max_block_ms=int(FIRST_TRANSACTION_S * 1000),
                linger_ms=0,
            )
            require_bounded_transactions(self._producer)
            self._producer.init_transactions()

    def write(self, value: Value) -> None:
        """Commit a record.

        Raises:
            SupersededError: Another producer has opened the topic for writing since.
            Unavailable: Kafka did not confirm it. It may be committed or not.
        """
        with self._closed_after_errors(), self._errors_translated():
            self._producer.begin_transaction()
            sent = self._producer.send(self._topic, key=KEY, value=msgspec.json.encode(value), partition=0)
            commit(self._producer, TIMEOUT_S)
            sent.get(0)

    def close(self) -> None:
        """Disconnect."""
        producer, self._producer = self._producer, None
        if producer is not None:
            close_producer(producer, 1)

    @contextlib.contextmanager
    def _closed_after_errors(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.close()
            raise

    @contextlib.contextmanager
    def _errors_translated(self) -> Iterator[None]:
        try:
            yield
        except TransactionalIdAuthorizationFailedError as error:
            message = (
                f"Kafka does not allow the transactional id {self._topic}: grant the job Write on this transactional id"
            )
            raise Invalid(message, subject=self._topic) from error
        except (KafkaError, TimeoutError) as error:
            if is_fenced(self._producer, error):
                raise SupersededError(str(error)) from error
            message = f"Kafka does not answer about {self._topic}: {error!r}"
            raise Unavailable(message, subject=str(self._connection)) from error


@contextlib.contextmanager
def _consumer(connection: KafkaConnection) -> Iterator[Any]:
    # A new one for each call: calls are rare, and Kafka closes idle connections.
    consumer = KafkaConsumer(
        **connection.for_kafka_python(),
        client_id=CLIENT_ID,
        group_id=None,
        enable_auto_commit=False,
        isolation_level="read_committed",
        allow_auto_create_topics=False,
        bootstrap_timeout_ms=int(TIMEOUT_S * 1000),
    )
    try:
        yield consumer
    finally:
        consumer.close(autocommit=False)


def _last_record(consumer: Any, place: TopicPartition) -> Any | None:  # noqa: ANN401 - kafka-python has no types
    consumer.assign([place])
    timeout_ms = int(TIMEOUT_S * 1000)
    end = consumer.end_offsets([place], timeout_ms=timeout_ms)[place]
    beginning = consumer.beginning_offsets([place], timeout_ms=timeout_ms)[place]
    first, offsets = end, TAIL_OFFSETS
    while first > beginning:
        first, offsets = max(beginning, end - offsets), offsets * 16
        last = None
        for last in _records(consumer, place, first, end):  # noqa: B007 - the last one is wanted
            pass
        if last is not None:
            return last
    return None


def _records(consumer: Any, place: TopicPartition, first: int, end: int) -> Iterator[Any]:  # noqa: ANN401
    """Yield the committed records from `first` on, below `end`."""
    consumer.seek(place, first)
    deadline = time.monotonic() + TIMEOUT_S
    while consumer.position(place) < end:
        for record in consumer.poll(timeout_ms=200).get(place, ()):
            deadline = time.monotonic() + TIMEOUT_S
            if record.value is not None and record.offset < end:
                yield record
        if time.monotonic() > deadline:
            message = f"no records of {place.topic} within {TIMEOUT_S:.0f} s"
            raise TimeoutError(message)
