"""The fields that vectors may have: what is not listed here is not understood, and fails rather than be left out."""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

__all__ = [
    "ACK_FIELDS",
    "BATCH_FIELDS",
    "BROKER_STEPS",
    "CONFIG_FIELDS",
    "ORDER_INFO_STEPS",
    "VECTOR_FIELDS",
    "StepFields",
    "names",
    "what_is_unknown",
    "what_is_wrong",
]


class StepFields(NamedTuple):
    """Arguments that a step must have and may have, and the keys of what it expects (None: that is no object)."""

    needed: frozenset[str]
    optional: frozenset[str] = frozenset()
    expected: frozenset[str] | None = None


def names(*lines: str) -> frozenset[str]:
    """The words of some lines."""
    return frozenset(name for line in lines for name in line.split())


def _fields(needed: str, optional: str = "", expected: str | None = None) -> StepFields:
    return StepFields(names(needed), names(optional), None if expected is None else names(expected))


_CLOCK_AND_TOPICS = {
    "clock": _fields("now"),
    "advance": _fields("ms"),
    "add_topic": _fields("topic", "read_queue_nums"),
    "add_group": _fields("group"),
}
_LANE = "topic group queue_id"
_STATE = "popTime i o cm l ot oc a"

ORDER_INFO_STEPS = {
    **_CLOCK_AND_TOPICS,
    "oi_update": _fields(f"{_LANE} attempt_id pop_time invisible_time offsets", "", "order_count_info"),
    "oi_check_block": _fields(f"{_LANE} attempt_id invisible_time"),
    "oi_commit_and_next": _fields(f"{_LANE} offset pop_time"),
    "oi_update_next_visible_time": _fields(f"{_LANE} offset pop_time next_visible_time"),
    "oi_clear_block": _fields(_LANE),
    "oi_legacy_nulls": _fields(_LANE),
    "oi_lock_free_timestamp": _fields(_LANE),
    "oi_timer": _fields(_LANE),
    "oi_state": _fields(_LANE, "", _STATE),
    "oi_auto_clean": _fields("", "", "table_size"),
    "notified": _fields(""),
}

_HANDLED = f"{_LANE} offset extra_info"

BROKER_STEPS = {
    **_CLOCK_AND_TOPICS,
    "send": _fields("topic queue_id count", "tags"),
    "set_queue_range": _fields("topic queue_id min max"),
    "commit_offset": _fields(f"{_LANE} offset"),
    "admin_reset_offset": _fields(f"{_LANE} offset", "", "code"),
    "pop": _fields(
        f"{_LANE} max invisible_time",
        "order attempt_id tag init_mode poll_time",
        "messages order_count_info pop_time invisible_time revive_qid rest start_offset_info msg_offset_info",
    ),
    "ack": _fields(_HANDLED, "", "code remark"),
    "change": _fields(f"{_HANDLED} invisible_time", "suspend", "code remark pop_time invisible_time revive_qid"),
    "batch_ack": _fields("", "acks", "code remark"),
    "offsets": _fields(_LANE, "", "consumer pull"),
    "queue_max": _fields("topic queue_id"),
    "revive": _fields("", "max", "scanned puts current_time"),
    "set_revive_current_time": _fields("value"),
    "store_state": _fields(""),
    "store_count": _fields(""),
    "store_write_calls": _fields("", "", "put_batches delete_batches"),
    "notified": _fields(""),
    "oi_check_block": _fields(f"{_LANE} attempt_id invisible_time"),
    "oi_clear_block": _fields(_LANE),
    "oi_lock_free_timestamp": _fields(_LANE),
    "oi_timer": _fields(_LANE),
    "oi_state": _fields(_LANE, "", _STATE),
}
"""Steps that go to a broker."""

ACK_FIELDS = names("group topic retry start_offset queue_id revive_qid pop_time invisible_time bits")
"""Of each ack of a `batch_ack`."""

VECTOR_FIELDS = names("id component source provenance executable note clock config steps batch")
CONFIG_FIELDS = names(
    "enablePopBufferMerge readQueueNums enableRetryTopicV2 retrieveMessageFromPopRetryTopicV1",
    "initPopOffsetByCheckMsgInMem popFromRetryProbability",
)
"""Options of RocketMQ that its shadow knows."""

BATCH_FIELDS = names(
    "entries same_result_and_state_as_steps store_put_batches store_delete_batches single_requests_cost",
    "required_state_offsets snapshot_state_offsets put_all_then_delete_all_offsets delete_all_then_put_all_offsets",
)
"""What the changes of a vector must give as one request."""


def what_is_unknown(value: dict[str, Any], known: Iterable[str]) -> Iterator[str]:
    """The keys of `value` that are not known."""
    return (str(key) for key in value if key not in set(known))


def what_is_wrong(step: dict[str, Any], kinds: dict[str, StepFields]) -> Iterator[str]:
    """What of a step is missing or not understood, in words."""
    name = step.get("op")
    fields = kinds.get(str(name))
    if fields is None:
        yield f"there is no step {name!r}"
        return
    yield from (f"{name} has no {key!r}" for key in sorted(fields.needed - step.keys()))
    known = {"op", "expect", *fields.needed, *fields.optional}
    yield from (f"{name} has an unknown argument {key!r}" for key in what_is_unknown(step, known))
    expected = step.get("expect")
    if isinstance(expected, dict):
        yield from (
            f"{name} expects an unknown field {key!r}" for key in what_is_unknown(expected, fields.expected or ())
        )
