"""How often the job has begun what it has not ended: what tells a record that kills it from bad luck.

The note is a small file beside the state, not synced: it outlives the process, and a power loss makes it forget only.
"""

from pathlib import Path

import msgspec

__all__ = ["Attempts"]


class _Note(msgspec.Struct, frozen=True):
    next_offset: dict[int, int]
    alone: tuple[int, int] | None = None
    count: int = 1


class Attempts:
    """Counts the attempts at one place of the log, across processes.

    Args:
        path: The file. One that cannot be read says nothing.

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
        except (FileNotFoundError, msgspec.DecodeError):
            path.parent.mkdir(parents=True, exist_ok=True)

    @property
    def alone(self) -> tuple[int, int] | None:
        """(partition, kafka offset) of the record that was begun alone and not ended."""
        return None if self._note is None else self._note.alone

    def begin(self, next_offset: dict[int, int], alone: tuple[int, int] | None = None) -> int:
        """Note that the log is decided up to `next_offset` and more is tried; the number of this attempt, from 1.

        Args:
            next_offset: By partition.
            alone: (partition, kafka offset) of the only record that is tried.
        """
        before = self._note
        is_same = before is not None and (before.next_offset, before.alone) == (next_offset, alone)
        count = before.count + 1 if before is not None and is_same else 1
        self._note = _Note(next_offset, alone, count)
        self._path.write_bytes(msgspec.json.encode(self._note))
        return count

    def end(self) -> None:
        """What was begun has ended well; `begin` counts from 1 again."""
        if self._note is not None and (self._note.count > 1 or self._note.alone is not None):
            self.forget()
        self._note = None

    def forget(self) -> None:
        """What was begun has failed for what is no fault of records: nobody shall count it."""
        self._path.unlink(missing_ok=True)  # which a disk that is full allows
        self._note = None
