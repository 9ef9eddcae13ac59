"""Bytes that were stored and are read again: what can be wrong with them is one kind of error."""

from collections.abc import Callable
from typing import TypeVar

from popstream.wire.decoding import DECODE_ERRORS
from popstream.wire.failures import RESTORE, Corrupt

__all__ = ["FORMAT_1", "CorruptValueError", "read_stored"]

FORMAT_1 = b"\x01"

_DAMAGED = (*DECODE_ERRORS, ValueError, IndexError)

Value = TypeVar("Value")


class CorruptValueError(Corrupt):
    """A stored value that no known format explains."""

    def __init__(self, what: str, value: bytes) -> None:
        """Name the kind of value and show its head."""
        super().__init__(f"unreadable {what}: {value[:16].hex()}; {RESTORE}", subject=what)
        self.value = value


def read_stored(what: str, form: bytes, value: bytes, decode: Callable[[bytes], Value]) -> Value:
    """What `decode` makes of a value behind its format byte.

    Raises:
        CorruptValueError: The format byte is not `form`, or the rest cannot be read.

    >>> read_stored("number", FORMAT_1, FORMAT_1 + b"7", int)
    7
    """
    if value[:1] != form:
        raise CorruptValueError(what, value)
    try:
        return decode(value[1:])
    except _DAMAGED as error:
        raise CorruptValueError(what, value) from error
