"""Counts attempts to decide the same records, across processes: a record that crashes the job is found by the count.

The count is a small file beside the state. It is not synced: it survives the process, and a power loss only resets it.
"""

from pathlib import Path

import msgspec
import structlog

from popstream.wire.decode_errors import DECODE_ERRORS

__all__ = ["Attempts"]


_log = structlog.get_logger(__name__)


class _Note(msgspec.Struct, frozen=True):
    next_offset: dict[int, int]
    alone: tuple[int, int] | None = None
    count: int = 1


class Attempts:
    """Counts the attempts at one place of the log, across processes.

    Args:
        path: The file. One that cannot be decoded counts as missing.

    >>> import tempfile
    >>> attempts = Attempts(Path(tempfile.mkdtemp()) / "attempts")
    >>> attempts.begin({0: 7}), attempts.begin({0: 7}), attempts.begin({0: 8})
    (1, 2, 1)
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._note: _Note | None = None
        try:
            self._note = msgspec.json.decode(path.read_bytes(), type=_Note)
        except FileNotFoundError:
            path.parent.mkdir(parents=True, exist_ok=True)
        except DECODE_ERRORS as error:
            _log.warning("attempts_unreadable", path=str(path), error=str(error))

    @property
    def alone(self) -> tuple[int, int] | None:
        """(partition, kafka offset) of the record whose attempt alone has not ended."""
        return None if self._note is None else self._note.alone

    def begin(self, next_offset: dict[int, int], alone: tuple[int, int] | None = None) -> int:
        """Store that an attempt begins, and return its number, from 1.

        Args:
            next_offset: First undecided Kafka offset, by partition.
            alone: (partition, kafka offset) of the record, if only one is tried.
        """
        before = self._note
        is_same = before is not None and (before.next_offset, before.alone) == (next_offset, alone)
        count = before.count + 1 if before is not None and is_same else 1
        self._note = _Note(next_offset, alone, count)
        self._path.write_bytes(msgspec.json.encode(self._note))
        return count

    def end(self) -> None:
        """Store that the attempt succeeded: the next one has number 1."""
        if self._note is not None and (self._note.count > 1 or self._note.alone is not None):
            self.forget()
        self._note = None

    def forget(self) -> None:
        """Do not count the attempt: it failed for a reason other than its records."""
        self._path.unlink(missing_ok=True)  # which also works on a full disk
        self._note = None
