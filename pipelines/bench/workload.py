"""Operations to measure with: each message popped alone and acked alone, the form that costs the most per message.

Handles are made, not learnt: an ack is judged by the epoch of the delivery, and the n-th pop of a lane has epoch n.
"""

import itertools
from collections.abc import Iterator

from broker_state.command import Ack, AckEntry, Command, Declare, Dispatch, HandleRef, Pop, WrittenRange
from broker_state.handle import REVIVE_QUEUE_ID_ORDERLY, Handle, encode_handle, lane_check

__all__ = ["DISPATCHED_AT_ONCE", "declare_queue", "single_entry_ops", "single_pops", "whole_pop_ops"]

DISPATCHED_AT_ONCE = 1_000_000


def declare_queue(topic: str, queue_id: int, messages: int) -> Iterator[Command]:
    """A queue with `messages` written offsets."""
    yield Declare(topic=topic, queue_id=queue_id, v=1, topic_id="bench", op_id=f"declare-{queue_id}")
    for first in range(0, messages, DISPATCHED_AT_ONCE):
        last = min(first + DISPATCHED_AT_ONCE, messages) - 1
        yield Dispatch(topic=topic, queue_id=queue_id, v=1, ranges=[WrittenRange(first, last)])


def single_pops(
    topic: str, queue_id: int, group: str, messages: int, *, invisible_time_ms: int = 3_600_000
) -> Iterator[Command]:
    """Pops of one message each."""
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
    """Two operations a message: popped alone, and acked alone once `held` others were popped after it."""
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


def whole_pop_ops(
    topic: str, queue_id: int, group: str, pops: int, messages_a_pop: int, *, entry_offsets: int, order: bool = False
) -> Iterator[Command]:
    """Pops of many messages, each acked by one record with an entry for every `entry_offsets` offsets."""
    check = lane_check(topic, queue_id, group)
    revive_queue_id = REVIVE_QUEUE_ID_ORDERLY if order else 0
    for number in range(pops):
        yield Pop(
            topic=topic,
            queue_id=queue_id,
            v=1,
            op_id=f"{group}.P{number}",
            group=group,
            max_messages=messages_a_pop,
            invisible_time_ms=3_600_000,
            order=order,
            client_id="bench",
        )
        first = number * messages_a_pop
        handle = encode_handle(Handle(first, 0, 0, revive_queue_id, queue_id, number + 1, 0, check))
        yield Ack(
            topic=topic,
            queue_id=queue_id,
            v=1,
            op_id=f"{group}.A{number}",
            handles=[HandleRef(group, handle)],
            entries=[
                AckEntry(0, [(at, at + entry_offsets - 1)])
                for at in range(first, first + messages_a_pop, entry_offsets)
            ],
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
