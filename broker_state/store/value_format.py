"""The format of stored values: one format byte, then content; and the error of a value that cannot be read.

A new layout of a value takes a new byte, and the decoder of the old one stays.
"""

from collections.abc import Callable
from typing import ClassVar, Self, TypeVar

import msgspec

from popstream.wire.base_errors import RESTORE, Corrupt
from popstream.wire.decode_errors import DECODE_ERRORS

__all__ = ["FORMAT_1", "CorruptValueError", "StoredRecord", "read_stored"]

FORMAT_1 = b"\x01"
"""The format byte of every value that has had one layout so far."""

_encode = msgspec.msgpack.Encoder().encode

_DAMAGED = (*DECODE_ERRORS, ValueError, IndexError)

Value = TypeVar("Value")


class CorruptValueError(Corrupt):
    """A stored value is in no known format.

    Args:
        what: The kind of value.
        value: Its bytes; the message shows the first 16.
    """

    def __init__(self, what: str, value: bytes) -> None:
        super().__init__(f"unreadable {what}: {value[:16].hex()}; {RESTORE}", subject=what)
        self.value = value


def read_stored(what: str, form: bytes, value: bytes, decode: Callable[[bytes], Value]) -> Value:
    """Check the format byte of a value, and decode the rest.

    Raises:
        CorruptValueError: The format byte is not `form`, or `decode` fails.

    >>> read_stored("number", FORMAT_1, FORMAT_1 + b"7", int)
    7
    """
    if value[:1] != form:
        raise CorruptValueError(what, value)
    try:
        return decode(value[1:])
    except _DAMAGED as error:
        raise CorruptValueError(what, value) from error


class StoredRecord:
    """Beside `msgspec.Struct`: the record is stored as the format byte 0x01 and MessagePack of its fields.

    Attributes:
        STORED_AS: What the error of an unreadable one calls it; empty: the name of its class.
    """

    __slots__ = ()
    STORED_AS: ClassVar[str] = ""

    def encode(self) -> bytes:
        """Return the format byte and MessagePack of the fields."""
        return FORMAT_1 + _encode(self)

    @classmethod
    def decode(cls, value: bytes) -> Self:
        """Decode a stored value.

        Raises:
            CorruptValueError: It has another format byte, or other fields.
        """
        what = cls.STORED_AS or cls.__name__
        return read_stored(what, FORMAT_1, value, lambda data: msgspec.msgpack.decode(data, type=cls))
