"""Where popstream means to differ: each rule makes of RocketMQ's value the one that popstream must have.

docs/differences.md has a paragraph for each. A rule knows the step and what both sides have been told before it, never
which vector or history it is in. A rule that predicts a difference which does not occur makes the comparison fail, for
then ours is not what the rule says.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from broker_state.kernel.order_info import OrderInfo
from popstream.wire.handle import REVIVE_QUEUE_ID_ORDERLY
from popstream.wire.reason import Reason, code_of
from tests.conformance.order_infos import is_member

__all__ = [
    "CHANGE_OUTSIDE_ITS_POP",
    "CONTIGUOUS_COMMIT_OFFSET",
    "EQUAL_DEADLINE",
    "FENCED_HANDLES",
    "NEVER_LOST",
    "NO_64_LIMIT",
    "RANGE_CHECKED",
    "RESET_AT_ONCE",
    "RESULTS_PER_ENTRY",
    "TRUE_WAKE_UP",
    "ZERO_HEADER",
    "Request",
    "Rule",
    "apply",
    "map_ack",
    "map_change",
    "map_commit_offset",
]

FENCED_HANDLES = "fenced handles"
EQUAL_DEADLINE = "a change to an equal deadline keeps the message"
CONTIGUOUS_COMMIT_OFFSET = "commit offset is the contiguous acked prefix"
NEVER_LOST = "order info is never lost"
NO_64_LIMIT = "no 64-message limit"
RANGE_CHECKED = "values are range-checked"
RESULTS_PER_ENTRY = "results per entry"
CHANGE_OUTSIDE_ITS_POP = "a change outside its pop is refused"
ZERO_HEADER = "a zero-header handle is stale"
TRUE_WAKE_UP = "true wake-up moment"
RESET_AT_ONCE = "a reset takes effect at once"

_UNKNOWN = code_of(Reason.UNKNOWN_HANDLE)
_INVALID = code_of(Reason.INVALID_PARAMETER)
_NO_TOPIC = code_of(Reason.TOPIC_NOT_EXIST)
_ABOVE_MAX = code_of(Reason.ABOVE_MAX)
_OUTSIDE_POP = code_of(Reason.OUTSIDE_POP)
_ILLEGAL = 13
"""RocketMQ's MESSAGE_ILLEGAL."""
_NO_HEADER = {"pop_time": 0, "invisible_time": 0, "revive_qid": 0}


class Request(NamedTuple):
    """An ack or a change as both sides were told it, and what popstream knew before.

    `known`: the handle is of a pop, or change, that was answered; `zero_header`: it was made of an all-zero answer;
    `order_info` None: the lane is concurrent, or does not exist.
    """

    now_ms: int
    offset: int
    known: bool
    zero_header: bool
    is_current: bool
    is_queue: bool
    min_offset: int
    max_offset: int
    commit_offset: int
    order_info: OrderInfo | None
    lane_exists: bool
    invisible_time_ms: int = 0


Rule = tuple[str, Callable[[dict[str, Any], Request], dict[str, Any]]]


def apply(rules: Iterable[Rule], expected: dict[str, Any], request: Request) -> tuple[dict[str, Any], list[str]]:
    """What the rules make of RocketMQ's answer, and the names of those that changed it."""
    used = []
    value = expected
    for name, rule in rules:
        mapped = rule(value, request)
        if mapped != value:
            used.append(name)
            value = mapped
    return value, used


def _refused(expected: dict[str, Any], code: int) -> dict[str, Any]:
    """A refusal has no header; RocketMQ writes zeros there."""
    return {key: code if key == "code" else None for key in expected}


def _out_of_range(expected: dict[str, Any], request: Request) -> dict[str, Any]:
    if not request.is_queue and expected["code"] == _ILLEGAL:
        return _refused(expected, _NO_TOPIC)  # there is no count of queues to compare with: it was not declared
    if request.is_queue and expected["code"] in {0, _ABOVE_MAX} and min(request.offset, request.invisible_time_ms) < 0:
        return _refused(expected, _INVALID)
    return expected


def _at_the_end(expected: dict[str, Any], request: Request) -> dict[str, Any]:
    """RocketMQ lets an ack name the offset after the last one."""
    if expected["code"] in {0, _ILLEGAL} and (
        request.is_queue
        and request.lane_exists
        and request.offset == request.max_offset
        and expected["code"] != _INVALID
    ):
        return _refused(expected, _ABOVE_MAX)
    return expected


def _unknown_handle(expected: dict[str, Any], request: Request) -> dict[str, Any]:
    """Not in orderly lanes, where an old pop time and an unknown one are both without effect.

    RocketMQ looks at nothing but the range: an ack may name the offset after the last one, a change may not.
    """
    if not request.is_queue or request.order_info is not None or request.known:
        return expected
    is_change = "pop_time" in expected or request.invisible_time_ms
    end = request.max_offset + (0 if is_change else 1)
    answer: dict[str, Any] = {"code": 0 if request.min_offset <= request.offset < end else _ABOVE_MAX}
    if not answer["code"]:
        answer |= {"pop_time": request.now_ms, "invisible_time": request.invisible_time_ms, "revive_qid": 0}
    if any(value is not None and value != answer.get(key) for key, value in expected.items()):
        return expected
    return _refused(expected, _UNKNOWN)


def _zero_header(expected: dict[str, Any], request: Request) -> dict[str, Any]:
    """RocketMQ takes it for a concurrent handle, and stores a record that no orderly pop reads."""
    told = {"code": 0, "pop_time": request.now_ms, "invisible_time": request.invisible_time_ms, "revive_qid": 0}
    if not request.zero_header or expected != told:
        return expected
    if request.offset < request.commit_offset:
        return {**expected, **_NO_HEADER}
    visible_ms = request.now_ms + request.invisible_time_ms
    return {**expected, "pop_time": 0, "invisible_time": visible_ms, "revive_qid": REVIVE_QUEUE_ID_ORDERLY}


def _change_of_no_member(expected: dict[str, Any], request: Request) -> dict[str, Any]:
    """RocketMQ stores a time for an offset that it has not handed out, and answers as if that meant something."""
    info = request.order_info
    if info is None or expected["code"] or not request.is_current or request.offset < request.commit_offset:
        return expected
    if is_member(info, request.offset):
        return expected
    return _refused(expected, _OUTSIDE_POP)


map_ack: list[Rule] = [(RANGE_CHECKED, _out_of_range), (FENCED_HANDLES, _unknown_handle), (RANGE_CHECKED, _at_the_end)]
map_change: list[Rule] = [
    (RANGE_CHECKED, _out_of_range),
    (FENCED_HANDLES, _unknown_handle),
    (ZERO_HEADER, _zero_header),
    (CHANGE_OUTSIDE_ITS_POP, _change_of_no_member),
]


def map_commit_offset(expected: int | None, max_offset: int) -> tuple[int | None, list[str]]:
    """A reset to the offset after the last one, or an ack there, moves RocketMQ's consumer offset beyond the queue."""
    if expected is not None and expected == max_offset + 1:
        return max_offset, [RANGE_CHECKED]
    return expected, []
