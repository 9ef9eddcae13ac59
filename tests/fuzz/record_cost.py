"""Searches for the record that costs the kernel most CPU: `python -m tests.fuzz.record_cost --inputs 10000`.

An input chooses a state that is as large as anybody can make it (tests/fuzz/large_states.py), and a few operations,
each as large as a record may be. Its score is the CPU time of its costliest record, to decide it and to encode what it
has changed, without that of making up the values that it reads; the search goes on from the inputs
with the best scores, of each kind of operation. CPU time does not grow on a busy machine, but for its caches: what
seems too much is decided again from the same state, and the least time counts.
"""

import argparse
import gc
import random
import sys
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from broker_state import KERNEL_FORM
from broker_state.kernel.context.decision import Decision, OpRecord
from broker_state.kernel.decide import decide
from broker_state.store.overlay import Overlay
from popstream.wire.command import (
    Ack,
    AckEntry,
    Cancel,
    ChangeEntry,
    ChangeInvisible,
    Command,
    Declare,
    Dispatch,
    ForgetLane,
    HandleRef,
    Policy,
    Pop,
    Redrive,
    Reject,
    RejectEntry,
    ResetOffset,
    ReturnClient,
    Tick,
    WrittenRange,
    encode_command,
    kind_of,
)
from popstream.wire.limits import ENTRIES_MAX, OFFSET_MAX, PARKED_MAX, RANGE_OFFSETS_MAX
from tests.fuzz.byte_reader import ByteReader
from tests.fuzz.large_states import (
    ALIKE_TAGS,
    CLIENT,
    NOW_MS,
    QUEUE_ID,
    SHAPES,
    TOPIC,
    LargeState,
    Shape,
    group_of,
    handle_of,
)
from tests.support.time_limit import time_limit

__all__ = ["CPU_MS_MAX", "GIVE_UP_S", "Cost", "costs_of", "search"]

CPU_MS_MAX = 400.0 if KERNEL_FORM == "compiled" else 600.0
"""A record that costs more fails. Twice of what is asked (200 ms), as machines differ; the sources take up to 2.7 times
as long as the compiled kernel."""
_TRIES = 3
GIVE_UP_S = 2
_QUEUE: dict[str, Any] = {"topic": TOPIC, "queue_id": QUEUE_ID, "v": 1, "reply_to": 0}
_INPUT_BYTES = 24
_SHAPES = list(SHAPES.items())


class Cost(NamedTuple):
    """What one record cost."""

    kind: str
    cpu_ms: float
    shape: str
    number: int
    """Its place among the records of the input."""
    what: str
    """The beginning of its command."""


class _GaveUp(BaseException):
    """A record has taken `GIVE_UP_S`; no handler in the kernel is to catch it."""


def costs_of(data: bytes) -> list[Cost]:
    """Decide the records of an input, each with its cost."""
    reader = ByteReader(data)
    name, shape = reader.pick(_SHAPES)
    state = LargeState(shape)
    overlay = Overlay(state)
    now_ms = NOW_MS
    costs: list[Cost] = []
    encoded_before_ms = 0.0
    for number in range(1 + reader.byte() % 3):
        now_ms += reader.pick((0, 20_000, 0, 11 * 60_000))
        command = _command(reader, shape, number)
        record = OpRecord(0, number, now_ms, command, number.to_bytes(2, "big"))
        state.cpu_s = 0.0
        took_ms, is_whole = _decide(overlay, record)
        encoded_ms = _encode(overlay)
        took_ms += max(0.0, encoded_ms - encoded_before_ms) - state.cpu_s * 1_000
        encoded_before_ms = encoded_ms
        costs.append(Cost(kind_of(command), took_ms, name, number, encode_command(command)[:300].decode()))
        if not is_whole:
            break
    return costs


def _decide(overlay: Overlay, record: OpRecord) -> tuple[float, bool]:
    """Milliseconds of CPU, and whether the record was decided to its end."""
    decision = Decision()
    is_whole = True
    was_enabled = gc.isenabled()
    gc.disable()  # as the job does for a micro-batch
    started = time.thread_time()
    try:
        with time_limit(GIVE_UP_S, _GaveUp(), of_cpu=True):
            decide(overlay, record, decision)
    except _GaveUp:
        is_whole = False
    finally:
        took_ms = (time.thread_time() - started) * 1_000
        if was_enabled:
            gc.enable()
    return took_ms, is_whole


def _encode(overlay: Overlay) -> float:
    """Milliseconds of CPU to encode what the records have changed so far, as one WriteBatch."""
    started = time.thread_time()
    for _ in overlay.changes():
        pass
    return (time.thread_time() - started) * 1_000


