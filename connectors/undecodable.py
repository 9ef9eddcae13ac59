"""What msgspec raises for bytes that somebody else has written."""

import msgspec

__all__ = ["UNDECODABLE"]

UNDECODABLE = (msgspec.MsgspecError, UnicodeError, RecursionError)
"""Not only its own: text that is no UTF-8, and values nested too deep, are errors of Python's."""
