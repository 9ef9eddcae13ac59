"""What a client asked and what it was told, as lines of a file, for a checker to judge afterwards.

One line is one event, a JSON object. An operation is an `invoke`, and later an `ok` with the answer, or an `unknown`
when none came: then it was decided, will be decided, or was lost. An invoke without an end is unknown too, so a killed
client leaves a true history: the invoke is in the file before the operation is sent. The same bytes sent again are
the same invoke. Histories of several clients are read together, as files or as one file with all their lines.

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
from typing import TYPE_CHECKING

import msgspec

from popstream.wire.answer import Answer
from popstream.wire.command import Command
from popstream.wire.failures import Invalid

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future

__all__ = ["HistoryEvent", "HistoryRecorder", "Invoke", "Ok", "Unknown", "read_history"]

CALL_BYTES = 6
LINE_START = b'{"event":"'


class _Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="event"):
    """What every event has.

    Args:
        call: Ties the end to its invoke; no two invokes share it, also those of different clients.
        client_id: Client that did it.
        op_id: Name of the operation.
        at_ns: Wall clock of the client, nanoseconds since 1970.
        monotonic_ns: Its monotonic clock, which only compares events of one process.
    """

    call: str
    client_id: str
    op_id: str
    at_ns: int
    monotonic_ns: int


class Invoke(_Event, frozen=True, kw_only=True, tag="invoke"):
    """The operation is about to be sent; `command` is what the job reads, `op_id` and `reply_to` filled in."""

    command: Command


class Ok(_Event, frozen=True, kw_only=True, tag="ok"):
    """The answer came; all its parts joined. It may be a refusal: known is not done."""

    answer: Answer


class Unknown(_Event, frozen=True, kw_only=True, tag="unknown"):
    """No answer came; `cause` is the kind of error, or that nobody waits for one."""

    cause: str


HistoryEvent = Invoke | Ok | Unknown

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(HistoryEvent).decode


class HistoryRecorder:
    """Appends events to a file, each line written at once and as a whole. Safe for use by many threads.

    The answer's line is written before the future's later callbacks run, on the thread that completes it.

    Args:
        path: The file; made with its folders, continued if it is there.
        client_id: Client whose history it is.

    Raises:
        Invalid: The file cannot be opened.
    """

    def __init__(self, path: Path, client_id: str) -> None:
        """Open the file; a line that a killed process left unfinished is ended."""
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
        """Record that `command` is about to be sent, and what becomes of `future`.

        Raises:
            OSError: It could not be recorded: do not send it.
        """
        call, op_id = self._invoke(command)

        def record_end(ended: Future[Answer]) -> None:
            error = ended.exception()
            if error is None:
                self._record_ok(call, op_id, ended.result())
            else:
                self._record_unknown(call, op_id, type(error).__name__)

        future.add_done_callback(record_end)

    def post(self, command: Command) -> None:
        """Record that `command` is about to be sent, and that nobody will know what became of it.

        Raises:
            OSError: It could not be recorded: do not send it.
        """
        self._record_unknown(*self._invoke(command), "posted")

    def close(self) -> None:
        """Close the file; what ends later stays without an end, which is unknown."""
        with self._lock:
            self._file.close()

    def _invoke(self, command: Command) -> tuple[str, str]:
        with self._lock:
            self._count += 1
            call = f"{self._name}-{self._count}"
        op_id = command.op_id or ""
        self._write(
            Invoke(
                call=call,
                client_id=self._client_id,
                op_id=op_id,
                at_ns=time.time_ns(),
                monotonic_ns=time.monotonic_ns(),
                command=command,
            )
        )
        return call, op_id

    def _record_ok(self, call: str, op_id: str, answer: Answer) -> None:
        self._write(
            Ok(
                call=call,
                client_id=self._client_id,
                op_id=op_id,
                at_ns=time.time_ns(),
                monotonic_ns=time.monotonic_ns(),
                answer=answer,
            )
        )

    def _record_unknown(self, call: str, op_id: str, cause: str) -> None:
        self._write(
            Unknown(
                call=call,
                client_id=self._client_id,
                op_id=op_id,
                at_ns=time.time_ns(),
                monotonic_ns=time.monotonic_ns(),
                cause=cause,
            )
        )

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
    """The file, at its end and after a line end; without a buffer each line is one append, and clients may share it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.open("ab+", buffering=0)
    if file.seek(0, io.SEEK_END):
        file.seek(-1, io.SEEK_END)
        if file.read(1) != b"\n":
            file.write(b"\n")
    return file


def read_history(*paths: Path) -> Iterator[HistoryEvent]:
    """The events of the files, in their order.

    A line that a kill cut short is passed over, at the end of a file or where files were joined: nothing was sent for
    an invoke that is not whole, and an answer that is not whole is none.

    Raises:
        Invalid: A file is not there, or a line is no event for another reason.
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
        # Two files joined without a line end between them: what follows the torn line is whole.
        start = line.rfind(LINE_START)
        if start > 0 and _is_torn(line[:start]):
            return _read_line(line[start:], place)
        if _is_torn(line):
            return None
        message = f"{place} is no event of a history: {error}"
        raise Invalid(message, subject=place) from error
    except UnicodeDecodeError as error:
        message = f"{place} is no event of a history: {error}"
        raise Invalid(message, subject=place) from error
    return event


def _is_torn(line: bytes) -> bool:
    """Whether the line is the head of an event, cut short.

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
