"""The input and the output of the kernel: a record of the ops topic, and everything that was decided."""

from typing import NamedTuple

from broker_state.kernel.context.audit_trail import AuditRows
from popstream.wire.command import Command
from popstream.wire.dead_letter import DeadLetter
from popstream.wire.notification import Notification

__all__ = ["Decision", "OpRecord"]


class OpRecord(NamedTuple):
    """One readable record of the ops topic."""

    partition: int
    """Partition of the ops topic."""
    kafka_offset: int
    """Offset in that partition."""
    timestamp_ms: int
    """Kafka's timestamp of the record; the queue's clock never goes back behind it."""
    command: Command
    digest: bytes
    """Hash of the value's bytes: a repeated op_id with another digest is OP_ID_REUSED."""
    misrouted: str = ""
    """In which way the record is not where those of its queue belong: its key, its partition; empty: it is there."""
    forged: frozenset[int] = frozenset()
    """Indexes of handles whose signature is missing or not ours."""
    forbidden: str = ""
    """Why the sender may not send this well-formed operation; empty: it may."""
    admin_key: str | None = None
    """Id of the admin key that signed the operation; None: it is not signed, or no keys are set."""


class Decision(AuditRows):
    """Everything that was decided about the records of a micro-batch, in their order."""

    __slots__ = ("answers", "dead_letters", "notifications")

    def __init__(self) -> None:
        super().__init__()
        self.answers: list[tuple[int, bytes]] = []
        """(partition of the results topic, JSON of an Answer)"""
        self.notifications: list[Notification] = []
        self.dead_letters: list[DeadLetter] = []
