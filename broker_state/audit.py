"""Rows of the audit tables.

Every row starts with its cause: the coordinates of the record of the ops topic and `ordinal`, the row's number among
those of its table that the record caused. Offsets are inclusive ranges. The Delta tables have these columns and four
more that the flusher adds (`apply_seq`, `state_epoch`, `ops_topic_id`, `op_date`); connectors/delta/tables.py
explains each column.
"""

import enum
from typing import Final, NamedTuple

import msgspec

from popstream.wire.reason import Reason

__all__ = [
    "ERA_ENDING_KINDS",
    "HANDLER_CAUSE",
    "LANE_DELETING_KINDS",
    "LANE_RESETTING_KINDS",
    "REJECTED_HEAD_BYTES",
    "TEXT_CHARACTERS_MAX",
    "CommitPositionRow",
    "DeliveryRow",
    "DeliveryStep",
    "EntryRange",
    "OperationOutcome",
    "OperationRow",
    "OrderInfoRow",
    "Origin",
    "RejectReason",
    "RejectedRow",
    "StepCause",
    "is_handler_cause",
    "is_release_cause",
    "release_cause",
    "shortened",
]

TEXT_CHARACTERS_MAX: Final = 512
"""Rows and answers keep at most this many characters of a text without a limit, as in a refused operation."""

REJECTED_HEAD_BYTES: Final = 4096
"""A row of `rejected` keeps at most this many bytes of the head of the value."""

LANE_RESETTING_KINDS: Final = ("reset_offset",)
"""Operations that move a lane to another offset. The lane remains, with its totals."""

LANE_DELETING_KINDS: Final = ("forget_lane", "declare")
"""Operations that delete a lane, or a queue with its lanes: positions start anew."""

ERA_ENDING_KINDS: Final = (*LANE_RESETTING_KINDS, *LANE_DELETING_KINDS)
"""Operations that, when applied, end every lease of a lane at once: earlier attempts and acks are discarded.

One row of `deliveries` reports the end of all leases: its step is `released`, its cause the kind of the operation, and
its range may include offsets that were not leased.
"""


HANDLER_CAUSE: Final = "handler"
"""Cause of a release by a client whose handler failed, alone or followed by `: ` and what it raised."""


class DeliveryStep(enum.StrEnum):
    """The transitions of a lease."""

    LEASED = "leased"
    ACKED = "acked"
    CHANGED = "changed"
    EXPIRED = "expired"
    RELEASED = "released"
    DEAD_LETTERED = "dead_lettered"
    EXPIRED_FROM_LOG = "expired_from_log"


class StepCause(enum.StrEnum):
    """The causes of steps that the kernel names.

    Others come from clients: `handler: ` with what a handler raised (`release_cause`), the text of a reject, and of an
    ack of what cannot be consumed one of `popstream.wire.command.Cause`.
    """

    POP = "pop"
    POP_IN_ORDER = "pop_in_order"
    ACK = "ack"
    REJECTED = "rejected"
    CHANGE_INVISIBLE = "change_invisible"
    HANDLER = HANDLER_CAUSE
    DEADLINE = "deadline"
    ATTEMPT_LIMIT = "attempt_limit"
    CANCEL = "cancel"
    RETURN_CLIENT = "return_client"
    ATTEMPT_ID = "attempt_id"
    PASSED_OVER = "passed_over"
    LOG_START = "log_start"
    RESET_OFFSET = "reset_offset"
    FORGET_LANE = "forget_lane"
    DECLARE = "declare"


class RejectReason(enum.StrEnum):
    """Why no command can be read, or why it may not be sent."""

    TOO_LARGE = "TOO_LARGE"
    EMPTY = "EMPTY"
    NOT_JSON = "NOT_JSON"
    NOT_AN_OBJECT = "NOT_AN_OBJECT"
    UNKNOWN_VERSION = "UNKNOWN_VERSION"
    UNKNOWN_TYPE = "UNKNOWN_TYPE"
    BAD_FIELD = "BAD_FIELD"
    QUARANTINED = "QUARANTINED"
    NOT_SIGNED = "NOT_SIGNED"
    BAD_SIGNATURE = "BAD_SIGNATURE"


