"""Asks a running job through its control socket, and reads the stored state where no job runs."""

import contextlib
import fcntl
import os
import socket
from collections.abc import Iterator
from typing import TypeVar

import msgspec

from broker_state.store.rocks_store import BUILDER_FAMILIES, META, RocksStore
from checkpoints.applied import APPLIED_KEY, Applied
from checkpoints.layout import JobFolder
from checkpoints.snapshot_store import Snapshot
from pipelines.build_consume_queue.queue_view import ConsumeQueueView, QueueRequest, views_of
from pipelines.control.http_client import asked_by_http
from pipelines.control.job_file import JobFile
from pipelines.control.lane_views import selected_queues
from pipelines.control.messages import (
    Failure,
    Image,
    Policies,
    PoliciesRequest,
    Rebuilt,
    Request,
    Status,
    StatusRequest,
)
from pipelines.control.policy_views import policies_in
from popstream.wire.base_errors import Invalid, Unavailable

__all__ = ["ask", "is_owned", "stored_policies", "stored_queues", "stored_status"]

TIMEOUT_S = 15.0
API_TIMEOUT_S = 60.0
"""By HTTP there may be a job on a cluster, which reads its state from its checkpoint."""

Reply = TypeVar("Reply", Status, Policies, list[ConsumeQueueView], Rebuilt, Snapshot, Image)


def ask(job: JobFile, request: Request, reply: type[Reply], *, timeout_s: float | None = None) -> Reply:
    """Send a request to the job of a job file, and decode its answer as `reply`.

    If the address of the job is a URL, the request goes to its HTTP API.

    Args:
        job: How to reach the job.
        request: The request.
        reply: The type of the answer.
        timeout_s: How long to wait for it; None: 15 s, or 60 s for the API.

    Raises:
        Unavailable: The job does not answer, or cannot serve the request now.
        Invalid: The job refuses the request.
    """
    if "://" in job.address:
        line = asked_by_http(job.address, job.token, request, timeout_s or API_TIMEOUT_S)
    else:
        line = _asked_by_socket(job, request, timeout_s or TIMEOUT_S)
    try:
        return msgspec.json.decode(line, type=reply)
    except msgspec.DecodeError as error:
        with contextlib.suppress(msgspec.DecodeError):
            raise msgspec.json.decode(line, type=Failure).to_error() from None
        message = f"the answer of {job.address} cannot be read: {line[:200].decode(errors='replace')}"
        raise Unavailable(message, subject=job.address) from error


def _asked_by_socket(job: JobFile, request: Request, timeout_s: float) -> bytes:
    try:
        with _connected(job.address, timeout_s) as connection:
            connection.sendall(msgspec.json.encode(msgspec.structs.replace(request, token=job.token)) + b"\n")
            with connection.makefile("rb") as stream:
                return stream.readline()
    except OSError as error:
        message = f"the job of process {job.pid} does not answer at {job.address}: {error}"
        raise Unavailable(message, subject=job.address) from error


def stored_status(folder: JobFolder, request: StatusRequest) -> Status:
    """Return the status from the stored state. No process may own the folder (`is_owned`).

    Raises:
        Invalid: The state cannot be opened.
        Corrupt: A stored value cannot be decoded.
    """
    with RocksStore(folder.state, read_only=True) as store:
        stored = store.get(META, APPLIED_KEY)
        queues, is_cut = selected_queues(store, request.group, request.topic, request.limit)
    return Status(
        running=False,
        folder=str(folder.root),
        apply_seq=Applied.decode(stored).apply_seq if stored is not None else 0,
        queues=queues,
        is_cut=is_cut,
    )


def stored_policies(folder: JobFolder, request: PoliciesRequest) -> Policies:
    """Return the rules in the stored state. No process may own the folder (`is_owned`).

    Raises:
        Invalid: The state cannot be opened.
        Corrupt: A stored value cannot be decoded.
    """
    with RocksStore(folder.state, read_only=True) as store:
        return Policies(policies_in(store, request.topic, request.group))


def stored_queues(folder: JobFolder, request: QueueRequest) -> list[ConsumeQueueView]:
    """Return the stored consume queues. No process may own the folder (`is_owned`).

    Raises:
        Invalid: No queues were built in this folder, or the request matches none.
        Corrupt: A stored value cannot be decoded.
    """
    if not folder.queues.is_dir():
        message = f"no queues were ever built in {folder.root}"
        raise Invalid(message, subject=str(folder.root))
    with (
        RocksStore(folder.queues, BUILDER_FAMILIES, read_only=True) as queues,
        RocksStore(folder.state, read_only=True) as state,
    ):
        return views_of(queues, state, request)


def is_owned(folder: JobFolder) -> bool:
    """Return whether a process owns the folder now. Takes the lock for a moment and changes nothing."""
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
