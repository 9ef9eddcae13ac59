"""Ownership of a job folder: one writer, by an flock that is taken before Spark starts.

RocksDB's LOCK is not enough: its owner loses it by opening and closing the file, or by copying the folder. Spark's
checkpoint is not enough either: two drivers both run a micro-batch before one of them notices.
"""

import contextlib
import fcntl
import logging
import os
import platform
import re
import secrets
from pathlib import Path
from types import TracebackType
from typing import Self, TextIO

from popstream.wire.base_errors import Fenced

__all__ = ["Ownership"]

LOG = logging.getLogger(__name__)

_NAME = re.compile(r"[0-9]+ [0-9a-f]{16}")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Ownership:
    """Holds the lock file of a job folder from construction until `release`, or until the process dies.

    On file systems without a reliable flock, such as some network file systems, `require` still detects a second
    owner: the file contains the name of the last one, which is read before each write. A file that has been damaged,
    removed or replaced names nobody: it is written again, unless somebody else holds the new one.

    Raises:
        Fenced: Another process holds it.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = _locked(path, "runs", ": stop it first, or choose another folder")
        self._path = path
        self._name = f"{os.getpid()} {secrets.token_hex(8)}"
        self._write_name()

    def require(self) -> None:
        """Check that this process still owns the folder.

        Raises:
            Fenced: Another process has taken over, or the lock file cannot be read.
        """
        try:
            owner = self._path.read_text(errors="replace") if self._path.exists() else ""
            if owner == self._name:
                return
            if _NAME.fullmatch(owner):
                raise _fenced(self._path, owner, "has taken over")
            self._mend()
        except OSError as error:
            message = f"{self._path} cannot be read, so this process may no longer own the job: {error}"
            raise Fenced(message, subject=str(self._path)) from error

    def _mend(self) -> None:
        is_ours = self._path.exists() and os.path.samestat(self._path.stat(), os.fstat(self._file.fileno()))
        if not is_ours:
            file = _locked(self._path, "has taken over")
            self._file.close()
            self._file = file
        self._write_name()
        LOG.warning("%s did not name its owner: it was damaged, and is written again", self._path)

    def _write_name(self) -> None:
        self._file.truncate(0)
        self._file.write(self._name)
        self._file.flush()

    @property
    def place(self) -> str:
        """Identity of the lock file and of the running system: an earlier owner with the same one has ended."""
        found = os.fstat(self._file.fileno())
        system = platform.node()
        with contextlib.suppress(OSError):  # Linux only
            system = _BOOT_ID.read_text().strip()
        return f"{system}:{found.st_dev}:{found.st_ino}"

    def release(self) -> None:
        """Let another process take over."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def _locked(path: Path, what: str, advice: str = "") -> TextIO:
    """Open and lock the file; raise Fenced, by `what` its holder does, if another process has locked it."""
    file = path.open("a+", errors="replace")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.seek(0)
        owner = file.read()
        file.close()
        raise _fenced(path, owner, what, advice) from error
    return file


def _fenced(path: Path, owner: str, what: str, advice: str = "") -> Fenced:
    message = f"process {owner.partition(' ')[0] or 'unknown'} {what} the job in {path.parent}{advice}"
    return Fenced(message, subject=str(path))
