"""What the check of histories reports."""

from __future__ import annotations

import enum

import msgspec

__all__ = ["Violation", "ViolationKind"]


class ViolationKind(enum.StrEnum):
    """A rule of lanes that was broken; the table in `popstream.history.check` describes each kind."""

    TWO_LIVE_LEASES = "TWO_LIVE_LEASES"
    DELIVERED_AFTER_DONE = "DELIVERED_AFTER_DONE"
    OUT_OF_ORDER = "OUT_OF_ORDER"
    STALE_HANDLE_ACCEPTED = "STALE_HANDLE_ACCEPTED"
    VALID_ACK_REFUSED = "VALID_ACK_REFUSED"
    POSITION_GAP = "POSITION_GAP"
    POSITION_MOVED_BACK = "POSITION_MOVED_BACK"
    LOST_MESSAGE = "LOST_MESSAGE"


class Violation(msgspec.Struct, frozen=True, kw_only=True):
    """A rule broken for neighbouring messages `first..last` of a lane, by the same operations.

    Attributes:
        kind: The rule.
        topic: Topic of the lane.
        queue_id: Its queue.
        group: Its group.
        first: First queue offset.
        last: Last queue offset.
        op_ids: Operations that together prove it, the earlier one first.
        detail: One sentence.
    """

    kind: ViolationKind
    topic: str
    queue_id: int
    group: str
    first: int
    last: int
    op_ids: tuple[str, ...]
    detail: str

    def __str__(self) -> str:
        """Return one line: kind, lane, offsets, sentence, operations."""
        offsets = f"{self.first}" if self.first == self.last else f"{self.first}..{self.last}"
        lane = f"{self.group} {self.topic}/{self.queue_id}"
        return f"{self.kind}  {lane}  {offsets}  {self.detail} [{', '.join(self.op_ids)}]"
