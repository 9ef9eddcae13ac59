"""A record with many entries leaves the state, and gives the outcomes, of the sequence of singles at one `now`."""

import random
from typing import Any

import msgspec
import pytest

from broker_state.answer import Answer, Run
from broker_state.batch import fold
from broker_state.command import (
    Ack,
    AckEntry,
    ChangeEntry,
    ChangeInvisible,
    Command,
    Declare,
    Dispatch,
    HandleRef,
    Policy,
    Pop,
    Reject,
    RejectEntry,
    WrittenRange,
)
from broker_state.kernel.turn import Decision, OpRecord
from broker_state.memory_kv import MemoryKv
from broker_state.overlay import Overlay

QUEUE: dict[str, Any] = {"topic": "t", "queue_id": 0, "v": 1, "reply_to": 0}
GROUPS = {"concurrent": False, "orderly": True, "limited": True}
MESSAGES = 200


class Kernel:
    """One kernel in memory, every record a micro-batch."""

    def __init__(self) -> None:
        self.kv = MemoryKv()
        self.overlay = Overlay(self.kv)
        self.number = 0
        self.dead: list[tuple[str, int, int]] = []

    def do(self, command: Command, now_ms: int) -> Answer:
        self.number += 1
        command = msgspec.structs.replace(command, op_id=f"op-{self.number}")
        decision = Decision()
        fold(self.overlay, [OpRecord(0, self.number, now_ms, command, self.number.to_bytes(8, "big"))], decision)
        self.kv.write(self.overlay)
        self.dead += [(letter.group, letter.first, letter.last) for letter in decision.dead_letters]
        return msgspec.json.decode(decision.answers[-1][1], type=Answer)

    def state(self) -> dict[bytes, bytes]:
        """All that is stored, but for the queue's own record and its op_ids: singles have more of them."""
        prefix = b"\x01t\x00\x00\x00\x00"
        return {
            key: value
            for family in ("state", "deadlines")
            for key, value in self.kv.families.get(family, {}).items()
            if key[len(prefix) : len(prefix) + 1] not in {b"Q", b"F"} or family == "deadlines"
        }


def started(chance: random.Random) -> tuple[Kernel, list[tuple[str, str, int]], int]:
    """A kernel in which some of what was popped is done or expired; (group, handle, last offset) of the pops; now."""
    kernel, now = Kernel(), 1_000_000
    kernel.do(Declare(**QUEUE, topic_id="t"), now)
    kernel.do(Dispatch(**QUEUE, ranges=[WrittenRange(0, MESSAGES - 1)], skip=[(MESSAGES, MESSAGES + 9)]), now)
    kernel.do(Policy(**QUEUE, group="limited", max_attempts=2, orderly=True), now)
    handles: list[tuple[str, str, int]] = []
    for _ in range(chance.randrange(4, 12)):
        now += chance.choice([1, 400, 1_500])
        group = chance.choice(list(GROUPS))
        popped = kernel.do(
            Pop(
                **QUEUE,
                group=group,
                order=GROUPS[group],
                max_messages=chance.choice([3, 40, 100]),
                invisible_time_ms=chance.choice([300, 1_000, 60_000]),
                attempt_id=chance.choice([None, "a"]) if GROUPS[group] else None,
            ),
            now,
        )
        if popped.handle is not None:
            handles.append((group, popped.handle, popped.messages[-1].last))
        if handles and chance.random() < 0.7:
            kernel.do(batch(chance, handles)[0], now)
    return kernel, handles, now + chance.choice([0, 5, 800, 2_000])


def batch(chance: random.Random, handles: list[tuple[str, str, int]]) -> tuple[Command, list[Command]]:
    """A record with many entries, and one record for each of them."""
    listed = [HandleRef(group, handle) for group, handle, _ in handles]
    kind = chance.choice([Ack, ChangeInvisible, Reject])
    entries: list[Any] = []
    for sampled in chance.sample(range(MESSAGES + 12), chance.randrange(1, 40)):
        at = chance.randrange(len(handles))
        offset = MESSAGES + 20 if chance.random() < 0.05 else sampled % (handles[at][2] + 3)
        where = [(offset, offset)]
        if kind is Ack:
            entries.append(AckEntry(at, where))
        elif kind is Reject:
            entries.append(RejectEntry(at, where))
        else:
            entries.append(ChangeEntry(at, where, chance.choice([0, 0, 500, 60_000]), chance.random() < 0.2))
    seen: set[tuple[str, int]] = set()
    distinct = []
    for entry in entries:
        name = listed[entry.handle].group, entry.offsets[0][0]
        if name not in seen:  # a message twice in a record is DUPLICATE_ENTRY, which a single cannot be
            seen.add(name)
            distinct.append(entry)
    make: Any = kind
    singles = [
        make(**QUEUE, handles=[listed[entry.handle]], entries=[msgspec.structs.replace(entry, handle=0)])
        for entry in distinct
    ]
    return make(**QUEUE, handles=listed, entries=distinct), singles


def outcome(run: Run, handles: list[str]) -> tuple[Any, ...]:
    handle = None if run.handle is None else handles[run.handle]
    fields = (run.pop_time_ms, run.invisible_time_ms, run.revive_queue_id)
    return run.first, run.last, run.code, run.reason, run.applied, *fields, handle


@pytest.mark.parametrize("seed", range(60))
def test_a_batch_is_its_singles(seed: int) -> None:
    one, handles, now = started(random.Random(seed))
    many, _, _ = started(random.Random(seed))
    assert one.state() == many.state()
    chance = random.Random(-seed)
    if not handles:
        return
    command, singles = batch(chance, handles)
    answer = one.do(command, now)
    together = [outcome(run, answer.handles) for run in answer.runs]
    apart = []
    for single in singles:
        told = many.do(single, now)
        apart += [outcome(run, told.handles) for run in told.runs]
    assert together == apart
    assert sorted(spread(one.dead)) == sorted(spread(many.dead))
    assert one.state() == many.state()


def spread(letters: list[tuple[str, int, int]]) -> list[tuple[str, int]]:
    return [(group, offset) for group, first, last in letters for offset in range(first, last + 1)]


def test_the_batches_are_worth_it() -> None:
    """They do something, are refused something, and dead-letter something, in lanes of both modes."""
    reasons: set[str] = set()
    dead = 0
    for seed in range(60):
        kernel, handles, now = started(random.Random(seed))
        if handles:
            answer = kernel.do(batch(random.Random(-seed), handles)[0], now)
            reasons |= {str(run.reason) for run in answer.runs}
            dead += len([group for group, _, _ in kernel.dead if group == "limited"])
    assert {"OK", "ALREADY_ACKED", "STALE_HANDLE", "OUTSIDE_POP", "ABOVE_MAX"} <= reasons
    assert dead > 20
