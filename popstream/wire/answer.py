"""Answers of the job: one JSON object for each operation, several of them in a frame.

A frame is the value of one record of the results topic: `{"v":1,"answers":[...]}`. An answer that is too long for one
frame is sent in `parts` pieces (`part` 0..parts-1, each with its share of the lists), to be joined in that order. An
operation may be answered more than once; the answers are identical, and have the same `op_id`.
"""

from typing import Final

import msgspec

from popstream.wire.reason import Reason

__all__ = ["DIVIDED_LISTS", "Answer", "Frame", "LeasedRange", "Run", "decode_frame", "encode_answer"]


class LeasedRange(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Messages `first..last` that a pop leased, with the number of this delivery (1: the first)."""

    first: int
    last: int
    attempt: int


class Run(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The outcome of neighbouring offsets of one entry.

    `handle` is an index into the answer's `handles`: the new handle after a change, the current one after
    SUPERSEDED. The three fields before it are those of RocketMQ's answer to a change.
    """

    entry: int
    first: int
    last: int
    code: int
    reason: Reason
    applied: bool
    pop_time_ms: int | None = None
    invisible_time_ms: int | None = None
    revive_queue_id: int | None = None
    handle: int | None = None


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The answer to one operation. Clients judge by `applied`, which says whether state changed.

    `messages`, `handle` and the two times belong to a pop; `runs`, `handles` and `commit_offsets` (by group, of
    the lanes touched) to ack, change_invisible and reject; `released` to cancel and return_client;
    `commit_position` to dispatch and declare; `commit_offset` to reset_offset.
    """

    op_id: str
    type: str
    code: int
    reason: Reason
    applied: bool
    topic: str
    queue_id: int
    now_ms: int
    handle: str | None = None
    messages: list[LeasedRange] = []
    pop_time_ms: int | None = None
    invisible_time_ms: int | None = None
    revive_queue_id: int | None = None
    runs: list[Run] = []
    handles: list[str] = []
    released: list[tuple[int, int]] = []
    commit_offsets: dict[str, int] = {}
    commit_offset: int | None = None
    commit_position: int | None = None
    detail: str | None = None
    part: int = 0
    parts: int = 1


DIVIDED_LISTS: Final = ("messages", "runs", "released", "handles")
"""The fields of which each part of an answer has a share; so has each of `commit_offsets`, which is no list."""


class Frame(msgspec.Struct, frozen=True):
    """The value of one record of the results topic."""

    v: int
    answers: list[Answer]


_encoder = msgspec.json.Encoder()
_frame_decoder = msgspec.json.Decoder(Frame)


def encode_answer(answer: Answer) -> bytes:
    """Return the JSON of one answer."""
    return _encoder.encode(answer)


def decode_frame(value: bytes) -> list[Answer]:
    """Return the answers in one record of the results topic.

    Raises:
        msgspec.DecodeError: The bytes are not a frame.
    """
    return _frame_decoder.decode(value).answers
