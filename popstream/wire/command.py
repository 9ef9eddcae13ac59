"""The operations of the ops topic as typed values, and their JSON.

One record is one JSON object with `v` (version 1) and `type`. Offsets travel as inclusive ranges `[first, last]`.
A command whose values are well typed and out of range can be decoded: the job decides it, and refuses it with a code.
"""

from typing import Annotated, Literal, get_args

import msgspec

from popstream.wire.limits import PARKED_DEFAULT, WINDOW_OFFSETS_DEFAULT

__all__ = [
    "COMMAND_TYPES",
    "WIRE_VERSION",
    "Ack",
    "AckEntry",
    "AdminCommand",
    "Cancel",
    "Cause",
    "ChangeEntry",
    "ChangeInvisible",
    "Command",
    "Declare",
    "Dispatch",
    "Entry",
    "EntryCommand",
    "ForgetLane",
    "HandleRef",
    "Init",
    "OffsetRange",
    "Policy",
    "Pop",
    "QueueType",
    "Redrive",
    "RedriveTarget",
    "Reject",
    "RejectEntry",
    "Release",
    "ResetOffset",
    "ReturnClient",
    "Tick",
    "WrittenRange",
    "encode_command",
    "group_of",
    "kind_of",
]

WIRE_VERSION = 1

type_field = "type"

OffsetRange = Annotated[tuple[int, int], msgspec.Meta(description="inclusive [first, last] of queue offsets")]
QueueType = Literal["simple", "batch", "sparse"]
Release = Literal["after", "back_off"]
Init = Literal["min", "max"]
Cause = Literal["GONE", "UNREADABLE"]
RedriveTarget = Literal["group", "topic"]
"""Who gets a redriven message: only the group that gave it up, or every group of the topic."""


class CommandBase(
    msgspec.Struct, frozen=True, kw_only=True, tag_field=type_field, forbid_unknown_fields=True, omit_defaults=True
):
    """The fields of every operation: the queue it acts on, and where its answer goes.

    `op_id` makes the operation repeatable: the same bytes again get the first answer again. `reply_to` is the
    partition of the results topic that the sender reads; without it there is no answer, only the audit.
    """

    topic: str
    queue_id: int
    v: Literal[1]
    op_id: str | None = None
    reply_to: int | None = None


class AdminBase(CommandBase, frozen=True, kw_only=True):
    """The fields of an operation on queues and groups, which needs the signature of an admin key where there are any.

    `signature` is the last field of the JSON, added by `signing.sign_operation`.
    """

    signature: (
        Annotated[str, msgspec.Meta(description="<key id>.<signed at, ms>.<HMAC>, the last field of the object")] | None
    ) = None


