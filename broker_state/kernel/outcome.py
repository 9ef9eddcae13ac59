"""What came of neighbouring offsets of an entry."""

import msgspec

from broker_state.pages import Delivery
from broker_state.reason import Reason

__all__ = ["Header", "Piece"]

Header = tuple[int, int, int]
"""RocketMQ's answer to a change: pop time, invisible time, revive queue id."""


class Piece(msgspec.Struct, frozen=True, gc=False):
    """Neighbouring offsets judged alike; `before` and `after` are their delivery before and after the operation."""

    first: int
    end: int
    reason: Reason
    before: Delivery | None = None
    after: Delivery | None = None
    header: Header | None = None
