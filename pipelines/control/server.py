"""The control socket of a running job: answers `popstream status`, `queue`, `snapshot` and `verify`.

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
from typing import TYPE_CHECKING, Any, Protocol, Self

import msgspec
import structlog

from pipelines.control.lane_views import selected_queues
from pipelines.control.messages import (
    Answer,
    Failure,
    Image,
    ImageRequest,
    JobReport,
    Policies,
    PoliciesRequest,
    RebuildRequest,
    Rebuilt,
    Request,
    SnapshotRequest,
    StatusRequest,
)
from pipelines.control.policy_views import policies_in
from pipelines.control.status_report import StatusReporter
from pipelines.recovery.take_snapshot import take_image
from popstream.wire.base_errors import Corrupt, Invalid, PopstreamError, Unavailable

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from broker_state.store.rocks_store import RocksStore
    from checkpoints.layout import JobFolder
    from checkpoints.snapshot_store import Snapshot
    from pipelines.build_consume_queue.service import BuilderService
    from pipelines.control.metrics import Metrics

__all__ = ["ControlServer", "ControlledJob"]

_log = structlog.get_logger(__name__)

SOCKET_FILE = "control.sock"
# sockaddr_un has 108 bytes on Linux and 104 on macOS, including the terminator.
SOCKET_PATH_BYTES_MAX = 103
REQUEST_BYTES_MAX = 64 * 1024
REQUEST_TIMEOUT_S = 5.0
POLL_S = 0.5
DETACH_S_MAX = 30.0


class ControlledJob(Protocol):
    """The part of a job that its control socket needs."""

    @property
    def folder(self) -> JobFolder:
        """The job's folder."""

    @property
    def store(self) -> RocksStore:
        """The state. RocksDB shows other threads a whole micro-batch or nothing of it."""

    @property
    def builder(self) -> BuilderService | None:
        """The builder of consume queues, if the job has one."""

    def report(self) -> JobReport:
        """Return the progress of the job. Also works after the job has stopped."""

    def take_snapshot(self) -> Snapshot:
        """Take a snapshot and store it."""


class ControlServer:
    """Answers requests to a running job, from entry to exit.

    Args:
        job: The job that answers; `detach` and `attach` replace it.
        metrics: Counts of the process, which outlive its jobs.

    Attributes:
        address: Path of the socket, or `127.0.0.1:port`.
        token: Secret that each request must carry.
    """

    def __init__(self, job: ControlledJob, metrics: Metrics) -> None:
        self.token = secrets.token_urlsafe(24)
        self._job = job
        self._reporter = StatusReporter(metrics)
        self._answering = threading.Condition()
        self._in_flight = 0
        self._not_ready_reason: str | None = None
        """Why no job runs; None: a job is attached."""
        path = job.folder.root / SOCKET_FILE
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

    def detach(self, reason: str) -> None:
        """From now on report `reason` as why no job runs, and refuse every other request.

        Waits until the requests in flight are answered, at most 30 s.
        """
        with self._answering:
            self._not_ready_reason = reason
            if not self._answering.wait_for(lambda: not self._in_flight, DETACH_S_MAX):
                _log.warning("control_requests_abandoned", count=self._in_flight)

    def attach(self, job: ControlledJob) -> None:
        """Answer for another job."""
        with self._answering:
            self._job, self._not_ready_reason = job, None

    def answer(self, line: bytes) -> bytes:
        """Return the answer to one request line."""
        try:
            request = msgspec.json.decode(line, type=Request)
        except msgspec.DecodeError as error:
            return msgspec.json.encode(Failure(f"unreadable request: {error}"))
        if not hmac.compare_digest(request.token.encode(), self.token.encode()):
            return msgspec.json.encode(Failure("wrong token"))
        try:
            return msgspec.json.encode(self._answer(request))
        except PopstreamError as error:
            failure = Failure(
                str(error), is_transient=isinstance(error, Unavailable), is_corrupt=isinstance(error, Corrupt)
            )
            return msgspec.json.encode(failure)

    def sample(self) -> None:
        """Sample the number of operations; the server does it twice a second."""
        self._reporter.rate.sample()

    def operations_per_s(self) -> float:
        """Return the operations decided per second, over the last ten seconds."""
        return self._reporter.rate.per_s()

    def _answer(self, request: Request) -> Answer:
        with self._answering:
            reason = self._not_ready_reason
            self._in_flight += reason is None
        if reason is not None:
            if isinstance(request, StatusRequest):
                return self._reporter.status_without_job(self._job.report(), reason)
            raise Unavailable(reason)
        try:
            return self._answer_for_job(request)
        finally:
            with self._answering:
                self._in_flight -= 1
                self._answering.notify_all()

    def _answer_for_job(self, request: Request) -> Answer:
        job = self._job
        if isinstance(request, StatusRequest):
            queues, is_cut = selected_queues(job.store, request.group, request.topic, request.limit)
            return msgspec.structs.replace(self._reporter.status_of(job.report()), queues=queues, is_cut=is_cut)
        if isinstance(request, PoliciesRequest):
            return Policies(policies_in(job.store, request.topic, request.group))
        if isinstance(request, SnapshotRequest):
            return job.take_snapshot()
        if isinstance(request, ImageRequest):
            # The builder's store first: what has left its outbox is then in the state.
            built = None if job.builder is None else str(take_image(job.builder.store, job.folder.scratch))
            return Image(folder=str(take_image(job.store, job.folder.scratch)), queues=built)
        if job.builder is None:
            message = "this job builds no queues: it has no message_topics"
            raise Invalid(message)
        if isinstance(request, RebuildRequest):
            return Rebuilt(job.builder.query.rebuild((request.topic, request.queue_id), request.from_offset))
        return job.builder.views(job.store, request)


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
