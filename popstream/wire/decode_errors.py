"""The errors of decoding bytes from outside."""

import msgspec

__all__ = ["DECODE_ERRORS"]

DECODE_ERRORS = (msgspec.MsgspecError, UnicodeError, RecursionError)
"""Errors that msgspec's decoders raise for malformed bytes.

Besides its own these are Python's, for text that is not UTF-8 and for values that are nested too deeply.
"""
