"""What a load consists of, and what its messages look like."""

import struct
import time
from typing import Final

import msgspec

from pipelines.cli.clients.perf.ack_form import AckForm
from pipelines.cli.target import Target

__all__ = ["VALUE_BYTES_MIN", "Plan", "made_value", "read_value"]

_HEAD: Final = struct.Struct(">8sQQ")
VALUE_BYTES_MIN: Final = _HEAD.size
"""A value begins with the id of the load, the number of the message and the time at which it was sent."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """One load.

    Attributes:
        target: The job.
        load_id: 8 bytes that tell its messages from all others.
        topic: Message topic.
        queues: Queues of the topic.
        messages: How many are sent; each group consumes all of them.
        message_bytes: Size of a value.
        rate: Messages sent in a second while consumers run; 0: all are sent first, as fast as it goes.
        groups: Consumer groups.
        workers: Processes per group, each with one consumer.
        threads: Threads of a consumer that call the handler, or pop.
        ack: How they take and ack messages.
        pop_size: Greatest number of messages of a pop (`ack` POP), or of a call of the handler (`ack` SET).
        prefetch: Messages that a consumer leases ahead; not for `ack` POP.
        invisible_time_ms: Of each lease.
        stall_s: The load has failed when nothing arrives for this time.
    """

    target: Target
    load_id: bytes
    topic: str
    queues: int
    messages: int
    message_bytes: int
    rate: float
    groups: tuple[str, ...]
    workers: int
    threads: int
    ack: AckForm
    pop_size: int
    prefetch: int
    invisible_time_ms: int
    stall_s: float


def made_value(plan: Plan, number: int) -> bytes:
    """Return the value of a message that is sent now."""
    return _HEAD.pack(plan.load_id, number, time.time_ns()).ljust(plan.message_bytes, b".")


def read_value(plan: Plan, value: bytes | None) -> tuple[int, float] | None:
    """Return the number of a message, and the milliseconds since it was sent; None if it is not of this load."""
    if value is None or len(value) < VALUE_BYTES_MIN:
        return None
    load_id, number, sent_ns = _HEAD.unpack_from(value)
    if load_id != plan.load_id or number >= plan.messages:
        return None
    return number, (time.time_ns() - sent_ns) / 1e6
