"""Looks whether Kafka is about to delete what was decided and is not written: nothing else has it."""

import contextlib
import time
from collections.abc import Callable, Mapping

import structlog
from kafka import KafkaConsumer, TopicPartition

from connectors.kafka.topic_admin import TopicFacts, retention_ms
from pipelines.loops.periodic import Periodic
from pipelines.process.log_watch import REQUEST_TIMEOUT_S, due_offsets
from popstream.kafka_connection import KafkaConnection

__all__ = ["AuditRetention"]

_log = structlog.get_logger(__name__)

INTERVAL_S = 60.0


class AuditRetention:
    """Asks Kafka once a minute, from `start` to `stop`.

    Args:
        connection: The Kafka.
        audit: The topic.
        written: Returns, by partition, the first offset that is not written. It may raise.

    Attributes:
        overdue: Offsets that were not written and older than half of the topic's retention when Kafka was asked last.
    """

    def __init__(
        self, connection: KafkaConnection, audit: TopicFacts, written: Callable[[], Mapping[int, int]]
    ) -> None:
        self._connection = connection
        self._audit = audit
        self._written = written
        self.overdue = 0
        self._looking = Periodic("audit-retention", INTERVAL_S, self.look)

    def start(self) -> None:
        """Start the thread."""
        self._looking.start()

    def stop(self) -> None:
        """End it."""
        self._looking.stop()

    @property
    def problem(self) -> str | None:
        """What to do before rows are lost; None: nothing."""
        if not self.overdue:
            return None
        return (
            f"{self.overdue:,} entries of {self._audit.name} are older than half of its retention and not written to"
            " the tables or the dead-letter topic: raise its retention.ms until they are"
        )

    def look(self) -> None:
        """Ask Kafka. Raises errors of Kafka, and of the place of the checkpoint."""
        keeps_ms = retention_ms(self._connection, self._audit.name)
        written = self._written()
        options = self._connection.for_kafka_python()
        with contextlib.closing(KafkaConsumer(**options, enable_auto_commit=False)) as consumer:
            partitions = [TopicPartition(self._audit.name, number) for number in range(self._audit.partition_count)]
            end = consumer.end_offsets(partitions, timeout_ms=REQUEST_TIMEOUT_S * 1000)
            due = due_offsets(consumer, end, keeps_ms, time.time() * 1000)
        before = self.overdue
        self.overdue = sum(max(0, offset - written.get(at.partition, 0)) for at, offset in due.items())
        if self.overdue and not before:
            _log.warning("audit_overdue", records=self.overdue, retention_ms=keeps_ms)
        if before and not self.overdue:
            _log.info("audit_no_longer_overdue")
