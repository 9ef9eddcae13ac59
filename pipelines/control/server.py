"""What `popstream status` and `queue` show, asked of the running job over a local socket, or read where nobody runs.

One request is one line of JSON, one answer is one line of JSON. The socket is a Unix domain socket in the job's folder,
which only its user may enter; where that path is longer than the system allows it is a port of 127.0.0.1. Whoever asks
shows the token of the job card, which only that user may read.
"""

from __future__ import annotations

import contextlib
import fcntl
import hmac
import os
import secrets
import socket
import socketserver
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

import msgspec
import structlog

from broker_state.store.rocks_store import BUILDER_FAMILIES, META, RocksStore
from checkpoints.applied import APPLIED_KEY, Applied
from checkpoints.layout import JobFolder
from checkpoints.snapshots import Snapshot
from pipelines.build_consume_queue.view import BuilderView, ConsumeQueueView, QueueRequest, views_of
from pipelines.control.job_file import JobCard
from pipelines.control.metrics import Totals
from pipelines.control.state_view import QueueView, lane_detail, queues_in
from pipelines.recovery.snapshot_loop import take_image
from popstream.wire.failures import Invalid, PopstreamError, Unavailable

if TYPE_CHECKING:
    # `popstream status` is asked often, and Spark takes half a second to import.
    from pipelines.process.job import Job

__all__ = [
    "Image",
    "ImageRequest",
    "RebuildRequest",
    "Rebuilt",
    "SnapshotRequest",
    "Status",
    "StatusRequest",
    "StatusServer",
    "ask",
    "is_owned",
    "stored_queues",
    "stored_status",
]

_log = structlog.get_logger(__name__)

SOCKET_FILE = "status.sock"
# sockaddr_un has 108 bytes on Linux and 104 on macOS, one of them for the end.
SOCKET_PATH_BYTES_MAX = 103
REQUEST_BYTES_MAX = 64 * 1024
TIMEOUT_S = 15.0
REQUEST_TIMEOUT_S = 5.0
RATE_WINDOW_S = 10.0
POLL_S = 0.5
DETACH_S_MAX = 30.0
LANES_SHOWN = 1000


class StatusRequest(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="ask", tag="status"
):
    """What is wanted: lanes of one group, with their detail, queues of one topic; at most `limit` lanes."""

    token: str = ""
    group: str | None = None
    topic: str | None = None
    limit: int = LANES_SHOWN


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a job.

    Attributes:
        running: False: read from the state on disk, and what belongs to a process is missing.
        apply_seq: Micro-batches decided since the state was made.
        delta_seq: Those of them that are in Delta.
        ops_lag: Offsets of the ops topic that were not decided a moment ago.
        ops_overdue: Of these, offsets that still waited after half of the time for which the topic keeps them.
        operations_per_s: Over the last ten seconds.
        totals: Since this process started.
        obstacles: What keeps it from deciding or delivering; none: it is ready.
        snapshot: The newest snapshot that this job has taken since it was started, maybe in the same process again.
        snapshot_failure: Why the last one could not be kept.
        quarantined: Records of which nothing is decided; each is a row of `rejected`.
        builder: How the builder does; None: the job builds no queues, or does not run.
        queues: With their lanes, in the order of their keys.
        is_cut: There are more lanes than were asked for.
    """

    running: bool
    folder: str
    apply_seq: int
    pid: int | None = None
    bootstrap_servers: str | None = None
    prefix: str | None = None
    up_s: float | None = None
    failure: str | None = None
    delta_seq: int | None = None
    outbox_bytes: int | None = None
    ops_lag: int | None = None
    ops_overdue: int | None = None
    operations_per_s: float | None = None
    totals: Totals | None = None
    obstacles: list[str] = []
    snapshot: str | None = None
    snapshot_failure: str | None = None
    quarantined: int = 0
    builder: BuilderView | None = None
    queues: list[QueueView] = []
    is_cut: bool = False


class RebuildRequest(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="ask", tag="rebuild"
):
    """Forget a consume queue from an offset on, and read it anew."""

    topic: str
    queue_id: int
    from_offset: int
    token: str = ""


class Rebuilt(msgspec.Struct, frozen=True):
    """The queue is read again from here."""

    from_offset: int


class SnapshotRequest(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="ask", tag="snapshot"
):
    """Take a snapshot now."""

    token: str = ""


class ImageRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="ask", tag="image"):
    """Put the state as it is now beside the job's, for somebody who removes it again."""

    token: str = ""


class Image(msgspec.Struct, frozen=True, kw_only=True):
    """`folder` has the state."""

    folder: str


class _Failed(msgspec.Struct, frozen=True):
    error: str
    may_pass: bool = False


Request = StatusRequest | QueueRequest | RebuildRequest | SnapshotRequest | ImageRequest
Answer = Status | list[ConsumeQueueView] | Rebuilt | Snapshot | Image
Reply = TypeVar("Reply", Status, list[ConsumeQueueView], Rebuilt, Snapshot, Image)


