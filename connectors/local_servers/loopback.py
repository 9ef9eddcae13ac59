"""Ports of 127.0.0.1 for servers that this machine runs."""

from __future__ import annotations

import secrets
import socket

from popstream.wire.base_errors import Invalid, Unavailable

__all__ = ["HOST", "free_port", "is_free", "require_free"]

HOST = "127.0.0.1"

# Below the ephemeral ports of Linux (32768 and up) and macOS (49152 and up). From those, a client that retries to reach
# a stopped broker can get the broker's own port: it connects to itself, and the broker cannot start again.
PORT_MIN = 20_000
PORT_MAX = 29_999
TRIES_MAX = 200


def free_port(*, but_not: int = 0) -> int:
    """Return a free port of 127.0.0.1. Another process may still take it before the caller does.

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
    """Return whether a server could listen on this port of 127.0.0.1 now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as server:
        # Like Java: connections of an earlier server in TIME_WAIT do not count.
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            server.bind((HOST, port))
        except OSError:
            return False
    return True


def require_free(port: int, parameter: str) -> None:
    """Refuse a taken port; the error names the parameter.

    Raises:
        Invalid: The port is taken, or this process may not use it.
    """
    if not is_free(port):
        message = (
            f"port {port} on {HOST} is taken: stop the process that listens on it,"
            f" or give another {parameter} (0: any free one)"
        )
        raise Invalid(message, subject=f"{HOST}:{port}")
