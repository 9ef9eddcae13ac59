"""What a process of the demo is told at its start, and what it tells while it runs."""

from typing import Literal

import msgspec

from pipelines.demo.messages import Source

__all__ = ["GO", "STOP", "Note", "Orders", "Role"]

Role = Literal["sender", "steady", "doomed", "changer", "intruder", "orderly"]

GO = b"go\n"
STOP = b"stop\n"
"""Lines on standard input. Its end, which comes when the demo dies, ends the process at once."""


class Orders(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a process needs; its only argument, as JSON.

    Attributes:
        name: Of the process; it is its client id too.
        ack_count: A steady consumer acks so many messages at a time; 0: all of a pop at once.
        releases_poison: Poison is given back until it is a dead letter; else it is acked like the others.
        rejected_count: Unreadable records that the intruder writes.
        refused_count: Operations that it has refused.
    """

    name: str
    role: Role
    bootstrap_servers: str
    prefix: str
    topic: str
    queues: int
    partitions: int
    source: Source
    journal: str
    group: str = ""
    ack_count: int = 0
    releases_poison: bool = False
    rejected_count: int = 0
    refused_count: int = 0


class Note(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line on standard output, about once a second; counts are since the start.

    `state`: *ready* (connected, waits for `GO`), *working*, *armed* (has done what others must wait for), *done*.
    """

    state: Literal["ready", "working", "armed", "done"]
    sent: int = 0
    popped: int = 0
    redelivered: int = 0
    acked: int = 0
