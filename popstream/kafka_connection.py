"""How to connect to a Kafka: one value for everything that does, with a form of it for each client library."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from popstream.client_properties import ClientProperties, read_client_properties
from popstream.key_stores import TLS_VERSIONS
from popstream.oauth_properties import TokenRequest
from popstream.oauth_tokens import TokenProvider, get_token
from popstream.wire.base_errors import Invalid

__all__ = ["KafkaConnection", "chosen_connection"]


class KafkaConnection(msgspec.Struct, frozen=True):
    """The servers of a Kafka, and where it is said how to connect to them.

    The file is read for each connection that is made. So a password that was changed there is used from then on, and
    this value, which is stored, printed and passed to other processes, has no secrets.

    Args:
        bootstrap_servers: `host:port` of one or more brokers, separated by commas.
        config_file: Absolute path of a `client.properties` (`client_properties.py`); empty: no encryption and no
            authentication.
        kafka_python: More settings for kafka-python, which override those of the file.

    >>> KafkaConnection("kafka:9092,kafka:9093").for_kafka_python()
    {'bootstrap_servers': ['kafka:9092', 'kafka:9093']}
    """

    bootstrap_servers: str
    config_file: str = ""
    kafka_python: dict[str, Any] = {}

    def __repr__(self) -> str:
        return f"KafkaConnection({self.bootstrap_servers!r}, {self.config_file!r})"

    def __str__(self) -> str:
        return self.bootstrap_servers

    @property
    def properties(self) -> ClientProperties | None:
        """The content of the file, if there is one.

        Raises:
            Invalid: It cannot be read, or has a wrong setting.
        """
        return read_client_properties(Path(self.config_file)) if self.config_file else None

    @property
    def client_options(self) -> dict[str, Any]:
        """The options of `Producer`, `Consumer` and `ClientSettings` that say the same."""
        config_file = self.config_file or None
        return {"bootstrap_servers": self.bootstrap_servers, "kafka_config": config_file, "kafka": self.kafka_python}

    def for_kafka_python(self) -> dict[str, Any]:
        """Return the settings of kafka-python's clients.

        Raises:
            Invalid: As in `properties`.
        """
        settings: dict[str, Any] = {"bootstrap_servers": self.bootstrap_servers.split(",")}
        found = self.properties
        if found is not None:
            settings["security_protocol"] = found.security_protocol
            if "client.dns.lookup" in found.entries:
                settings["client_dns_lookup"] = found.entries["client.dns.lookup"]
            if found.ssl_context is not None:
                settings["ssl_context"] = found.ssl_context
            if found.sasl_mechanism:
                settings["sasl_mechanism"] = found.sasl_mechanism
            if found.username:
                settings["sasl_plain_username"] = found.username
                settings["sasl_plain_password"] = found.password
            request = found.token_request
            if request is not None:
                settings["sasl_oauth_token_provider"] = TokenProvider(partial(get_token, request), request.extensions)
        return settings | self.kafka_python

    def for_librdkafka(self) -> dict[str, Any]:
        """Return the settings of librdkafka, without those of `kafka_python`.

        It gets our tokens: its own method would trust another store, and read no file.

        Raises:
            Invalid: As in `properties`; or the file allows only some versions of TLS, for which it has no setting.
        """
        settings: dict[str, Any] = {"bootstrap.servers": self.bootstrap_servers}
        found = self.properties
        if found is None:
            return settings
        same = ("client.dns.lookup", "sasl.mechanism", "security.protocol")
        settings |= {name: found.entries[name] for name in same if name in found.entries}
        if found.username:
            settings |= {"sasl.username": found.username, "sasl.password": found.password}
        if found.token_request is not None:
            settings["oauth_cb"] = partial(_token_for_librdkafka, found.token_request)
        if found.ssl_context is not None:
            if (found.ssl_context.minimum_version, found.ssl_context.maximum_version) != TLS_VERSIONS:
                message = (
                    f"{self.config_file}: fetch_client='librdkafka' uses TLS 1.2 and 1.3: allow both in"
                    " ssl.enabled.protocols and ssl.protocol, or use 'kafka-python'"
                )
                raise Invalid(message, subject=self.config_file)
            settings["ssl.endpoint.identification.algorithm"] = "https" if found.ssl_context.check_hostname else "none"
            if found.trusted_pem:
                settings["ssl.ca.pem"] = found.trusted_pem
            if found.key_pair is not None:
                settings["ssl.certificate.pem"] = found.key_pair.certificates_pem
                settings["ssl.key.pem"] = found.key_pair.key_pem
                settings["ssl.key.password"] = found.key_pair.password
        return settings


def _token_for_librdkafka(request: TokenRequest, _config: str) -> tuple[str, float, str, dict[str, str]]:
    """Return a token, its end in seconds since 1970, a name that is not sent, and what is sent with the token."""
    token = get_token(request)
    return token.text, token.expires_s, request.client_id, request.extensions


def chosen_connection(bootstrap_servers: str, config_file: Path | None) -> KafkaConnection | None:
    """Return the connection that an operator has chosen, if any; the file may name the servers, too.

    Raises:
        Invalid: The file cannot be read or has a wrong setting, or nothing names the servers that it is for.
    """
    if config_file is None:
        return KafkaConnection(bootstrap_servers) if bootstrap_servers else None
    file = config_file.absolute()
    servers = bootstrap_servers or read_client_properties(file).bootstrap_servers
    if not servers:
        message = f"{file} names no servers: add bootstrap.servers, or give --bootstrap-servers"
        raise Invalid(message, subject=str(file))
    return KafkaConnection(servers, str(file))