class StatusServer:
    """Answers `ask` for a running job, from entry to exit.

    Reading the state here while the job writes it is fine: RocksDB shows a whole micro-batch or nothing of it.
    """

    def __init__(self, job: Job) -> None:
        self.token = secrets.token_urlsafe(24)
        self._job = job
        self._answering = threading.Condition()
        self._under_way = 0
        self._detached: str | None = None
        self._started = time.monotonic()
        self._samples: deque[tuple[float, int]] = deque()
        self._samples_lock = threading.Lock()
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
        self._thread = threading.Thread(target=self._server.serve_forever, args=(POLL_S,), name="status", daemon=True)

    def __enter__(self) -> Self:
        """Begin to answer."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Finish the answers under way: the state is closed next."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        if self._socket_file is not None:
            self._socket_file.unlink(missing_ok=True)

    def detach(self, why: str) -> None:
        """From now on `status` tells `why` there is no job, and nothing else is done.

        Answers under way are finished first, if they do not take too long.
        """
        with self._answering:
            self._detached = why
            if not self._answering.wait_for(lambda: not self._under_way, DETACH_S_MAX):
                _log.warning("answers_left_unfinished", count=self._under_way)

    def attach(self, job: Job) -> None:
        """Answer for another job."""
        with self._answering:
            self._job, self._detached = job, None

    def answer(self, line: bytes) -> bytes:
        """The answer to one request line."""
        try:
            request = msgspec.json.decode(line, type=Request)
        except msgspec.DecodeError as error:
            return msgspec.json.encode(_Failed(f"unreadable request: {error}"))
        if not hmac.compare_digest(request.token.encode(), self.token.encode()):
            return msgspec.json.encode(_Failed("wrong token"))
        try:
            return msgspec.json.encode(self._answer(request))
        except PopstreamError as error:
            return msgspec.json.encode(_Failed(str(error), isinstance(error, Unavailable)))

    def _answer(self, request: Request) -> Answer:
        with self._answering:
            why = self._detached
            self._under_way += why is None
        if why is not None:
            if isinstance(request, StatusRequest):
                return self._status_without_job(why)
            raise Unavailable(why)
        try:
            return self._answer_for_job(request)
        finally:
            with self._answering:
                self._under_way -= 1
                self._answering.notify_all()

    def _answer_for_job(self, request: Request) -> Answer:
        if isinstance(request, StatusRequest):
            return self.status(request)
        if isinstance(request, SnapshotRequest):
            return self._job.snapshot_loop.take_now()
        if isinstance(request, ImageRequest):
            return Image(folder=str(take_image(self._job.store, self._job.folder.scratch)))
        running = self._job.builder
        if running is None:
            message = "this job builds no queues: it has no message_topics"
            raise Invalid(message)
        if isinstance(request, RebuildRequest):
            return Rebuilt(running.query.rebuild((request.topic, request.queue_id), request.from_offset))
        return running.views(self._job.store, request)

    def status(self, request: StatusRequest) -> Status:
        """The state now."""
        job = self._job
        queues, is_cut = _selected(job.store, request)
        return Status(
            running=True,
            folder=str(job.folder.root),
            apply_seq=job.apply_ops.applied.apply_seq,
            pid=os.getpid(),
            bootstrap_servers=job.bootstrap_servers,
            prefix=job.settings.topic_prefix,
            up_s=round(time.monotonic() - self._started, 1),
            failure=None if job.failure is None else str(job.failure),
            delta_seq=job.flush.delivered_seq,
            outbox_bytes=job.outbox.undelivered_bytes,
            ops_lag=job.log_watch.lag,
            ops_overdue=job.log_watch.overdue,
            operations_per_s=self.operations_per_s(),
            totals=job.metrics.totals(),
            obstacles=job.obstacles,
            snapshot=None if job.snapshot_loop.last is None else job.snapshot_loop.last.id,
            snapshot_failure=job.snapshot_loop.last_failure,
            quarantined=len(job.quarantine),
            builder=None if job.builder is None else job.builder.view(),
            queues=queues,
            is_cut=is_cut,
        )

    def _status_without_job(self, why: str) -> Status:
        job = self._job
        return Status(
            running=True,
            folder=str(job.folder.root),
            apply_seq=job.apply_ops.applied.apply_seq,
            pid=os.getpid(),
            bootstrap_servers=job.bootstrap_servers,
            prefix=job.settings.topic_prefix,
            up_s=round(time.monotonic() - self._started, 1),
            delta_seq=job.flush.delivered_seq,
            totals=job.metrics.totals(),
            operations_per_s=self.operations_per_s(),
            obstacles=[why],
        )

    def operations_per_s(self) -> float:
        """The rate over the last seconds."""
        self.sample()
        with self._samples_lock:
            (first_at, first), (last_at, last) = self._samples[0], self._samples[-1]
        return round((last - first) / (last_at - first_at), 1) if last_at > first_at else 0.0

    def sample(self) -> None:
        """Note how many operations there are now; the server does it twice a second."""
        with self._samples_lock:
            now = time.monotonic()
            self._samples.append((now, self._job.metrics.totals().operations))
            while len(self._samples) > 1 and now - self._samples[1][0] > RATE_WINDOW_S:
                self._samples.popleft()


class _Handler(socketserver.StreamRequestHandler):
    timeout = REQUEST_TIMEOUT_S

    def handle(self) -> None:
        server: Any = self.server
        with contextlib.suppress(OSError):  # whoever asked is gone, or says nothing
            line = self.rfile.readline(REQUEST_BYTES_MAX)
            if line:
                self.wfile.write(server.status_server.answer(line) + b"\n")


class _Answering:
    def __init__(self, address: Any, status_server: StatusServer) -> None:  # noqa: ANN401 - a path, or host and port
        self.status_server = status_server
        super().__init__(address, _Handler)  # type: ignore[call-arg]

    def service_actions(self) -> None:
        self.status_server.sample()

    def handle_error(self, _request: object, _client_address: object) -> None:
        _log.exception("status_failed")


class _UnixServer(_Answering, socketserver.ThreadingUnixStreamServer):
    pass


class _TcpServer(_Answering, socketserver.ThreadingTCPServer):
    pass


def ask(card: JobCard, request: Request, reply: type[Reply], *, timeout_s: float = TIMEOUT_S) -> Reply:
    """Ask the job of a card, and read its answer as `reply`.

    Raises:
        Unavailable: It does not answer: it has ended, or stands still; or it says that it cannot do it now.
        Invalid: It answers that the request is wrong.
    """
    try:
        with _connected(card.address, timeout_s) as connection:
            connection.sendall(msgspec.json.encode(msgspec.structs.replace(request, token=card.token)) + b"\n")
            with connection.makefile("rb") as stream:
                line = stream.readline()
    except OSError as error:
        message = f"the job of process {card.pid} does not answer at {card.address}: {error}"
        raise Unavailable(message, subject=card.address) from error
    try:
        return msgspec.json.decode(line, type=reply)
    except msgspec.DecodeError as error:
        with contextlib.suppress(msgspec.DecodeError):
            failed = msgspec.json.decode(line, type=_Failed)
            raise (Unavailable if failed.may_pass else Invalid)(failed.error) from None
        message = f"the job of process {card.pid} does not tell its state: {line[:200].decode(errors='replace')}"
        raise Unavailable(message, subject=card.address) from error


def stored_status(folder: JobFolder, request: StatusRequest) -> Status:
    """The state on disk; only for a folder that no job owns (`is_owned`).

    Raises:
        Invalid: The state cannot be opened.
        Corrupt: A value in it cannot be read.
    """
    with RocksStore(folder.state, read_only=True) as store:
        stored = store.get(META, APPLIED_KEY)
        queues, is_cut = _selected(store, request)
    return Status(
        running=False,
        folder=str(folder.root),
        apply_seq=Applied.decode(stored).apply_seq if stored is not None else 0,
        queues=queues,
        is_cut=is_cut,
    )


def stored_queues(folder: JobFolder, request: QueueRequest) -> list[ConsumeQueueView]:
    """The consume queues on disk; as `stored_status`."""
    if not folder.queues.is_dir():
        message = f"no queues were ever built in {folder.root}"
        raise Invalid(message, subject=str(folder.root))
    with (
        RocksStore(folder.queues, BUILDER_FAMILIES, read_only=True) as queues,
        RocksStore(folder.state, read_only=True) as state,
    ):
        return views_of(queues, state, request)


def is_owned(folder: JobFolder) -> bool:
    """Whether a process owns the folder now; asks for the lock for a moment and changes nothing."""
    try:
        descriptor = os.open(folder.lock, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _selected(store: RocksStore, request: StatusRequest) -> tuple[list[QueueView], bool]:
    """Queues with the lanes that are wanted, until there are enough."""
    found: list[QueueView] = []
    left = request.limit
    for queue in queues_in(store):
        if request.topic not in (None, queue.topic):
            continue
        lanes = [lane for lane in queue.lanes if request.group in (None, lane.group)]
        if request.group is not None and not lanes:
            continue
        if left <= 0:
            return found, True
        if request.group is not None:
            detail = lane_detail(store, queue.topic, queue.queue_id, request.group)
            lanes = [msgspec.structs.replace(lane, detail=detail) for lane in lanes]
        found.append(msgspec.structs.replace(queue, lanes=lanes[:left]))
        if len(lanes) > left:
            return found, True
        left -= max(1, len(lanes))  # a queue without lanes is a line as well
    return found, False


@contextlib.contextmanager
def _connected(address: str, timeout_s: float) -> Iterator[socket.socket]:
    host, colon, port = address.rpartition(":")
    if colon and port.isdigit() and not host.startswith("/"):
        with socket.create_connection((host, int(port)), timeout=timeout_s) as connection:
            yield connection
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout_s)
        connection.connect(address)
        yield connection
