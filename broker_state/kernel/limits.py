"""The ranges of values that a command may have (docs/semantics.md, "Ranges of values")."""

from collections.abc import Sequence

from broker_state.command import (
    Ack,
    Cancel,
    ChangeInvisible,
    Command,
    Declare,
    Dispatch,
    ForgetLane,
    Policy,
    Pop,
    Reject,
    ResetOffset,
    ReturnClient,
)

__all__ = [
    "INVISIBLE_TIME_MS_MAX",
    "OFFSET_MAX",
    "RANGE_OFFSETS_MAX",
    "is_op_id",
    "is_queue_name",
    "is_range",
    "known_group",
    "what_is_invalid",
]

OFFSET_MAX = (1 << 63) - 1
INVISIBLE_TIME_MS_MAX = 12 * 60 * 60 * 1000
RANGE_OFFSETS_MAX = 1_000_000

_OP_ID_BYTES_MAX = 128
_TOPIC_BYTES_MAX = 249
_QUEUE_ID_MAX = (1 << 31) - 1
_NAME_BYTES_MAX = 255
_MESSAGES_MAX = 10_000
_ENTRIES_MAX = 10_000
_TAGS_MAX = 64
_U64_MAX = (1 << 64) - 1
_WINDOW_MIN, _WINDOW_MAX = 1_000_000, 1 << 30


def is_queue_name(topic: str, queue_id: int) -> bool:
    """Whether a queue can have this name at all (Kafka's limits)."""
    return 0 < len(topic.encode()) <= _TOPIC_BYTES_MAX and 0 <= queue_id <= _QUEUE_ID_MAX


def is_op_id(op_id: str) -> bool:
    """Whether operations can be told apart by it."""
    return 0 < len(op_id.encode()) <= _OP_ID_BYTES_MAX


def known_group(group: str | None) -> str | None:
    """The group, if a lane can have this name; what is stored must be short."""
    return group if group is not None and len(group.encode()) <= _NAME_BYTES_MAX else None


def is_range(first: int, last: int) -> bool:
    """Whether [first, last] is a range of queue offsets."""
    return 0 <= first <= last <= OFFSET_MAX


def what_is_invalid(command: Command) -> str | None:
    """The first field of `command` that is out of range, in words; None when all are in range.

    Single entries, dispatched ranges and the target of a reset are judged where they are decided.
    """
    for field, value, longest in _texts(command):
        if value is not None and not 0 < len(value.encode()) <= longest:
            return f"{field} takes 1..{longest} bytes"
    for field, number, least, greatest in _numbers(command):
        if not least <= number <= greatest:
            return f"{field} takes {least}..{greatest}"
    return None


def _texts(command: Command) -> Sequence[tuple[str, str | None, int]]:
    match command:
        case Ack() | ChangeInvisible() | Reject():
            return (("client_id", command.client_id, _NAME_BYTES_MAX),)
        case Pop():
            return (
                ("group", command.group, _NAME_BYTES_MAX),
                ("client_id", command.client_id, _NAME_BYTES_MAX),
                ("attempt_id", command.attempt_id, _NAME_BYTES_MAX),
            )
        case Policy() | ResetOffset() | ForgetLane():
            return (("group", command.group, _NAME_BYTES_MAX),)
        case ReturnClient():
            return (("group", command.group, _NAME_BYTES_MAX), ("client_id", command.client_id, _NAME_BYTES_MAX))
        case Cancel():
            return (("target_op_id", command.target_op_id, _OP_ID_BYTES_MAX),)
        case Declare():
            return (("topic_id", command.topic_id, _NAME_BYTES_MAX),)
    return ()


def _numbers(command: Command) -> Sequence[tuple[str, int, int, int]]:
    match command:
        case Ack() | ChangeInvisible() | Reject():
            ranges = 0
            for entry in command.entries:
                ranges += len(entry.offsets)
            return (
                ("number of handles", len(command.handles), 0, _ENTRIES_MAX),
                ("number of entries", len(command.entries), 1, _ENTRIES_MAX),
                ("number of offset ranges", ranges, 0, _ENTRIES_MAX),
            )
        case Pop():
            numbers = [
                ("max_messages", command.max_messages, 1, _MESSAGES_MAX),
                ("invisible_time_ms", command.invisible_time_ms, 1, INVISIBLE_TIME_MS_MAX),
                ("poll_time_ms", command.poll_time_ms, 0, INVISIBLE_TIME_MS_MAX),
            ]
            if command.tags is not None:
                numbers.append(("number of tags", len(command.tags), 1, _TAGS_MAX))
                numbers += (("tag", tag, 1, _U64_MAX) for tag in command.tags)
            return numbers
        case Policy():
            return (
                ("max_attempts", command.max_attempts, 0, 65_535),
                ("parked_max", command.parked_max, 0, 65_536),
                ("in_flight_max", command.in_flight_max, 0, (1 << 31) - 1),
                ("window_max", command.window_max, _WINDOW_MIN, _WINDOW_MAX),
                ("number of back_off_ms", len(command.back_off_ms), 0, 32),
                *(("back_off_ms", value, 0, INVISIBLE_TIME_MS_MAX) for value in command.back_off_ms),
            )
        case Declare():
            return (("min_offset", command.min_offset, 0, OFFSET_MAX),)
        case Dispatch():
            return (("number of ranges", len(command.ranges) + len(command.skip), 1, _ENTRIES_MAX),)
    return ()
