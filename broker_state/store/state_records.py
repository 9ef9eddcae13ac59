"""The records of a queue, a lane, a parked pop and an op_id, and their stored form.

A value is the format byte 0x01 and MessagePack of the fields in order. Offsets are queue offsets; times are ms since
1970 by the queue's clock, which follows record timestamps. The kernel writes the records, while it decides; besides it
only `generation` does, which raises epochs after a restore.
"""

from typing import Final

import msgspec

from broker_state.store.value_format import FORMAT_1, StoredRecord
from popstream.wire.limits import PARKED_DEFAULT, WINDOW_OFFSETS_DEFAULT

__all__ = [
    "OP_LOG_ENTRIES",
    "QUOTA_CLIENTS_MAX",
    "DeclaredRetries",
    "LanePolicy",
    "LaneQuota",
    "LaneRecord",
    "LaneUsage",
    "LateSkip",
    "OpLog",
    "OpWindowEntry",
    "OrderInfoHead",
    "ParkedPop",
    "QueueQuota",
    "QueueRecord",
    "QueueUsage",
    "Text",
]


_encode: Final = msgspec.msgpack.Encoder().encode


class _Stored(StoredRecord, msgspec.Struct, array_like=True):
    pass


class LanePolicy(msgspec.Struct, array_like=True, frozen=True):
    """The policy of a lane, or of the lanes of a queue that have none of their own (popstream.wire.command.Policy)."""

    max_attempts: int = 0
    """Deliveries of a message before it goes to the dead-letter topic; 0: no limit."""
    back_off_ms: tuple[int, ...] = ()
    """How long a message is held back after its first, second, ... delivery; the last value repeats."""
    parked_max: int = PARKED_DEFAULT
    """Pops that may be parked in the lane."""
    in_flight_max: int = 0
    """Messages that may be leased at once; 0: no limit."""

    def back_off_after_ms(self, attempt: int) -> int:
        """Return how long a message is held back after its delivery number `attempt`, from 1.

        >>> policy = LanePolicy(back_off_ms=(1_000, 5_000))
        >>> [policy.back_off_after_ms(attempt) for attempt in (1, 2, 9)], LanePolicy().back_off_after_ms(1)
        ([1000, 5000, 5000], 0)
        """
        steps = self.back_off_ms
        return steps[min(attempt, len(steps)) - 1] if steps else 0


class DeclaredRetries(msgspec.Struct, array_like=True, frozen=True):
    """What the pops of a lane's consumers declare (popstream.wire.command.Pop); both as in `LanePolicy`."""

    max_attempts: int = 0
    back_off_ms: tuple[int, ...] = ()


class QueueRecord(_Stored):
    """One queue."""

    topic_id: str
    """Kafka's id of the message topic. A `declare` with another id recreates the queue."""
    queue_type: str
    """`simple`, `batch` or `sparse`; does not change."""
    now_ms: int
    """The queue's clock: the greatest timestamp of its records so far. Never goes back."""
    min_offset: int
    """First offset that the log still has, as far as dispatches have said. Never goes back."""
    commit_position: int
    """End of the contiguous prefix of written offsets and holes. Never goes back."""
    written_above: int
    """Written offsets and holes beyond the commit position, which segments keep."""
    holes: int = 0
    """Offsets below the commit position or beyond it that hold no message."""
    late_skips: int = 0
    """Skips of offsets that had been written (`LateSkip`); the next one gets this number."""
    has_unit_facts: bool = False
    """A dispatch gave a tag, a count other than 1, or a delivery time to come. Stays true."""
    window_max: int = WINDOW_OFFSETS_DEFAULT
    """Offsets that may be dispatched beyond the commit position."""
    policy: LanePolicy = LanePolicy()
    """Policy of the lanes that have none of their own."""
    next_lane_no: int = 1
    """Number of the next lane, or era of a lane, that begins; numbers are not used again."""
    epoch_base: int = 0
    """A lane that is made starts above this epoch: at least the greatest of any lane that was deleted."""
    watching_depth: int = 1
    """Depth of the tree of lanes that wait for messages."""
    watching_count: int = 0
    """Lanes in that tree."""
    op_log_first: int = 0
    """Number of the oldest op_id in the log (`OpLog`)."""
    op_log_last: int = 0
    """Number after the newest op_id in the log. The log is empty when both are equal."""
    serving_next: int = 0
    """Number of the lane with which the serving of the waiting lanes goes on; 0: all have been served."""
    serving_again: bool = False
    """The commit position has moved meanwhile: they are served once more from the first on."""
    closing_next: int = 0
    """Number of the lane with which the closing of the lanes of a replaced topic goes on; 0: none is to be closed."""
    goes_on_ms: int = 0
    """When the queue goes on with serving or closing lanes, if no record comes before; 0: with nothing."""
    parked: int = 0
    """Parked pops of all lanes."""
    has_counts: bool = False
    """Parked pops, and the holes of each block (`CountedMarks`), are counted. False: the record is from before that."""
    tags_indexed_from: int = -1
    """First page whose units are in the index of tags, if they have any; -1: the record is from before that."""

    def without_counts(self) -> "QueueRecord":
        """Return the record as it would be from before there were counts, to compare it with one that is."""
        return msgspec.structs.replace(self, parked=0, has_counts=False)


