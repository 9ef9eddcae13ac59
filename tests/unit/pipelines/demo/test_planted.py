"""What the intruder plants is what it says: checked with the job's own decoder and kernel."""

from __future__ import annotations

import msgspec
import pytest

from broker_state.kernel.decision import Decision, OpRecord
from broker_state.kernel.fold import fold
from broker_state.store.memory_kv import MemoryKv
from broker_state.store.overlay import Overlay
from pipelines.apply_ops.decode import Decoder, KafkaRecord, Rejected
from pipelines.demo import planted
from popstream.exchange.partitioner import ops_key, partition_of
from popstream.wire.command import Command, Declare, Dispatch, Pop, WrittenRange, encode_command
from popstream.wire.handle import Signer

PARTITIONS = 4
SIGNER = Signer({"demo": b"secret"}, "demo")
KEY = ops_key("orders", 0)


def decoded(value: bytes | None, number: int = 0) -> OpRecord | Rejected:
    record = KafkaRecord(partition_of(KEY, PARTITIONS), number, 1_000 + number, KEY, value, len(value or b""))
    return Decoder(PARTITIONS, SIGNER).decode(record)


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


def test_every_unreadable_record_is_rejected_for_its_reason() -> None:
    records = list(planted.rejected_records("orders", 0, "g", 200))
    assert len(records) == 200
    kinds = {record.kind for record in records}
    assert {
        "broken JSON",
        "missing field",
        "ill-typed field",
        "unknown type",
        "unknown version",
        "empty",
        "8 MiB",
    } <= kinds
    for record in records:
        found = decoded(record.value)
        assert isinstance(found, Rejected)
        assert found.row.reason == record.reason, record.kind


@pytest.mark.parametrize("count", [0, 1, 9, 1000])
def test_there_are_as_many_unreadable_records_as_asked_for(count: int) -> None:
    records = list(planted.rejected_records("orders", 0, "g", count))
    assert len(records) == count
    assert sum(record.reason == "TOO_LARGE" for record in records) <= planted.HUGE_COUNT


@pytest.mark.parametrize("number", range(8))
def test_what_is_out_of_range_is_refused_as_such(number: int) -> None:
    rows = decided(opened(planted.out_of_range("orders", 0, "g", number))).operations[3:]
    assert [(row.reason, row.code, row.applied) for row in rows] == [("INVALID_PARAMETER", 29, False)]


@pytest.mark.parametrize("number", range(12))
def test_a_forged_handle_has_no_permission(number: int) -> None:
    rows = decided(opened(planted.forged("orders", 0, "g", handle(), 3, number))).operations[3:]
    assert [(row.reason, row.code, row.applied) for row in rows] == [("NO_PERMISSION", 16, False)]


@pytest.mark.parametrize("number", range(3))
def test_a_handle_of_an_earlier_delivery_is_stale(number: int) -> None:
    again = Pop(v=1, topic="orders", queue_id=0, group="g", max_messages=10, invisible_time_ms=60_000)
    back = msgspec.json.decode(
        b'{"type":"return_client","v":1,"topic":"orders","queue_id":0,"group":"g","client_id":"c"}', type=Command
    )
    first = Pop(v=1, topic="orders", queue_id=0, group="g", max_messages=10, invisible_time_ms=60_000, client_id="c")
    old = decided([*opened()[:2], first]).operations[-1].handle_after
    assert old is not None
    command = planted.stale("orders", 0, "g", SIGNER.sign(old), 3, number)
    rows = decided([*opened()[:2], first, back, again, command]).operations
    assert [(row.reason, row.code, row.applied) for row in rows[-1:]] == [("STALE_HANDLE", 13, False)]


def test_a_used_op_id_is_refused_for_something_else() -> None:
    first = planted.first_use("orders", 0, "x")
    rows = decided(opened(first, *(planted.reused("orders", 0, "g", "x", number) for number in range(2)))).operations[
        3:
    ]
    assert [(row.reason, row.code) for row in rows] == [("OK", 0), ("OP_ID_REUSED", 29), ("OP_ID_REUSED", 29)]


def test_reasons_and_counts_are_of_the_same_kinds() -> None:
    assert planted.refused_counts(500).keys() == planted.REASON_OF_KIND.keys()
    assert sum(planted.refused_counts(501).values()) == 501
