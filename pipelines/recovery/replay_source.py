"""The log that a process decides again, and the keys with which the job has read it."""

from collections.abc import Callable, Iterator

import msgspec

from pipelines.decide_ops.decode import Decoder, KafkaRecord
from pipelines.recovery.ops_log import ops_record
from popstream.kafka_connection import KafkaConnection
from popstream.wire.handle import Signer
from popstream.wire.signing import KeyRing, OperationVerifier

__all__ = ["Records", "ReplaySource"]

Records = Callable[[int, int, int], Iterator[KafkaRecord]]
"""Reads the records of (partition, first offset, end offset), in order."""


class ReplaySource(msgspec.Struct, frozen=True, kw_only=True):
    """Part of the task of a process.

    Attributes:
        connection: The Kafka.
        topic: The ops topic.
        partition_count: Number of its partitions.
        handle_ring: The job's keys of handles; None: it has none.
        admin_ring: Its keys of operations, likewise.
    """

    connection: KafkaConnection
    topic: str
    partition_count: int
    handle_ring: KeyRing | None = None
    admin_ring: KeyRing | None = None

    def decoder(self) -> Decoder:
        """Return a decoder that decodes as the job's does."""
        verifier = OperationVerifier.of(self.admin_ring, self.topic)
        return Decoder(self.partition_count, Signer.of(self.handle_ring), verifier)

    def records(self, between: Callable[[str, int, int, int], Iterator[object]]) -> Records:
        """Return what reads the log, by a function of `partition_readers`."""

        def records(partition: int, first: int, end: int) -> Iterator[KafkaRecord]:
            return map(ops_record, between(self.topic, partition, first, end))

        return records
