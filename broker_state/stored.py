"""Bytes that were stored and are read again: what can be wrong with them is one kind of error."""

from collections.abc import Callable
from typing import TypeVar

import msgspec

from broker_state.errors import CorruptValueError

__all__ = ["FORMAT_1", "UNDECODABLE", "read_stored"]

FORMAT_1 = b"\x01"

UNDECODABLE = (msgspec.MsgspecError, UnicodeError, RecursionError)
"""What msgspec raises for bytes that somebody else has written.

Not only its own errors: text that is no UTF-8, and values nested too deep, are Python's.
"""

_DAMAGED = (*UNDECODABLE, ValueError, IndexError)

Value = TypeVar("Value")


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
