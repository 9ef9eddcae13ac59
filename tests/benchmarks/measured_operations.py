"""Operations of the measurements; most pop and ack each message alone, the form that costs the most per message.

Handles are generated instead of read from answers: the n-th pop of a lane has epoch n.
"""

import itertools
import random
from collections.abc import Iterable, Iterator, Sequence

from broker_state.kernel.context.decision import OpRecord
from popstream.wire.command import (
    Ack,
    AckEntry,
    ChangeEntry,
    ChangeInvisible,
    Command,
    Declare,
    Dispatch,
    HandleRef,
    Pop,
    WrittenRange,
)
from popstream.wire.handle import REVIVE_QUEUE_ID_ORDERLY, Handle, encode_handle, lane_check
from popstream.wire.limits import DELAY_MS_MAX

__all__ = [
    "DISPATCHED_AT_ONCE",
    "MS_BASE",
    "batch",
    "declare_queue",
    "op_records",
    "ops_behind",
    "put_off_ops",
    "single_entry_ops",
    "single_pops",
    "single_pops_one_batch",
    "whole_pop_ops",
]

DISPATCHED_AT_ONCE = 1_000_000

_HOUR_MS = 3_600_000
_PUT_OFF_AT_ONCE = 5_000
"""More delivery times than a record may set are refused."""

MS_BASE = 1_000_000
"""Timestamp of the first record."""


def declare_queue(topic: str, queue_id: int, messages: int) -> Iterator[Command]:
    """Yield the operations that create a queue with `messages` written offsets."""
    yield Declare(topic=topic, queue_id=queue_id, v=1, topic_id="bench", op_id=f"declare-{queue_id}")
    for first in range(0, messages, DISPATCHED_AT_ONCE):
        last = min(first + DISPATCHED_AT_ONCE, messages) - 1
        yield Dispatch(topic=topic, queue_id=queue_id, v=1, ranges=[WrittenRange(first, last)])


