"""Finds out whether a Kafka can be used, and why not: its clients take half a minute to report that it cannot."""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING

from popstream.kafka_login import ClosedError, RefusedError, log_in
from popstream.wire.base_errors import Invalid, Unavailable

if TYPE_CHECKING:
    from popstream.kafka_connection import KafkaConnection

__all__ = ["reach_kafka"]

TIMEOUT_S = 2.0
CONNECT_TIMEOUT_S = 2.0
ANSWER_TIMEOUT_S = 10.0
"""How long a broker that has accepted a connection may take for each answer."""
PAUSE_S = 0.3
PORT_MAX = 65_535
PROXIES = frozenset(("proxy_url", "socks5_proxy"))
"""Settings of kafka-python by which it does not connect to the brokers itself."""


def reach_kafka(connection: KafkaConnection, *, timeout_s: float = TIMEOUT_S) -> None:
    """Wait until one of the servers accepts a connection, a login and a request; each is tried at least once.

    Of a connection with settings of kafka-python only the first is tried, and behind a proxy nothing.

    Args:
        connection: Which Kafka.
        timeout_s: How long to try again, in seconds: a broker that starts refuses connections for a moment.

    Raises:
        Invalid: An address or the configuration file is wrong, or broker and client refuse each other: a certificate is
            not trusted, has expired or is of another host, or the login is wrong. Or the login needs a token, and its
            endpoint refuses it.
        Unavailable: No server accepts a connection and answers in time, or the token endpoint does not.
    """
    addresses = [_address(server) for server in connection.bootstrap_servers.split(",")]
    properties = connection.properties
    if PROXIES & connection.kafka_python.keys():
        return
    deadline_s = time.monotonic() + timeout_s
    while True:
        for host, port in addresses:
            try:
                with socket.create_connection((host, port), timeout=CONNECT_TIMEOUT_S) as opened:
                    if not connection.kafka_python:
                        opened.settimeout(ANSWER_TIMEOUT_S)
                        log_in(opened, host, properties)
            except RefusedError as error:
                message = f"Kafka at {host}:{port} {error}"
                raise Invalid(message, subject=str(connection)) from error
            except ClosedError as error:
                failure = f"Kafka at {host}:{port} {error}"
                # It listens, so it is not about to start.
                deadline_s = min(deadline_s, time.monotonic() + TIMEOUT_S)
            except OSError as error:
                failure = f"no Kafka accepts connections at {connection} ({error}): does it run at this address?"
            except Unavailable as error:
                failure = str(error)
            else:
                return
        if time.monotonic() >= deadline_s:
            raise Unavailable(failure, subject=str(connection))
        time.sleep(PAUSE_S)


def _address(server: str) -> tuple[str, int]:
    """Return host and port.

    >>> _address("kafka:9092"), _address("[::1]:9092"), _address("SASL_SSL://kafka:9093")
    (('kafka', 9092), ('::1', 9092), ('kafka', 9093))
    """
    host, colon, port = server.strip().rpartition("://")[2].rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > PORT_MAX:
        message = f"{server.strip()!r} is not an address of a Kafka broker: write host:port, several with commas"
        raise Invalid(message, subject=server)
    return host.strip("[]"), int(port)
