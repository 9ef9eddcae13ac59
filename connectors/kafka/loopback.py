"""Ports of 127.0.0.1 for a broker of our own, and whether a broker answers behind one."""

from __future__ import annotations

import secrets
import socket
import struct

from popstream.wire.failures import Invalid, Unavailable

__all__ = ["HOST", "free_port", "is_free", "is_ready", "require_free"]

HOST = "127.0.0.1"

# Below the ports that Linux (32768 and up) and macOS (49152 and up) hand to outgoing connections. In those ranges a
# client that keeps trying to reach a stopped broker can be given the broker's own port: it connects to itself, and the
# broker cannot start again.
PORT_MIN = 20_000
PORT_MAX = 29_999
TRIES_MAX = 200

# Metadata version 4, which every broker since 0.11 knows: int32 size, int16 api key 3, int16 version, int32 correlation
# id, int16 length of the client id (-1: none), int32 count of topics, and a byte that forbids to create them.
METADATA_REQUEST = struct.pack(">ihhihib", 15, 3, 4, 1, -1, 0, 0)
INT32 = struct.Struct(">i")
# The answer: int32 size; int32 correlation id, int32 throttle time, int32 count of brokers, these, and the cluster id.
BROKER_COUNT_OFFSET = 8
ANSWER_BYTES_MAX = 65_536


def free_port(*, but_not: int = 0) -> int:
    """Find a port of 127.0.0.1 that nobody listens on now; another process may still be faster than the caller.

    Raises:
        Unavailable: 200 random ports from 20000 to 29999 were all taken.
    """
    for _ in range(TRIES_MAX):
        port = PORT_MIN + secrets.randbelow(PORT_MAX - PORT_MIN + 1)
        if port != but_not and is_free(port):
            return port
    message = f"found no free port between {PORT_MIN} and {PORT_MAX} on {HOST}; give one explicitly"
    raise Unavailable(message, subject=HOST)


def is_free(port: int) -> bool:
    """Whether a server could listen on this port of 127.0.0.1 now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as server:
        # As Java does: connections of an earlier server that linger in TIME_WAIT do not count.
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            server.bind((HOST, port))
        except OSError:
            return False
    return True


def require_free(port: int, parameter: str) -> None:
    """Refuse a taken port, in the words of the parameter that named it.

    Raises:
        Invalid: The port is taken, or not ours to use.
    """
    if not is_free(port):
        message = (
            f"port {port} on {HOST} is taken: stop the process that listens on it,"
            f" or give another {parameter} (0: any free one)"
        )
        raise Invalid(message, subject=f"{HOST}:{port}")


def is_ready(port: int, cluster_id: str, timeout_s: float) -> bool:
    """Whether a broker of this cluster answers a Metadata request, and is registered, so that it may be given topics.

    An open port proves neither: a broker listens before it is registered, and it may be somebody else who listens.

    Args:
        port: Port of a plaintext listener on 127.0.0.1.
        cluster_id: As in `meta.properties`.
        timeout_s: Seconds to wait for the connection, and again for each part of the answer.
    """
    try:
        with socket.create_connection((HOST, port), timeout=timeout_s) as connection:
            connection.sendall(METADATA_REQUEST)
            with connection.makefile("rb") as stream:
                (size,) = INT32.unpack(stream.read(INT32.size))
                answer = stream.read(min(size, ANSWER_BYTES_MAX))
        (brokers,) = INT32.unpack_from(answer, BROKER_COUNT_OFFSET)
    except (OSError, struct.error):
        # Nobody there yet, or nobody who speaks Kafka.
        return False
    return brokers > 0 and cluster_id.encode() in answer
