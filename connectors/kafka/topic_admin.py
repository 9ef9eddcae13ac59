"""Kafka's administration of topics: create, describe, read settings.

Every function retries transient errors for at most `TIMEOUT_S`; the rest is raised as `Unavailable` or `Invalid`.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from kafka.admin import ConfigFilterType, ConfigResource, ConfigResourceType, KafkaAdminClient
from kafka.errors import (
    KafkaError,
    NoError,
    TopicAlreadyExistsError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
    for_code,
)
from kafka.net.compat import KafkaNetClient

from popstream.back_off import back_off_s
from popstream.wire.base_errors import Invalid, PopstreamError, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from popstream.kafka_connection import KafkaConnection

__all__ = [
    "BROKER_DEFAULT",
    "FOREVER",
    "NewTopic",
    "TopicAdmin",
    "TopicFacts",
    "create_message_topic",
    "describe",
    "open_admin",
    "retention_ms",
]

TIMEOUT_S = 30.0
RETRY_S = 0.1
RETRY_S_MAX = 2.0
FOREVER = -1
"""Kafka's value of `retention.ms` and `retention.bytes` without a limit."""
BROKER_DEFAULT = -1
"""Kafka's value of a replication factor that the cluster chooses."""

Answer = TypeVar("Answer")


class TopicFacts(msgspec.Struct, frozen=True):
    """What Kafka reports about a topic.

    `topic_id` is the text of a UUID. It differs after a topic was deleted and created again.
    """

    name: str
    topic_id: str
    partition_count: int


class NewTopic(msgspec.Struct, frozen=True):
    """A topic to create. `configs`: its settings, as Kafka's text."""

    name: str
    partitions: int
    replication_factor: int
    configs: dict[str, str]


class _TransientError(Exception):
    """Kafka answered with an error code that a retry may cure."""


class TopicAdmin:
    """Requests to Kafka's controller, each retried while it fails for a transient reason. Made by `open_admin`."""

    def __init__(self, admin: Any) -> None:  # noqa: ANN401 - kafka-python has no types
        self._admin = admin

    def create(self, wanted: Sequence[NewTopic]) -> None:
        """Create topics and wait for their leaders. Topics that exist already are left as they are.

        Raises:
            Invalid: Kafka refuses some of them; one line each.
        """
        if wanted:
            _retried(lambda: self._create(wanted))

    def describe(self, names: Sequence[str]) -> dict[str, TopicFacts]:
        """Return the facts of those topics that exist, by name.

        Raises:
            Invalid: Kafka refuses to describe one.
        """
        return _retried(lambda: self._describe(names))

    def configs(self, names: Sequence[str]) -> dict[str, dict[str, str]]:
        """Return the effective settings of topics, set on the topic or inherited from the broker, by name."""
        return _retried(lambda: self._configs(names))

    def delete(self, name: str) -> None:
        """Delete a topic, if it exists.

        Raises:
            Invalid: Kafka refuses it.
        """
        _retried(lambda: self._delete(name))

    def _create(self, wanted: Sequence[NewTopic]) -> None:
        request = {
            new.name: {
                "num_partitions": new.partitions,
                "replication_factor": new.replication_factor,
                "configs": new.configs,
            }
            for new in wanted
        }
        answer = self._admin.create_topics(request, raise_errors=False)
        refused = []
        for topic in answer["topics"]:
            error = for_code(topic["error_code"])
            if error.retriable:
                raise _TransientError(error.__name__)
            if error is TopicAuthorizationFailedError:
                refused.append(f"{topic['name']}: grant Create on this topic, or create it first")
            elif error not in (NoError, TopicAlreadyExistsError):
                refused.append(f"{topic['name']}: {error.__name__}: {topic.get('error_message')}")
        if refused:
            message = f"Kafka refuses to create {len(refused)} of {len(wanted)} topics:"
            raise Invalid(message, subject=", ".join(request), details=refused)
        self._admin.wait_for_topics(list(request))

    def _delete(self, name: str) -> None:
        (topic,) = self._admin.delete_topics([name], raise_errors=False)["topics"]
        error = for_code(topic["error_code"])
        if error.retriable and error is not UnknownTopicOrPartitionError:
            raise _TransientError(error.__name__)
        if error is TopicAuthorizationFailedError:
            message = f"Kafka does not allow deleting topic {name}: grant Delete on it"
            raise Invalid(message, subject=name)
        if error not in (NoError, UnknownTopicOrPartitionError):
            message = f"Kafka refuses to delete topic {name}: {error.__name__}"
            raise Invalid(message, subject=name)

    def _describe(self, names: Sequence[str]) -> dict[str, TopicFacts]:
        facts = {}
        for topic in self._admin.describe_topics(list(names)):  # None would be all topics, an empty list is none
            error = for_code(topic["error_code"])
            if error is UnknownTopicOrPartitionError:
                continue
            if error.retriable:
                reason = f"{topic['name']}: {error.__name__}"
                raise _TransientError(reason)
            if error is TopicAuthorizationFailedError:
                message = f"Kafka does not allow describing topic {topic['name']}: grant Describe on it"
                raise Invalid(message, subject=topic["name"])
            if error is not NoError:
                message = f"Kafka refuses to describe topic {topic['name']}: {error.__name__}"
                raise Invalid(message, subject=topic["name"])
            facts[topic["name"]] = TopicFacts(topic["name"], str(topic["topic_id"]), len(topic["partitions"]))
        return facts

    def _configs(self, names: Sequence[str]) -> dict[str, dict[str, str]]:
        resources = [ConfigResource(ConfigResourceType.TOPIC, name) for name in names]
        answer = self._admin.describe_configs(resources, config_filter=ConfigFilterType.ALL) if resources else {}
        configs = {}
        for name in names:
            # kafka-python drops the error code: a topic that this broker does not know yet has no settings at all.
            entries = answer["topic"][name]
            if not entries:
                reason = f"the settings of {name} cannot be read"
                raise _TransientError(reason)
            configs[name] = {setting: entry["value"] for setting, entry in entries.items()}
        return configs


