"""Each planted record is rejected or refused as it says: checked with the job's own decoder and kernel."""

from __future__ import annotations

import msgspec
import pytest

from broker_state.kernel.context.decision import Decision, OpRecord
from broker_state.kernel.fold import fold
from broker_state.store.memory_kv import MemoryKv
from broker_state.store.overlay import Overlay
from pipelines.decide_ops.decode import Decoder, KafkaRecord, Rejected
from pipelines.demo import planted
from popstream.exchange.partitioner import ops_key, partition_of
from popstream.wire.command import (
    Command,
    Declare,
    Dispatch,
    HandleRef,
    Pop,
    ReturnClient,
    WrittenRange,
    encode_command,
)
from popstream.wire.handle import Signer
from popstream.wire.reason import Reason
from popstream.wire.signing import KeyRing, OperationVerifier

PARTITIONS = 4
SIGNER = Signer(KeyRing.of({"demo": b"secret"}, "demo"))
KEY = ops_key("orders", 0)


def decoded(value: bytes | None, number: int = 0, *, verifier: OperationVerifier | None = None) -> OpRecord | Rejected:
    record = KafkaRecord(partition_of(KEY, PARTITIONS), number, 1_000 + number, KEY, value, len(value or b""))
    return Decoder(PARTITIONS, SIGNER, verifier).decode(record)


def decided(commands: list[Command]) -> Decision:
    decision = Decision()
    records = []
    for number, command in enumerate(commands):
        record = decoded(encode_command(command), number)
        assert isinstance(record, OpRecord)
        records.append(record)
    fold(Overlay(MemoryKv()), records, decision)
    return decision


def opened(*commands: Command) -> list[Command]:
    return [
        Declare(v=1, topic="orders", queue_id=0, topic_id="t"),
        Dispatch(v=1, topic="orders", queue_id=0, ranges=[WrittenRange(0, 9)]),
        Pop(
            v=1, topic="orders", queue_id=0, op_id="p", group="g", max_messages=10, invisible_time_ms=60_000, reply_to=0
        ),
        *commands,
    ]


def handle() -> str:
    unsigned = decided(opened()).operations[-1].handle_after
    assert unsigned is not None
    return SIGNER.sign(unsigned)


def test_every_malformed_record_is_rejected_for_its_reason() -> None:
    records = list(planted.malformed("orders", "g", 4, 200))
    assert len(records) == 200
    assert {record.queue_id for record in records} == {0, 1, 2, 3}
    reasons = {record.reason for record in records}
    assert reasons == {
        "NOT_JSON", "BAD_FIELD", "UNKNOWN_TYPE", "UNKNOWN_VERSION", "NOT_AN_OBJECT", "EMPTY", "TOO_LARGE", "NOT_SIGNED"
    }  # fmt: skip
    verifier = OperationVerifier(KeyRing.of({"demo": b"another secret"}, "demo"), "ops")
    for record in records:
        found = decoded(record.value, verifier=verifier)
        assert isinstance(found, Rejected)
        assert (found.row.reason, record.code) == (record.reason, 0)


@pytest.mark.parametrize("count", [0, 1, 9, 1000])
def test_there_are_as_many_malformed_records_as_asked_for(count: int) -> None:
    records = list(planted.malformed("orders", "g", 4, count))
    assert len(records) == count
    assert sum(record.reason == "TOO_LARGE" for record in records) <= planted.HUGE_COUNT_MAX


def test_operations_are_refused_for_their_reason() -> None:
    records = [record for record in planted.refused("orders", "g", 1, 60) if record.reason != "MISROUTED"]
    values = [record.value for record in records]
    commands = [msgspec.json.decode(value or b"", type=Command) for value in values]
    rows = decided(opened(*commands)).operations[3:]
    assert len(rows) == len(records)
    for row, record in zip(rows, records, strict=True):
        assert (row.reason, row.code, row.applied) == (record.reason or "OK", record.code, False)


@pytest.mark.parametrize("count", [0, 1, 7, 300])
def test_there_are_as_many_refused_operations_as_asked_for(count: int) -> None:
    records = [record for record in planted.refused("orders", "g", 4, count) if record.reason]
    assert len(records) == count
    if count > 2:
        assert {record.reason for record in records} == {"INVALID_PARAMETER", "MISROUTED", "OP_ID_REUSED"}


@pytest.mark.parametrize("number", range(4))
def test_a_forged_handle_has_no_permission(number: int) -> None:
    command = planted.with_handle("orders", 0, HandleRef("g", planted.tampered(handle(), number)), 3)
    rows = decided(opened(command)).operations[3:]
    assert [(row.reason, row.code, row.applied) for row in rows] == [("NO_PERMISSION", 16, False)]


def test_a_handle_of_an_earlier_delivery_is_stale() -> None:
    again = Pop(v=1, topic="orders", queue_id=0, group="g", max_messages=10, invisible_time_ms=60_000)
    back = ReturnClient(v=1, topic="orders", queue_id=0, group="g", client_id="c")
    first = Pop(v=1, topic="orders", queue_id=0, group="g", max_messages=10, invisible_time_ms=60_000, client_id="c")
    old = decided([*opened()[:2], first]).operations[-1].handle_after
    assert old is not None
    command = planted.with_handle("orders", 0, HandleRef("g", SIGNER.sign(old)), 3)
    rows = decided([*opened()[:2], first, back, again, command]).operations
    assert [(row.reason, row.code, row.applied) for row in rows[-1:]] == [("STALE_HANDLE", 13, False)]


def test_the_record_of_an_operation_has_its_reason_and_code() -> None:
    record = planted.operation(3, opened()[0], Reason.STALE_HANDLE)
    assert (record.queue_id, record.reason, record.code) == (3, "STALE_HANDLE", 13)
