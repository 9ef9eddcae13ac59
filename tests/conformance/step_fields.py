"""The fields that vectors may have: what is not listed here is not understood, and fails rather than be left out."""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

__all__ = ["ORDER_INFO_STEPS", "StepFields", "what_is_unknown", "what_is_wrong"]


class StepFields(NamedTuple):
    """Arguments that a step must have and may have, and the keys of what it expects (None: that is no object)."""

    needed: frozenset[str]
    optional: frozenset[str] = frozenset()
    expected: frozenset[str] | None = None


def _fields(needed: str, optional: str = "", expected: str | None = None) -> StepFields:
    keys = None if expected is None else frozenset(expected.split())
    return StepFields(frozenset(needed.split()), frozenset(optional.split()), keys)


_CLOCK_AND_TOPICS = {
    "clock": _fields("now"),
    "advance": _fields("ms"),
    "add_topic": _fields("topic", "read_queue_nums"),
    "add_group": _fields("group"),
}
_LANE = "topic group queue_id"

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
    "oi_state": _fields(_LANE, "", "popTime i o cm l ot oc a"),
    "oi_auto_clean": _fields("", "", "table_size"),
    "notified": _fields(""),
}


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
