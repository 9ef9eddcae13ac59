"""What entries ask of offsets, and what came of it."""

import msgspec

from broker_state.store.pages import Delivery
from popstream.wire.command import Entry
from popstream.wire.handle import Handle
from popstream.wire.reason import Reason

__all__ = ["Claim", "Header", "Outcome", "Piece", "Told"]

Header = tuple[int, int, int]
"""RocketMQ's answer to a change: pop time, invisible time, revive queue id."""


class Claim(msgspec.Struct, frozen=True, gc=False):
    """Offsets first..end-1 of entry number `index`; `text` is that of `handle`."""

    first: int
    end: int
    index: int
    entry: Entry
    handle: Handle
    text: str


class Piece(msgspec.Struct, frozen=True, gc=False):
    """Neighbouring offsets judged alike; `before` and `after` are their delivery before and after the operation."""

    first: int
    end: int
    reason: Reason
    before: Delivery | None = None
    after: Delivery | None = None
    header: Header | None = None


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """What answer and audit tell of a piece; `handle` is the place of `handle_after` in the answer's handles."""

    reason: Reason
    code: int
    applied: bool
    header: Header | tuple[None, None, None]
    handle: int | None
    handle_after: str | None
    deadline_before_ms: int | None
    deadline_after_ms: int | None
    attempt: int | None


Told = tuple[Claim, int, int, Outcome]
"""(claim, first, last, outcome): a run of the answer."""
