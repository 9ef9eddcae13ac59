"""One writer: an flock of our own, taken before Spark starts.

RocksDB's LOCK does not do: it is lost when its owner so much as opens and closes the file, or copies the folder.
Spark's checkpoint does not do either: two drivers both run the batch before one notices.
"""

import fcntl
import os
import secrets
from pathlib import Path
from types import TracebackType
from typing import Self

from popstream.wire.failures import Fenced

__all__ = ["Ownership"]


class Ownership:
    """Holds the lock file of a job folder from construction until `release`; the kernel lets go when the process dies.

    Where an flock is worth nothing, as on some network file systems, `require` is what is left: the file has the name
    of its last owner, which is read before each write.

    Raises:
        Fenced: another process holds it.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a+")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._file.seek(0)
            owner = self._file.read().partition(" ")[0] or "unknown"
            self._file.close()
            message = f"process {owner} runs the job in {path.parent}: stop it first, or choose another folder"
            raise Fenced(message, subject=str(path)) from error
        self._path = path
        self._name = f"{os.getpid()} {secrets.token_hex(8)}"
        self._file.truncate(0)
        self._file.write(self._name)
        self._file.flush()

    def require(self) -> None:
        """Check that nobody has taken over since.

        Raises:
            Fenced: Somebody has, or the folder is gone.
        """
        try:
            owner = self._path.read_text()
        except OSError as error:
            message = f"{self._path} cannot be read, so this process may own the job no more: {error}"
            raise Fenced(message, subject=str(self._path)) from error
        if owner != self._name:
            message = f"process {owner.partition(' ')[0] or 'unknown'} has taken over the job in {self._path.parent}"
            raise Fenced(message, subject=str(self._path))

    def release(self) -> None:
        """Let another process take over."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
