"""A record with many entries leaves the state, and gives the outcomes, of the sequence of singles at one `now`."""

import random
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
import pytest

from broker_state.kernel.context.decision import Decision, OpRecord
from broker_state.kernel.fold import fold
from broker_state.store.memory_kv import MemoryKv
from broker_state.store.overlay import Overlay
from popstream.wire.answer import Answer
from popstream.wire.command import (
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
from popstream.wire.reason import Reason

QUEUE: dict[str, Any] = {"topic": "t", "queue_id": 0, "v": 1, "reply_to": 0}
GROUPS = {"concurrent": False, "few attempts": False, "orderly": True, "limited": True}
MESSAGES = 200
COMMIT_POSITION = MESSAGES + 10
SEEDS = 150


class Popped(NamedTuple):
    """What a pop gave out."""

    group: str
    handle: str
    first: int
    last: int


class Kernel:
    """One kernel in memory, every record a micro-batch."""

    def __init__(self) -> None:
        self.kv = MemoryKv()
        self.overlay = Overlay(self.kv)
        self.number = 0
        self.dead: list[tuple[str, int, int]] = []
        self.steps: list[tuple[Any, ...]] = []

    def do(self, command: Command, now_ms: int) -> Answer:
        self.number += 1
        command = msgspec.structs.replace(command, op_id=f"op-{self.number}")
        decision = Decision()
        fold(self.overlay, [OpRecord(0, self.number, now_ms, command, self.number.to_bytes(8, "big"))], decision)
        self.kv.write(self.overlay)
        self.dead += [(letter.group, letter.first, letter.last) for letter in decision.dead_letters]
        self.steps += [
            (row.group, row.step, offset, row.epoch, row.revision, row.attempt, row.at_ms, row.deadline_ms, row.cause)
            for row in decision.deliveries
            for offset in range(row.first_offset, row.last_offset + 1)
        ]
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


def started(chance: random.Random) -> tuple[Kernel, list[Popped], int]:
    """A kernel in which some of what was popped is done or expired; its pops; now."""
    kernel, now = Kernel(), 1_000_000
    kernel.do(Declare(**QUEUE, topic_id="t"), now)
    kernel.do(Dispatch(**QUEUE, ranges=[WrittenRange(0, MESSAGES - 1)], skip=[(MESSAGES, MESSAGES + 9)]), now)
    kernel.do(Policy(**QUEUE, group="limited", max_attempts=2, orderly=True), now)
    kernel.do(Policy(**QUEUE, group="few attempts", max_attempts=2), now)
    handles: list[Popped] = []
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
            handles.append(Popped(group, popped.handle, popped.messages[0].first, popped.messages[-1].last))
        if handles and chance.random() < 0.7:
            kernel.do(batch(chance, handles)[0], now)
    return kernel, handles, now + chance.choice([0, 5, 800, 2_000])


def batch(chance: random.Random, handles: list[Popped]) -> tuple[Command, list[Command]]:
    """A record with many entries, and one record for each part of them that was not named before."""
    listed = [HandleRef(popped.group, popped.handle) for popped in handles]
    kind = chance.choice([Ack, ChangeInvisible, Reject])
    draw = chance.choice([scattered, adjoining])
    entries = [entry_of(kind, at, where, label) for at, where, label in draw(chance, kind, handles)]
    make: Any = kind
    named: set[tuple[str, int]] = set()
    singles = []
    for entry in entries:
        group = listed[entry.handle].group
        for first, last in entry.offsets:
            new = [offset for offset in range(first, last + 1) if (group, offset) not in named]
            named |= {(group, offset) for offset in new if offset < COMMIT_POSITION}
            singles += [
                make(
                    **QUEUE,
                    handles=[listed[entry.handle]],
                    entries=[msgspec.structs.replace(entry, handle=0, offsets=[part])],
                )
                for part in parts_of(new)
            ]
    return make(**QUEUE, handles=listed, entries=entries), singles


def parts_of(offsets: list[int]) -> list[tuple[int, int]]:
    """Offsets in their order as inclusive ranges."""
    parts: list[tuple[int, int]] = []
    for offset in offsets:
        if parts and parts[-1][1] == offset - 1:
            parts[-1] = (parts[-1][0], offset)
        else:
            parts.append((offset, offset))
    return parts


Drawn = tuple[int, tuple[int, int], tuple[Any, ...]]
"""(handle index, range, label)"""


def scattered(chance: random.Random, kind: type, handles: list[Popped]) -> Iterator[Drawn]:
    """Single offsets all over the queue, in no order; some twice."""
    for sampled in chance.sample(range(MESSAGES + 12), chance.randrange(1, 40)):
        at = chance.randrange(len(handles))
        offset = MESSAGES + 20 if chance.random() < 0.05 else sampled % (handles[at].last + 3)
        yield at, (offset, offset), label_of(chance, kind)


def adjoining(chance: random.Random, kind: type, handles: list[Popped]) -> Iterator[Drawn]:
    """One range after the other, mostly with the label of the one before; some leave a gap, some overlap."""
    group = chance.choice(handles).group
    label = label_of(chance, kind)
    first = chance.choice([popped.first for popped in handles if popped.group == group])
    for _ in range(chance.randrange(1, 40)):
        last = first + chance.choice([0, 0, 0, 0, 1, 7])
        holders = [at for at, popped in enumerate(handles) if popped.group == group and popped.last >= first]
        latest = holders[-1] if holders else 0
        yield chance.randrange(len(handles)) if chance.random() < 0.05 else latest, (first, last), label
        first = max(0, last + chance.choice([1, 1, 1, 1, 1, 1, 1, 2, 0, -3]))
        label = label_of(chance, kind) if chance.random() < 0.3 else label


def label_of(chance: random.Random, kind: type) -> tuple[Any, ...]:
    if kind is ChangeInvisible:
        return chance.choice([0, 500, 60_000, 60_000]), chance.random() < 0.4
    return (chance.choice([None, None, "GONE"]),)


def entry_of(kind: type, handle: int, where: tuple[int, int], label: tuple[Any, ...]) -> Any:
    makes: dict[type, Any] = {Ack: AckEntry, ChangeInvisible: ChangeEntry, Reject: RejectEntry}
    return makes[kind](handle, [where], *label)


def outcomes(answer: Answer) -> list[tuple[Any, ...]]:
    """What was told of each offset, but for those that the record had named before."""
    return [
        (
            offset,
            run.code,
            run.reason,
            run.applied,
            run.pop_time_ms,
            run.invisible_time_ms,
            run.revive_queue_id,
            None if run.handle is None else answer.handles[run.handle],
        )
        for run in answer.runs
        if run.reason is not Reason.DUPLICATE_ENTRY
        for offset in range(run.first, run.last + 1)
    ]


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_batch_is_its_singles(seed: int) -> None:
    one, handles, now = started(random.Random(seed))
    many, _, _ = started(random.Random(seed))
    assert one.state() == many.state()
    chance = random.Random(-seed)
    if not handles:
        return
    command, singles = batch(chance, handles)
    together = one.do(command, now)
    apart = [many.do(single, now) for single in singles]
    assert outcomes(together) == [told for answer in apart for told in outcomes(answer)]
    assert one.steps == many.steps
    assert sorted(spread(one.dead)) == sorted(spread(many.dead))
    assert one.state() == many.state()


def spread(letters: list[tuple[str, int, int]]) -> list[tuple[str, int]]:
    return [(group, offset) for group, first, last in letters for offset in range(first, last + 1)]


def test_the_batches_are_worth_it() -> None:
    """They do something, are refused something, and dead-letter something, in lanes of both modes."""
    reasons: set[str] = set()
    dead = 0
    for seed in range(SEEDS):
        kernel, handles, now = started(random.Random(seed))
        if handles:
            answer = kernel.do(batch(random.Random(-seed), handles)[0], now)
            reasons |= {str(run.reason) for run in answer.runs}
            dead += len([group for group, _, _ in kernel.dead if group == "limited"])
    assert {"OK", "ALREADY_ACKED", "STALE_HANDLE", "OUTSIDE_POP", "ABOVE_MAX", "DUPLICATE_ENTRY"} <= reasons
    assert dead > 20
