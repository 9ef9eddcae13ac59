"""Claim: in a record with unreadable entries the other entries are decided. Method: decoder and kernel, in memory."""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest

from broker_state.audit import RejectReason
from broker_state.kernel.context.decision import Decision, OpRecord
from broker_state.kernel.fold import fold
from broker_state.store.memory_kv import MemoryKv
from broker_state.store.overlay import Overlay
from pipelines.decide_ops import decode
from pipelines.decide_ops.decode import Decoder, KafkaRecord, Rejected
from popstream.exchange.partitioner import ops_key, partition_of
from popstream.wire.command import Command, Declare, Dispatch, EntryCommand, Pop, WrittenRange, encode_command

KEY = ops_key("orders", 0)
GROUP = "billing"
ENTRIES: dict[str, dict[str, Any]] = {
    "ack": {"handle": 0, "offsets": [[0, 0]]},
    "change_invisible": {"handle": 0, "offsets": [[0, 0]], "invisible_time_ms": 5_000},
    "reject": {"handle": 0, "offsets": [[0, 0]]},
}
BAD: list[Any] = [
    "text",
    None,
    7,
    [],
    {},
    {"handle": "0", "offsets": [[1, 1]], "invisible_time_ms": 1},
    {"handle": 0, "offsets": "1-1", "invisible_time_ms": 1},
    {"handle": 0, "offsets": [[1]], "invisible_time_ms": 1},
    {"handle": 0, "offsets": [[1, 1.5]], "invisible_time_ms": 1},
    {"handle": 0, "offsets": [[1, 1]], "invisible_time_ms": 1, "unheard_of": True},
]


def record(value: bytes) -> KafkaRecord:
    return KafkaRecord(partition_of(KEY, 4), 9, 1_000_500, KEY, value, len(value))


def decided(kind: str, entries: list[Any]) -> list[tuple[int, int, int, str]]:
    """(entry, first, last, reason) of each run."""
    kv, decision = MemoryKv(), Decision()
    overlay = Overlay(kv)
    before: list[Command] = [
        Declare(v=1, topic="orders", queue_id=0, topic_id="t"),
        Dispatch(v=1, topic="orders", queue_id=0, ranges=[WrittenRange(0, 9)]),
        Pop(
            v=1,
            topic="orders",
            queue_id=0,
            group=GROUP,
            max_messages=10,
            invisible_time_ms=60_000,
            op_id="p",
            reply_to=0,
        ),
    ]
    records = [
        OpRecord(0, number, 1_000_000, command, encode_command(command)[:16]) for number, command in enumerate(before)
    ]
    fold(overlay, records, decision)
    handle = json.loads(decision.answers[-1][1])["handle"]
    request = {
        "v": 1, "type": kind, "topic": "orders", "queue_id": 0, "op_id": "x", "reply_to": 0,
        "handles": [{"group": GROUP, "handle": handle}], "entries": entries,
    }  # fmt: skip
    decoded = Decoder(4).decode(record(json.dumps(request).encode()))
    assert isinstance(decoded, OpRecord)
    fold(overlay, [decoded], decision)
    runs = json.loads(decision.answers[-1][1])["runs"]
    return [(run["entry"], run["first"], run["last"], run["reason"]) for run in runs]


@pytest.mark.parametrize("kind", ENTRIES)
@pytest.mark.parametrize("bad", BAD, ids=str)
def test_an_entry_that_cannot_be_read_is_refused_by_itself(kind: str, bad: object) -> None:
    good = ENTRIES[kind]
    assert decided(kind, [bad, good, bad]) == [
        (0, -1, -1, "INVALID_PARAMETER"),
        (1, 0, 0, "OK"),
        (2, -1, -1, "INVALID_PARAMETER"),
    ]


def test_any_other_unreadable_value_is_one_rejected_row() -> None:
    for value in (
        b'{"v":1,"type":"ack","topic":"orders","queue_id":0,"handles":"none","entries":[7]}',
        b'{"v":1,"type":"ack","topic":"orders","queue_id":0,"handles":[],"entries":7}',
        b'{"v":1,"type":"tick","topic":"orders","queue_id":0,"entries":[7]}',
        b'{"v":1,"type":["ack"],"topic":"orders","queue_id":0,"entries":[7]}',
    ):
        decoded = Decoder(4).decode(record(value))
        assert isinstance(decoded, Rejected)
        assert decoded.row.reason == RejectReason.BAD_FIELD


