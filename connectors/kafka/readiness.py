"""The check that a broker on 127.0.0.1 is ready."""

from __future__ import annotations

import socket
import struct

from connectors.local_servers.loopback import HOST

__all__ = ["is_ready"]

# Metadata version 4, supported since Kafka 0.11: int32 size, int16 api key 3, int16 version, int32 correlation id,
# int16 length of the client id (-1: none), int32 count of topics, and a byte that forbids creating them.
METADATA_REQUEST = struct.pack(">ihhihib", 15, 3, 4, 1, -1, 0, 0)
INT32 = struct.Struct(">i")
# Response: int32 size; int32 correlation id, int32 throttle time, int32 count of brokers, the brokers, the cluster id.
BROKER_COUNT_OFFSET = 8
ANSWER_BYTES_MAX = 65_536


def is_ready(port: int, cluster_id: str, timeout_s: float) -> bool:
    """Return whether a broker of this cluster is registered, so that topics can be created.

    An open port does not prove it: a broker listens before it is registered, and another process may listen.

    Args:
        port: Port of a plaintext listener on 127.0.0.1.
        cluster_id: Cluster id, as in `meta.properties`.
        timeout_s: Timeout in seconds of the connection, and of each read.
    """
    try:
        with socket.create_connection((HOST, port), timeout=timeout_s) as connection:
            connection.sendall(METADATA_REQUEST)
            with connection.makefile("rb") as stream:
                (size,) = INT32.unpack(stream.read(INT32.size))
                answer = stream.read(min(size, ANSWER_BYTES_MAX))
        (brokers,) = INT32.unpack_from(answer, BROKER_COUNT_OFFSET)
    except (OSError, struct.error):
        # Nothing listens yet, or no Kafka.
        return False
    return brokers > 0 and cluster_id.encode() in answer
