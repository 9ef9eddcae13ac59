"""Asks a running job through its control socket or its API."""

import contextlib
import fcntl
import os
import socket
from collections.abc import Iterator
from typing import TypeVar

import msgspec

from checkpoints.layout import JobFolder
from checkpoints.snapshot_store import Snapshot
from pipelines.build_consume_queue.queue_view import ConsumeQueueView
from pipelines.control.http_client import asked_by_http
from pipelines.control.job_file import JobFile
from pipelines.control.messages import (
    Failure,
    Image,
    Policies,
    Rebuilt,
    Request,
    Status,
)
from pipelines.control.pages import by_pages
from popstream.wire.base_errors import Unavailable
from popstream.wire.decode_errors import DECODE_ERRORS

__all__ = ["ask", "is_owned"]

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
        timeout_s: How long to wait for it, and by the API for each page; None: 15 s, or 60 s for the API.

    Raises:
        Unavailable: The job does not answer, or cannot serve the request now.
        Invalid: The job refuses the request.
    """
    if "://" not in job.address:
        return _decoded(job, _asked_by_socket(job, request, timeout_s or TIMEOUT_S), reply)

    def get(page: Request) -> Reply:
        return _decoded(job, asked_by_http(job.address, job.token, page, timeout_s or API_TIMEOUT_S), reply)

    return by_pages(request, get)


def _decoded(job: JobFile, line: bytes, reply: type[Reply]) -> Reply:
    try:
        return msgspec.json.decode(line, type=reply)
    except DECODE_ERRORS as error:
        with contextlib.suppress(*DECODE_ERRORS):
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
