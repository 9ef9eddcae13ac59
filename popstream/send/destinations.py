"""Finds the destination of each message: the queue of its key, and the type of its topic."""

from __future__ import annotations

import logging
import time
from functools import lru_cache
from typing import TYPE_CHECKING, get_args

from popstream.errors import NotWritten
from popstream.exchange.partitioner import partition_of
from popstream.send.outgoing import Destination
from popstream.wire.base_errors import Invalid, Unavailable
from popstream.wire.command import QueueType
from popstream.wire.deliver_at import AT_ONCE

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from popstream.payload.inner_batch import TypeOf
    from popstream.send.outgoing import OutgoingMessage

    PartitionsOf = Callable[..., Collection[int]]

__all__ = ["Destinations", "TopicTypes"]

LOG = logging.getLogger(__name__)

_partition_of = lru_cache(maxsize=4096)(partition_of.__wrapped__)
"""A cache of its own: there may be as many keys as messages, and they must not evict the keys of operations."""

NEW_TOPIC_PAUSE_S = 0.05
DESCRIBE_AFTER_S = 1.0
"""A topic without metadata after this time may not exist, so Kafka is asked to describe it."""


class TopicTypes:
    """The types of topics: as the job reports them, or as the producer was given them.

    Args:
        job_type_of: Returns the type that the job reports; None: it does not build the topic.
        given_types: Types of topics that the job does not build.

    Raises:
        Invalid: One of the given types does not exist.
    """

    def __init__(self, job_type_of: TypeOf, given_types: Mapping[str, QueueType]) -> None:
        self._job_type_of = job_type_of
        self._given_types = dict(given_types)
        if unknown := sorted(set(self._given_types.values()) - set(get_args(QueueType))):
            message = f"a topic is one of {', '.join(get_args(QueueType))}, not {', '.join(map(str, unknown))}"
            raise Invalid(message, subject="queue_types")

    def of(self, topic: str) -> QueueType:
        """Return the type of a topic's queues.

        Raises:
            Invalid: The job reports another type than the producer was given.
        """
        reported, given = self._job_type_of(topic), self._given_types.get(topic)
        if reported is not None and given is not None and reported != given:
            message = f"{topic} is a {reported} topic, but the queue_types of this producer name it {given}"
            raise Invalid(message, subject=topic)
        return reported or given or "simple"


class Destinations:
    """Finds the destination of each message of one producer. Safe for use by many threads.

    Args:
        types: The types of topics.
        partitions_of: Returns the partitions of a topic as far as they are known (`KafkaWriter.partitions`).
        describe: Asks Kafka about a topic, and raises `Invalid` when it does not exist.
        timeout_s: How long to wait for the metadata of a topic.
    """

    def __init__(
        self,
        types: TopicTypes,
        partitions_of: PartitionsOf,
        describe: Callable[[str], object],
        *,
        timeout_s: float,
    ) -> None:
        self._types = types
        self._partitions_of = partitions_of
        self._describe = describe
        self._timeout_s = timeout_s
        self._known_topics: set[tuple[str, bool]] = set()

    def knows(self, topic: str, *, wait_for_store: bool) -> bool:
        """Tell whether the metadata of a topic are known, so that `of` does not wait for them."""
        return (topic, wait_for_store) in self._known_topics

    def learn(self, topic: str, *, wait_for_store: bool) -> None:
        """Wait for the metadata of a topic, as `of` does at its first message.

        Raises:
            Invalid: The topic does not exist.
            NotWritten: Kafka does not answer.
        """
        self._types.of(topic)
        if not self.knows(topic, wait_for_store=wait_for_store):
            self._await_metadata(topic, wait_for_store=wait_for_store)

    def of(self, message: OutgoingMessage) -> Destination:
        """Return the destination of a message; wait for the metadata at the first message for a topic.

        Raises:
            Invalid: The topic or queue does not exist, or topics of this type do not take the message.
            NotWritten: Kafka does not answer.
        """
        topic, queue_id = message.topic, message.queue_id
        queue_type = self._types.of(topic)
        if not self.knows(topic, wait_for_store=message.wait_for_store):
            self._await_metadata(topic, wait_for_store=message.wait_for_store)
        if queue_id is not None:
            partitions = self._partitions_of(topic)
            if partitions and queue_id not in partitions:
                text = f"topic {topic} has no queue {queue_id}, only {len(partitions)}"
                raise Invalid(text, subject=topic)
        elif message.key is not None:
            queue_id = _partition_of(message.key, max(1, len(self._partitions_of(topic))))
        elif message.dedup_id is not None:  # so that repeats meet in one queue
            queue_id = _partition_of(message.dedup_id.encode(), max(1, len(self._partitions_of(topic))))
        if message.key is None and queue_type == "sparse":
            text = f"{topic} is a sparse topic, which Kafka compacts by key: a message needs one"
            raise Invalid(text, subject=topic)
        if message.dedup_id is not None and queue_type != "simple":
            text = f"{topic} is a {queue_type} topic, whose duplicates the job does not drop: send without dedup_id"
            raise Invalid(text, subject=topic)
        is_batch = queue_type == "batch"
        deliver_at_ms = message.deliver_at_ms if is_batch else AT_ONCE
        return Destination(topic, queue_id, message.wait_for_store, message.tag or None, is_batch, deliver_at_ms)

    def _await_metadata(self, topic: str, *, wait_for_store: bool) -> None:
        """Wait until Kafka has returned the partitions of a topic.

        Raises:
            Invalid: The topic does not exist, or the client may not describe it.
            NotWritten: Kafka does not answer.
        """
        began_s = time.monotonic()
        is_described = False
        while not self._partitions(topic, wait_for_store=wait_for_store):
            waited_s = time.monotonic() - began_s
            if waited_s > DESCRIBE_AFTER_S and not is_described:
                try:
                    self._describe(topic)
                    is_described = True
                except Unavailable as error:
                    LOG.info("%s", error)
            if waited_s > self._timeout_s:
                message = f"Kafka does not return the partitions of {topic}"
                raise NotWritten(message, subject=topic)
            time.sleep(NEW_TOPIC_PAUSE_S)
        self._known_topics.add((topic, wait_for_store))

    def _partitions(self, topic: str, *, wait_for_store: bool) -> Collection[int]:
        try:
            return self._partitions_of(topic, wait_for_store=wait_for_store)
        except Unavailable as error:
            raise NotWritten(error.message, subject=topic) from error