def _worst(data: bytes, enough_ms: float) -> Cost:
    """The costliest record of an input; one above `enough_ms` by the least time of some tries."""
    costs = costs_of(data)
    for _ in range(_TRIES - 1):
        if max(cost.cpu_ms for cost in costs) <= enough_ms:
            break
        again = costs_of(data)
        costs = [min(one, other, key=lambda cost: cost.cpu_ms) for one, other in zip(costs, again, strict=False)]
    return max(costs, key=lambda cost: cost.cpu_ms)


def search(inputs: int, seed: int, *, tell: bool = False) -> dict[str, tuple[Cost, bytes]]:
    """The worst record of each kind that a search finds, with its input; the same seed tries the same inputs at first.

    One input in three is made at random. The others are changes of the worst inputs so far, of a kind or of a state.
    """
    chance = random.Random(seed)
    by_kind: dict[str, tuple[Cost, bytes]] = {}
    by_shape: dict[str, tuple[Cost, bytes]] = {}
    for number in range(inputs):
        data = _next_input(chance, number, [*by_kind.values(), *by_shape.values()])
        worst = _worst(data, 100.0)
        for known, key in ((by_kind, worst.kind), (by_shape, worst.shape)):
            if key not in known or known[key][0].cpu_ms < worst.cpu_ms:
                known[key] = worst, data
                if tell and known is by_kind:
                    print(
                        f"{number:6} {worst.kind:17} {worst.cpu_ms:8.1f} ms  {worst.shape}: {worst.what[:100]}",
                        flush=True,
                    )
    return by_kind if not tell else {**by_shape, **by_kind}


def _next_input(chance: random.Random, number: int, worst: Sequence[tuple[Cost, bytes]]) -> bytes:
    first = bytes((number % len(_SHAPES),))
    if not worst or number < 4 * len(_SHAPES) or chance.random() < 1 / 3:
        return first + chance.randbytes(_INPUT_BYTES)
    data = bytearray(chance.choice(worst)[1])
    for _ in range(chance.choice((1, 1, 2, 4))):
        data[chance.randrange(1, len(data))] = chance.randrange(256)
    return bytes(data)


def _command(reader: ByteReader, shape: Shape, number: int) -> Command:
    make = reader.pick(_MAKERS)
    command = make(reader, shape)
    if reader.chance(64) and shape.old_op_ids:
        return msgspec.structs.replace(command, op_id=f"old-{shape.old_op_ids - 1}")
    return msgspec.structs.replace(command, op_id=f"op-{number}")


