"""What can happen to a file: each harm changes the file in place, as a seeded chance wants it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["HARMS", "flip", "overwrite", "remove", "swap", "truncate"]


def flip(file: Path, chance: random.Random) -> None:
    """Flip one bit."""
    data = bytearray(file.read_bytes())
    if data:
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    file.write_bytes(bytes(data))


def truncate(file: Path, chance: random.Random) -> None:
    """Cut the end off, or nothing, or all."""
    data = file.read_bytes()
    file.write_bytes(data[: chance.randrange(len(data) + 1)])


def overwrite(file: Path, chance: random.Random) -> None:
    """Write as many random bytes."""
    file.write_bytes(chance.randbytes(max(1, file.stat().st_size)))


def remove(file: Path, _: random.Random) -> None:
    """Delete the file."""
    file.unlink()


def swap(file: Path, chance: random.Random) -> None:
    """Put another file of the same kind in its place."""
    others = [other for other in sorted(file.parent.glob(f"*{file.suffix}")) if other != file and other.is_file()]
    file.write_bytes(chance.choice(others).read_bytes() if others else b"another file\n")


HARMS: list[Callable[[Path, random.Random], None]] = [flip, truncate, remove, swap, overwrite]
