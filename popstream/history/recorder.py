"""The history of a client as lines of a file: what it sent and what it was answered, for a later check.

One line is one event, a JSON object. An operation begins with an `invoke`. It ends with an `ok` that has the answer, or
with an `unknown` when none came: then it was decided, will be decided, or was lost. An invoke without an end is unknown
too. The invoke is in the file before the operation is sent, so a killed client leaves a true history. The same bytes
sent again are the same invoke. Histories of several clients are read together, as files or as one file with all their
lines.

```
{"event":"invoke","call":"k3-1","client_id":"c","op_id":"x","at_ns":17,"monotonic_ns":5,"command":{"type":"pop",...}}
{"event":"ok","call":"k3-1","client_id":"c","op_id":"x","at_ns":19,"monotonic_ns":7,"answer":{...}}
```
"""

from __future__ import annotations

import io
import secrets
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from popstream.wire.answer import Answer
from popstream.wire.base_errors import Invalid
from popstream.wire.command import Command

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future

__all__ = ["HistoryEvent", "HistoryRecorder", "Invoke", "Ok", "Unknown", "read_history"]

CALL_BYTES = 6
LINE_START = b'{"event":"'


class _Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="event"):
    """Fields of every event.

    Attributes:
        call: Connects the end to its invoke; unique over all clients.
        client_id: Client that recorded it.
        op_id: Name of the operation.
        at_ns: Wall clock of the client, nanoseconds since 1970.
        monotonic_ns: Monotonic clock of the client; comparable within one process.
    """

    call: str
    client_id: str
    op_id: str
    at_ns: int
    monotonic_ns: int


class Invoke(_Event, frozen=True, kw_only=True, tag="invoke"):
    """The operation is about to be sent; `command` as the job reads it, with `op_id` and `reply_to`."""

    command: Command


class Ok(_Event, frozen=True, kw_only=True, tag="ok"):
    """The answer came, with all its parts joined. It may be a refusal."""

    answer: Answer


class Unknown(_Event, frozen=True, kw_only=True, tag="unknown"):
    """No answer came; `cause` is the type of the error, or "posted" when the client does not wait for an answer."""

    cause: str


HistoryEvent = Invoke | Ok | Unknown

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(HistoryEvent).decode


class HistoryRecorder:
    """Appends events to a file, each line written at once and as a whole. Safe for use by many threads.

    The line of an answer is written on the thread that completes the future, before its later callbacks run.

    Args:
        path: The file; created with its folders, or continued.
        client_id: Client that records.

    Raises:
        Invalid: The file cannot be opened.
    """

    def __init__(self, path: Path, client_id: str) -> None:
        """Open the file, and end a line that a killed process left unfinished."""
        self._client_id = client_id
        self._lock = threading.Lock()
        self._name = secrets.token_hex(CALL_BYTES)
        self._count = 0
        try:
            self._file = _open_to_append(Path(path))
        except OSError as error:
            message = f"the history {path} cannot be written: {error.strerror}"
            raise Invalid(message, subject=str(path)) from error

    def follow(self, command: Command, future: Future[Answer]) -> None:
        """Record that `command` is about to be sent, and later the result of `future`.

        Raises:
            OSError: It could not be recorded: do not send it.
        """
        call, op_id = self._invoke(command)

        def record_end(ended: Future[Answer]) -> None:
            error = ended.exception()
            if error is None:
                self._write(Ok(**self._stamp(call, op_id), answer=ended.result()))
            else:
                self._write(Unknown(**self._stamp(call, op_id), cause=type(error).__name__))

        future.add_done_callback(record_end)

    def post(self, command: Command) -> None:
        """Record that `command` is about to be sent, and that no answer is awaited.

        Raises:
            OSError: It could not be recorded: do not send it.
        """
        self._write(Unknown(**self._stamp(*self._invoke(command)), cause="posted"))

    def close(self) -> None:
        """Close the file; operations that end later have no end in it, which means unknown."""
        with self._lock:
            self._file.close()

    def _invoke(self, command: Command) -> tuple[str, str]:
        with self._lock:
            self._count += 1
            call = f"{self._name}-{self._count}"
        op_id = command.op_id or ""
        self._write(Invoke(**self._stamp(call, op_id), command=command))
        return call, op_id

    def _stamp(self, call: str, op_id: str) -> dict[str, Any]:
        """Return the fields of every event, as of now."""
        return {
            "call": call,
            "client_id": self._client_id,
            "op_id": op_id,
            "at_ns": time.time_ns(),
            "monotonic_ns": time.monotonic_ns(),
        }

    def _write(self, event: HistoryEvent) -> None:
        line = _encode(event) + b"\n"
        with self._lock:
            if self._file.closed:
                return
            written = self._file.write(line)
            if written != len(line):
                message = f"{written} of {len(line)} bytes could be written to {self._file.name}"
                raise OSError(message)


def _open_to_append(path: Path) -> io.FileIO:
    """Open a file at its end, after a line end. Each line is one unbuffered append, so clients may share the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.open("ab+", buffering=0)
    if file.seek(0, io.SEEK_END):
        file.seek(-1, io.SEEK_END)
        if file.read(1) != b"\n":
            file.write(b"\n")
    return file


def read_history(*paths: Path) -> Iterator[HistoryEvent]:
    """Yield the events of the files, in their order.

    A line that a kill cut short is skipped, at the end of a file or where files were joined: the operation of an
    incomplete invoke was not sent, and an incomplete answer counts as none.

    Raises:
        Invalid: A file does not exist, or a line is malformed for another reason.
    """
    for path in paths:
        try:
            file = path.open("rb")
        except OSError as error:
            message = f"the history {path} cannot be read: {error.strerror}"
            raise Invalid(message, subject=str(path)) from error
        with file:
            for number, line in enumerate(file, 1):
                event = _read_line(line.rstrip(b"\r\n"), f"{path}:{number}")
                if event is not None:
                    yield event


def _read_line(line: bytes, place: str) -> HistoryEvent | None:
    if not line:
        return None
    try:
        event: HistoryEvent = _decode(line)
    except msgspec.DecodeError as error:
        # Two files were joined without a line end between them: the event behind the torn line is complete.
        start = line.rfind(LINE_START)
        if start > 0 and _is_torn(line[:start]):
            return _read_line(line[start:], place)
        if _is_torn(line):
            return None
        message = f"{place} is not an event of a history: {error}"
        raise Invalid(message, subject=place) from error
    except UnicodeDecodeError as error:
        message = f"{place} is not an event of a history: {error}"
        raise Invalid(message, subject=place) from error
    return event


def _is_torn(line: bytes) -> bool:
    """Return whether the line is the beginning of an event, cut short.

    >>> [_is_torn(line) for line in (b'{"event":"in', b'{"ev', b'{"event":"invoke"}', b"nonsense")]
    [True, True, False, False]
    """
    if not (line.startswith(LINE_START) or LINE_START.startswith(line)):
        return False
    try:
        msgspec.json.decode(line)
    except msgspec.DecodeError as error:
        return "truncated" in str(error)
    except UnicodeDecodeError:
        return True  # cut within a character
    return False
