"""An HTTP server in a thread of its own, on one or several ports."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import TYPE_CHECKING, NamedTuple, Self

import uvicorn

from pipelines.http_api.timed_protocol import TimedProtocol
from popstream.wire.base_errors import Invalid, Unavailable

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from starlette.types import ASGIApp

__all__ = ["HttpServer", "Listener"]

START_S_MAX = 30.0
STOP_S_MAX = 5
"""What a request in progress gets when the server stops."""
CONNECTIONS_MAX = 100
BACKLOG = 64


class Listener(NamedTuple):
    """A port and what answers there.

    Attributes:
        host: The address to listen on.
        port: The port; 0: any free one.
        app: What answers.
        setting: The setting that has the port, for errors.
    """

    host: str
    port: int
    app: ASGIApp
    setting: str


class HttpServer:
    """Answers HTTP requests from entry to exit. Ports are bound when it is made.

    Args:
        listeners: The ports; at least one.

    Attributes:
        ports: The ports that were bound, in order.

    Raises:
        Invalid: A port cannot be bound.
    """

    def __init__(self, listeners: Sequence[Listener]) -> None:
        self._sockets: list[socket.socket] = []
        try:
            self._sockets.extend(map(_bound, listeners))
        except Invalid:
            self._close_sockets()
            raise
        self.ports: list[int] = [bound.getsockname()[1] for bound in self._sockets]
        self._servers = [uvicorn.Server(_config(listener.app)) for listener in listeners]
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="http", daemon=True)

    def __enter__(self) -> Self:
        """Start to answer.

        Raises:
            Unavailable: It does not start.
        """
        self._thread.start()
        pause = threading.Event()
        for _ in range(int(START_S_MAX / 0.01)):
            if all(server.started for server in self._servers):
                return self
            if not self._thread.is_alive():
                break
            pause.wait(0.01)
        self._stop()
        message = f"the HTTP server does not start: {self._failure or 'it does not say why'}"
        raise Unavailable(message)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Finish the requests in flight, at most 5 s."""
        self._stop()

    def _stop(self) -> None:
        for server in self._servers:
            server.should_exit = True
        self._thread.join()
        self._close_sockets()

    def _close_sockets(self) -> None:
        for bound in self._sockets:
            bound.close()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - told by the one that waits for the start
            self._failure = error

    async def _serve(self) -> None:
        async with asyncio.TaskGroup() as group:
            for server, bound in zip(self._servers, self._sockets, strict=True):
                group.create_task(server.serve(sockets=[bound]))


def _config(app: ASGIApp) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=TimedProtocol,
        loop="asyncio",
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        limit_concurrency=CONNECTIONS_MAX,
        timeout_graceful_shutdown=STOP_S_MAX,
    )


def _bound(listener: Listener) -> socket.socket:
    try:
        found = socket.getaddrinfo(listener.host, listener.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        bound = socket.socket(family, kind, protocol)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
        except OSError:
            bound.close()
            raise
    except OSError as error:
        option = listener.setting.replace("_", "-")
        message = (
            f"{listener.setting}: {listener.host}:{listener.port} cannot be served: {error.strerror};"
            f" choose another --{option} or --{option.replace('port', 'host')}"
        )
        raise Invalid(message, subject=str(listener.port)) from error
    return bound
