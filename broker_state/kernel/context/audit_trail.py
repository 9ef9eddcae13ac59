"""The builder of audit rows: one trail for each record, into the rows of its micro-batch."""

from collections.abc import Sequence
from typing import Final

from broker_state.audit import (
    CommitPositionRow,
    DeliveryRow,
    DeliveryStep,
    EntryRange,
    OperationOutcome,
    OperationRow,
    OrderInfoRow,
    Origin,
)
from broker_state.kernel.context.lane_state import LaneState
from broker_state.operation_rows import OperationRows
from broker_state.store.facts import Delivery, DeliveryState
from broker_state.store.state_records import LaneRecord, QueueRecord
from popstream.wire.limits import OFFSET_MAX
from popstream.wire.reason import Reason, code_of

__all__ = ["AuditRows", "AuditTrail"]

# Half the time of a NamedTuple's own constructor (133 ns against 307 ns with 23 columns), and an operation has several
# rows. It checks nothing; tests/unit/broker_state/test_audit.py checks that each value is in its column.
_new: Final = tuple.__new__
_LEASED: Final = DeliveryState.LEASED


class AuditRows:
    """The audit rows of a micro-batch, by table, in the order of the records that caused them."""

    __slots__ = ("commit_positions", "deliveries", "operations", "order_info")

    def __init__(self) -> None:
        self.operations = OperationRows()
        self.deliveries: list[DeliveryRow] = []
        self.commit_positions: list[CommitPositionRow] = []
        self.order_info: list[OrderInfoRow] = []


class AuditTrail:
    """Builds the rows that one record of the ops topic causes, and numbers them within each table.

    Args:
        rows: Where the rows go.
        partition: Partition of the record.
        kafka_offset: Offset of the record in its partition.
        now_ms: Time of the decision.
        topic: Message topic of the queue that the record names.
        queue_id: Queue within the topic.
        kind: Type of the record's own operation.
        op_id: Its op_id.
        client_id: Client id of the operation; None if it has none.
        admin_key: Id of the admin key that signed it; None if it is not signed.
    """

    __slots__ = (
        "_commit_positions",
        "_deliveries",
        "_operations",
        "_order_info",
        "_step_by",
        "_step_end",
        "admin_key",
        "client_id",
        "kafka_offset",
        "kind",
        "now_ms",
        "op_id",
        "partition",
        "queue_id",
        "rows",
        "topic",
    )

    def __init__(
        self,
        rows: AuditRows,
        partition: int,
        kafka_offset: int,
        now_ms: int,
        topic: str,
        queue_id: int,
        kind: str,
        op_id: str | None,
        client_id: str | None,
        admin_key: str | None = None,
    ) -> None:
        self.rows = rows
        self.partition = partition
        self.kafka_offset = kafka_offset
        self.now_ms = now_ms
        self.topic = topic
        self.queue_id = queue_id
        self.kind = kind
        self.op_id = op_id
        self.client_id = client_id
        self.admin_key = admin_key
        self._operations = 0
        self._deliveries = 0
        self._commit_positions = 0
        self._order_info = 0
        self._step_end = -1
        """End of the range of the last row of `deliveries`, if it is of this record."""
        self._step_by: tuple[str | None, int] = (None, 0)
        """Whom that row names: the client that took the step, or the hash of the one that held the lease."""

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
        self.operation_ranges(
            group,
            [(entry, first, last)],
            outcome,
            handle_before=handle_before,
            detail=detail,
            repeated=repeated,
            origin=origin,
        )

    def operation_ranges(
        self,
        group: str | None,
        ranges: Sequence[EntryRange],
        outcome: OperationOutcome,
        *,
        handle_before: str | None = None,
        detail: str | None = None,
        repeated: bool = False,
        origin: Origin | None = None,
    ) -> None:
        """Add a row of `operations` for each of `ranges`, at least one, with one outcome."""
        if origin is None:
            kind, op_id, client_id, admin_key = self.kind, self.op_id, self.client_id, self.admin_key
        else:
            kind, op_id, client_id, admin_key = origin.kind, origin.op_id, origin.client_id, None
        entry, first, last = ranges[0]
        head = _new(
            OperationRow,
            (
                self.partition,
                self.kafka_offset,
                self._operations,
                self.now_ms,
                kind,
                self.topic,
                self.queue_id,
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
                admin_key,
            ),
        )
        self.rows.operations.append(head, ranges)
        self._operations += len(ranges)

    def step(
        self,
        lane: LaneState,
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

        `at_ms` is when the step took effect, None: now; `client_id` is who took it, None: the row names the client that
        holds the lease.
        """
        deliveries = self.rows.deliveries
        at = self.now_ms if at_ms is None else at_ms
        deadline_ms = delivery.deadline_ms or None
        group = lane.record.group
        is_named_by_lease = client_id is None and delivery.state == _LEASED and step != DeliveryStep.LEASED
        by = (client_id, delivery.client if is_named_by_lease else 0)
        if first == self._step_end and by == self._step_by:
            row = deliveries[-1]
            before = (row.group, row.step, row.epoch, row.revision, row.attempt, row.at_ms, row.deadline_ms, row.cause)
            facts = (group, step, delivery.epoch, delivery.revision, delivery.attempt, at, deadline_ms, cause)
            if before == facts:
                deliveries[-1] = row._replace(last_offset=end - 1)
                self._step_end = end
                return
        self._step_end, self._step_by = end, by
        if is_named_by_lease:
            client_id = lane.client_id(delivery.client)
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
                    group,
                    step,
                    first,
                    end - 1,
                    delivery.epoch,
                    delivery.revision,
                    delivery.attempt,
                    at,
                    deadline_ms,
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
