"""Claim: answers leave in frames of one reply partition, with every handle signed, in parts if they are too long."""

from __future__ import annotations

import random
from bisect import bisect_left
from typing import Any

import msgspec
import pytest

from broker_state.kernel.context.decision import Decision
from connectors.delta.rows import decode_rows, encode_rows, plain_rows
from pipelines.decide_ops.entries import entries_of, read_frame, read_slice
from pipelines.decide_ops.entry import ENTRY_BYTES_MAX, EntryKind
from popstream.wire.answer import Answer, LeasedRange, Run, decode_frame, encode_answer
from popstream.wire.handle import Signer
from popstream.wire.reason import Reason
from popstream.wire.signing import KeyRing
from tests.support.audit_tables import delivery

SIGNER = Signer(KeyRing.of({"a": b"secret"}, "a"))
RESULTS_PARTITIONS = 2


def answer(op_id: str, **fields: Any) -> Answer:
    return Answer(
        op_id=op_id, type="ack", code=0, reason=Reason.OK, applied=True, topic="t", queue_id=0, now_ms=1, **fields
    )


def framed(*answers: tuple[int, Answer], signer: Signer | None = None) -> list[tuple[int, list[Answer]]]:
    """(results partition, answers) of each frame."""
    decision = Decision()
    decision.answers = [(reply_to, encode_answer(each)) for reply_to, each in answers]
    entries = entries_of(decision, [], 1, results_partitions=RESULTS_PARTITIONS, signer=signer)
    assert all(entry.kind == EntryKind.ANSWERS and len(entry.value) <= ENTRY_BYTES_MAX for entry in entries)
    frames = [read_frame(entry.value) for entry in entries]
    return [(partition, decode_frame(value)) for partition, value in frames]


def test_a_frame_has_the_answers_of_one_reply_partition_in_order() -> None:
    one, two, three = (answer(name) for name in ("one", "two", "three"))
    assert framed((1, one), (0, two), (1, three)) == [(1, [one, three]), (0, [two])]


@pytest.mark.parametrize("reply_to", [-1, RESULTS_PARTITIONS])
def test_an_answer_to_a_partition_that_does_not_exist_is_dropped(reply_to: int) -> None:
    assert framed((reply_to, answer("one"))) == []


def test_every_handle_is_signed() -> None:
    ((_, (pop, change, plain)),) = framed(
        (0, answer("pop", handle="1.AAAA")),
        (0, answer("change", handles=["1.BBBB", "1.CCCC"])),
        (0, answer("plain", detail='"handle":"1.DDDD"')),
        signer=SIGNER,
    )
    assert pop.handle is not None
    assert SIGNER.verify(pop.handle, 0) == "1.AAAA"
    assert [SIGNER.verify(handle, 0) for handle in change.handles] == ["1.BBBB", "1.CCCC"]
    assert plain == answer("plain", detail='"handle":"1.DDDD"')


@pytest.mark.parametrize("signer", [None, SIGNER])
def test_a_long_answer_comes_in_parts_that_join_to_it(signer: Signer | None) -> None:
    long = answer(
        "long",
        messages=[LeasedRange(at, at, 1) for at in range(9_000)],
        runs=[Run(entry=0, first=at, last=at, code=0, reason=Reason.OK, applied=True) for at in range(9_000)],
        handles=[f"1.{at:0>40}" for at in range(5_000)],
        commit_offsets={f"group-{at}": at for at in range(5_000)},
    )
    parts = [part for _, answers in framed((0, long), signer=signer) for part in answers]
    assert len(parts) > 2
    assert [(part.part, part.parts) for part in parts] == [(index, len(parts)) for index in range(len(parts))]
    assert [each for part in parts for each in part.messages] == long.messages
    assert [each for part in parts for each in part.runs] == long.runs
    assert {group: at for part in parts for group, at in part.commit_offsets.items()} == long.commit_offsets
    handles = [handle for part in parts for handle in part.handles]
    assert [handle if signer is None else signer.verify(handle, 0) for handle in handles] == long.handles
    assert msgspec.structs.replace(parts[0], messages=[], runs=[], handles=[], commit_offsets={}, part=0, parts=1) == (
        answer("long")
    )


def test_rows_are_cut_for_entries_as_verify_expects_them() -> None:
    """Also a row that leaves no room for the number of its table in an entry of the greatest length."""
    chance = random.Random(0)
    text = "".join(chr(chance.randrange(0x20, 0x7F)) for _ in range(400_000))
    lengths = range(200_000, 400_000)

    def stream_bytes(length: int) -> int:
        (data,) = encode_rows("deliveries", [delivery(0, 0)._replace(client_id=text[:length])], limit_bytes=1 << 20)
        return len(data)

    fills_an_entry = lengths[bisect_left(lengths, ENTRY_BYTES_MAX, key=stream_bytes)]
    assert stream_bytes(fills_an_entry) == ENTRY_BYTES_MAX

    for length in (fills_an_entry - 100, fills_an_entry):
        decision = Decision()
        decision.deliveries = [delivery(0, 0)._replace(client_id=text[:length])]
        entries = entries_of(decision, [], 1, results_partitions=RESULTS_PARTITIONS, signer=None)
        assert all(len(entry.value) <= ENTRY_BYTES_MAX for entry in entries)
        slices = [read_slice(entry.value) for entry in entries if entry.kind == EntryKind.AUDIT]
        assert {table for table, _ in slices} == {"deliveries"}
        decoded = decode_rows("deliveries", [data for _, data in slices])
        assert decoded.equals(plain_rows("deliveries", decision.deliveries))