class OperationRow(NamedTuple):
    """One run of one entry of one operation (an operation without entries is one row, `entry` null)."""

    partition: int
    kafka_offset: int
    ordinal: int
    now_ms: int
    kind: str
    topic: str
    queue_id: int
    group: str | None
    op_id: str | None
    client_id: str | None
    entry: int | None
    first_offset: int | None
    last_offset: int | None
    handle_before: str | None
    handle_after: str | None
    code: int
    reason: str
    applied: bool
    repeated: bool
    deadline_before_ms: int | None
    deadline_after_ms: int | None
    attempt: int | None
    detail: str | None
    admin_key: str | None = None


class DeliveryRow(NamedTuple):
    """One step of the lease of a range; `at_ms` is when it took effect (an expiry: its deadline)."""

    partition: int
    kafka_offset: int
    ordinal: int
    now_ms: int
    topic: str
    queue_id: int
    group: str
    step: str
    first_offset: int
    last_offset: int
    epoch: int
    revision: int
    attempt: int
    at_ms: int
    deadline_ms: int | None
    cause: str
    client_id: str | None


class CommitPositionRow(NamedTuple):
    """A position that moved, and the counts of the lane (or queue: `group` null) after the record.

    Conservation: next_offset - start_offset = holes + acked + leased + available, in every lane row.
    `acked` includes `dead_lettered`, `expired_from_log`, `passed_over` and `skipped_by_reset`, until a reset: it counts
    `acked` anew from the lane's start, while those four go on as totals.
    """

    partition: int
    kafka_offset: int
    ordinal: int
    now_ms: int
    topic: str
    queue_id: int
    group: str | None
    from_offset: int
    to_offset: int
    start_offset: int
    next_offset: int
    holes: int
    acked: int
    leased: int
    available: int
    parked: int
    dead_lettered: int
    expired_from_log: int
    passed_over: int
    skipped_by_reset: int


class OrderInfoRow(NamedTuple):
    """The batch of an orderly lane after a record that changed it; `free_at_ms` null: nothing blocks the lane."""

    partition: int
    kafka_offset: int
    ordinal: int
    now_ms: int
    topic: str
    queue_id: int
    group: str
    epoch: int
    pop_time_ms: int
    invisible_time_ms: int
    attempt_id: str | None
    first_offset: int
    last_offset: int
    members: int
    acked: int
    commit_offset: int
    free_at_ms: int | None
    least_count: int


class RejectedRow(NamedTuple):
    """One record of the ops topic that could not be read, or lacks a valid signature; `value_head`: its first 4 KiB."""

    partition: int
    kafka_offset: int
    ordinal: int
    now_ms: int
    reason: str
    detail: str
    value_bytes: int
    value_sha256: str
    value_head: bytes
    op_id: str | None
    reply_to: int | None


class Origin(msgspec.Struct, frozen=True, gc=False):
    """The operation that a row of `operations` is about. A parked pop is answered during another operation."""

    kind: str
    op_id: str | None
    client_id: str | None


class OperationOutcome(msgspec.Struct, frozen=True, gc=False):
    """The columns of `operations` that neighbouring offsets share when they were judged alike."""

    reason: Reason
    code: int
    applied: bool
    handle_after: str | None = None
    deadline_before_ms: int | None = None
    deadline_after_ms: int | None = None
    attempt: int | None = None


EntryRange = tuple[int | None, int | None, int | None]
"""(entry, first offset, last offset) of a row of `operations`: a tuple, for a record may have 10,000 of them."""


def release_cause(raised: str | None) -> str:
    """Return the cause of the row of a release by its client; `raised`: what a handler raised, None if none did.

    >>> release_cause(None), release_cause("ValueError: no milk"), release_cause("")
    ('change_invisible', 'handler: ValueError: no milk', 'handler')
    """
    if raised is None:
        return "change_invisible"
    return f"{HANDLER_CAUSE}: {raised}" if raised else HANDLER_CAUSE


def is_handler_cause(cause: str) -> bool:
    """Whether the cause is that of a release by a client whose handler failed.

    >>> [is_handler_cause(cause) for cause in ("handler", "handler: ValueError", "handlers", "change_invisible")]
    [True, True, False, False]
    """
    return cause == HANDLER_CAUSE or cause.startswith(f"{HANDLER_CAUSE}: ")


def is_release_cause(cause: str) -> bool:
    """Whether `release_cause` returns it: the client gave the messages back."""
    return cause == StepCause.CHANGE_INVISIBLE or is_handler_cause(cause)


def shortened(text: str | None) -> str | None:
    """Return at most the first 512 characters of a text that no rule bounds."""
    return text if text is None else text[:TEXT_CHARACTERS_MAX]
