"""Where the query writes what it reads of message topics: a port with an implementation for each runner."""

import threading
from collections.abc import Mapping
from typing import Protocol, TypeVar

from pyspark.sql import DataFrame

from broker_state.consume_queue import ConsumeQueue
from popstream.topics.message_topics import MessageTopic
from popstream.wire.command import QueueType
from popstream.wire.queue_name import QueueName

__all__ = ["QueueWriter"]

Read = TypeVar("Read")


class QueueWriter(Protocol[Read]):
    """Takes what is read of the partitions of message topics, each in order. Each change holds `lock`."""

    @property
    def lock(self) -> threading.RLock:
        """Held by each change."""

    @property
    def queues(self) -> Mapping[QueueName, ConsumeQueue]:
        """Every known queue; its end is the offset up to which its partition is read."""

    def update_topics(self, topics: Mapping[str, MessageTopic], queue_types: Mapping[str, QueueType]) -> bool:
        """Begin queues of new and recreated topics, and skip offsets that retention removed.

        Args:
            topics: The chosen topics by name, as Kafka describes them now.
            queue_types: Types of topics that are not simple.

        Returns:
            Whether ends have moved back, so that a new query must read from them.

        Raises:
            Invalid: A queue exists with another type; the type of a queue never changes.
        """

    def wait_for_room(self, timeout_s: float) -> bool:
        """Wait until more may be read; False on timeout."""

    def read(self, frame: DataFrame, ends: Mapping[QueueName, int], batch_topics: frozenset[str]) -> Read:
        """Read a micro-batch, once and for all.

        Args:
            frame: Of `UNIT_SCHEMA`.
            ends: The offset up to which it reads each queue.
            batch_topics: Topics whose records may be inner batches.
        """

    def write(self, read: Read, ends: Mapping[QueueName, int]) -> int:
        """Add what was read at the ends of the queues, which move to `ends`; return the number of records."""

    def truncate(self, queue: QueueName, end_offset: int, *, is_same_log: bool = True) -> int:
        """Remove the units of `end_offset` and after, so that they are read again; return the new end of the queue.

        Args:
            queue: The queue.
            end_offset: The first offset to remove.
            is_same_log: The log still has the same records, so that their rows are not written again.

        Raises:
            Invalid: There is no such queue.
        """
