"""Decisions out of bytes: an input of a fuzzer becomes numbers, choices and texts, and never runs dry."""

from collections.abc import Sequence
from typing import TypeVar

__all__ = ["ByteReader"]

Choice = TypeVar("Choice")


class ByteReader:
    """Reads `data` from its start; beyond its end there are zeros, so that every prefix of an input is an input.

    A choice takes one byte wherever that is enough: changing one byte of an input then changes one decision of it.

    >>> reader = ByteReader(bytes((7, 1, 0, 200, 3, 97, 98, 99)))
    >>> reader.pick("abc"), reader.chance(2), reader.number(), reader.text()
    ('b', True, -56, 'abc')
    >>> reader.is_dry, reader.rest(), reader.byte()
    (True, b'', 0)
    """

    _WIDTHS = (1, 2, 4, 8)

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def is_dry(self) -> bool:
        """Whether only zeros are left."""
        return self._at >= len(self._data)

    def take(self, count: int) -> bytes:
        """The next `count` bytes, fewer at the end."""
        taken = self._data[self._at : self._at + count]
        self._at += count
        return taken

    def rest(self) -> bytes:
        """All bytes that are left."""
        return self.take(len(self._data))

    def byte(self) -> int:
        """One byte."""
        at = self._at
        self._at = at + 1
        return self._data[at] if at < len(self._data) else 0

    def pick(self, choices: Sequence[Choice]) -> Choice:
        """One of at most 256 choices; zeros give the first."""
        return choices[self.byte() % len(choices)]

    def chance(self, out_of_256: int) -> bool:
        """True for that number of byte values, the lowest except 0."""
        return 0 < self.byte() <= out_of_256

    def signed(self, width: int) -> int:
        """A signed number of `width` bytes."""
        return int.from_bytes(self.take(width), "big", signed=True)

    def number(self) -> int:
        """A signed number of 1, 2, 4 or 8 bytes; its width comes first.

        >>> ByteReader(bytes((0, 5))).number(), ByteReader(bytes((1, 1, 0))).number()
        (5, 256)
        """
        return self.signed(self.pick(self._WIDTHS))

    def text(self) -> str:
        """A text, its length in bytes first; what is not UTF-8 becomes U+FFFD, as no JSON text could say it."""
        return self.take(self.byte()).decode(errors="replace")