class WrittenRange(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Queue offsets `first..last` are written; `tag` is a hash (0: none), `count` the inner messages of each unit.

    `deliver_at_ms`, if given, is when they can be popped, ms since 1970: at most `DELAY_MS_MAX` after the dispatch.
    """

    first: int
    last: int
    tag: int = 0
    count: int = 1
    deliver_at_ms: int = 0


class HandleRef(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A handle and the group that popped it, listed once in a request; entries refer to it by index."""

    group: str
    handle: str


class AckEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Messages of one handle that are done; `cause` says why if they were not consumed."""

    handle: int
    offsets: list[OffsetRange]
    cause: Cause | None = None


class ChangeEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Messages of one handle that become visible `invisible_time_ms` from now (0: at once).

    With `suspend` the delivery that follows does not count as a further attempt.

    With `release` the lease ends now, and nobody holds the messages until they are visible again: `after` that time, or
    after the `back_off` that the lane's policy has for their attempt, and after that time only if it has none. A
    `cause` says that a handler failed, and what it raised; it may be empty.
    """

    handle: int
    offsets: list[OffsetRange]
    invisible_time_ms: int
    suspend: bool = False
    lite_topic: str | None = None
    release: Release | None = None
    cause: str | None = None


class RejectEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Messages of one handle for the dead-letter topic, now."""

    handle: int
    offsets: list[OffsetRange]
    cause: str | None = None


Entry = AckEntry | ChangeEntry | RejectEntry


class Declare(AdminBase, frozen=True, tag="declare"):
    """Declare a queue: `topic_id` is Kafka's id of the message topic, `min_offset` the first offset of its log."""

    topic_id: str
    queue_type: QueueType = "simple"
    min_offset: int = 0


class Policy(AdminBase, frozen=True, tag="policy"):
    """Set the rules of a lane, or (without `group`) of the queue and of its lanes without a policy of their own.

    A policy replaces the one before it as a whole. `max_attempts` 0: no limit. `back_off_ms[i]` holds a message
    back after its attempt i + 1 (the last value repeats). `in_flight_max` 0: no limit. `window_max`
    (queue only) bounds the offsets between the first hole and the last one written.

    Quotas, 0: none. Of a lane: `pops_per_s_max`, and of each of its clients `client_pops_per_s_max` and
    `client_parked_max`. Of the queue as a whole (only without `group`): `queue_pops_per_s_max`, `queue_parked_max`,
    `new_lanes_per_min_max`, and `resets_per_min_max` for reset_offset and forget_lane.
    """

    group: str | None = None
    orderly: bool | None = None
    max_attempts: int = 0
    back_off_ms: list[int] = []
    parked_max: int = PARKED_DEFAULT
    in_flight_max: int = 0
    window_max: int = WINDOW_OFFSETS_DEFAULT
    pops_per_s_max: int = 0
    client_pops_per_s_max: int = 0
    client_parked_max: int = 0
    queue_pops_per_s_max: int = 0
    queue_parked_max: int = 0
    new_lanes_per_min_max: int = 0
    resets_per_min_max: int = 0


class Dispatch(AdminBase, frozen=True, tag="dispatch"):
    """Offsets are written, or (`skip`) never will be. Any number of builders may send them, in any order, repeatedly.

    `topic_id`, if given, is that of the topic with these offsets: a queue of another topic id refuses them.
    """

    topic_id: str | None = None
    ranges: list[WrittenRange] = []
    skip: list[OffsetRange] = []


class Pop(CommandBase, frozen=True, tag="pop"):
    """Lease up to `max_messages` for `invisible_time_ms`; wait up to `poll_time_ms` for the first of them.

    `max_attempts` and `back_off_ms`, if given, are those of the group's program: they hold in the lane, as of a
    `policy`, until a pop gives others, where no `policy` says otherwise.
    """

    group: str
    max_messages: int
    invisible_time_ms: int
    order: bool = False
    attempt_id: str | None = None
    poll_time_ms: int = 0
    init: Init = "min"
    client_id: str | None = None
    tags: list[int] | None = None
    max_attempts: int | None = None
    back_off_ms: list[int] | None = None


class Ack(CommandBase, frozen=True, tag="ack"):
    """Messages are done, entry by entry."""

    handles: list[HandleRef]
    entries: list[AckEntry]
    client_id: str | None = None


class ChangeInvisible(CommandBase, frozen=True, tag="change_invisible"):
    """Messages become visible at another time, entry by entry."""

    handles: list[HandleRef]
    entries: list[ChangeEntry]
    client_id: str | None = None


class Reject(CommandBase, frozen=True, tag="reject"):
    """Messages go to the dead-letter topic now, entry by entry."""

    handles: list[HandleRef]
    entries: list[RejectEntry]
    client_id: str | None = None


EntryCommand = Ack | ChangeInvisible | Reject
"""The commands with handles and entries, which are decided entry by entry."""


class Cancel(CommandBase, frozen=True, tag="cancel"):
    """Take back the pop that was sent with `target_op_id`, answered or not."""

    target_op_id: str


class ReturnClient(AdminBase, frozen=True, tag="return_client"):
    """Release every lease of the queue that `client_id` holds in `group`, and cancel its parked pops."""

    group: str
    client_id: str


class ResetOffset(AdminBase, frozen=True, tag="reset_offset"):
    """Continue the lane at `queue_offset`, forwards or backwards."""

    group: str
    queue_offset: int


class ForgetLane(AdminBase, frozen=True, tag="forget_lane"):
    """Delete the lane of `group`, its leases and positions."""

    group: str


class Redrive(AdminBase, frozen=True, tag="redrive"):
    """Announce that messages which `group` gave up are about to be sent again, as new messages.

    It changes no lane: the audit says who announced what, and why. `offsets` are those of the messages when they were
    given up, `by` who announces it, as `user@host`, by their own account.
    """

    group: str
    offsets: list[OffsetRange]
    to: RedriveTarget
    by: str = ""
    comment: str = ""


class Tick(CommandBase, frozen=True, tag="tick"):
    """Let due deadlines of the queue take effect; carries no time, the record's own timestamp is the time."""


AdminCommand = Declare | Policy | Dispatch | ReturnClient | ResetOffset | ForgetLane | Redrive
"""What an administrator, a builder or a dispatching producer sends; everything else is the work of consumers."""


Command = (
    Declare
    | Policy
    | Dispatch
    | Pop
    | Ack
    | ChangeInvisible
    | Reject
    | Cancel
    | ReturnClient
    | ResetOffset
    | ForgetLane
    | Redrive
    | Tick
)

COMMAND_TYPES: dict[str, type[CommandBase]] = {
    str(command.__struct_config__.tag): command for command in get_args(Command)
}
"""The command class of each `type`."""

_KINDS = {command: kind for kind, command in COMMAND_TYPES.items()}

_encoder = msgspec.json.Encoder()


def encode_command(command: Command) -> bytes:
    """Return the JSON of one command, the value of its record on the ops topic.

    >>> encode_command(Tick(topic="orders", queue_id=0, v=1))
    b'{"type":"tick","topic":"orders","queue_id":0,"v":1}'
    """
    return _encoder.encode(command)


def group_of(command: Command) -> str | None:
    """Return the group that a command names as a whole; entries name theirs with the handle."""
    return getattr(command, "group", None)


def kind_of(command: Command) -> str:
    """Return the `type` of a command.

    >>> kind_of(Tick(topic="orders", queue_id=0, v=1))
    'tick'
    """
    return _KINDS[type(command)]
