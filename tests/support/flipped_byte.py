"""Damage as a disk does it: a byte or a bit of a file differs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from popstream.wire.base_errors import Corrupt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

__all__ = ["flip_byte", "flipped_bit", "noticed_flips"]


def flip_byte(path: Path, at: int | None = None) -> None:
    """Invert one byte of a file, by default a middle one; its inode, size and time stay."""
    status = path.stat()
    with path.open("r+b") as file:
        file.seek(status.st_size // 3 if at is None else at)
        (byte,) = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 0xFF]))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def flipped_bit(whole: bytes, bit: int) -> bytes:
    """Return bytes with one bit inverted; the first byte has the bits 0 to 7."""
    flipped = bytearray(whole)
    flipped[bit // 8] ^= 1 << bit % 8
    return bytes(flipped)


def noticed_flips(file: Path, bits: Iterable[int], read: Callable[[], object]) -> list[int]:
    """Invert each of some bits alone, and read; return the places of the bytes for which that raised Corrupt.

    Otherwise it must return what it returned before.
    """
    whole, before = file.read_bytes(), read()
    noticed = []
    for bit in bits:
        file.write_bytes(flipped_bit(whole, bit))
        try:
            found = read()
        except Corrupt:
            noticed.append(bit // 8)
        else:
            assert found == before, bit
    return noticed
