"""Claim: of a record with entries that cannot be read the others are decided. Method: decoder and kernel, in memory."""

from __future__ import annotations

import json
from typing import Any

import pytest

from broker_state.kernel.decision import Decision, OpRecord
from broker_state.kernel.fold import fold
from broker_state.store.memory_kv import MemoryKv
from broker_state.store.overlay import Overlay
from pipelines.apply_ops.decode import Decoder, KafkaRecord, Rejected, RejectReason
from popstream.exchange.partitioner import ops_key, partition_of
from popstream.wire.command import Command, Declare, Dispatch, Pop, WrittenRange, encode_command

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


def test_what_else_cannot_be_read_is_one_row() -> None:
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
def test_names_that_no_queue_can_have_are_not_remembered(topic: str, queue_id: int) -> None:
    """They may be as long as a record, and there is no end of them; the kernel refuses what they ask."""
    decoder = Decoder(4)
    for asked in ((topic, queue_id), ("orders", 0)):
        request = {"v": 1, "type": "tick", "topic": asked[0], "queue_id": asked[1]}
        assert isinstance(decoder.decode(record(json.dumps(request).encode())), OpRecord)
    assert list(decoder._routes) == [("orders", 0)]
