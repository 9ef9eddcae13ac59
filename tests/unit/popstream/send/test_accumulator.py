"""Claim: messages share a batch as RocketMQ's do, in order; none stays in the buffer. Method: no thread, no clock."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from popstream.send.accumulator import Accumulator, BatchLimits
from popstream.send.outgoing import Destination, Outgoing, OutgoingMessage, SendFuture
from popstream.wire.base_errors import Invalid
from popstream.wire.limits import POP_MESSAGES_MAX

LIMITS = BatchLimits()


def outgoing(value: bytes = b"v", key: bytes | None = None) -> Outgoing:
    message = OutgoingMessage(topic="orders", value=value, key=key, queue_id=0 if key is None else None)
    return Outgoing(message, SendFuture(), 0, 30.0)


def destination(
    queue_id: int | None = 0, *, topic: str = "orders", flag: bool = True, tag: str | None = None
) -> Destination:
    return Destination(topic, queue_id, flag, tag)


@pytest.mark.parametrize(
    "other",
    [
        (destination(1), False),
        (destination(None), False),
        (destination(topic="bills"), False),
        (destination(flag=False), False),
        (destination(tag="paid"), False),
        (destination(), True),
    ],
    ids=["queue", "no queue", "topic", "flag", "tag", "waiting sender"],
)
def test_what_differs_shares_no_batch(other: tuple[Destination, bool]) -> None:
    accumulator = Accumulator(LIMITS)
    accumulator.add(destination(), outgoing(key=b"a"), 0.0, is_waited=False)
    assert accumulator.add(other[0], outgoing(key=b"b"), 0.0, is_waited=other[1]) == []
    assert [len(batch.messages) for batch in accumulator.take_all()] == [1, 1]


def test_a_batch_is_due_when_its_first_message_is_old_enough() -> None:
    accumulator = Accumulator(LIMITS)
    accumulator.add(destination(0), outgoing(), 1.0, is_waited=False)
    accumulator.add(destination(1), outgoing(), 1.005, is_waited=False)
    accumulator.add(destination(0), outgoing(), 1.009, is_waited=False)
    assert accumulator.next_due_s() == pytest.approx(1.01)
    assert [len(batch.messages) for batch in accumulator.take_due(1.0101)] == [2]
    assert accumulator.next_due_s() == pytest.approx(1.015)
    assert accumulator.take_due(1.0149) == []


def test_the_message_beyond_the_size_still_goes_with_its_batch() -> None:
    accumulator = Accumulator(LIMITS)
    assert accumulator.add(destination(), outgoing(b"v" * 32_768), 0.0, is_waited=False) == []
    (ready,) = accumulator.add(destination(), outgoing(b"v"), 0.0, is_waited=False)
    assert (len(ready.messages), ready.body_bytes) == (2, 32_769)
    assert accumulator.take_all() == []


def test_a_batch_of_empty_bodies_has_a_bound_too() -> None:
    accumulator = Accumulator(LIMITS)
    for _ in range(POP_MESSAGES_MAX - 1):
        assert accumulator.add(destination(), outgoing(b""), 0.0, is_waited=False) == []
    (ready,) = accumulator.add(destination(), outgoing(b""), 0.0, is_waited=False)
    assert len(ready.messages) == POP_MESSAGES_MAX


def test_a_message_does_not_overtake_one_of_its_key_with_another_tag() -> None:
    accumulator = Accumulator(LIMITS)
    accumulator.add(destination(tag="paid"), outgoing(key=b"k"), 0.0, is_waited=False)
    (behind,) = accumulator.add(destination(tag="open"), outgoing(key=b"k"), 0.0, is_waited=False)
    assert behind.destination.tag == "paid"
    assert accumulator.add(destination(tag="paid"), outgoing(key=b"other"), 0.0, is_waited=False) == []


def test_a_message_for_a_named_queue_overtakes_none_of_that_queue() -> None:
    accumulator = Accumulator(LIMITS)
    accumulator.add(destination(tag="paid"), outgoing(key=b"k"), 0.0, is_waited=False)
    (behind,) = accumulator.add(destination(tag="open"), outgoing(), 0.0, is_waited=False)
    assert behind.destination.tag == "paid"
    (behind,) = accumulator.add(destination(tag="paid"), outgoing(key=b"k"), 0.0, is_waited=False)
    assert behind.destination.tag == "open"


def test_the_buffer_is_full_after_the_message_that_fills_it() -> None:
    """RocketMQ tests before it adds; what has no room has no part in the buffer."""
    accumulator = Accumulator(BatchLimits(total_bytes_max=2_000))
    messages = [outgoing(b"v" * 1_000) for _ in range(4)]
    assert [accumulator.reserve(message) for message in messages] == [True, True, False, False]
    for message in (*messages, *messages):
        accumulator.release(message)
    assert accumulator.buffered_bytes == 0


@given(
    st.lists(
        st.tuples(st.sampled_from(["a", "b"]), st.sampled_from([b"k", b"l", None]), st.booleans(), st.integers(0, 4)),
        max_size=60,
    )
)
def test_messages_of_a_key_leave_in_the_order_they_came(
    sends: list[tuple[str, bytes | None, bool, int]],
) -> None:
    """Whatever tags, flags, senders and times: batches in the order they are taken, messages as they lie in them."""
    accumulator = Accumulator(BatchLimits(batch_bytes_max=40))
    came: dict[bytes | None, list[Outgoing]] = {}
    left: dict[bytes | None, list[Outgoing]] = {}
    now_s = 0.0
    for tag, key, is_waited, wait_ms in sends:
        now_s += wait_ms / 1000
        message = outgoing(b"v" * 9, key)
        came.setdefault(key, []).append(message)
        ready = accumulator.take_due(now_s)
        ready += accumulator.add(destination(tag=tag), message, now_s, is_waited=is_waited)
        for batch in ready:
            for one in batch.messages:
                left.setdefault(one.message.key, []).append(one)
    for batch in accumulator.take_all():
        for one in batch.messages:
            left.setdefault(one.message.key, []).append(one)
    assert left == came


def test_all_that_is_wrong_with_the_limits_is_told_at_once() -> None:
    with pytest.raises(Invalid) as raised:
        BatchLimits(hold_ms=0, batch_bytes_max=2 * 1024 * 1024 + 1, total_bytes_max=0)
    assert [detail.split()[0] for detail in raised.value.details] == ["hold_ms", "batch_bytes_max", "total_bytes_max"]