def _group(reader: ByteReader, shape: Shape) -> str:
    return group_of(reader.pick((1, 1, shape.lanes // 2 + 1, shape.lanes, shape.lanes + 1)))


def _offset(reader: ByteReader, shape: Shape) -> int:
    """An offset below the commit position, or at it."""
    return reader.pick((0, shape.written, shape.handed_out, shape.written // 2, shape.handed_out // 2, 4_096, 1))


def _pop(reader: ByteReader, shape: Shape) -> Command:
    return Pop(
        **_QUEUE,
        group=_group(reader, shape),
        max_messages=reader.pick((10_000, 1, 64, 1_000)),
        invisible_time_ms=reader.pick((10_000, 1)),
        order=shape.orderly != reader.chance(8),
        attempt_id=reader.pick((None, "attempt")),
        poll_time_ms=reader.pick((0, 60_000)),
        init=reader.pick(("min", "min", "max")),
        client_id=reader.pick((CLIENT, None, "another")),
        tags=reader.pick((None, [*ALIKE_TAGS[:1]], [5], [5, *ALIKE_TAGS[1:]], [*ALIKE_TAGS], [1_000])),
    )


def _ranges(reader: ByteReader, shape: Shape) -> list[tuple[int, int]]:
    """Ranges of offsets of an entry: one over everything, or as many as a record may have."""
    first = _offset(reader, shape)
    match reader.byte() % 4:
        case 0:
            return [(0, OFFSET_MAX)]
        case 1:
            return [(first, max(first, shape.written - 1))]
        case 2:
            step = reader.pick((64, 1, 2, 4_096, 100_000, 10_000))
            length = reader.pick((1, 1, 2, step))
            return [(first + at * step, first + at * step + length - 1) for at in range(ENTRIES_MAX)]
        case _:
            chance = random.Random(reader.byte())
            firsts = [chance.randrange(max(1, shape.written)) for _ in range(ENTRIES_MAX)]
            length = reader.pick((1, 64, 10_000, 1_000_000))
            return [(at, at + length - 1) for at in firsts]


def _entries(reader: ByteReader, shape: Shape) -> Command:
    ranges = _ranges(reader, shape)
    how = reader.byte() % 4
    lanes = min(shape.lanes, ENTRIES_MAX)
    handles = [HandleRef(group_of(1), handle_of(shape, 1, epoch=reader.pick((7, 7, 6, 1))))]
    named = [ranges]
    if how == 1:  # each range an entry of its own
        named = [[each] for each in ranges]
    elif how == 2:  # as many lanes as there are
        handles = [HandleRef(group_of(each), handle_of(shape, each)) for each in range(1, lanes + 1)]
        named = [ranges[: max(1, ENTRIES_MAX // lanes)]] * lanes
    indexes = range(len(named)) if how == 2 else [0] * len(named)
    pairs = list(zip(indexes, named, strict=True))
    match reader.byte() % 3:
        case 0:
            return Ack(**_QUEUE, handles=handles, entries=[AckEntry(at, each) for at, each in pairs])
        case 1:
            return Reject(**_QUEUE, handles=handles, entries=[RejectEntry(at, each) for at, each in pairs])
        case _:
            time_ms, suspend = reader.pick((60_000, 0, 1)), reader.chance(64)
            changes = [ChangeEntry(at, each, time_ms, suspend) for at, each in pairs]
            return ChangeInvisible(**_QUEUE, handles=handles, entries=changes)


def _dispatch(reader: ByteReader, shape: Shape) -> Command:
    first = shape.written + reader.pick((0, 1, 0, 5_000_000))
    count = reader.pick((1, ENTRIES_MAX, 1_000, 10))
    size = reader.pick((1, RANGE_OFFSETS_MAX, 64, 65, 4_097))
    gap = reader.pick((0, 1, 0, 63, 4_096))
    spans = [(first + at * (size + gap), first + at * (size + gap) + size - 1) for at in range(count)]
    match reader.byte() % 5:
        case 0:
            return Dispatch(**_QUEUE, ranges=[WrittenRange(*span) for span in spans])
        case 1:
            deliver_at_ms = reader.pick((0, 0, NOW_MS + 86_400_000))
            return Dispatch(**_QUEUE, ranges=[WrittenRange(*span, 5, deliver_at_ms=deliver_at_ms) for span in spans])
        case 2:
            return Dispatch(**_QUEUE, skip=spans)
        case 3:  # late skips
            step = reader.pick((2, 64, 1, 4_096))
            size = min(size, RANGE_OFFSETS_MAX)
            return Dispatch(**_QUEUE, skip=[(1 + at * step, at * step + size) for at in range(count)])
        case _:  # retention
            last = min(_offset(reader, shape) + 1, RANGE_OFFSETS_MAX - 1)
            return Dispatch(**_QUEUE, skip=[(0, last)], ranges=[WrittenRange(*span) for span in spans[:10]])


def _declare(reader: ByteReader, shape: Shape) -> Command:
    return Declare(**_QUEUE, topic_id=reader.pick(("other", "id")), min_offset=_offset(reader, shape))


def _policy(reader: ByteReader, shape: Shape) -> Command:
    group = reader.pick((None, _group(reader, shape)))
    return Policy(
        **_QUEUE,
        group=group,
        orderly=None if group is None else reader.pick((None, True, False)),
        max_attempts=reader.pick((0, 1)),
        back_off_ms=reader.pick(([], [1_000])),
        window_max=1 << 30,
        parked_max=8_192,
    )


def _redrive(reader: ByteReader, shape: Shape) -> Command:
    return Redrive(**_QUEUE, group=_group(reader, shape), offsets=_ranges(reader, shape), to="group", comment="x" * 512)


def _cancel(reader: ByteReader, shape: Shape) -> Command:
    place = reader.pick((1, max(1, shape.parked)))
    return Cancel(**_QUEUE, target_op_id=reader.pick((f"parked-{PARKED_MAX + 1 + place}", "op-0", "op-1")))


_MAKERS = (
    _pop,
    _entries,
    _dispatch,
    lambda reader, shape: ReturnClient(
        **_QUEUE, group=_group(reader, shape), client_id=reader.pick((CLIENT, "another"))
    ),
    lambda reader, shape: ResetOffset(**_QUEUE, group=_group(reader, shape), queue_offset=_offset(reader, shape)),
    lambda reader, shape: ForgetLane(**_QUEUE, group=_group(reader, shape)),
    lambda _reader, _shape: Tick(**_QUEUE),
    _declare,
    _policy,
    _cancel,
    _entries,
    _dispatch,
    _pop,
    _redrive,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """0: no record cost more than CPU_MS_MAX; 1: one did."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz.record_cost", description="Search the costliest record."
    )
    parser.add_argument("--inputs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--replay", help="an input in hex")
    options = parser.parse_args(arguments)
    if options.replay is not None:
        worst = _worst(bytes.fromhex(options.replay), 1.0)
        print(worst)
        return int(worst.cpu_ms > CPU_MS_MAX)
    found = search(options.inputs, options.seed, tell=True)
    for cost, data in sorted(found.values(), key=lambda one: -one[0].cpu_ms):
        print(f"{cost.cpu_ms:8.1f} ms  {cost.kind:17} {cost.shape} [{cost.number}] {cost.what[:160]}  {data.hex()}")
    return int(max(cost.cpu_ms for cost, _ in found.values()) > CPU_MS_MAX)


if __name__ == "__main__":
    sys.exit(main())
