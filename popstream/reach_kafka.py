"""Finds out whether a Kafka listens at all: its clients take half a minute to report that none does."""

from __future__ import annotations

import socket
import time

from popstream.wire.base_errors import Invalid, Unavailable

__all__ = ["reach_kafka"]

TIMEOUT_S = 2.0
CONNECT_TIMEOUT_S = 2.0
PAUSE_S = 0.3
PORT_MAX = 65_535


def reach_kafka(bootstrap_servers: str, *, timeout_s: float = TIMEOUT_S) -> None:
    """Wait until one of the servers accepts a connection; each is tried at least once.

    Args:
        bootstrap_servers: `host:port` of one or more brokers, separated by commas.
        timeout_s: How long to try again, in seconds: a broker that starts refuses connections for a moment.

    Raises:
        Invalid: An address cannot be parsed.
        Unavailable: No server accepts a connection in time.
    """
    addresses = [_address(server) for server in bootstrap_servers.split(",")]
    deadline_s = time.monotonic() + timeout_s
    while True:
        for address in addresses:
            try:
                socket.create_connection(address, timeout=CONNECT_TIMEOUT_S).close()
            except OSError as error:
                failure = error
            else:
                return
        if time.monotonic() >= deadline_s:
            message = f"no Kafka accepts connections at {bootstrap_servers} ({failure}): does it run at this address?"
            raise Unavailable(message, subject=bootstrap_servers)
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
