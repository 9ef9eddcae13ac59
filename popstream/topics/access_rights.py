"""What Kafka's ACLs allow a client to do with topics: asked at its start, as a later refusal may look like an outage.

Operations have the names of `kafka-acls.sh`; Read and Write include Describe.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kafka.admin import KafkaAdminClient
from kafka.errors import KafkaError, NoError, TopicAuthorizationFailedError, for_code

from popstream.wire.base_errors import Invalid, Unavailable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from popstream.kafka_connection import KafkaConnection

__all__ = ["access_refused", "lacking_rights", "require_rights", "rights_refused"]

TIMEOUT_MS = 10_000
_NAMES = {"READ": "Read", "WRITE": "Write", "DESCRIBE": "Describe", "DESCRIBE_CONFIGS": "DescribeConfigs"}


def require_rights(connection: KafkaConnection, client_id: str, wanted: Mapping[str, Sequence[str]]) -> None:
    """Check that this client may do what it will do with the topics; those that do not exist are passed over.

    Without a login there is nobody to grant a right to, and nothing is asked.

    Args:
        connection: Which Kafka.
        client_id: Name in Kafka's logs.
        wanted: Operations by topic, such as `Read`.

    Raises:
        Invalid: Rights are missing; the message names all of them.
        Unavailable: Kafka does not answer.
    """
    if not connection.config_file:
        return
    options = {"client_id": client_id, "bootstrap_timeout_ms": TIMEOUT_MS, **connection.for_kafka_python()}
    try:
        admin = KafkaAdminClient(**options)
        try:
            topics = admin.describe_topics([*wanted])
        finally:
            admin.close()
    except KafkaError as error:
        message = f"Kafka at {connection} does not say what this client may do: {error!r}"
        raise Unavailable(message, subject=str(connection)) from error
    lacking = {topic["name"]: lacking_rights(topic, wanted[topic["name"]]) for topic in topics}
    if any(lacking.values()):
        raise rights_refused(connection, lacking)


def lacking_rights(topic: Mapping[str, Any], wanted: Sequence[str]) -> list[str]:
    """Return those of the operations that Kafka does not allow; `topic` is its description by an admin client.

    >>> lacking_rights({"error_code": 0, "authorized_operations": ["READ", "DESCRIBE"]}, ["Read", "Write"])
    ['Write']
    >>> lacking_rights({"error_code": TopicAuthorizationFailedError.errno}, ["Read", "Write"])
    ['Read', 'Write']
    """
    error = for_code(topic["error_code"])
    if error is TopicAuthorizationFailedError:
        return [*wanted]
    allowed = topic.get("authorized_operations") if error is NoError else None
    if allowed is None:
        return []
    return [operation for operation in wanted if operation not in {_NAMES.get(name) for name in allowed}]


def rights_refused(connection: KafkaConnection, lacking: Mapping[str, Sequence[str]]) -> Invalid:
    """Return the error that says which operations on which topics to allow."""
    topics: dict[str, list[str]] = {}
    for topic, operations in sorted(lacking.items()):
        topics.setdefault(" and ".join(operations), []).append(topic)
    topics.pop("", None)
    rights = "; ".join(f"{operations} on topic {', '.join(names)}" for operations, names in topics.items())
    return access_refused(connection, rights)


def access_refused(connection: KafkaConnection, rights: str) -> Invalid:
    """Return the error that says which rights to grant the user of a connection."""
    properties = connection.properties
    name = properties.username if properties is not None else ""
    proof = "certificate" if properties is None or properties.token_request is None else "token"
    user = f"User:{name}" if name else f"the user of this client's {proof}"
    message = f"Kafka does not allow {user} what is needed: grant {rights}"
    return Invalid(message, subject=str(connection))