@contextlib.contextmanager
def open_admin(connection: KafkaConnection) -> Iterator[TopicAdmin]:
    """Connect an admin client; Kafka's errors leave the context as errors of this project.

    Args:
        connection: Which Kafka.

    Raises:
        Invalid: Kafka refuses a request.
        Unavailable: Kafka does not answer.
    """

    def open_client(**settings: object) -> Any:  # noqa: ANN401 - kafka-python has no types
        # An admin client that finds no broker leaves its thread and sockets behind, and no object to close: close what
        # it is made of.
        opened = KafkaNetClient(**settings)
        resources.callback(opened.close)
        return opened

    settings = {
        "bootstrap_timeout_ms": int(TIMEOUT_S * 1000),
        "kafka_client": open_client,
        **connection.for_kafka_python(),
    }
    try:
        with contextlib.ExitStack() as resources:
            admin = KafkaAdminClient(**settings)
            resources.callback(admin.close)
            yield TopicAdmin(admin)
    except (KafkaError, _TransientError) as error:
        is_transient = _is_transient(error)
        kind: type[PopstreamError] = Unavailable if is_transient else Invalid
        message = f"Kafka at {connection} {'does not answer' if is_transient else 'refuses'}: {error}"
        raise kind(message, subject=str(connection)) from error


def describe(connection: KafkaConnection, names: Sequence[str]) -> dict[str, TopicFacts]:
    """Return ids and partition counts of those topics that exist, by name.

    Raises:
        Invalid: A name is illegal, or the topic may not be described.
        Unavailable: Kafka does not answer.
    """
    with open_admin(connection) as admin:
        return admin.describe(names)


def retention_ms(connection: KafkaConnection, name: str) -> int | None:
    """Return for how long a topic keeps its records, in milliseconds; None: forever.

    Raises:
        Invalid: The settings of the topic may not be read.
        Unavailable: Kafka does not answer, or the topic does not exist.
    """
    with open_admin(connection) as admin:
        found = int(admin.configs([name])[name]["retention.ms"])
    return None if found == FOREVER else found


def create_message_topic(
    connection: KafkaConnection,
    name: str,
    partitions: int,
    *,
    configs: Mapping[str, str] | None = None,
    replication_factor: int = BROKER_DEFAULT,
) -> TopicFacts:
    """Create a message topic, and wait until it can be written to.

    Raises:
        Invalid: It exists with another number of partitions, or Kafka refuses it.
        Unavailable: Kafka does not answer.
    """
    with open_admin(connection) as admin:
        admin.create([NewTopic(name, partitions, replication_factor, dict(configs or {}))])
        facts = admin.describe([name])[name]
    if facts.partition_count != partitions:
        message = f"topic {name} exists with {facts.partition_count} partitions, not {partitions}"
        raise Invalid(message, subject=name)
    return facts


def _is_transient(error: Exception) -> bool:
    return isinstance(error, _TransientError) or (isinstance(error, KafkaError) and bool(error.retriable))


def _retried(request: Callable[[], Answer]) -> Answer:
    """Return the answer to a request, sent again while it fails for a transient reason."""
    deadline = time.monotonic() + TIMEOUT_S
    for failures in itertools.count(1):
        try:
            return request()
        except (KafkaError, _TransientError) as error:
            pause_s = back_off_s(failures, first_s=RETRY_S, max_s=RETRY_S_MAX)
            if not _is_transient(error) or time.monotonic() + pause_s > deadline:
                raise
        time.sleep(pause_s)
    raise AssertionError  # itertools.count does not end
