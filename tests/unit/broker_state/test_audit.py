"""Each value of an audit row is in the column of its name.

Method: the builder gets a distinct sentinel for each column, and the row is compared by names. A builder fills a tuple
without names; this test finds two columns of one type that are swapped.
"""

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
from broker_state.kernel.context.audit_trail import AuditRows, AuditTrail
from broker_state.kernel.context.lane_state import LaneState
from broker_state.kernel.context.queue_state import new_queue
from broker_state.store.facts import Delivery, DeliveryState, client_hash
from broker_state.store.memory_kv import MemoryKv
from broker_state.store.overlay import Overlay
from broker_state.store.state_records import LaneRecord, QueueRecord
from popstream.wire.reason import Reason

ORIGIN = {"kind": "kind", "op_id": "op_id", "client_id": "client_id", "admin_key": "admin_key"}
HOLDER = client_hash("holder")
CAUSE = {"partition": 101, "kafka_offset": 102, "now_ms": 103, "topic": "topic", "queue_id": 104}


def trail() -> tuple[AuditRows, AuditTrail]:
    rows = AuditRows()
    return rows, AuditTrail(
        rows,
        partition=101,
        kafka_offset=102,
        now_ms=103,
        topic="topic",
        queue_id=104,
        kind="kind",
        op_id="op_id",
        client_id="client_id",
        admin_key="admin_key",
    )


def lane_record() -> LaneRecord:
    return LaneRecord(
        lane_no=1,
        group="group",
        start_offset=201,
        next_offset=202,
        commit_offset=2,
        acked_above=3,
        epoch=4,
        reset_epoch=5,
        min_seen=6,
        late_skips_seen=7,
        holes=203,
        acked=204,
        leased=205,
        available=206,
        parked=207,
        dead_lettered=208,
        expired_from_log=209,
        passed_over=210,
        skipped_by_reset=211,
    )


def lane_state() -> LaneState:
    """A lane in which the client "holder" has a page of leases, besides others of a client without an id."""
    queue = QueueRecord(topic_id="id", queue_type="simple", now_ms=0, min_offset=0, commit_position=0, written_above=0)
    lane = LaneState(new_queue(Overlay(MemoryKv()), "topic", 104, queue), lane_record())
    lane.add_client_page(HOLDER, lane.page_to_fill(0), "holder")
    return lane


def delivery(**changed: int) -> Delivery:
    fields = {"epoch": 301, "revision": 302, "attempt": 303, "deadline_ms": 304, "client": 0, **changed}
    fields.setdefault("state", DeliveryState.LEASED)
    return Delivery(**fields, pop_time_ms=1, invisible_time_ms=2, suspended=False)


def test_the_end_of_a_lease_names_who_held_it_unless_somebody_took_the_step() -> None:
    rows, audit = trail()
    lane, held = lane_state(), delivery(client=HOLDER)
    audit.step(lane, DeliveryStep.EXPIRED, 1, 2, held, cause="deadline")
    audit.step(lane, DeliveryStep.ACKED, 3, 4, held, cause="ack", client_id="another")
    audit.step(lane, DeliveryStep.LEASED, 5, 6, held, cause="pop")
    audit.step(lane, DeliveryStep.EXPIRED, 7, 8, delivery(), cause="deadline")
    audit.step(lane, DeliveryStep.ACKED, 9, 10, delivery(client=HOLDER, state=DeliveryState.AVAILABLE), cause="ack")
    lane.discard_client_page(HOLDER, 0)
    audit.step(lane, DeliveryStep.EXPIRED, 11, 12, held, cause="deadline")
    assert [row.client_id for row in rows.deliveries] == ["holder", "another", None, None, None, None]


def test_columns_of_an_operation() -> None:
    rows, audit = trail()
    outcome = OperationOutcome(
        reason=Reason.SUPERSEDED,
        code=401,
        applied=True,
        handle_after="handle_after",
        deadline_before_ms=402,
        deadline_after_ms=403,
        attempt=404,
    )
    audit.operation(Reason.OK)

    ranges: list[EntryRange] = [(405, 406, 407), (408, 409, 410)]
    audit.operation_ranges("group", ranges, outcome, handle_before="handle_before", detail="detail", repeated=True)

    first, second = (row._asdict() for row in rows.operations[1:])
    assert first == {
        **CAUSE,
        **ORIGIN,
        "ordinal": 1,
        "group": "group",
        "entry": 405,
        "first_offset": 406,
        "last_offset": 407,
        "handle_before": "handle_before",
        "handle_after": "handle_after",
        "code": 401,
        "reason": "SUPERSEDED",
        "applied": True,
        "repeated": True,
        "deadline_before_ms": 402,
        "deadline_after_ms": 403,
        "attempt": 404,
        "detail": "detail",
    }
    assert second == {**first, "ordinal": 2, "entry": 408, "first_offset": 409, "last_offset": 410}


