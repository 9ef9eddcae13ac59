"""Rows of the audit tables, and the builder of each.

Every row starts with its cause: the coordinates of the record of the ops topic and `ordinal`, the row's number among
those of its table that the record caused. Offsets are inclusive ranges. The Delta tables have these columns and four
more that the flusher adds (`apply_seq`, `state_epoch`, `ops_topic_id`, `op_date`); connectors/delta/tables.py
explains each column.
"""

import enum
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from broker_state.store.pages import Delivery
from broker_state.store.state_records import LaneRecord, QueueRecord
from popstream.wire.limits import OFFSET_MAX
from popstream.wire.reason import Reason, code_of

__all__ = [
    "ERA_ENDING_KINDS",
    "LANE_DELETING_KINDS",
    "LANE_RESETTING_KINDS",
    "REJECTED_HEAD_BYTES",
    "TEXT_CHARACTERS_MAX",
    "AuditRows",
    "AuditTrail",
    "CommitPositionRow",
    "DeliveryRow",
    "DeliveryStep",
    "OperationOutcome",
    "OperationRow",
    "OperationRun",
    "OrderInfoRow",
    "Origin",
    "RejectedRow",
    "shortened",
]

TEXT_CHARACTERS_MAX = 512
"""Rows and answers keep at most this many characters of a text without a limit, as in a refused operation."""

REJECTED_HEAD_BYTES = 4096
"""A row of `rejected` keeps at most this many bytes of the head of the value."""

LANE_RESETTING_KINDS = ("reset_offset",)
"""Operations that move a lane to another offset. The lane remains, with its totals."""

LANE_DELETING_KINDS = ("forget_lane", "declare")
"""Operations that delete a lane, or a queue with its lanes: positions start anew."""

ERA_ENDING_KINDS = (*LANE_RESETTING_KINDS, *LANE_DELETING_KINDS)
"""Operations that, when applied, end every lease of a lane at once: earlier attempts and acks are discarded.

One row of `deliveries` reports the end of all leases: its step is `released`, its cause the kind of the operation, and
its range may include offsets that were not leased.
"""

# Half the time of a NamedTuple's own constructor (133 ns against 307 ns with 23 columns), and an operation has several
# rows. It checks nothing; tests/unit/broker_state/test_audit.py checks that each value is in its column.
_new = tuple.__new__


class DeliveryStep(enum.StrEnum):
    """The transitions of a lease."""

    LEASED = "leased"
    ACKED = "acked"
    CHANGED = "changed"
    EXPIRED = "expired"
    RELEASED = "released"
    DEAD_LETTERED = "dead_lettered"
    EXPIRED_FROM_LOG = "expired_from_log"


class OperationRow(NamedTuple):
    """One run of one entry of one operation (an operation without entries is one row, `entry` null)."""

    partition: int
    kafka_offset: int
    ordinal: int
    now_ms: int
    kind: str
    topic: str
    queue_id: int
    group: str | None
    op_id: str | None
    client_id: str | None
    entry: int | None
    first_offset: int | None
    last_offset: int | None
    handle_before: str | None
    handle_after: str | None
    code: int
    reason: str
    applied: bool
    repeated: bool
    deadline_before_ms: int | None
    deadline_after_ms: int | None
    attempt: int | None
    detail: str | None


class DeliveryRow(NamedTuple):
    """One step of the lease of a range; `at_ms` is when it took effect (an expiry: its deadline)."""

    partition: int
    kafka_offset: int
    ordinal: int
    now_ms: int
    topic: str
    queue_id: int
    group: str
    step: str
    first_offset: int
    last_offset: int
    epoch: int
    revision: int
    attempt: int
    at_ms: int
    deadline_ms: int | None
    cause: str
    client_id: str | None


class CommitPositionRow(NamedTuple):
    """A position that moved, and the counts of the lane (or queue: `group` null) after the record.

    Conservation: next_offset - start_offset = holes + acked + leased + available, in every lane row.
    `acked` includes `dead_lettered`, `expired_from_log`, `passed_over` and `skipped_by_reset`, until a reset: it counts
    `acked` anew from the lane's start, while those four go on as totals.
    """

    partition: int
    kafka_offset: int
    ordinal: int
    now_ms: int
    topic: str
    queue_id: int
    group: str | None
    from_offset: int
    to_offset: int
    start_offset: int
    next_offset: int
    holes: int
    acked: int
    leased: int
    available: int
    parked: int
    dead_lettered: int
    expired_from_log: int
    passed_over: int
    skipped_by_reset: int


