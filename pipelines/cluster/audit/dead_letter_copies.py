"""Copies the messages of dead letters to their topic, in Spark tasks: they may be large and many.

Each copy is sent once: a task first reads which letters of the time are in the topic already, as a repeated micro-batch
names letters again.
"""

from collections.abc import Iterable, Sequence

import msgspec
from kafka import KafkaProducer
from pyspark.sql import SparkSession

from connectors.kafka.own_topics import Topics
from pipelines.apply_ops.dead_letters.dead_letter_reader import (
    REQUEST_BYTES_MAX,
    message_consumer,
    unsent_messages,
)
from pipelines.apply_ops.dead_letters.earlier_letters import EarlierLetters
from popstream.exchange.resilient_producer import close_producer
from popstream.kafka_connection import KafkaConnection
from popstream.wire.dead_letter import DeadLetter
from popstream.wire.dead_letter_record import copy_of

__all__ = ["copy_dead_letters"]

LETTERS_PER_TASK = 64
_SEND_TIMEOUT_S = 60


def copy_dead_letters(spark: SparkSession, connection: KafkaConnection, prefix: str, letters: Sequence[bytes]) -> None:
    """Copy the messages of letters, which are MessagePack of DeadLetter; return when Kafka has them."""
    if not letters:
        return
    tasks = -(-len(letters) // LETTERS_PER_TASK)
    spark.sparkContext.parallelize(letters, tasks).foreachPartition(
        lambda some: _copy(connection, Topics.of(prefix), some)
    )


def _copy(connection: KafkaConnection, topics: Topics, encoded: Iterable[bytes]) -> None:
    letters = [msgspec.msgpack.decode(each, type=DeadLetter) for each in encoded]
    if not letters:
        return
    earlier = EarlierLetters(topics.dead_letters, topics.ops, {}, letters)
    consumer = message_consumer(connection)
    producer = KafkaProducer(
        **connection.for_kafka_python(), acks="all", enable_idempotence=True, max_request_size=REQUEST_BYTES_MAX
    )
    try:
        earlier.load(consumer)
        sent = []
        for letter in letters:
            for queue_offset, message in unsent_messages(consumer, letter, earlier):
                copy = copy_of(letter, queue_offset, message)
                sent.append(
                    producer.send(topics.dead_letters, value=copy.value, key=copy.key, headers=list(copy.headers))
                )
        for each in sent:
            each.get(timeout=_SEND_TIMEOUT_S)
    finally:
        consumer.close()
        close_producer(producer, _SEND_TIMEOUT_S)
