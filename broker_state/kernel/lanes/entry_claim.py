"""A claim is an offset range that entries name; pieces are its parts with one outcome each."""

import msgspec

from broker_state.audit import OperationOutcome
from broker_state.store.facts import Delivery
from popstream.wire.command import Entry
from popstream.wire.handle import Handle
from popstream.wire.reason import Reason

__all__ = ["NO_HEADER", "Claim", "Header", "Piece", "RunOutcome"]


class Header(msgspec.Struct, frozen=True, gc=False):
    """Fields of the handle after a change (RocketMQ: ChangeInvisibleTimeResponseHeader); None in any other answer."""

    pop_time_ms: int | None = None
    invisible_time_ms: int | None = None
    revive_queue_id: int | None = None


NO_HEADER = Header()


class Claim(msgspec.Struct, gc=False):
    """Offsets first..end-1, which an entry names, or several that ask the same of neighbours with one handle.

    `ranges` has (number of the entry, first offset, last offset) of each, in order and without gaps; `text` is that of
    `handle`.
    """

    first: int
    end: int
    ranges: list[tuple[int, int, int]]
    entry: Entry
    handle: Handle
    text: str


class Piece(msgspec.Struct, frozen=True, gc=False):
    """Adjacent offsets with one outcome; `before` and `after` are their delivery before and after the operation."""

    first: int
    end: int
    reason: Reason
    before: Delivery | None = None
    after: Delivery | None = None
    header: Header = NO_HEADER


class RunOutcome(OperationOutcome, frozen=True, gc=False):
    """The outcome of a piece, as the answer and the audit report it."""

    header: Header = NO_HEADER
    handle: int | None = None
    """Index of `handle_after` in the answer's handles."""