class OrderInfoRow(NamedTuple):
    """The batch of an orderly lane after a record that changed it; `free_at_ms` null: nothing blocks the lane."""

    partition: int
    kafka_offset: int
    ordinal: int
    now_ms: int
    topic: str
    queue_id: int
    group: str
    epoch: int
    pop_time_ms: int
    invisible_time_ms: int
    attempt_id: str | None
    first_offset: int
    last_offset: int
    members: int
    acked: int
    commit_offset: int
    free_at_ms: int | None
    least_count: int


class RejectedRow(NamedTuple):
    """One record of the ops topic that could not be read; `value_head` is its first 4 KiB."""

    partition: int
    kafka_offset: int
    ordinal: int
    now_ms: int
    reason: str
    detail: str
    value_bytes: int
    value_sha256: str
    value_head: bytes
    op_id: str | None
    reply_to: int | None


class Origin(msgspec.Struct, frozen=True, gc=False):
    """The operation that a row of `operations` is about. A parked pop is answered during another operation."""

    kind: str
    op_id: str | None
    client_id: str | None


class OperationOutcome(msgspec.Struct, frozen=True, gc=False):
    """The columns of `operations` that neighbouring offsets share when they were judged alike."""

    reason: Reason
    code: int
    applied: bool
    handle_after: str | None = None
    deadline_before_ms: int | None = None
    deadline_after_ms: int | None = None
    attempt: int | None = None


OperationRun = tuple[int | None, int | None, int | None, str | None, str | None, OperationOutcome]
"""(entry, first offset, last offset, handle before, detail, outcome): a tuple, for a record may have 10,000 of them."""


class AuditRows:
    """The audit rows of a micro-batch, by table, in the order of the records that caused them."""

    __slots__ = ("commit_positions", "deliveries", "operations", "order_info")

    def __init__(self) -> None:
        self.operations: list[OperationRow] = []
        self.deliveries: list[DeliveryRow] = []
        self.commit_positions: list[CommitPositionRow] = []
        self.order_info: list[OrderInfoRow] = []


