"""The messages of a load: each tells its number, and since when it has been waited for."""

from __future__ import annotations

import struct
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pipelines.cli.clients.perf.plan import Plan

__all__ = ["VALUE_BYTES_MIN", "made_value", "read_value"]

_HEAD: Final = struct.Struct(">8sQQ")
VALUE_BYTES_MIN: Final = _HEAD.size
"""A value begins with the id of the load, the number of the message and the time from which on it is waited for."""


def made_value(plan: Plan, number: int, since_ns: int) -> bytes:
    """Return the value of a message.

    Args:
        plan: The load.
        number: Of the message.
        since_ns: With a rate, when it was due to be sent, as `time.time_ns`: a sender that is late, because the job or
            Kafka holds it up, makes the times longer, as it would for those who wait. Otherwise when it is sent.
    """
    return _HEAD.pack(plan.load_id, number, since_ns).ljust(plan.message_bytes, b".")


def read_value(plan: Plan, value: bytes | None) -> tuple[int, float] | None:
    """Return the number of a message, and the milliseconds since it was due or sent; None if it is not of this load."""
    if value is None or len(value) < VALUE_BYTES_MIN:
        return None
    load_id, number, since_ns = _HEAD.unpack_from(value)
    if load_id != plan.load_id or number >= plan.messages:
        return None
    return number, (time.time_ns() - since_ns) / 1e6
