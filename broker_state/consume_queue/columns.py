"""A sealed table: columns of integers, each packed as distances from its least value, and a tail of bytes.

    0       format u8
    1       rows u16
    3       for each column: width of a distance in bytes u8 (0, 1, 2, 4, 8), least value 8 bytes
    ..      each column: rows x width bytes, its distances as unsigned numbers
    ..      the tail
    -8      XXH3 of all that comes before

All little-endian. A column of equal values has width 0 and no bytes. A single value is read at its place without
decoding the column; numpy decodes a whole column.
"""

import struct
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import xxhash
from numpy.typing import NDArray

from broker_state.store.value_format import CorruptValueError

__all__ = ["Column", "ColumnTable", "Kinds", "pack_table", "seal", "unseal"]

Column = NDArray[np.int64] | NDArray[np.uint64]
Kinds = str
"""A letter for each column: `q` int64, `Q` uint64."""

_SEAL_BYTES = 8
_WIDTHS = (0, 1, 2, 4, 8)
_U64_MASK = (1 << 64) - 1


def seal(body: bytes) -> bytes:
    """Append a digest to the bytes.

    >>> unseal("example", seal(b"abc"))
    b'abc'
    """
    return body + xxhash.xxh3_64_digest(body)


def unseal(what: str, value: bytes) -> bytes:
    """Check the digest of sealed bytes, and return the bytes without it.

    Raises:
        CorruptValueError: The digest does not match.
    """
    body = value[:-_SEAL_BYTES]
    if value[-_SEAL_BYTES:] != xxhash.xxh3_64_digest(body):
        raise CorruptValueError(what, value)
    return body


def pack_table(form: int, columns: Sequence[Column], tail: bytes) -> bytes:
    """Encode `columns`, which have the same length, below 65,536, as one value.

    >>> value = pack_table(1, [np.array([1000, 1003, 1300]), np.array([7, 7, 7])], b"tail")
    >>> len(value), ColumnTable("example", value, 1, "qq").at(0, 2), ColumnTable("example", value, 1, "qq").signed(1)
    (39, 1300, array([7, 7, 7]))
    """
    header: list[int] = []
    packed: list[bytes] = []
    kinds = []
    for column in columns:
        least = int(column.min())
        width = _width_of(int(column.max()) - least)
        header += (width, least)
        kinds.append("q" if column.dtype == np.int64 else "Q")
        if width:
            distances = column.view(np.uint64) - np.array(least, column.dtype).view(np.uint64)
            packed.append(distances.astype(f"<u{width}").tobytes())
    return seal(b"".join((_header("".join(kinds)).pack(form, len(columns[0]), *header), *packed, tail)))


class ColumnTable:
    """A value of `pack_table`: single values are read in O(1), columns as numpy arrays."""

    __slots__ = ("_body", "_leasts", "_starts", "_widths", "rows", "tail")

    def __init__(self, what: str, value: bytes, form: int, kinds: Kinds) -> None:
        """Read the header.

        Raises:
            CorruptValueError: The value is not a whole table of this format and these kinds of columns.
        """
        body = unseal(what, value)
        layout = _header(kinds)
        if len(body) < layout.size or body[0] != form:
            raise CorruptValueError(what, value)
        _, rows, *header = layout.unpack_from(body)
        self.rows: int = rows
        self._widths = header[::2]
        self._leasts = header[1::2]
        self._body = body
        self._starts = []
        at = layout.size
        for width in self._widths:
            self._starts.append(at)
            at += width * self.rows
        if at > len(body) or any(width not in _WIDTHS for width in self._widths):
            raise CorruptValueError(what, value)
        self.tail = body[at:]

    def at(self, column: int, row: int) -> int:
        """Return the value of a column in a row."""
        assert 0 <= row < self.rows, "a row of the table"
        width = self._widths[column]
        start = self._starts[column] + row * width
        return int(self._leasts[column]) + int.from_bytes(self._body[start : start + width], "little")

    def signed(self, column: int) -> NDArray[np.int64]:
        """Return all values of an int64 column."""
        return self._values(column).view(np.int64)

    def unsigned(self, column: int) -> NDArray[np.uint64]:
        """Return all values of a uint64 column."""
        return self._values(column)

    def _values(self, column: int) -> NDArray[np.uint64]:
        width, least = self._widths[column], self._leasts[column] & _U64_MASK
        if not width:
            return np.full(self.rows, least, np.uint64)
        distances = np.frombuffer(self._body, f"<u{width}", self.rows, self._starts[column])
        return distances.astype(np.uint64) + np.array(least, np.uint64)  # modulo 2 ** 64


@lru_cache
def _header(kinds: Kinds) -> struct.Struct:
    return struct.Struct("<BH" + "".join("B" + kind for kind in kinds))


def _width_of(spread: int) -> int:
    return next(width for width in _WIDTHS if spread < 1 << (8 * width))