class AuditTrail(msgspec.Struct, gc=False):
    """Builds the rows that one record of the ops topic causes, and numbers them within each table."""

    rows: AuditRows
    """Where the rows go."""
    partition: int
    """Partition of the record."""
    kafka_offset: int
    """Offset of the record in its partition."""
    now_ms: int
    """Time of the decision."""
    topic: str
    """Message topic of the queue that the record names."""
    queue_id: int
    """Queue within the topic."""
    kind: str
    """Type of the record's own operation."""
    op_id: str | None
    """Its op_id."""
    client_id: str | None
    """Client id of the operation; None if it has none."""
    _operations: int = 0
    _deliveries: int = 0
    _commit_positions: int = 0
    _order_info: int = 0
    _last_step: tuple[tuple[object, ...], int] | None = None
    """(columns that the last row of `deliveries` shares with a row that may lengthen it, end of its range)"""

    @property
    def delivery_rows(self) -> int:
        """Rows of `deliveries` that the record has caused so far."""
        return self._deliveries

    def operation(
        self,
        reason: Reason,
        *,
        applied: bool = False,
        group: str | None = None,
        entry: int | None = None,
        first: int | None = None,
        end: int | None = None,
        handle_before: str | None = None,
        handle_after: str | None = None,
        code: int | None = None,
        repeated: bool = False,
        deadline_after_ms: int | None = None,
        attempt: int | None = None,
        detail: str | None = None,
        origin: Origin | None = None,
    ) -> None:
        """Add one row of `operations`, of offsets [first, end) if it is about offsets; `origin` None: the record's."""
        if first is not None and not (0 <= first <= OFFSET_MAX and end is not None and 0 < end <= OFFSET_MAX + 1):
            first = end = None  # the answer has the offsets as they were sent; a column cannot
        outcome = OperationOutcome(
            reason, code_of(reason) if code is None else code, applied, handle_after, None, deadline_after_ms, attempt
        )
        last = None if end is None else end - 1
        run = (entry, first, last, handle_before, detail, outcome)
        self.operation_runs(group, (run,), repeated=repeated, origin=origin)

    def operation_runs(
        self,
        group: str | None,
        runs: Sequence[OperationRun],
        *,
        repeated: bool = False,
        origin: Origin | None = None,
    ) -> None:
        """Add a row of `operations` for each run of offsets of an answer."""
        if origin is None:
            kind, op_id, client_id = self.kind, self.op_id, self.client_id
        else:
            kind, op_id, client_id = origin.kind, origin.op_id, origin.client_id
        partition, kafka_offset, now_ms = self.partition, self.kafka_offset, self.now_ms
        topic, queue_id = self.topic, self.queue_id
        append, ordinal = self.rows.operations.append, self._operations
        for entry, first, last, handle_before, detail, outcome in runs:
            append(
                _new(
                    OperationRow,
                    (
                        partition,
                        kafka_offset,
                        ordinal,
                        now_ms,
                        kind,
                        topic,
                        queue_id,
                        group,
                        op_id,
                        client_id,
                        entry,
                        first,
                        last,
                        handle_before,
                        outcome.handle_after,
                        outcome.code,
                        outcome.reason,
                        outcome.applied,
                        repeated,
                        outcome.deadline_before_ms,
                        outcome.deadline_after_ms,
                        outcome.attempt,
                        detail,
                    ),
                )
            )
            ordinal += 1
        self._operations = ordinal

    def step(
        self,
        lane: LaneRecord,
        step: DeliveryStep,
        first: int,
        end: int,
        delivery: Delivery,
        *,
        cause: str,
        at_ms: int | None = None,
        client_id: str | None = None,
    ) -> None:
        """Add a row of `deliveries` for [first, end); the same step of the next page lengthens the row before.

        `at_ms` is when the step took effect, None: now.
        """
        deliveries = self.rows.deliveries
        at = self.now_ms if at_ms is None else at_ms
        same = (lane.group, step, delivery.epoch, delivery.revision, delivery.attempt, at, delivery.deadline_ms, cause)
        if self._last_step == (same, first):
            deliveries[-1] = deliveries[-1]._replace(last_offset=end - 1)
            self._last_step = (same, end)
            return
        self._last_step = (same, end)
        deliveries.append(
            _new(
                DeliveryRow,
                (
                    self.partition,
                    self.kafka_offset,
                    self._deliveries,
                    self.now_ms,
                    self.topic,
                    self.queue_id,
                    lane.group,
                    step,
                    first,
                    end - 1,
                    delivery.epoch,
                    delivery.revision,
                    delivery.attempt,
                    at,
                    delivery.deadline_ms or None,
                    cause,
                    client_id,
                ),
            )
        )
        self._deliveries += 1

    def commit_offset(self, lane: LaneRecord, before: int, after: int) -> None:
        """Add a row of `commit_positions`: the commit offset of a lane moved."""
        self._commit_position(
            (
                lane.group,
                before,
                after,
                lane.start_offset,
                lane.next_offset,
                lane.holes,
                lane.acked,
                lane.leased,
                lane.available,
                lane.parked,
                lane.dead_lettered,
                lane.expired_from_log,
                lane.passed_over,
                lane.skipped_by_reset,
            )
        )

    def commit_position(self, queue: QueueRecord, before: int, after: int) -> None:
        """Add a row of `commit_positions`: the commit position of the queue moved."""
        self._commit_position((None, before, after, queue.min_offset, after, queue.holes, 0, 0, 0, 0, 0, 0, 0, 0))

    def _commit_position(self, columns: tuple[object, ...]) -> None:
        place = (self.partition, self.kafka_offset, self._commit_positions, self.now_ms, self.topic, self.queue_id)
        self.rows.commit_positions.append(_new(CommitPositionRow, (*place, *columns)))
        self._commit_positions += 1

    def batch(
        self,
        *,
        group: str,
        epoch: int,
        pop_time_ms: int,
        invisible_time_ms: int,
        attempt_id: str | None,
        first: int,
        end: int,
        members: int,
        acked: int,
        commit_offset: int,
        free_at_ms: int | None,
        least_count: int,
    ) -> None:
        """Add a row of `order_info`: the batch of an orderly lane, offsets in [first, end), was changed."""
        self.rows.order_info.append(
            OrderInfoRow(
                partition=self.partition,
                kafka_offset=self.kafka_offset,
                ordinal=self._order_info,
                now_ms=self.now_ms,
                topic=self.topic,
                queue_id=self.queue_id,
                group=group,
                epoch=epoch,
                pop_time_ms=pop_time_ms,
                invisible_time_ms=invisible_time_ms,
                attempt_id=attempt_id,
                first_offset=first,
                last_offset=end - 1,
                members=members,
                acked=acked,
                commit_offset=commit_offset,
                free_at_ms=free_at_ms,
                least_count=least_count,
            )
        )
        self._order_info += 1


def shortened(text: str | None) -> str | None:
    """Return at most the first 512 characters of a text that no rule bounds."""
    return text if text is None else text[:TEXT_CHARACTERS_MAX]
