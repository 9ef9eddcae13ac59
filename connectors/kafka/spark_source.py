"""The options of Spark's Kafka source: how its consumers connect and read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from popstream.client_properties import SECRETS
from popstream.wire.base_errors import Invalid

if TYPE_CHECKING:
    from popstream.kafka_connection import KafkaConnection

__all__ = ["source_options"]

PROVIDER = "popstream"
READING = {
    "kafka.isolation.level": "read_committed",
    # Kafka's default of half a second would delay the micro-batch of an empty fetch.
    "kafka.fetch.max.wait.ms": "50",
    # Spark asks for offsets four times before it fails, and a stop waits for the request in flight.
    "kafka.request.timeout.ms": "15000",
    "kafka.default.api.timeout.ms": "20000",
    "failOnDataLoss": "true",
}


def source_options(connection: KafkaConnection) -> dict[str, str]:
    """Return the options. Secrets are none among them, for Spark shows options in plans and errors.

    Kafka's consumers take the secrets from the file themselves, by a configuration provider (KIP-297).

    >>> from popstream.kafka_connection import KafkaConnection
    >>> source_options(KafkaConnection("kafka:9092"))["kafka.bootstrap.servers"]
    'kafka:9092'

    Raises:
        Invalid: The configuration file is wrong, or its path cannot be written in a reference.
    """
    options = READING | {"kafka.bootstrap.servers": connection.bootstrap_servers}
    properties = connection.properties
    if properties is None:
        return options
    if {*":}"} & {*connection.config_file}:
        message = f"{connection.config_file}: Kafka's consumers in Spark cannot read a file with : or }} in its path"
        raise Invalid(message, subject=connection.config_file)
    names = properties.entries.keys() - {"bootstrap.servers"}
    return options | {
        "kafka.config.providers": PROVIDER,
        f"kafka.config.providers.{PROVIDER}.class": "org.apache.kafka.common.config.provider.FileConfigProvider",
        **{f"kafka.{name}": properties.entries[name] for name in sorted(names - SECRETS)},
        **{f"kafka.{name}": f"${{{PROVIDER}:{connection.config_file}:{name}}}" for name in sorted(names & SECRETS)},
    }