class LaneRecord(_Stored):
    """One lane: a consumer group in a queue.

    Invariants, after every record:

    * start_offset <= commit_offset <= next_offset;
    * next_offset - start_offset = holes + acked + leased + available, but for an orderly lane that pauses before it has
      accounted for all that has left the log;
    * acked >= dead_lettered + expired_from_log + passed_over + skipped_by_reset, unless the lane is orderly, where a
      message may end twice before the commit offset passes it, or was reset.
    """

    lane_no: int
    """Number of the lane in its queue; part of the keys of its parked pops."""
    group: str
    """Name of the consumer group."""
    start_offset: int
    """Where counting begins: the first offset of the lane. Only a `reset_offset` moves it, and only back."""
    next_offset: int
    """First offset that was never handed out, acked or passed."""
    commit_offset: int
    """First offset that is not acked, nor a hole. Only a `reset_offset` moves it back."""
    acked_above: int
    """Acked offsets and holes in [commit_offset, next_offset), which segments keep."""
    epoch: int
    """Epoch of the last pop; its upper half counts generations (store/generation.py)."""
    reset_epoch: int
    """Handles of this epoch or an older one are stale: the lane was made, reset or restored since."""
    min_seen: int
    """`min_offset` of the queue when the lane last accounted for it."""
    late_skips_seen: int
    """Late skips of the queue that the lane has accounted for."""
    orderly: bool | None = None
    """Mode of the lane; None: no pop or policy has fixed it."""
    policy: LanePolicy | None = None
    """The lane's own policy; None: the queue's."""
    holes: int = 0
    """Holes in [start_offset, next_offset)."""
    acked: int = 0
    """Messages in [start_offset, next_offset) that are done, for whatever reason. A reset counts them anew."""
    leased: int = 0
    """Messages that a client holds."""
    available: int = 0
    """Messages handed out before that are offered again, or back off."""
    dead_lettered: int = 0
    """Of `acked`: messages that went to the dead-letter topic. A total: a reset does not lower it."""
    expired_from_log: int = 0
    """Of `acked`: messages that left the log before they were done. A total."""
    passed_over: int = 0
    """Of `acked`: messages without any of the tags that a pop asked for. A total."""
    skipped_by_reset: int = 0
    """Of `acked`: messages that a `reset_offset` forwards skipped. A total."""
    available_depth: int = 1
    """Depth of the tree of pages with available messages."""
    available_pages: int = 0
    """Pages in that tree."""
    parked: int = 0
    """Parked pops."""
    parked_first: int = 0
    """Number of the oldest parked pop; 0: none is parked."""
    parked_last: int = 0
    """Number of the newest parked pop; 0: none is parked."""
    parked_next: int = 1
    """Number of the next pop that is parked; numbers are not used again."""
    empty: bool = False
    """Not poppable after the last record: a notification is due when it is."""
    watching: bool = False
    """The lane is in the queue's tree of lanes that wait for messages: it is empty, or has parked pops."""
    holes_passed: int = 0
    """Of an orderly lane: the holes below its commit offset; those beyond it are counted anew each time."""
    era_no: int = 0
    """Part of the keys of what a reset forgets, from the same numbers as `lane_no`; 0: `lane_no`, until the first."""
    paused_until_ms: int = 0
    """When the lane goes on with what was too much for one record; 0: it has nothing to go on with. No pop of it is
    served before."""
    declared: DeclaredRetries | None = None
    """What the last pop that declared retries declared; None: no pop has."""

    def encode(self) -> bytes:
        """Return the format byte and MessagePack of the fields; the last three are left out while they say nothing."""
        left_out = 0 if self.declared is not None else 1 if self.paused_until_ms else 2 if self.era_no else 3
        data = _encode(self)
        return _LANE_HEADS[left_out] + data[3 : len(data) - left_out]  # each is one byte: 0, or nil


_LANE_HEADS: Final = tuple(
    FORMAT_1 + b"\xdc" + (len(LaneRecord.__struct_fields__) - left_out).to_bytes(2, "big") for left_out in range(4)
)
"""By the number of fields that are left out of a `LaneRecord`: how its value begins, up to its first field."""


class LaneQuota(msgspec.Struct, array_like=True, frozen=True):
    """The quotas of a lane; 0: none (popstream.wire.command.Policy)."""

    pops_per_s_max: int = 0
    client_pops_per_s_max: int = 0
    client_parked_max: int = 0


class QueueQuota(msgspec.Struct, array_like=True, frozen=True):
    """The quotas of a queue as a whole; 0: none (popstream.wire.command.Policy)."""

    pops_per_s_max: int = 0
    parked_max: int = 0
    new_lanes_per_min_max: int = 0
    resets_per_min_max: int = 0


