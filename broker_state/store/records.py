"""The records of a queue, a lane, a parked pop and a remembered answer, and their stored form.

Each value is one format byte and MessagePack of the fields in order. A new layout takes a new byte; the decoder of the
old one stays.
"""

from typing import Self

import msgspec

from broker_state.store.stored import FORMAT_1, read_stored
from popstream.wire.limits import PARKED_DEFAULT, WINDOW_OFFSETS_DEFAULT

__all__ = [
    "OP_LOG_ENTRIES",
    "LanePolicy",
    "LaneRecord",
    "LateSkip",
    "OpLog",
    "OpMemory",
    "ParkedPop",
    "QueueRecord",
    "Text",
]


class _Stored(msgspec.Struct, array_like=True):
    def encode(self) -> bytes:
        """Format byte and MessagePack of the fields."""
        return FORMAT_1 + _encode(self)

    @classmethod
    def decode(cls, value: bytes) -> Self:
        """Raises CorruptValueError for another format byte or other fields."""
        return read_stored(cls.__name__, FORMAT_1, value, lambda data: msgspec.msgpack.decode(data, type=cls))


_encode = msgspec.msgpack.Encoder().encode


class LanePolicy(msgspec.Struct, array_like=True, frozen=True):
    """A `policy` record as it stays in force; the defaults hold where none was written."""

    max_attempts: int = 0
    back_off_ms: tuple[int, ...] = ()
    parked_max: int = PARKED_DEFAULT
    in_flight_max: int = 0


class QueueRecord(_Stored):
    """One queue. `commit_position` and `written_above` are the Position of written offsets."""

    topic_id: str
    queue_type: str
    now_ms: int
    min_offset: int
    commit_position: int
    written_above: int
    holes: int = 0
    late_skips: int = 0
    has_unit_facts: bool = False
    window_max: int = WINDOW_OFFSETS_DEFAULT
    policy: LanePolicy = LanePolicy()
    next_lane_no: int = 1
    epoch_base: int = 0
    watching_depth: int = 1
    watching_count: int = 0
    op_log_first: int = 0
    op_log_last: int = 0


class LaneRecord(_Stored):
    """One lane. `commit_offset` and `acked_above` are the Position of acked offsets and holes.

    next_offset - start_offset = holes + acked + leased + available; `available` counts what backs off too.
    """

    lane_no: int
    group: str
    start_offset: int
    next_offset: int
    commit_offset: int
    acked_above: int
    epoch: int
    reset_epoch: int
    min_seen: int
    late_skips_seen: int
    orderly: bool | None = None
    policy: LanePolicy | None = None
    holes: int = 0
    acked: int = 0
    leased: int = 0
    available: int = 0
    dead_lettered: int = 0
    expired_from_log: int = 0
    passed_over: int = 0
    skipped_by_reset: int = 0
    available_depth: int = 1
    available_pages: int = 0
    parked: int = 0
    parked_first: int = 0
    parked_last: int = 0
    parked_next: int = 1
    empty: bool = False
    watching: bool = False
    holes_passed: int = 0
    """Of an orderly lane: the holes below its commit offset; those beyond it are counted anew each time."""


class ParkedPop(_Stored):
    """A pop that waits, in a doubly linked list of its lane (0: none)."""

    number: int
    before: int
    after: int
    op_id: str | None
    reply_to: int | None
    max_messages: int
    invisible_time_ms: int
    deadline_ms: int
    client_id: str | None
    attempt_id: str | None
    tags: tuple[int, ...] | None


class LateSkip(_Stored):
    """Offsets first..end-1 had been written when they were skipped."""

    first: int
    end: int


class Text(_Stored):
    """A name."""

    text: str


class OpMemory(_Stored):
    """What an op_id did: the first answer, in pages of which this has the first, or the place of a parked pop."""

    minute: int
    digest: bytes
    kind: str
    group: str | None
    parked: int
    pages: int
    answer: bytes


class OpLog(_Stored):
    """OP_LOG_ENTRIES op_ids in the order they came, so that they can be forgotten in that order.

    An entry is (minute, op_id, pages of the answer); a pop that is parked has none and is logged again when answered.
    """

    entries: list[tuple[int, str, int]]


OP_LOG_ENTRIES = 28
"""So many op_ids of the longest kind fit a value of 4 KiB."""