def op_records(commands: Iterable[Command], first: int = 0) -> list[OpRecord]:
    """Return the records of commands in one partition, from the offset `first` on, 20 a millisecond."""
    return [
        OpRecord(0, first + number, MS_BASE + number // 20, command, number.to_bytes(8, "big"))
        for number, command in enumerate(commands)
    ]


def single_pops(
    topic: str, queue_id: int, group: str, messages: int, *, invisible_time_ms: int = 3_600_000
) -> Iterator[Command]:
    """Yield pops of one message each."""
    commands = single_entry_ops(topic, queue_id, group, messages, held=messages, invisible_time_ms=invisible_time_ms)
    return itertools.islice(commands, messages)


def single_entry_ops(
    topic: str,
    queue_id: int,
    group: str,
    messages: int,
    *,
    held: int = 100,
    reply_to: int | None = None,
    invisible_time_ms: int = 3_600_000,
) -> Iterator[Command]:
    """Yield two operations a message: it is popped alone, and acked alone when `held` others were popped after it."""
    check = lane_check(topic, queue_id, group)
    for number in range(messages + held):
        if number < messages:
            yield Pop(
                topic=topic,
                queue_id=queue_id,
                v=1,
                op_id=f"{group}.p{queue_id}.{number}",
                reply_to=reply_to,
                group=group,
                max_messages=1,
                invisible_time_ms=invisible_time_ms,
                client_id="bench",
            )
        acked = number - held
        if acked >= 0:
            yield _ack(topic, queue_id, group, check, acked + 1, acked, acked, f"{group}.a{queue_id}.{acked}", reply_to)


def put_off_ops(topic: str, queue_id: int, group: str, messages: int) -> Iterator[Command]:
    """Yield dispatches of messages, each with a delivery time of its own to come, and a pop after each of these."""
    chance = random.Random(0)
    for first in range(0, messages, _PUT_OFF_AT_ONCE):
        count = min(_PUT_OFF_AT_ONCE, messages - first)
        times_ms = [MS_BASE + chance.randrange(_HOUR_MS, DELAY_MS_MAX) for _ in range(count)]
        ranges = [WrittenRange(at, at, deliver_at_ms=time_ms) for at, time_ms in enumerate(times_ms, first)]
        yield Dispatch(topic=topic, queue_id=queue_id, v=1, ranges=ranges)
        yield Pop(topic=topic, queue_id=queue_id, v=1, group=group, max_messages=1, invisible_time_ms=1)


def ops_behind(topic: str, queue_id: int, group: str, first: int, messages: int) -> Iterator[Command]:
    """Yield the dispatch of messages from an offset on, and a pop and an ack of each in turn."""
    # With facts, as those that are put off: without any in the queue pops take a shorter way.
    tagged = [WrittenRange(first, first + messages - 1, tag=1)]
    yield Dispatch(topic=topic, queue_id=queue_id, v=1, ranges=tagged)
    for at, pop in enumerate(single_pops(topic, queue_id, group, messages)):
        yield pop
        yield batch(topic, queue_id, group, f"A{at}", [(at + 1, first + at)], [(0, first + at, first + at)])


def whole_pop_ops(
    topic: str,
    queue_id: int,
    group: str,
    pops: int,
    messages_a_pop: int,
    *,
    entry_offsets: int,
    order: bool = False,
    every: int = 1,
    times_ms: Sequence[int] = (),
    reply_to: int | None = None,
) -> Iterator[Command]:
    """Yield pops of many messages, each acked by one record with an entry for every `entry_offsets` offsets.

    With `every` 2 only every second entry is sent. With `times_ms` the messages are changed, by these times in turn.
    """
    for number in range(pops):
        yield Pop(
            topic=topic,
            queue_id=queue_id,
            v=1,
            op_id=f"{group}.P{number}",
            reply_to=reply_to,
            group=group,
            max_messages=messages_a_pop,
            invisible_time_ms=3_600_000,
            order=order,
            client_id="bench",
        )
        first = number * messages_a_pop
        entries = [
            (0, at, at + entry_offsets - 1) for at in range(first, first + messages_a_pop, every * entry_offsets)
        ]
        op_id = f"{group}.A{number}"
        pop = [(number + 1, first)]
        yield batch(topic, queue_id, group, op_id, pop, entries, order=order, times_ms=times_ms, reply_to=reply_to)


def single_pops_one_batch(
    topic: str, queue_id: int, group: str, messages: int, *, times_ms: Sequence[int] = ()
) -> Iterator[Command]:
    """Yield pops of one message each, and one record with all their handles."""
    yield from single_pops(topic, queue_id, group, messages)
    pops = [(number + 1, number) for number in range(messages)]
    entries = [(number, number, number) for number in range(messages)]
    yield batch(topic, queue_id, group, f"{group}.A", pops, entries, times_ms=times_ms)


def batch(
    topic: str,
    queue_id: int,
    group: str,
    op_id: str,
    pops: Iterable[tuple[int, int]],
    entries: Iterable[tuple[int, int, int]],
    *,
    order: bool = False,
    times_ms: Sequence[int] = (),
    reply_to: int | None = None,
) -> Ack | ChangeInvisible:
    """Return one record: `pops` gives (epoch, first offset) of its handles, `entries` (handle index, first, last)."""
    check = lane_check(topic, queue_id, group)
    revive_queue_id = REVIVE_QUEUE_ID_ORDERLY if order else 0
    handles = [
        HandleRef(group, encode_handle(Handle(first, 0, 0, revive_queue_id, queue_id, epoch, 0, check)))
        for epoch, first in pops
    ]
    if not times_ms:
        acked = [AckEntry(index, [(first, last)]) for index, first, last in entries]
        return Ack(topic=topic, queue_id=queue_id, v=1, op_id=op_id, reply_to=reply_to, handles=handles, entries=acked)
    changed = [
        ChangeEntry(index, [(first, last)], time_ms)
        for (index, first, last), time_ms in zip(entries, itertools.cycle(times_ms), strict=False)
    ]
    return ChangeInvisible(
        topic=topic, queue_id=queue_id, v=1, op_id=op_id, reply_to=reply_to, handles=handles, entries=changed
    )


def _ack(
    topic: str,
    queue_id: int,
    group: str,
    check: int,
    epoch: int,
    first: int,
    last: int,
    op_id: str,
    reply_to: int | None,
) -> Ack:
    handle = encode_handle(Handle(first, 0, 0, 0, queue_id, epoch, 0, check))
    return Ack(
        topic=topic,
        queue_id=queue_id,
        v=1,
        op_id=op_id,
        reply_to=reply_to,
        handles=[HandleRef(group, handle)],
        entries=[AckEntry(0, [(first, last)])],
    )
