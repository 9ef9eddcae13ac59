"""Describes one message topic, for a client."""

from __future__ import annotations

from typing import TYPE_CHECKING

from popstream.topics.message_topics import TopicReader
from popstream.wire.base_errors import Invalid

if TYPE_CHECKING:
    from popstream.settings import ClientSettings
    from popstream.topics.message_topics import MessageTopic

__all__ = ["describe_topic"]


def describe_topic(settings: ClientSettings, topic: str) -> MessageTopic:
    """Ask Kafka about a topic, over a connection of its own.

    Raises:
        Invalid: The topic does not exist, or the client is not authorized to describe it.
        Unavailable: Kafka does not answer.
    """
    with TopicReader(settings.connection, client_id=f"{settings.client_id}-admin") as reader:
        found = reader.read([topic]).get(topic)
    if found is None:
        message = f"topic {topic} cannot be described: it does not exist"
        raise Invalid(message, subject=topic)
    return found
