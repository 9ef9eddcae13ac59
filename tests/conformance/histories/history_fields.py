"""The fields of a recorded history: what is not listed here is not understood, and fails rather than be left out."""

from collections.abc import Iterator
from typing import Any

from tests.conformance.vectors.step_fields import names, what_is_unknown

__all__ = ["what_is_not_understood"]

_HISTORY = names(
    "seed kind broker topic group retry_topic queue_id read_queues tags min_margin_ms ops final_order_info note"
)
_OP = names("i op args at_ms clock_ms margin_ms result committed retry_max probe_ms")
_HANDLED = "topic queue_id offset handle handle_pop_time handle_invisible_time handle_revive_qid why"
_CHANGED = "code remark pop_time invisible_time revive_qid new_handle"
_POPPED = (
    "code remark pop_time invisible_time revive_qid rest_num "
    "start_offset_info msg_offset_info order_count_info messages"
)
_ARGUMENTS = {
    "send": "queue_id count",
    "pop": "queue_id max invisible_ms attempt_id exp init_mode order poll_time",
    "ack": _HANDLED,
    "change": f"{_HANDLED} invisible_ms suspend",
    "wait": "ms why",
    "set_offset": "queue_id offset",
    "reset_offset": "queue_id offset",
}
_RESULTS = {
    "send": "code messages",
    "pop": _POPPED,
    "ack": "code remark",
    "change": _CHANGED,
    "wait": "",
    "set_offset": "code remark",
    "reset_offset": "code remark",
}
_ORDER_INFO = names("popTime i o cm ot oc a l")


def what_is_not_understood(history: dict[str, Any]) -> Iterator[str]:
    """What of a history has no meaning here, in words."""
    if history["kind"] not in {"orderly", "concurrent"}:
        yield f"there is no kind {history['kind']!r}"
    yield from (f"unknown field {key!r}" for key in what_is_unknown(history, _HISTORY))
    entry = history.get("final_order_info") or {}
    yield from (f"unknown field {key!r} of the final order info" for key in what_is_unknown(entry, _ORDER_INFO))
    for op in history["ops"]:
        where = f"op {op.get('i')}"
        if op["op"] not in _ARGUMENTS:
            yield f"{where}: there is no operation {op['op']!r}"
            continue
        yield from (f"{where}: unknown field {key!r}" for key in what_is_unknown(op, _OP))
        known = _ARGUMENTS[op["op"]].split()
        given = op["args"] or {}
        yield from (f"{where}: unknown argument {key!r}" for key in what_is_unknown(given, known))
        yield from (f"{where}: there is no argument {key!r}" for key in known if key not in given and key != "why")
        result = op["result"] or {}
        yield from (
            f"{where}: unknown field {key!r} of the result"
            for key in what_is_unknown(result, _RESULTS[op["op"]].split())
        )
