"""Looks whether Kafka is about to delete what was decided and is not written: nothing else has it."""

import contextlib
import time
from collections.abc import Callable, Mapping

import structlog
from kafka import KafkaConsumer, TopicPartition

from connectors.kafka.kafka_errors import kafka_errors
from connectors.kafka.topic_admin import TopicFacts, retention_ms
from pipelines.loops.periodic import Periodic
from pipelines.process.log_watch import REQUEST_TIMEOUT_S, due_offsets
from popstream.kafka_connection import KafkaConnection

__all__ = ["AuditRetention"]

_log = structlog.get_logger(__name__)

INTERVAL_S = 60.0
TOLD_SHARE, HELD_BACK_SHARE = 0.5, 0.75
"""Shares of the retention after which an entry that waits is told of, and holds back all decisions: in the rest of it
somebody brings Delta back, or lets Kafka keep more."""


class AuditRetention:
    """Asks Kafka once a minute, from `start` to `stop`.

    Args:
        connection: The Kafka.
        audit: The topic.
        written: Returns, by partition, the first offset that is not written. It may raise.

    Attributes:
        overdue: Offsets that were not written and older than half of the topic's retention when Kafka was asked last.
        holds_back: Whether one of them was older than three quarters of it: then nothing more is to be decided.
    """

    def __init__(
        self, connection: KafkaConnection, audit: TopicFacts, written: Callable[[], Mapping[int, int]]
    ) -> None:
        self._connection = connection
        self._audit = audit
        self._written = written
        self.overdue = 0
        self.holds_back = False
        self._looking = Periodic("audit-retention", INTERVAL_S, self.look)

    def start(self) -> None:
        """Start the thread, which looks after a minute."""
        self._looking.start()

    def stop(self) -> None:
        """End it."""
        self._looking.stop()

    @property
    def problem(self) -> str | None:
        """What to do before rows are lost; None: nothing."""
        if not self.overdue:
            return None
        held_back = "; some are older than three quarters of it, and nothing is decided" if self.holds_back else ""
        return (
            f"{self.overdue:,} entries of {self._audit.name} are older than half of its retention and not written to"
            f" the tables or the dead-letter topic{held_back}: raise its retention.ms until they are"
        )

    def look(self) -> None:
        """Ask Kafka.

        Raises:
            Corrupt: The checkpoint does not say what is written.
            Invalid: The settings of the topic may not be read.
            Unavailable: Kafka or the place of the checkpoint does not answer.
        """
        keeps_ms = retention_ms(self._connection, self._audit.name)
        written = self._written()
        options = self._connection.for_kafka_python()
        with (
            kafka_errors(f"{self._audit.name} cannot be read", self._audit.name),
            contextlib.closing(KafkaConsumer(**options, enable_auto_commit=False)) as consumer,
        ):
            partitions = [TopicPartition(self._audit.name, number) for number in range(self._audit.partition_count)]
            end = consumer.end_offsets(partitions, timeout_ms=REQUEST_TIMEOUT_S * 1000)
            now_ms = time.time() * 1000
            overdue, holding_back = (
                _unwritten(written, due_offsets(consumer, end, keeps_ms, now_ms, share=share))
                for share in (TOLD_SHARE, HELD_BACK_SHARE)
            )
        if overdue and not self.overdue:
            _log.warning("audit_overdue", records=overdue, retention_ms=keeps_ms)
        if self.overdue and not overdue:
            _log.info("audit_no_longer_overdue")
        self.overdue, self.holds_back = overdue, bool(holding_back)


def _unwritten(written: Mapping[int, int], due: Mapping[TopicPartition, int]) -> int:
    """Return how many offsets below these are not written."""
    return sum(max(0, offset - written.get(at.partition, 0)) for at, offset in due.items())
