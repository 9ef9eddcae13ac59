"""The options of Spark's Kafka source and sink: how consumers and producers connect, read and write."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from popstream.client_properties import SECRETS
from popstream.jaas_login import parse_jaas, quoted
from popstream.key_stores import is_locked_by_pbes2
from popstream.oauth_properties import CLIENT_ID, CLIENT_SECRET, HANDLER, HANDLER_CLASS, JAAS, MODULE, SCOPE
from popstream.wire.base_errors import Invalid

if TYPE_CHECKING:
    from collections.abc import Mapping

    from popstream.client_properties import ClientProperties
    from popstream.kafka_connection import KafkaConnection

__all__ = ["sink_options", "source_options", "starting_offsets"]

PROVIDER = "popstream"
READING = {
    "kafka.isolation.level": "read_committed",
    # A consumer of Spark asks for the next records at once, and then where the log ends. Kafka answers a connection in
    # order: it would hold back each partition of each micro-batch for this time, by default half a second.
    "kafka.fetch.max.wait.ms": "1",
    # Spark asks for offsets four times before it fails, and a stop waits for the request in flight.
    "kafka.request.timeout.ms": "15000",
    "kafka.default.api.timeout.ms": "20000",
    "failOnDataLoss": "true",
}
WRITING = {
    # The topics take records of 16 MiB.
    "kafka.max.request.size": str(17 * 1024 * 1024),
    "kafka.enable.idempotence": "true",
    "kafka.linger.ms": "0",
}


def source_options(connection: KafkaConnection) -> dict[str, str]:
    """Return the options. Secrets are none among them, for Spark shows options in plans and errors.

    Kafka's consumers take the secrets from the file themselves, by a configuration provider (KIP-297).

    >>> from popstream.kafka_connection import KafkaConnection
    >>> source_options(KafkaConnection("kafka:9092"))["kafka.bootstrap.servers"]
    'kafka:9092'

    Raises:
        Invalid: The configuration file is wrong, its path cannot be written in a reference, or Java cannot open its
            key or read its client secret.
    """
    return READING | _connecting(connection)


def sink_options(connection: KafkaConnection) -> dict[str, str]:
    """Return the options of Spark's Kafka sink, with a room for each record that the topics take. Secrets: as above.

    Raises:
        Invalid: As above.
    """
    return _connecting(connection) | WRITING


def starting_offsets(topic: str, begins: Mapping[int, int]) -> str:
    """Return where a new checkpoint begins with a topic, by partition; no partitions: at its first record.

    >>> starting_offsets("audit", {0: 7}), starting_offsets("audit", {})
    ('{"audit": {"0": 7}}', 'earliest')
    """
    if not begins:
        return "earliest"
    return json.dumps({topic: {str(partition): offset for partition, offset in begins.items()}})


def _connecting(connection: KafkaConnection) -> dict[str, str]:
    options = {"kafka.bootstrap.servers": connection.bootstrap_servers}
    properties = connection.properties
    if properties is None:
        return options
    if {*":}"} & {*connection.config_file}:
        message = f"{connection.config_file}: Kafka's consumers in Spark cannot read a file with : or }} in its path"
        raise Invalid(message, subject=connection.config_file)
    if properties.entries.get("ssl.keystore.type") == "PEM" and properties.key_pair is not None:
        _require_readable(properties.key_pair.key_pem, connection.config_file)
    settings = {name: value for name, value in properties.entries.items() if name != "bootstrap.servers"}
    settings |= {name: _reference(connection.config_file, name) for name in settings.keys() & SECRETS}
    if properties.token_request is not None:
        settings = _with_login_of_java(settings, properties, connection.config_file)
    return options | {
        "kafka.config.providers": PROVIDER,
        f"kafka.config.providers.{PROVIDER}.class": "org.apache.kafka.common.config.provider.FileConfigProvider",
        **{f"kafka.{name}": settings[name] for name in sorted(settings)},
    }


def _reference(config_file: str, name: str) -> str:
    return f"${{{PROVIDER}:{config_file}:{name}}}"


def _with_login_of_java(settings: dict[str, str], properties: ClientProperties, config_file: str) -> dict[str, str]:
    """Return the settings as Spark's Kafka client needs them for OAUTHBEARER.

    It is older than Kafka 4.1, so it looks for client id, secret and scope in the options of the login module alone.
    """
    settings = {HANDLER: HANDLER_CLASS, **settings}
    own = {CLIENT_ID, CLIENT_SECRET, SCOPE} & settings.keys()
    if not own and JAAS in settings:
        return settings
    options = parse_jaas(properties.entries.get(JAAS, f"{MODULE} required;"), MODULE) or {}
    secret = properties.entries.get(CLIENT_SECRET, "")
    if {"clientSecret", "ssl.truststore.password"} & options.keys() or {*'"\\\r\n'} & {*secret}:
        message = (
            f"{config_file}: Spark's Kafka client cannot join {', '.join(sorted(own))} and sasl.jaas.config here: write"
            ' clientId="..." clientSecret="..." scope="..." in sasl.jaas.config instead'
        )
        raise Invalid(message, subject=config_file)
    names = {"clientId": CLIENT_ID, "scope": SCOPE}
    options |= {option: settings[name] for option, name in names.items() if name in settings}
    written = [f"{option}={quoted(value)}" for option, value in options.items()]
    if CLIENT_SECRET in own:
        written.append(f'clientSecret="{_reference(config_file, CLIENT_SECRET)}"')
    kept = {name: value for name, value in settings.items() if name not in own}
    return kept | {JAAS: f"{' '.join((MODULE, 'required', *written))};"}


def _require_readable(key_pem: str, config_file: str) -> None:
    """Refuse a key that Kafka's consumers would fail on, and only say that they cannot be made.

    Java 17 has no PBES2 for keys in PEM, while it has it in PKCS12.
    """
    if is_locked_by_pbes2(key_pem):
        message = (
            f"{config_file}: Java cannot open a PEM key that is locked by PBES2, which is OpenSSL's default: use a"
            " PKCS12 store, or lock the key anew with `openssl pkcs8 -topk8 -v1 PBE-SHA1-3DES`"
        )
        raise Invalid(message, subject=config_file)