class LaneUsage(_Stored):
    """What the quotas of a lane count; none before its first quota, and after a policy of its own without any."""

    quota: LaneQuota | None
    """The lane's own; None: the lane has no policy of its own, and those of the queue's policy hold."""
    second: int = 0
    """Second of the queue's clock in which the last pop was counted."""
    pops: int = 0
    """Pops in that second that were not refused."""
    clients: dict[int, int] = {}
    """Those pops by the hash of their client; 0: without a client id, or of clients beyond `QUOTA_CLIENTS_MAX`."""


QUOTA_CLIENTS_MAX: Final = 64
"""Clients that are counted apart within one second."""


class QueueUsage(_Stored):
    """What the quotas of a queue count; there is none for a queue whose policy has no quota."""

    quota: QueueQuota
    """The quotas of the queue as a whole."""
    lane_quota: LaneQuota
    """The quotas of each lane that has no policy of its own."""
    second: int = 0
    """Second of the queue's clock in which the last pop was counted."""
    pops: int = 0
    """Pops in that second that were not refused."""
    minute: int = 0
    """Minute of the queue's clock in which the last new lane or reset was counted."""
    new_lanes: int = 0
    """Lanes that were made in that minute."""
    resets: int = 0
    """Resets in that minute: reset_offset and forget_lane."""


class ParkedPop(_Stored):
    """A pop that waits for a message, in a doubly linked list of its lane."""

    number: int
    """Place in the lane's list, ascending; part of its key."""
    before: int
    """Number of the pop before it; 0: it is the oldest."""
    after: int
    """Number of the pop after it; 0: it is the newest. This and `before` alone change while it is parked."""
    op_id: str | None
    """op_id of the pop; without one it is answered by leases alone."""
    reply_to: int | None
    """Partition of the results topic for the answer."""
    max_messages: int
    """As in the command."""
    invisible_time_ms: int
    """As in the command."""
    deadline_ms: int
    """When it is answered POLLING_TIMEOUT: the time of its record plus `poll_time_ms`."""
    client_id: str | None
    """As in the command."""
    attempt_id: str | None
    """As in the command."""
    tags: tuple[int, ...] | None
    """As in the command; None: any message will do."""


class LateSkip(_Stored):
    """Offsets first..end-1 became holes after they had been written. Kept until the queue is erased."""

    first: int
    end: int


class Text(_Stored):
    """A name."""

    text: str


class OpWindowEntry(_Stored):
    """An entry of the op_id window: the first answer to an op_id, or the number of its parked pop."""

    minute: int
    """Minute of the queue's clock in which it was decided, or its parked pop answered."""
    digest: bytes
    """Digest of the record's bytes; another one with the same op_id is OP_ID_REUSED."""
    kind: str
    """Type of the command."""
    group: str | None
    """Group that the command named as a whole."""
    parked: int
    """Number of the parked pop; 0: it is answered."""
    pages: int
    """Pages of the answer, of which the others have keys of their own."""
    answer: bytes
    """First page of the JSON of the answer; empty while parked, and without an answer."""


class OpLog(_Stored):
    """OP_LOG_ENTRIES op_ids in the order of their records, so that they are forgotten in that order."""

    entries: list[tuple[int, str, int]]
    """(minute, op_id, pages of the answer); a parked pop has 0 pages, and another entry once it is answered."""


OP_LOG_ENTRIES: Final = 28
"""Entries of a page of the log: this many op_ids of the greatest length stay below 4 KiB."""


class OrderInfoHead(_Stored):
    """The batch of an orderly lane as a whole (kernel/context/order_info.py); its members are in pages."""

    epoch: int
    """The lane's epoch in the pop that returned the batch; 0: there is no batch, as before the first pop and after a
    reset. RocketMQ identifies a pop by its time, which two pops can share."""
    pop_time_ms: int
    """When that pop was served; 0 without a batch."""
    invisible_time_ms: int
    """For how long that pop made its members invisible, in ms; 0 without a batch."""
    attempt_id: str | None
    """The attempt id of that pop; None: it had none."""
    client: int
    """64-bit hash of the client id of that pop; 0: it had none."""
    first: int
    """Queue offset of the first member; 0 without a batch."""
    end: int
    """Queue offset after the last member; 0 without a batch."""
    member_count: int
    """How many offsets in [first, end) are members, acked or not; 0 without a batch."""
    acked_count: int
    """How many members are acked."""
    next_offset: int
    """Queue offset of the first unacked member; `end` when all are acked, 0 without a batch."""
    first_page_no: int
    """The first member page; -1: there is none."""
    last_consume_ms: int
    """When the batch was stored: RocketMQ's lastConsumeTimestamp; 0 without a batch."""
    last_op_ms: int
    """When an operation last acted on the lane; 0: never, or not since a reset."""
    due_ms: int = 0
    """The lane's stored deadline: when its last unacked member becomes visible. 0: no member blocks the lane."""
    least_count: int = 0
    """The least `count` of the members as the pop left it; 0 unless each of them has one."""
