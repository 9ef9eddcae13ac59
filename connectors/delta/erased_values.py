"""What stands where a person's text was erased, or was never kept.

A replay, which computes the text, takes it for the same.
"""

from __future__ import annotations

import hashlib
from enum import StrEnum
from typing import Final

from broker_state.audit import HANDLER_CAUSE
from connectors.delta.tables import QUOTING_COLUMNS

__all__ = ["ERASED", "ERASED_CAUSE", "NO_HEAD", "RejectedHeads", "is_withheld", "kept_head"]

ERASED: Final = "(erased)"

ERASED_CAUSE: Final = f"{HANDLER_CAUSE}: {ERASED}"
"""The cause of a message that a failed handler gave back, without what it raised."""

NO_HEAD: Final = b""
"""A head that was erased or not kept."""


class RejectedHeads(StrEnum):
    """What the table `rejected` keeps of the heads of values."""

    WHOLE = "whole"
    HASH = "hash"
    NONE = "none"


def kept_head(head: bytes, kept: RejectedHeads) -> bytes:
    """Return what is kept of a head.

    >>> kept_head(b"secret", RejectedHeads.WHOLE), kept_head(b"secret", RejectedHeads.NONE)
    (b'secret', b'')
    """
    if kept is RejectedHeads.HASH:
        return hashlib.sha256(head).digest()
    return head if kept is RejectedHeads.WHOLE else NO_HEAD


def is_withheld(column: str, wanted: object, found: object) -> bool:
    """Return whether a value stands for another one that is not shown.

    >>> is_withheld("cause", "handler: ValueError: no milk", "handler: (erased)"), is_withheld("cause", "ack", "pop")
    (True, False)
    >>> is_withheld("value_head", b"secret", b""), is_withheld("value_head", b"secret", b"other")
    (True, False)
    """
    if column not in QUOTING_COLUMNS:
        return False
    if isinstance(wanted, bytes):
        return found in {kept_head(wanted, kept) for kept in RejectedHeads}
    return found in (ERASED, ERASED_CAUSE)
