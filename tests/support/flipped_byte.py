"""Damage as a disk does it: one byte of a file differs, and its inode, size and time do not."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def flip_byte(path: Path, at: int | None = None) -> None:
    """Invert one byte of a file, by default a middle one."""
    status = path.stat()
    with path.open("r+b") as file:
        file.seek(status.st_size // 3 if at is None else at)
        (byte,) = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 0xFF]))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
