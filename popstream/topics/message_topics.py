"""Reads the message topics from Kafka: their names and ids, and where the log of each partition starts and ends."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any, Literal, Self

import msgspec
from kafka import TopicPartition
from kafka.admin import (
    ConfigFilterType,
    ConfigResource,
    ConfigResourceType,
    KafkaAdminClient,
    OffsetSpec,
)
from kafka.errors import (
    KafkaError,
    NoError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
    for_code,
)

from popstream.topics.access_rights import lacking_rights, rights_refused
from popstream.wire.base_errors import Invalid, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from types import TracebackType

    from popstream.kafka_connection import KafkaConnection

__all__ = ["MessageTopic", "TopicReader"]

LOG = logging.getLogger(__name__)

TIMEOUT_MS = 30_000


class MessageTopic(msgspec.Struct, frozen=True):
    """A message topic, as Kafka describes it.

    Attributes:
        topic_id: Text of a UUID; a topic that is deleted and created again has another one.
        starts: First offset of the log of each queue that has a leader.
        ends: End of the committed part of each of these: the offset after its last record that can be read.
        leaderless: The other queues. Of their logs nothing is known at the moment.
    """

    name: str
    topic_id: str
    starts: dict[int, int]
    ends: dict[int, int]
    leaderless: frozenset[int] = frozenset()

    def bounds(self, queue_ids: Iterable[int] | None = None) -> dict[int, tuple[int, int]]:
        """Return where the log of each queue starts, and where its committed part ends.

        For those that must not take what is not known for what is not there.

        Args:
            queue_ids: Only these queues; those that do not exist are missing.

        Raises:
            Unavailable: A queue has no leader.
        """
        wanted = self.starts.keys() | self.leaderless if queue_ids is None else {*queue_ids}
        if unknown := sorted(wanted & self.leaderless):
            message = f"partitions {unknown} of topic {self.name} have no leader: what they hold is not known now"
            raise Unavailable(message, subject=self.name)
        return {queue_id: (start, self.ends[queue_id]) for queue_id, start in self.starts.items() if queue_id in wanted}


class TopicReader:
    """Asks Kafka about topics, over one connection that the first request opens. For one thread.

    Args:
        connection: Which Kafka.
        client_id: Name in Kafka's logs.
    """

    def __init__(self, connection: KafkaConnection, *, client_id: str) -> None:
        self._connection = connection
        self._client_id = client_id
        self._warned_of: dict[str, list[str]] = {}
        self._admin: Any = None

    def choose(self, chosen: Callable[[Iterable[str]], Iterable[str]]) -> dict[str, MessageTopic]:
        """Return the topics, by name, that `chosen` selects from the names of all topics.

        Those that this client may not read are left out, with a warning.

        Raises:
            Unavailable: Kafka does not answer.
            Invalid: Kafka refuses the request.
        """
        with self._asking("its topics"):
            found = {topic["name"]: topic for topic in self._client().describe_topics()}
            lacking = {name: lacking_rights(found[name], ["Read", "DescribeConfigs"]) for name in chosen(found)}
            self._warn_of({name: rights for name, rights in lacking.items() if rights})
            return self._located([found[name] for name, rights in lacking.items() if not rights])

    def read(self, names: Sequence[str]) -> dict[str, MessageTopic]:
        """Return topics by name; those that do not exist are missing. Raises the errors of `choose`."""
        with self._asking(f"topics {', '.join(names)}"):
            return self._located(self._existing(names))

    def written_end(self, name: str, queue_id: int) -> int:
        """Return the end of the log of a queue, behind what is not committed yet. Raises the errors of `choose`."""
        with self._asking(f"topic {name}"):
            place = [TopicPartition(name, queue_id)]
            return self._offsets(place, OffsetSpec.LATEST, "read_uncommitted")[name][queue_id]

    def compacted(self, names: Sequence[str]) -> set[str]:
        """Return the names of the topics that Kafka compacts.

        Raises:
            Unavailable: Kafka does not answer, or does not know the settings of a topic yet.
            Invalid: Kafka refuses.
        """
        if not names:
            return set()
        resources = [ConfigResource(ConfigResourceType.TOPIC, name) for name in names]
        with self._asking("the settings of topics"):
            answer = self._client().describe_configs(resources, config_filter=ConfigFilterType.ALL)["topic"]
        unknown = [name for name in names if "cleanup.policy" not in (answer.get(name) or {})]
        if unknown:
            message = f"Kafka does not return the settings of {', '.join(unknown)}"
            raise Unavailable(message, subject=unknown[0])
        return {name for name in names if "compact" in answer[name]["cleanup.policy"]["value"]}

    def close(self) -> None:
        """Disconnect."""
        if self._admin is not None:
            self._admin.close()
            self._admin = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _client(self) -> Any:  # noqa: ANN401 - kafka-python has no types
        if self._admin is None:
            self._admin = KafkaAdminClient(**{"client_id": self._client_id, **self._connection.for_kafka_python()})
        return self._admin

    def _warn_of(self, lacking: dict[str, list[str]]) -> None:
        if lacking and lacking != self._warned_of:
            LOG.warning("these topics are left out: %s", rights_refused(self._connection, lacking))
        self._warned_of = lacking

    def _existing(self, names: Sequence[str]) -> list[dict[str, Any]]:
        # kafka-python takes an empty list for no topics, not for all.
        found = []
        for topic in self._client().describe_topics(list(names)):
            error = for_code(topic["error_code"])
            if error is UnknownTopicOrPartitionError:
                continue
            if error is not NoError:
                raise error(topic["name"])
            found.append(topic)
        return found

    def _located(self, topics: Sequence[Mapping[str, Any]]) -> dict[str, MessageTopic]:
        partitions = [
            TopicPartition(topic["name"], partition["partition_index"])
            for topic in topics
            for partition in topic["partitions"]
            # A partition without a leader is left out: it must not delay the others.
            if not partition["error_code"]
        ]
        starts = self._offsets(partitions, OffsetSpec.EARLIEST)
        ends = self._offsets(partitions, OffsetSpec.LATEST)
        return {
            topic["name"]: MessageTopic(
                topic["name"],
                str(topic["topic_id"]),
                starts.get(topic["name"], {}),
                ends.get(topic["name"], {}),
                frozenset(one["partition_index"] for one in topic["partitions"] if one["error_code"]),
            )
            for topic in topics
        }

    def _offsets(
        self,
        partitions: Sequence[TopicPartition],
        spec: OffsetSpec,
        isolation: Literal["read_committed", "read_uncommitted"] = "read_committed",
    ) -> dict[str, dict[int, int]]:
        if not partitions:
            return {}
        # With read_committed, an open transaction ends the log.
        answer = self._client().list_partition_offsets(dict.fromkeys(partitions, spec), isolation, TIMEOUT_MS)
        offsets: dict[str, dict[int, int]] = {}
        for partition, found in answer.items():
            offsets.setdefault(partition.topic, {})[partition.partition] = found.offset
        return offsets

    @contextlib.contextmanager
    def _asking(self, what: str) -> Iterator[None]:
        try:
            yield
        except TopicAuthorizationFailedError as error:
            message = f"Kafka does not allow describing {what}: grant Read to a consumer, Write to a producer"
            raise Invalid(message, subject=str(self._connection)) from error
        except KafkaError as error:
            is_passing = error.retriable or isinstance(error, UnknownTopicOrPartitionError)
            message = f"Kafka at {self._connection} does not describe {what}: {error!r}"
            raise (Unavailable if is_passing else Invalid)(message, subject=str(self._connection)) from error
