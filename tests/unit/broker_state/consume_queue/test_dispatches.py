"""Claim: the dispatches of a scan name each of its offsets once, as unit or hole, in ranges that the job accepts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from broker_state.consume_queue import Scan, Unit, Units, dispatches_of, skips_of
from broker_state.consume_queue.dispatches import PIECES_MAX
from broker_state.store.memory_kv import MemoryKv
from pipelines.decide_ops.decode import Decoder, KafkaRecord
from pipelines.decide_ops.entries import read_frame
from pipelines.decide_ops.entry import ENTRY_BYTES_MAX, EntryKind
from pipelines.decide_ops.ops_decider import OpsDecider
from pipelines.decide_ops.order import order
from popstream.exchange.partitioner import ops_key
from popstream.wire.command import Command, Declare, Policy, encode_command
from popstream.wire.limits import RANGE_OFFSETS_MAX, WINDOW_OFFSETS_MIN

if TYPE_CHECKING:
    from collections.abc import Iterable

    from popstream.wire.command import Dispatch

FACTS = st.tuples(
    st.sampled_from([0, 7, (1 << 64) - 1]), st.sampled_from([1, 3]), st.sampled_from([0, 0, 5, 10**15 - 1])
)


def units_of(found: dict[int, tuple[int, int, int]]) -> Units:
    return Units.of(
        [
            Unit(
                queue_offset=at,
                size_bytes=1,
                store_time_ms=0,
                message_base=at,
                tag_hash=tag,
                inner_count=count,
                deliver_at_ms=deliver_at_ms,
            )
            for at, (tag, count, deliver_at_ms) in sorted(found.items())
        ]
    )


def said(commands: Iterable[Dispatch]) -> dict[int, tuple[int, int, int] | None]:
    """Return the facts that the dispatches give for each offset; None: a hole."""
    found: dict[int, tuple[int, int, int] | None] = {}
    for command in commands:
        runs: list[tuple[int, int, tuple[int, int, int] | None]] = [
            *((run.first, run.last, (run.tag, run.count, run.deliver_at_ms)) for run in command.ranges),
            *((first, last, None) for first, last in command.skip),
        ]
        assert len(runs) <= PIECES_MAX
        assert len(encode_command(command)) <= ENTRY_BYTES_MAX
        for first, last, facts in runs:
            assert last - first < RANGE_OFFSETS_MAX
            for at in range(first, last + 1):
                assert at not in found, "named twice"
                found[at] = facts
    return found


@given(st.dictionaries(st.integers(10, 60), FACTS), st.integers(0, 10), st.integers(61, 80))
def test_every_offset_is_named_once_as_what_it_is(found: dict[int, tuple[int, int, int]], first: int, end: int) -> None:
    named = said(dispatches_of("t", 0, Scan(first, end, units_of(found))))
    assert named == {at: found.get(at) for at in range(first, end)}


def test_an_empty_scan_says_nothing() -> None:
    assert list(dispatches_of("t", 0, Scan(5, 5, Units.of([])))) == []


def test_no_range_is_longer_than_the_job_takes() -> None:
    offsets = np.arange(RANGE_OFFSETS_MAX + 5) + 2_500_000
    units = Units.simple(offsets, offsets * 0, offsets * 0)
    commands = list(dispatches_of("t", 0, Scan(0, int(offsets[-1]) + 1, units)))
    assert [(run.first, run.last) for command in commands for run in command.ranges] == [
        (2_500_000, 3_499_999),
        (3_500_000, 3_500_004),
    ]
    skipped = [run for command in commands for run in command.skip]
    assert skipped == [(0, 999_999), (1_000_000, 1_999_999), (2_000_000, 2_499_999)]
    (command,) = skips_of("t", 0, 5, 1_000_010)
    assert command.skip == [(5, 1_000_004), (1_000_005, 1_000_009)]


def test_the_job_accepts_commands_in_their_order_as_a_whole() -> None:
    """With the smallest window, tags everywhere, wide gaps and a start far from 0; nobody waits for an answer."""
    written = np.concatenate([np.arange(1_900_000), np.arange(0, 3_000_000, 1_500) + 2_000_000, [9_999_999]])
    origin = 70_000_000
    units = Units.simple(written + origin, written * 0, written * 0)
    tagged = replace(units, tag_hash=(written // 700 + 1).astype(np.uint64))
    commands: list[Command] = [
        Declare(v=1, topic="t", queue_id=0, topic_id="id"),
        Policy(v=1, topic="t", queue_id=0, window_max=WINDOW_OFFSETS_MIN),
        *skips_of("t", 0, 0, origin),
        *dispatches_of("t", 0, Scan(origin, origin + 10_000_000, tagged)),
    ]
    key = ops_key("t", 0)
    values = [
        encode_command(msgspec.structs.replace(command, reply_to=0, op_id=str(at)))
        for at, command in enumerate(commands)
    ]
    records = [KafkaRecord(0, at, 1_000, key, value, len(value)) for at, value in enumerate(values)]
    decider = OpsDecider(MemoryKv(), Decoder(1).decode, results_partitions=1)
    decider.decide_at_once(order(records, {}))
    answers = [
        answer
        for entry in decider.entries(1)
        if entry.kind == EntryKind.ANSWERS
        for answer in msgspec.json.decode(read_frame(entry.value)[1])["answers"]
    ]
    assert {answer["reason"] for answer in answers} == {"OK"}
    assert len({answer["op_id"] for answer in answers}) == len(commands) > 12
    assert answers[-1]["commit_position"] == origin + 10_000_000


def test_with_other_tags_at_each_offset_there_are_more_commands() -> None:
    """Ranges of the greatest length, in commands that fit the outbox; each continues where the one before ends."""
    count = 2 * PIECES_MAX + 1
    origin = (1 << 62) - 2 * count
    found = {origin + 2 * at: ((1 << 64) - 1 - at, 1, 0) for at in range(count)}
    commands = list(dispatches_of("t" * 249, (1 << 31) - 1, Scan(origin, origin + 2 * count, units_of(found))))
    assert len(commands) == 5
    assert said(commands) == {at: found.get(at) for at in range(origin, origin + 2 * count)}
    ends = [max([run.last for run in command.ranges] + [last for _, last in command.skip]) for command in commands]
    assert ends == sorted(ends)
    assert msgspec.json.decode(encode_command(commands[0]))["type"] == "dispatch"


def test_with_another_time_of_delivery_at_each_offset_a_command_fits_the_outbox() -> None:
    origin = (1 << 62) - PIECES_MAX
    found = {origin + at: ((1 << 64) - 1, 1_000_000, 10**15 - 1 - at) for at in range(PIECES_MAX)}
    (command,) = dispatches_of("t" * 249, (1 << 31) - 1, Scan(origin, origin + PIECES_MAX, units_of(found)))
    assert len(command.ranges) == PIECES_MAX
    assert said([command]) == found