@pytest.mark.parametrize(("topic", "queue_id"), [("n" * 100_000, 0), ("orders", -1), ("orders", 1 << 40)])
def test_names_that_no_queue_can_have_are_not_cached(topic: str, queue_id: int) -> None:
    """Such names may be as long as a record, and of any number; the kernel refuses their commands."""
    decoder = Decoder(4)
    for asked in ((topic, queue_id), ("orders", 0)):
        request = {"v": 1, "type": "tick", "topic": asked[0], "queue_id": asked[1]}
        assert isinstance(decoder.decode(record(json.dumps(request).encode())), OpRecord)
    assert list(decoder._routes) == [("orders", 0)]


@pytest.mark.parametrize(
    ("key", "moved_by", "detail"),
    [(KEY, 1, "librdkafka: partitioner=murmur2_random"), (b"orders", 0, "a zero byte"), (None, 0, "a zero byte")],
)
def test_the_sender_of_a_misrouted_record_hears_what_is_wrong(key: bytes | None, moved_by: int, detail: str) -> None:
    """The row of the table has no detail: it must be equal in a replay of records that were decided without one."""
    request = {"v": 1, "type": "tick", "topic": "orders", "queue_id": 0, "op_id": "x", "reply_to": 0}
    value = json.dumps(request).encode()
    partition = (partition_of(KEY, 4) + moved_by) % 4
    decoded = Decoder(4).decode(KafkaRecord(partition, 9, 1_000_500, key, value, len(value)))
    assert isinstance(decoded, OpRecord)
    decision = Decision()
    fold(Overlay(MemoryKv()), [decoded], decision)
    answer = json.loads(decision.answers[0][1])
    assert (answer["reason"], detail in answer["detail"]) == ("MISROUTED", True)
    assert [(row.reason, row.detail) for row in decision.operations] == [("MISROUTED", None)]


@pytest.mark.parametrize(
    ("fields", "code", "reason"),
    [
        ({"type": "ack", "handles": 7}, 29, "INVALID_PARAMETER"),
        ({"type": "unheard_of"}, 3, "NOT_SUPPORTED"),
        ({"type": "tick", "v": 2}, 3, "NOT_SUPPORTED"),
    ],
)
def test_the_sender_of_a_rejected_record_is_answered(fields: dict[str, Any], code: int, reason: str) -> None:
    request = {"v": 1, "topic": "orders", "queue_id": 3, "op_id": "x" * 600, "reply_to": 5, **fields}
    decoded = Decoder(4).decode(record(json.dumps(request).encode()))
    assert isinstance(decoded, Rejected)
    assert decoded.answer is not None
    answer = json.loads(decoded.answer)
    assert (answer["code"], answer["reason"], answer["applied"], answer["now_ms"]) == (code, reason, False, 1_000_500)
    assert (answer["topic"], answer["queue_id"], answer["op_id"]) == ("orders", 3, "x" * 512)
    assert answer["detail"].startswith(f"{decoded.row.reason}: ")
    assert (decoded.reply_to, decoded.row.reply_to, decoded.row.op_id) == (5, 5, "x" * 512)


@pytest.mark.parametrize("fields", [{"op_id": ""}, {"op_id": 7}, {"reply_to": "5"}, {"reply_to": True}])
def test_the_sender_that_cannot_be_identified_is_not_answered(fields: dict[str, Any]) -> None:
    request = {"v": 1, "type": "unheard_of", "op_id": "x", "reply_to": 5, **fields}
    decoded = Decoder(4).decode(record(json.dumps(request).encode()))
    assert isinstance(decoded, Rejected)
    assert (decoded.answer, decoded.row.op_id, decoded.row.reply_to) == (None, None, None)


def test_each_operation_with_entries_has_one_that_stands_for_an_unreadable_entry() -> None:
    tags = {str(command.__struct_config__.tag) for command in get_args(EntryCommand)}
    assert set(decode._UNREADABLE) == tags
