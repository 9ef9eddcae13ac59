"""Checks of the values in a command (docs/semantics.md, "Ranges of values")."""

from collections.abc import Sequence
from functools import lru_cache
from typing import assert_never

from popstream.wire.command import (
    Ack,
    Cancel,
    ChangeInvisible,
    Command,
    Declare,
    Dispatch,
    ForgetLane,
    Policy,
    Pop,
    Redrive,
    Reject,
    ResetOffset,
    ReturnClient,
    Tick,
)
from popstream.wire.limits import (
    ATTEMPTS_MAX,
    BACK_OFF_STEPS_MAX,
    ENTRIES_MAX,
    IN_FLIGHT_MAX,
    INVISIBLE_TIME_MS_MAX,
    NAME_BYTES_MAX,
    OFFSET_MAX,
    OP_ID_BYTES_MAX,
    PARKED_MAX,
    POLL_TIME_MS_MAX,
    POP_MESSAGES_MAX,
    POP_TAGS_MAX,
    QUEUE_ID_MAX,
    QUOTA_MAX,
    TAG_HASH_MAX,
    TOPIC_BYTES_MAX,
    WINDOW_OFFSETS_MAX,
    WINDOW_OFFSETS_MIN,
)

__all__ = [
    "is_of_lite_topic",
    "is_op_id",
    "is_queue_name",
    "is_range",
    "known_group",
    "what_is_invalid",
]


@lru_cache(maxsize=65_536)
def is_queue_name(topic: str, queue_id: int) -> bool:
    """Return whether Kafka allows this name of a queue."""
    return _fits(topic, TOPIC_BYTES_MAX) and 0 <= queue_id <= QUEUE_ID_MAX


def is_op_id(op_id: str) -> bool:
    """Return whether an op_id has a length that is allowed."""
    return _fits(op_id, OP_ID_BYTES_MAX)


def is_of_lite_topic(topic: str, lite_topic: str | None) -> bool:
    """Return whether `topic` is that of the lite topic; with a blank one every topic is.

    A lite topic is a queue of its own, named as RocketMQ names it (LiteUtil.toLmqName).

    >>> is_of_lite_topic("%LMQ%$orders$room-7", "room-7"), is_of_lite_topic("orders", "room-7")
    (True, False)
    """
    return lite_topic is None or not lite_topic.strip() or topic.endswith(f"${lite_topic}")


def known_group(group: str | None) -> str | None:
    """Return the group if a lane can have this name, else None: stored names must be short."""
    return group if group is None or not group or _fits(group, NAME_BYTES_MAX) else None


def is_range(first: int, last: int) -> bool:
    """Return whether [first, last] is a range of queue offsets."""
    return 0 <= first <= last <= OFFSET_MAX


def what_is_invalid(command: Command) -> str | None:
    """Describe the first field of `command` that is out of range; None when all are in range.

    Entries, the target of a reset, and ranges of a dispatch and a redrive are checked where they are decided.
    """
    match command:
        case Ack() | ChangeInvisible() | Reject():
            ranges = 0
            for entry in command.entries:
                ranges += len(entry.offsets)
            return (
                _name("client_id", command.client_id)
                or _number("number of handles", len(command.handles), 0, ENTRIES_MAX)
                or _number("number of entries", len(command.entries), 1, ENTRIES_MAX)
                or _number("number of offset ranges", ranges, 0, ENTRIES_MAX)
            )
        case Pop():
            return (
                _name("group", command.group)
                or _name("client_id", command.client_id)
                or _name("attempt_id", command.attempt_id)
                or _number("max_messages", command.max_messages, 1, POP_MESSAGES_MAX)
                or _number("invisible_time_ms", command.invisible_time_ms, 1, INVISIBLE_TIME_MS_MAX)
                or _number("poll_time_ms", command.poll_time_ms, 0, POLL_TIME_MS_MAX)
                or (None if command.tags is None else _numbers("tag", command.tags, 1, TAG_HASH_MAX, 1, POP_TAGS_MAX))
                or _number("max_attempts", command.max_attempts or 0, 0, ATTEMPTS_MAX)
                or _back_off(command.back_off_ms or ())
            )
        case Policy():
            return (
                _name("group", command.group)
                or _number("max_attempts", command.max_attempts, 0, ATTEMPTS_MAX)
                or _number("parked_max", command.parked_max, 0, PARKED_MAX)
                or _number("in_flight_max", command.in_flight_max, 0, IN_FLIGHT_MAX)
                or _number("window_max", command.window_max, WINDOW_OFFSETS_MIN, WINDOW_OFFSETS_MAX)
                or _back_off(command.back_off_ms)
                or _quotas(command)
            )
        case ResetOffset() | ForgetLane() | Redrive():
            return _name("group", command.group)
        case ReturnClient():
            return _name("group", command.group) or _name("client_id", command.client_id)
        case Cancel():
            return None if is_op_id(command.target_op_id) else f"target_op_id takes 1..{OP_ID_BYTES_MAX} bytes"
        case Declare():
            return _name("topic_id", command.topic_id) or _number("min_offset", command.min_offset, 0, OFFSET_MAX)
        case Dispatch():
            return _number("number of ranges", len(command.ranges) + len(command.skip), 1, ENTRIES_MAX)
        case Tick():
            return None
        case _:
            assert_never(command)


def _back_off(values: Sequence[int]) -> str | None:
    return _numbers("back_off_ms", values, 0, INVISIBLE_TIME_MS_MAX, 0, BACK_OFF_STEPS_MAX)


def _quotas(command: Policy) -> str | None:
    return (
        _number("pops_per_s_max", command.pops_per_s_max, 0, QUOTA_MAX)
        or _number("client_pops_per_s_max", command.client_pops_per_s_max, 0, QUOTA_MAX)
        or _number("client_parked_max", command.client_parked_max, 0, PARKED_MAX)
        or _number("queue_pops_per_s_max", command.queue_pops_per_s_max, 0, QUOTA_MAX)
        or _number("queue_parked_max", command.queue_parked_max, 0, QUOTA_MAX)
        or _number("new_lanes_per_min_max", command.new_lanes_per_min_max, 0, QUOTA_MAX)
        or _number("resets_per_min_max", command.resets_per_min_max, 0, QUOTA_MAX)
    )


def _fits(text: str, bytes_max: int) -> bool:
    length = len(text)
    # A character takes 4 bytes at most, so most names are short enough without encoding them.
    return length > 0 and (length * 4 <= bytes_max or (length <= bytes_max and len(text.encode()) <= bytes_max))


def _name(field: str, value: str | None) -> str | None:
    if value is None or _fits(value, NAME_BYTES_MAX):
        return None
    return f"{field} takes 1..{NAME_BYTES_MAX} bytes"


def _number(field: str, value: int, least: int, greatest: int) -> str | None:
    return None if least <= value <= greatest else f"{field} takes {least}..{greatest}"


def _numbers(
    field: str, values: Sequence[int], least: int, greatest: int, count_least: int, count_greatest: int
) -> str | None:
    wrong = _number(f"number of {field} values", len(values), count_least, count_greatest)
    for value in values:
        wrong = wrong or _number(field, value, least, greatest)
    return wrong
