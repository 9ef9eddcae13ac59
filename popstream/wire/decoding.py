"""What decoding bytes from elsewhere can raise."""

import msgspec

__all__ = ["DECODE_ERRORS"]

DECODE_ERRORS = (msgspec.MsgspecError, UnicodeError, RecursionError)
"""Errors of msgspec's decoders for bytes that somebody else has written.

Besides its own, these are Python's: text that is not UTF-8, and values that are nested too deeply.
"""
