"""Notes of records that are decided alone, in a topic: what finds a record under which the Python worker ends.

Spark repeats a task whose worker has ended, and after `spark.task.maxFailures` the query fails. From the third attempt
on a shard decides one record at a time, each noted before; one under which the worker ends twice is quarantined. What
is stored and what leaves does not show it.

Notes stay when all is decided: the answer that a record is quarantined may have left, and the micro-batch not be
committed. What decides it again, with more memory perhaps, must not decide otherwise.
"""

import msgspec
from kafka import KafkaProducer

from pipelines.cluster.keyed_log import KeyedLog
from pipelines.decide_ops.poison import ALONE_ATTEMPTS_MAX
from popstream.exchange.resilient_producer import close_producer
from popstream.kafka_connection import KafkaConnection

__all__ = ["WHOLE_ATTEMPTS_MAX", "AloneNote", "ShardAttempts", "dead_records"]

WHOLE_ATTEMPTS_MAX = 2
"""Attempts of a task at all records of a shard."""

_TIMEOUT_S = 30


class AloneNote(msgspec.Struct, array_like=True, frozen=True):
    """What a shard is deciding alone.

    Attributes:
        kafka_offset: The record that is decided now; -1: none.
        deaths: How often the process has ended under a record, by offset.
    """

    kafka_offset: int = -1
    deaths: dict[int, int] = {}

    def after_its_end(self) -> "AloneNote":
        """Return the note with which an attempt begins, if this is the last one of an attempt before.

        >>> AloneNote(7, {7: 1}).after_its_end()
        AloneNote(kafka_offset=-1, deaths={7: 2})
        """
        if self.kafka_offset < 0:
            return self
        return AloneNote(-1, {**self.deaths, self.kafka_offset: self.deaths.get(self.kafka_offset, 0) + 1})


class ShardAttempts:
    """The notes of one shard, from the start of an attempt to its end.

    Args:
        connection: The Kafka.
        topic: A compacted topic with one partition.
        ops_partition: The partition of the ops topic that the shard decides.
        state_epoch: Identity of its state: another one has attempts of its own.
    """

    def __init__(self, connection: KafkaConnection, topic: str, ops_partition: int, state_epoch: str) -> None:
        self._topic = topic
        self._key = f"{ops_partition} {state_epoch}".encode()
        self._note = _last_notes(connection, topic).get(self._key, AloneNote()).after_its_end()
        self._producer = KafkaProducer(**connection.for_kafka_python(), acks="all", linger_ms=0)

    def begin(self, kafka_offset: int) -> bool:
        """Note, durably, that a record is about to be decided alone; False: it has been often enough."""
        if self._note.deaths.get(kafka_offset, 0) >= ALONE_ATTEMPTS_MAX:
            return False
        self._write(AloneNote(kafka_offset, self._note.deaths))
        return True

    def pause(self) -> None:
        """Note that no record is decided now."""
        self._write(AloneNote(deaths=self._note.deaths))

    def close(self) -> None:
        """Disconnect."""
        close_producer(self._producer, _TIMEOUT_S)

    def _write(self, note: AloneNote) -> None:
        self._note = note
        value = msgspec.msgpack.encode(note)
        self._producer.send(self._topic, key=self._key, value=value, partition=0).get(timeout=_TIMEOUT_S)


def dead_records(connection: KafkaConnection, topic: str, state_epoch: str) -> dict[int, frozenset[int]]:
    """Return the records that an attempt may have quarantined, by partition of the ops topic; committed or not.

    Args:
        connection: The Kafka.
        topic: The topic of the notes.
        state_epoch: Identity of the state.

    Raises:
        Unavailable: Kafka does not answer.
    """
    found: dict[int, frozenset[int]] = {}
    for key, note in _last_notes(connection, topic).items():
        partition, _, epoch = key.decode().partition(" ")
        # As stored: an attempt has begun after these ends. The end of the job itself is none.
        dead = frozenset(at for at, count in note.deaths.items() if count >= ALONE_ATTEMPTS_MAX)
        if epoch == state_epoch and dead:
            found[int(partition)] = dead
    return found


def _last_notes(connection: KafkaConnection, topic: str) -> dict[bytes, AloneNote]:
    with KeyedLog(connection, topic) as log:
        last = dict(log.to_end())
    return {key: msgspec.msgpack.decode(value, type=AloneNote) for key, value in last.items()}
