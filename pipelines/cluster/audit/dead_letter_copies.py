"""Copies the messages of dead letters to their topic, in Spark tasks: they may be large and many.

Each copy is sent once. A letter comes again if a micro-batch was repeated by a new start of the query, or if a new
checkpoint decides a part of the log again: the driver reads which letters are in the topic when the first one comes
after a start. And if a task is repeated: such a task reads the topic by itself.
"""

from collections.abc import Iterable, Iterator, Sequence

import msgspec
from kafka import KafkaProducer
from pyspark import TaskContext
from pyspark.core.broadcast import Broadcast
from pyspark.sql import SparkSession

from connectors.kafka.own_topics import Topics
from pipelines.apply_ops.dead_letters.dead_letter_reader import (
    REQUEST_BYTES_MAX,
    message_consumer,
    unsent_messages,
)
from pipelines.apply_ops.dead_letters.earlier_letters import MARGIN_MS, SentLetters, letters_of
from popstream.exchange.resilient_producer import close_producer
from popstream.kafka_connection import KafkaConnection
from popstream.wire.dead_letter import DeadLetter
from popstream.wire.dead_letter_record import copy_of

__all__ = ["DeadLetterCopies", "in_tasks"]

MESSAGES_PER_TASK = 2_000
"""A letter has up to ten thousand messages, or one."""
_SEND_TIMEOUT_S = 60


class DeadLetterCopies:
    """Copies letters from one start of the audit query to its end.

    Args:
        spark: The session.
        connection: The Kafka.
        prefix: Prefix of the job's topics.
    """

    def __init__(self, spark: SparkSession, connection: KafkaConnection, prefix: str) -> None:
        self._spark = spark
        self._connection = connection
        self._topic = Topics.of(prefix).dead_letters
        self._known: Broadcast[set[bytes]] | None = None
        self._known_from_ms = 0

    def copy(self, encoded: Sequence[bytes]) -> None:
        """Copy the messages of letters, which are MessagePack of DeadLetter; return when Kafka has them.

        Raises:
            Unavailable: It is not known which letters were sent.
        """
        if not encoded:
            return
        letters = [msgspec.msgpack.decode(each, type=DeadLetter) for each in encoded]
        known = self._known_letters(min(letter.at_ms for letter in letters))
        connection, topic = self._connection, self._topic
        tasks = list(in_tasks(letters))
        self._spark.sparkContext.parallelize(tasks, len(tasks)).foreachPartition(
            lambda some: _copy(connection, topic, [letter for task in some for letter in task], known)
        )

    def _known_letters(self, oldest_ms: int) -> "Broadcast[set[bytes]]":
        """Return what was sent before the start; read again where a shard is minutes further back in the log."""
        if self._known is None or oldest_ms < self._known_from_ms:
            self._known_from_ms = oldest_ms - MARGIN_MS
            consumer = message_consumer(self._connection)
            try:
                known = letters_of(consumer, self._topic, self._known_from_ms)
            finally:
                consumer.close()
            self._known = self._spark.sparkContext.broadcast(known)
        return self._known


def in_tasks(letters: Iterable[DeadLetter]) -> Iterator[list[DeadLetter]]:
    """Divide letters, in their order, by the number of their messages."""
    task: list[DeadLetter] = []
    messages = 0
    for letter in letters:
        task.append(letter)
        messages += letter.last - letter.first + 1
        if messages >= MESSAGES_PER_TASK:
            yield task
            task, messages = [], 0
    if task:
        yield task


def _copy(
    connection: KafkaConnection, topic: str, letters: Sequence[DeadLetter], known: "Broadcast[set[bytes]]"
) -> None:
    consumer = message_consumer(connection)
    producer = KafkaProducer(
        **connection.for_kafka_python(), acks="all", enable_idempotence=True, max_request_size=REQUEST_BYTES_MAX
    )
    try:
        is_repeated = _is_repeated()
        oldest_ms = min(letter.at_ms for letter in letters)
        earlier = SentLetters(letters_of(consumer, topic, oldest_ms) if is_repeated else known.value)
        sent = []
        for letter in letters:
            for queue_offset, message in unsent_messages(consumer, letter, earlier):
                copy = copy_of(letter, queue_offset, message)
                sent.append(producer.send(topic, value=copy.value, key=copy.key, headers=list(copy.headers)))
        for each in sent:
            each.get(timeout=_SEND_TIMEOUT_S)
    finally:
        consumer.close()
        close_producer(producer, _SEND_TIMEOUT_S)


def _is_repeated() -> bool:
    """Return whether another attempt of this task may have sent letters. Without a shuffle no stage is repeated."""
    context = TaskContext.get()
    assert context is not None, "in a task"
    return context.attemptNumber() > 0
