"""The control socket of a running job: answers the commands of its user on the same machine.

The socket is a Unix domain socket in the job's folder, which only its user may enter. Where its path is longer than the
system allows, it is a port of 127.0.0.1 instead.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import socketserver
import threading
from typing import TYPE_CHECKING, Any, Self

import msgspec
import structlog

from pipelines.control.messages import Failure, Request
from popstream.wire.base_errors import PopstreamError

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from pipelines.control.answers import JobAnswers

__all__ = ["ControlServer"]

_log = structlog.get_logger(__name__)

SOCKET_FILE = "control.sock"
# sockaddr_un has 108 bytes on Linux and 104 on macOS, including the terminator.
SOCKET_PATH_BYTES_MAX = 103
REQUEST_BYTES_MAX = 64 * 1024
REQUEST_TIMEOUT_S = 5.0
POLL_S = 0.5


class ControlServer:
    """Answers requests to a running job, from entry to exit.

    Args:
        answers: What answers them.
        folder: The job's folder, for the socket.

    Attributes:
        address: Path of the socket, or `127.0.0.1:port`.
        token: Secret that each request must carry.
    """

    def __init__(self, answers: JobAnswers, folder: Path) -> None:
        self.token = secrets.token_urlsafe(24)
        self._answers = answers
        path = folder / SOCKET_FILE
        if len(os.fsencode(path)) <= SOCKET_PATH_BYTES_MAX:
            path.unlink(missing_ok=True)
            self.address = str(path)
            self._server: socketserver.TCPServer = _UnixServer(str(path), self)
            self._socket_file: Path | None = path
        else:
            self._server = _TcpServer(("127.0.0.1", 0), self)
            self.address = f"127.0.0.1:{self._server.server_address[1]}"
            self._socket_file = None
        self._thread = threading.Thread(target=self._server.serve_forever, args=(POLL_S,), name="control", daemon=True)

    def __enter__(self) -> Self:
        """Start to answer."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Finish the requests in flight: the state is closed next."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        if self._socket_file is not None:
            self._socket_file.unlink(missing_ok=True)

    def answer(self, line: bytes) -> bytes:
        """Return the answer to one request line."""
        try:
            request = msgspec.json.decode(line, type=Request)
        except msgspec.DecodeError as error:
            return msgspec.json.encode(Failure(f"unreadable request: {error}"))
        if not hmac.compare_digest(request.token.encode(), self.token.encode()):
            return msgspec.json.encode(Failure("wrong token"))
        try:
            return msgspec.json.encode(self._answers.answer(request))
        except PopstreamError as error:
            return msgspec.json.encode(Failure.of(error))
        except Exception as error:  # noqa: BLE001 - logged with its traceback; the next request may work
            _log.exception("control_request_failed", request=type(request).__name__)
            reason = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
            return msgspec.json.encode(Failure(f"unexpected: {reason}; the log of the job has more"))

    def sample(self) -> None:
        """Sample the counts of the process; the server does it twice a second."""
        self._answers.sample()


class _Handler(socketserver.StreamRequestHandler):
    timeout = REQUEST_TIMEOUT_S

    def handle(self) -> None:
        server: Any = self.server
        with contextlib.suppress(OSError):  # the caller has gone, or sends nothing
            line = self.rfile.readline(REQUEST_BYTES_MAX)
            if line:
                self.wfile.write(server.control.answer(line) + b"\n")


class _Server:
    def __init__(self, address: Any, control: ControlServer) -> None:  # noqa: ANN401 - a path, or host and port
        self.control = control
        super().__init__(address, _Handler)  # type: ignore[call-arg]

    def service_actions(self) -> None:
        self.control.sample()

    def handle_error(self, _request: object, _client_address: object) -> None:
        _log.exception("control_request_failed")


class _UnixServer(_Server, socketserver.ThreadingUnixStreamServer):
    pass


class _TcpServer(_Server, socketserver.ThreadingTCPServer):
    pass
