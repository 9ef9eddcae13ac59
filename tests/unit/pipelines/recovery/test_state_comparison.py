"""Two states are equal when their bytes are; one from before there were counts is compared without them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from broker_state.kernel.context.decision import Decision, OpRecord
from broker_state.kernel.fold import fold
from broker_state.store.facts import client_hash
from broker_state.store.keys import LaneTag, QueueTag, lane_prefix, queue_prefix
from broker_state.store.marks import MAPS
from broker_state.store.overlay import STATE, Overlay
from broker_state.store.rocks_store import RocksStore
from broker_state.store.segment import FULL, SEGMENT_BITS, encode_segment
from broker_state.store.state_records import QueueRecord, Text
from pipelines.recovery.verify.state_comparison import compare_states
from popstream.wire.command import Declare, Dispatch, Pop
from tests.support.in_process.lane_lab import QUEUE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from popstream.wire.command import Command

COMMANDS: list[Command] = [
    Declare(**QUEUE, topic_id="id"),
    Dispatch(**QUEUE, skip=[(0, 99)]),
    Pop(**QUEUE, group="billing", max_messages=1, invisible_time_ms=1_000, poll_time_ms=60_000, op_id="waits"),
]


@pytest.fixture
def states(tmp_path: Path) -> Iterator[tuple[RocksStore, RocksStore]]:
    with RocksStore(tmp_path / "one") as one, RocksStore(tmp_path / "other") as other:
        for store in (one, other):
            overlay = Overlay(store)
            for number, command in enumerate(COMMANDS):
                fold(overlay, [OpRecord(0, number, 1_000, command, b"%d" % number)], Decision())
            store.write(overlay)
        yield one, other


def key_of_queue() -> bytes:
    return queue_prefix("orders", 0) + QueueTag.RECORD


def rewrite(store: RocksStore, **changed: object) -> None:
    value = store.get(STATE, key_of_queue())
    assert value is not None
    record = msgspec.structs.replace(QueueRecord.decode(value), **changed)
    store.write_changes([(STATE, key_of_queue(), record.encode())])


def test_a_state_from_before_there_were_counts_is_equal_to_one_with_them(
    states: tuple[RocksStore, RocksStore],
) -> None:
    state, again = states
    assert compare_states(state, again, lambda _: True).lines() == []
    counts = list(state.scan(STATE, queue_prefix("orders", 0) + QueueTag.HOLE_COUNTS))
    assert len(counts) == 2
    state.write_changes([(STATE, key, None) for key, _ in counts])
    assert compare_states(state, again, lambda _: True).different == {"counts of holes": 2}
    rewrite(state, parked=0, has_counts=False)
    assert compare_states(state, again, lambda _: True).lines() == []


def test_the_index_of_tags_of_an_older_state_begins_later(states: tuple[RocksStore, RocksStore]) -> None:
    state, again = states
    node = queue_prefix("orders", 0) + QueueTag.TAG_INDEX + bytes(11)
    again.write_changes([(STATE, node, encode_segment(1))])
    assert compare_states(state, again, lambda _: True).different == {"nodes of the index of tags": 1}
    for tags_indexed_from in (-1, 12):
        rewrite(state, tags_indexed_from=tags_indexed_from)
        assert compare_states(state, again, lambda _: True).lines() == []
        assert compare_states(again, state, lambda _: True).lines() == [], "a snapshot may be older than the state"
    again.write_changes([(STATE, node[:-1] + b"\1", encode_segment(1))])
    assert compare_states(state, again, lambda _: True).different == {"nodes of the index of tags": 1}, "both have it"


def test_what_else_differs_in_an_older_state_is_seen(states: tuple[RocksStore, RocksStore]) -> None:
    state, again = states
    rewrite(state, parked=0, has_counts=False, holes=99)
    assert compare_states(state, again, lambda _: True).different == {"queues": 1}


def test_segments_that_an_older_version_stored_otherwise_are_equal(states: tuple[RocksStore, RocksStore]) -> None:
    state, again = states
    prefix = queue_prefix("orders", 0) + QueueTag.WRITTEN

    def key_of(segment_no: int) -> bytes:
        return prefix + segment_no.to_bytes(8, "big")

    sparse = sum(1 << at for at in range(0, SEGMENT_BITS, 16))
    runs_of_sparse = b"\x01" + b"\x00\x01" + b"\x0f\x01" * (SEGMENT_BITS // 16 - 1)
    again.write_changes([(STATE, key_of(MAPS), encode_segment(0b1011)), (STATE, key_of(5), encode_segment(sparse))])
    assert encode_segment(sparse) != runs_of_sparse
    full = [(STATE, key_of(number), encode_segment(FULL)) for number in (0, 3)]
    in_map = (STATE, key_of(MAPS), encode_segment(0b0010))
    state.write_changes([*full, in_map, (STATE, key_of(5), runs_of_sparse)])
    assert compare_states(state, again, lambda _: True).lines() == []
    assert compare_states(again, state, lambda _: True).lines() == [], "a snapshot may be older than the state"
    state.write_changes([(STATE, key_of(3), None)])
    assert compare_states(state, again, lambda _: True).different == {"segments of written offsets": 1}
    state.write_changes([(STATE, key_of(3), encode_segment(FULL)), (STATE, key_of(5000), encode_segment(FULL))])
    assert compare_states(state, again, lambda _: True).different == {"segments of written offsets": 1}
    state.write_changes([(STATE, key_of(5000), b"\x09"), (STATE, key_of(5), encode_segment(sparse ^ 2))])
    assert compare_states(state, again, lambda _: True).different == {"segments of written offsets": 2}


def test_a_state_need_not_know_the_clients_of_leases_that_an_older_version_granted(
    states: tuple[RocksStore, RocksStore],
) -> None:
    state, again = states
    key = lane_prefix(queue_prefix("orders", 0), 1) + LaneTag.CLIENT_ID + client_hash("worker").to_bytes(8, "big")
    again.write_changes([(STATE, key, Text("worker").encode())])
    assert compare_states(state, again, lambda _: True).lines() == []
    state.write_changes([(STATE, key, Text("another").encode())])
    assert compare_states(state, again, lambda _: True).different == {"ids of clients": 1}