def test_columns_of_an_operation_of_one_row() -> None:
    rows, audit = trail()

    audit.operation(
        Reason.ABOVE_MAX,
        applied=True,
        group="group",
        entry=405,
        first=406,
        end=408,
        handle_before="handle_before",
        handle_after="handle_after",
        code=401,
        repeated=True,
        deadline_after_ms=403,
        attempt=404,
        detail="detail",
        origin=Origin("pop", "another op_id", "another client_id"),
    )

    assert rows.operations == [
        OperationRow(
            **CAUSE,  # type: ignore[arg-type]
            ordinal=0,
            kind="pop",
            op_id="another op_id",
            client_id="another client_id",
            group="group",
            entry=405,
            first_offset=406,
            last_offset=407,
            handle_before="handle_before",
            handle_after="handle_after",
            code=401,
            reason="ABOVE_MAX",
            applied=True,
            repeated=True,
            deadline_before_ms=None,
            deadline_after_ms=403,
            attempt=404,
            detail="detail",
            admin_key=None,
        )
    ]
    audit.operation(Reason.OK)
    assert (rows.operations[1].op_id, rows.operations[1].admin_key) == ("op_id", "admin_key")


def test_an_offset_that_no_column_can_hold_is_left_out() -> None:
    rows, audit = trail()

    audit.operation(Reason.INVALID_PARAMETER, first=-1, end=0)
    audit.operation(Reason.INVALID_PARAMETER, first=0, end=(1 << 63) + 1)
    audit.operation(Reason.OK, first=0, end=1 << 63)

    offsets = [(row.first_offset, row.last_offset) for row in rows.operations]
    assert offsets == [(None, None), (None, None), (0, (1 << 63) - 1)]


def test_columns_of_a_delivery() -> None:
    rows, audit = trail()
    audit.step(lane_state(), DeliveryStep.ACKED, 1, 2, delivery(), cause="ack")

    audit.step(lane_state(), DeliveryStep.EXPIRED, 305, 307, delivery(), cause="cause", at_ms=308, client_id="client")
    audit.step(lane_state(), DeliveryStep.ACKED, 9, 10, delivery(deadline_ms=0), cause="ack")

    assert rows.deliveries[1] == DeliveryRow(
        **CAUSE,  # type: ignore[arg-type]
        ordinal=1,
        group="group",
        step="expired",
        first_offset=305,
        last_offset=306,
        epoch=301,
        revision=302,
        attempt=303,
        at_ms=308,
        deadline_ms=304,
        cause="cause",
        client_id="client",
    )
    assert (rows.deliveries[2].at_ms, rows.deliveries[2].deadline_ms, rows.deliveries[2].client_id) == (103, None, None)


def test_a_step_lengthens_the_row_before_when_all_else_is_equal() -> None:
    rows, audit = trail()

    audit.step(lane_state(), DeliveryStep.LEASED, 0, 64, delivery(), cause="pop")
    audit.step(lane_state(), DeliveryStep.LEASED, 64, 70, delivery(), cause="pop")
    audit.step(lane_state(), DeliveryStep.LEASED, 71, 72, delivery(), cause="pop")
    audit.step(lane_state(), DeliveryStep.LEASED, 72, 73, delivery(epoch=9), cause="pop")

    ranges = [(row.ordinal, row.first_offset, row.last_offset) for row in rows.deliveries]
    assert ranges == [(0, 0, 69), (1, 71, 71), (2, 72, 72)]


def test_columns_of_a_commit_offset() -> None:
    rows, audit = trail()
    audit.commit_offset(lane_record(), 0, 1)

    audit.commit_offset(lane_record(), 501, 502)

    assert rows.commit_positions[1] == CommitPositionRow(
        **CAUSE,  # type: ignore[arg-type]
        ordinal=1,
        group="group",
        from_offset=501,
        to_offset=502,
        start_offset=201,
        next_offset=202,
        holes=203,
        acked=204,
        leased=205,
        available=206,
        parked=207,
        dead_lettered=208,
        expired_from_log=209,
        passed_over=210,
        skipped_by_reset=211,
    )


def test_columns_of_a_commit_position_of_a_queue() -> None:
    rows, audit = trail()
    queue = QueueRecord(
        topic_id="id", queue_type="simple", now_ms=1, min_offset=601, commit_position=2, written_above=3, holes=602
    )

    audit.commit_position(queue, 603, 604)

    assert rows.commit_positions == [
        CommitPositionRow(
            **CAUSE,  # type: ignore[arg-type]
            ordinal=0,
            group=None,
            from_offset=603,
            to_offset=604,
            start_offset=601,
            next_offset=604,
            holes=602,
            acked=0,
            leased=0,
            available=0,
            parked=0,
            dead_lettered=0,
            expired_from_log=0,
            passed_over=0,
            skipped_by_reset=0,
        )
    ]


def test_columns_of_a_batch() -> None:
    rows, audit = trail()
    batch = {
        "group": "group",
        "epoch": 701,
        "pop_time_ms": 702,
        "invisible_time_ms": 703,
        "attempt_id": "attempt_id",
        "members": 704,
        "acked": 705,
        "commit_offset": 706,
        "free_at_ms": 707,
        "least_count": 708,
    }

    for _ in range(2):
        audit.batch(**batch, first=709, end=711)  # type: ignore[arg-type]

    assert [row._asdict() for row in rows.order_info] == [
        {**CAUSE, **batch, "ordinal": ordinal, "first_offset": 709, "last_offset": 710} for ordinal in (0, 1)
    ]
    assert all(isinstance(row, OrderInfoRow) for row in rows.order_info)
