"""Reasons of decisions, and RocketMQ's response code for each."""

import enum
from typing import Final

__all__ = ["CODE_OF_REASON", "Reason", "code_of"]


class Reason(enum.StrEnum):
    """The outcome of a decision; `code_of` returns RocketMQ's response code for it."""

    OK = "OK"
    ALREADY_ACKED = "ALREADY_ACKED"
    STALE_HANDLE = "STALE_HANDLE"
    SUPERSEDED = "SUPERSEDED"
    UNKNOWN_HANDLE = "UNKNOWN_HANDLE"
    DUPLICATE_ENTRY = "DUPLICATE_ENTRY"
    MISROUTED = "MISROUTED"
    WRONG_MODE = "WRONG_MODE"
    OUTSIDE_POP = "OUTSIDE_POP"
    NOT_SUPPORTED = "NOT_SUPPORTED"
    AHEAD_OF_WINDOW = "AHEAD_OF_WINDOW"
    QUOTA_EXCEEDED = "QUOTA_EXCEEDED"
    CANCELLED = "CANCELLED"
    INVALID_PARAMETER = "INVALID_PARAMETER"
    OP_ID_REUSED = "OP_ID_REUSED"
    NO_PERMISSION = "NO_PERMISSION"
    TOPIC_NOT_EXIST = "TOPIC_NOT_EXIST"
    BELOW_MIN = "BELOW_MIN"
    ABOVE_MAX = "ABOVE_MAX"
    POLLING_FULL = "POLLING_FULL"
    NO_MESSAGE = "NO_MESSAGE"
    POLLING_TIMEOUT = "POLLING_TIMEOUT"
    EXPIRED_LOCALLY = "EXPIRED_LOCALLY"


CODE_OF_REASON: Final = {
    Reason.OK: 0,
    Reason.CANCELLED: 0,
    Reason.AHEAD_OF_WINDOW: 2,
    Reason.QUOTA_EXCEEDED: 2,
    Reason.NOT_SUPPORTED: 3,
    Reason.ALREADY_ACKED: 13,
    Reason.STALE_HANDLE: 13,
    Reason.SUPERSEDED: 13,
    Reason.UNKNOWN_HANDLE: 13,
    Reason.DUPLICATE_ENTRY: 13,
    Reason.MISROUTED: 13,
    Reason.WRONG_MODE: 13,
    Reason.OUTSIDE_POP: 13,
    Reason.EXPIRED_LOCALLY: 13,
    Reason.NO_PERMISSION: 16,
    Reason.TOPIC_NOT_EXIST: 17,
    Reason.INVALID_PARAMETER: 29,
    Reason.OP_ID_REUSED: 29,
    Reason.BELOW_MIN: 208,
    Reason.ABOVE_MAX: 208,
    Reason.POLLING_FULL: 209,
    Reason.NO_MESSAGE: 210,
    Reason.POLLING_TIMEOUT: 210,
}
"""RocketMQ's response code of each reason; `code_of` has the exceptions."""


_OK: Final = Reason.OK


def code_of(reason: Reason, *, is_ack: bool = False, orderly: bool = False) -> int:
    """Return RocketMQ's response code for `reason`.

    An ack of an acked message succeeds, a change of it does not; an orderly lane answers 0 to both, and to a
    stale handle (RocketMQ's AckMessageProcessor and ChangeInvisibleTimeProcessor).

    >>> code_of(Reason.ALREADY_ACKED), code_of(Reason.ALREADY_ACKED, is_ack=True)
    (13, 0)
    >>> code_of(Reason.STALE_HANDLE), code_of(Reason.STALE_HANDLE, orderly=True)
    (13, 0)
    """
    if reason is _OK:  # most of them; looking up a member of an enum takes longer
        return 0
    if reason is Reason.ALREADY_ACKED and (is_ack or orderly):
        return 0
    if reason is Reason.STALE_HANDLE and orderly:
        return 0
    return CODE_OF_REASON[reason]
