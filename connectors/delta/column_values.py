"""The values of the columns that have few: every one that the code can write.

The comments of the columns in Delta list them, and docs/tables.md has the meanings that are here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, get_args

from broker_state.audit import DeliveryStep, RejectReason, StepCause
from popstream.wire.command import COMMAND_TYPES, QueueType
from popstream.wire.reason import CODE_OF_REASON, Reason

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["CAUSES", "KINDS", "QUEUE_TYPES", "REASONS", "REJECT_REASONS", "STEPS"]

STEPS: Final[Mapping[str, str]] = {
    DeliveryStep.LEASED: "A client got the messages.",
    DeliveryStep.CHANGED: "Their lease got another deadline.",
    DeliveryStep.ACKED: "They are done.",
    DeliveryStep.RELEASED: "The lease ended before its deadline; the messages can be delivered again.",
    DeliveryStep.EXPIRED: "The lease ended at its deadline, likewise.",
    DeliveryStep.DEAD_LETTERED: "They count as done, and copies are in the dead-letter topic.",
    DeliveryStep.EXPIRED_FROM_LOG: "The retention of their topic has deleted them before they were done.",
}

CAUSES: Final[Mapping[str, str]] = {
    StepCause.POP: "A pop.",
    StepCause.POP_IN_ORDER: "A pop of an orderly lane.",
    StepCause.ACK: "An ack. Of messages that could not be consumed it is `GONE` or `UNREADABLE`.",
    StepCause.REJECTED: "A reject without a reason. With one, the reason is the cause.",
    StepCause.CHANGE_INVISIBLE: "The client changed the invisible time, or gave the messages back.",
    StepCause.HANDLER: "The client gave them back because its handler failed: `handler`, or `handler: ` and what it"
    " raised.",
    StepCause.DEADLINE: "The deadline.",
    StepCause.ATTEMPT_LIMIT: "It was the last delivery that the policy allows; the row before says how it ended.",
    StepCause.CANCEL: "The client took back the pop.",
    StepCause.RETURN_CLIENT: "Everything that a client held was released, by that client or by somebody for it.",
    StepCause.ATTEMPT_ID: "A pop of an orderly lane repeated an attempt id, and got the batch.",
    StepCause.PASSED_OVER: "A pop of an orderly lane asked for other tags.",
    StepCause.LOG_START: "The log of the topic begins behind the messages.",
    StepCause.RESET_OFFSET: "The lane was moved to another offset.",
    StepCause.FORGET_LANE: "The lane was deleted.",
    StepCause.DECLARE: "The queue was declared anew.",
}

KINDS: Final = tuple(sorted(COMMAND_TYPES))
"""Kinds of operations."""

REASONS: Final = tuple(sorted(set(CODE_OF_REASON) - {Reason.EXPIRED_LOCALLY}))
"""Reasons that the job can give; EXPIRED_LOCALLY is of clients."""

REJECT_REASONS: Final = tuple(RejectReason)

QUEUE_TYPES: Final[tuple[str, ...]] = get_args(QueueType)
