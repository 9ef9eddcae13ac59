"""Claim: a consumer of topics gets their messages by itself, within its bounds, and loses none whatever fails.

Method: the kernel itself, in memory; threads are waited for by what they do, not by time.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import pytest

from popstream import Consumer, FilterVerdict, Message, Refused, RenewalPolicy
from popstream.payload.payload_block import RECORD_BYTES
from popstream.payload.payloads import Fetched
from popstream.pop import hand_out
from popstream.pop.subscription import SubscriptionOptions
from popstream.testing._memory_link import frame_of
from popstream.testing.memory_job import MemoryJob
from popstream.wire.answer import Answer
from popstream.wire.base_errors import Invalid
from popstream.wire.command import Ack, ChangeInvisible, Command, Pop, Reject, ReturnClient
from popstream.wire.reason import Reason
from tests.support.threads import eventually, in_thread, leaves_no_thread


@pytest.fixture
def job() -> MemoryJob:
    made = MemoryJob()
    for queue_id in range(4):
        made.write("orders", queue_id, [b"%d-%d" % (queue_id, number) for number in range(10)])
    return made


ALL = {b"%d-%d" % (queue_id, number) for queue_id in range(4) for number in range(10)}


def sent(job: MemoryJob, kind: type[Command]) -> list[Command]:
    return [record for record in job.records if isinstance(record, kind)]


def drain(consumer: Consumer, count: int, found: list[Message] | None = None) -> list[Message]:
    """Ack messages until as many are found; another thread may look at `found` meanwhile."""
    found = [] if found is None else found
    for message in consumer:
        with message:
            found.append(message)
        if len(found) == count:
            break
    return found


def test_iteration_brings_all_queues_and_acks(job: MemoryJob) -> None:
    with job.consumer("billing", topics=["orders"]) as consumer:
        found = drain(consumer, 40)
        assert {message.value for message in found} == ALL
        consumer.flush()
    assert not job_has_left(job)


def job_has_left(job: MemoryJob, group: str = "billing") -> list[tuple[int, int, int]]:
    """(queue, offset, attempt) of what can be popped now."""
    with job.consumer(group) as other:
        return [
            (queue_id, message.queue_offset, message.attempt)
            for queue_id in range(4)
            for message in other.pop("orders", queue_id, 100)
        ]


def test_a_block_that_raises_gives_its_message_back(job: MemoryJob) -> None:
    with job.consumer("billing", topics=["orders"]) as consumer:
        iterator = iter(consumer)
        with pytest.raises(ValueError, match="bad"):  # noqa: SIM117 - the message is the block's
            with next(iterator) as failed:
                raise ValueError("bad")
        assert failed.is_settled
    job.advance(1_000)
    assert len(job_has_left(job)) == 40


def test_parked_and_held_never_exceed_the_prefetch(job: MemoryJob) -> None:
    with job.consumer("billing", topics=["orders"], prefetch=7) as consumer:
        seen: list[int] = []
        for message in consumer:
            subscription = consumer._subscription
            assert subscription is not None
            with subscription._changed:
                seen.append(subscription.asked_count + consumer.held_count)
            message.ack()
            if len(seen) == 40:
                break
    assert max(seen) <= 7


def test_the_bytes_in_hand_are_bounded(job: MemoryJob) -> None:
    job.write("big", 0, [b"x" * 1_000] * 50)
    with job.consumer("billing", topics=["big"], prefetch_bytes=3_000) as consumer:
        most = 0
        for count, message in enumerate(consumer, 1):
            most = max(most, consumer._leases.held.payload_bytes)
            message.ack()
            if count == 50:
                break
    assert 1_000 <= most <= 3_000


def test_one_message_over_the_bound_still_comes(job: MemoryJob) -> None:
    job.write("big", 0, [b"x" * 1_000] * 3)
    with job.consumer("billing", topics=["big"], prefetch_bytes=10) as consumer:
        assert len(drain(consumer, 3)) == 3


@pytest.mark.parametrize(
    ("ahead_count_max", "ahead_bytes_max"),
    [(2_000, 8 * 1024 * 1024), (2_000, 2 * (RECORD_BYTES + 3)), (3, 8 * 1024 * 1024), (2_000, 0)],
)
@pytest.mark.parametrize("order", [False, True], ids=["concurrent", "orderly"])
def test_the_records_of_leased_messages_are_read_ahead_within_a_bound(
    job: MemoryJob, monkeypatch: pytest.MonkeyPatch, ahead_count_max: int, ahead_bytes_max: int, *, order: bool
) -> None:
    monkeypatch.setattr(hand_out, "AHEAD_COUNT_MAX", ahead_count_max)
    monkeypatch.setattr(hand_out, "AHEAD_BYTES_MAX", ahead_bytes_max)
    expected: list[tuple[int, list[tuple[int, int]]]] = []
    most_count = 0

    def expect(_: str, queue_id: int, ranges: Sequence[tuple[int, int]]) -> None:
        nonlocal most_count
        expected.append((queue_id, list(ranges)))
        subscription = consumer._subscription
        assert subscription is not None
        with subscription._changed:
            most_count = max(most_count, sum(popped.ahead_count for popped in subscription._hand_out._sets))

    monkeypatch.setattr(job.payloads, "expect", expect)
    with job.consumer("billing", topics=["orders"], order=order, prefetch=8) as consumer:
        assert {message.value for message in drain(consumer, 40)} == ALL
    assert most_count <= min(ahead_count_max, ahead_bytes_max // (RECORD_BYTES + 3))
    assert bool(expected) == bool(ahead_bytes_max), "when the size of records is known"
    offsets = [(queue_id, at) for queue_id, ranges in expected for low, high in ranges for at in range(low, high + 1)]
    assert len(offsets) == len(set(offsets)) < 40


def test_while_some_parts_are_handed_out_the_next_ones_are_read(
    job: MemoryJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a worker waits for Kafka before each part."""
    monkeypatch.setattr(hand_out, "PART_COUNT_MAX", 4)
    monkeypatch.setattr(hand_out, "AHEAD_COUNT_MAX", 8)
    job.write("long", 0, [b"x"] * 40)
    expected: set[int] = set()
    unexpected: list[int] = []
    fetch = job.payloads.fetch

    def expect(_topic: str, _queue_id: int, ranges: Sequence[tuple[int, int]]) -> None:
        expected.update(offset for low, high in ranges for offset in range(low, high + 1))

    def fetch_part(topic: str, queue_id: int, ranges: Sequence[tuple[int, int]], *limits: Any) -> Fetched:
        unexpected.extend(offset for low, high in ranges for offset in range(low, high + 1) if offset not in expected)
        return fetch(topic, queue_id, ranges, *limits)

    monkeypatch.setattr(job.payloads, "expect", expect)
    monkeypatch.setattr(job.payloads, "fetch", fetch_part)
    with job.consumer("billing", topics=["long"]) as consumer:
        drain(consumer, 40)
    assert unexpected == [0, 1, 2, 3], "the size of records is not known before the first part"


def test_with_less_room_than_queues_every_queue_has_its_turn(job: MemoryJob) -> None:
    stopped = threading.Event()

    def let_time_pass() -> None:
        while not stopped.wait(0.01):
            job.advance(200)

    with job.consumer("billing", topics=["orders"], prefetch=2) as consumer:
        in_thread(let_time_pass)
        assert {message.value for message in drain(consumer, 40)} == ALL
        stopped.set()


def test_a_small_prefetch_is_shared_by_the_queues_it_waits_at(job: MemoryJob) -> None:
    with job.consumer("billing") as other:
        while messages := other.pop("orders", max_messages=100).messages:
            other.ack(messages)
    with job.consumer("billing", topics=["orders"], prefetch=5) as consumer:
        subscription = consumer.subscribe()

        def parked() -> list[int]:
            """What the last pop of each queue that waits asks for."""
            pops = (pop for pop in sent(job, Pop) if isinstance(pop, Pop) and pop.poll_time_ms)
            return sorted({pop.queue_id: pop.max_messages for pop in pops}.values())

        eventually(lambda: parked() == [1, 1, 1, 2])
        assert subscription.asked_count == 5
        job.write("orders", 1, [b"a", b"b", b"c"])
        assert {message.value for message in drain(consumer, 3)} == {b"a", b"b", b"c"}


def test_a_queue_without_a_place_to_wait_is_led_to_by_its_notification(job: MemoryJob) -> None:
    with job.consumer("billing") as other:
        while messages := other.pop("orders", max_messages=100).messages:
            other.ack(messages)
    with job.consumer("billing", topics=["orders"], prefetch=2) as consumer:
        subscription = consumer.subscribe()
        eventually(lambda: subscription.asked_count == 2 and bool(job._listeners))
        parked = [pop.queue_id for pop in sent(job, Pop)[-2:] if isinstance(pop, Pop)]
        (left_out, *_) = [queue_id for queue_id in range(4) if queue_id not in parked]
        job.write("orders", left_out, [b"x"])
        job.write("orders", parked[0], [b"y"])
        # The place that "y" frees goes to the queue that was notified, though another one has waited longer.
        assert [message.value for message in drain(consumer, 2)] == [b"y", b"x"]


def test_a_message_that_is_written_later_comes(job: MemoryJob) -> None:
    with job.consumer("billing", topics=["orders"]) as consumer:
        drain(consumer, 40)
        job.write("orders", 2, [b"late"])
        assert [message.value for message in drain(consumer, 1)] == [b"late"]


def test_iteration_ends_when_the_consumer_stops(job: MemoryJob) -> None:
    with job.consumer("billing", topics=["orders"]) as consumer:
        ended = in_thread(lambda: [message.ack() for message in consumer])
        eventually(lambda: consumer.held_count == 0 and len(sent(job, Ack)) > 0)
        consumer.stop()
        ended.join(60)
        assert not ended.is_alive()


def test_closing_gives_back_what_was_prefetched_by_one_operation_a_queue(job: MemoryJob) -> None:
    consumer = job.consumer("billing", topics=["orders"])
    first = next(iter(consumer))
    first.ack()
    held = consumer._leases.held
    eventually(lambda: {holding.receipt.queue_id for holding in held.holdings()} == {0, 1, 2, 3})
    consumer.close()
    changes = [change for change in sent(job, ChangeInvisible) if isinstance(change, ChangeInvisible)]
    assert sorted(change.queue_id for change in changes) == [0, 1, 2, 3]
    assert len(job_has_left(job)) == 39


def test_topics_are_needed_to_iterate(job: MemoryJob) -> None:
    with job.consumer("billing") as consumer, pytest.raises(Invalid, match="has no topics"):
        next(iter(consumer))
    with pytest.raises(Invalid, match="list of names"):
        Consumer("memory", group="billing", topics="orders")


def test_a_refusal_reaches_the_threads_that_wait_for_messages(job: MemoryJob) -> None:
    with job.consumer("billing") as other:
        other.pop("orders", 0, 1, order=True)
    with job.consumer("billing", topics=["orders"]) as consumer, pytest.raises(Refused) as raised:
        drain(consumer, 40)
    assert raised.value.reason is Reason.WRONG_MODE


def test_a_topic_nobody_has_written_to_yet_is_waited_for(job: MemoryJob) -> None:
    job.make_topic("payments", 1)
    with job.consumer("billing", topics=["payments"]) as consumer:
        found: list[Message] = []
        thread = in_thread(lambda: found.extend(drain(consumer, 1)))
        eventually(lambda: any(isinstance(pop, Pop) and pop.topic == "payments" for pop in job.records))
        job.write("payments", 0, [b"first"])
        thread.join(60)
    assert [message.value for message in found] == [b"first"]


def test_a_new_group_begins_behind_what_there_is_when_asked_to(job: MemoryJob) -> None:
    with job.consumer("billing", topics=["orders"], init="latest") as consumer:
        found: list[Message] = []
        thread = in_thread(lambda: found.extend(drain(consumer, 4)))
        eventually(lambda: {pop.queue_id for pop in sent(job, Pop)} == {0, 1, 2, 3})
        for queue_id in range(4):
            job.write("orders", queue_id, [b"new-%d" % queue_id])
        thread.join(60)
    assert {message.value for message in found} == {b"new-0", b"new-1", b"new-2", b"new-3"}


def test_a_group_that_has_popped_before_goes_on_where_it_was_whatever_init_says(job: MemoryJob) -> None:
    with job.consumer("billing") as consumer:
        for queue_id in range(4):
            for message in consumer.pop("orders", queue_id, 1):
                message.ack().result(60)
    with job.consumer("billing", topics=["orders"], init="latest") as consumer:
        found = drain(consumer, 36)
    assert {message.value for message in found} == {value for value in ALL if not value.endswith(b"-0")}


def test_a_queue_that_is_added_begins_at_its_first_message_whatever_init_says(
    job: MemoryJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("popstream.pop.queue_discovery.REFRESH_S", 0.0)
    with job.consumer("billing", topics=["orders"], init="latest") as consumer:
        found: list[Message] = []
        thread = in_thread(lambda: found.extend(drain(consumer, 2)))
        eventually(lambda: {pop.queue_id for pop in sent(job, Pop)} == {0, 1, 2, 3})
        job.write("orders", 4, [b"4-0", b"4-1"])
        job.advance(10_000)  # the pops that wait hold all of the prefetch
        thread.join(60)
    assert [message.value for message in found] == [b"4-0", b"4-1"]


def test_init_is_earliest_or_latest() -> None:
    with pytest.raises(Invalid, match="subscription") as raised:
        SubscriptionOptions(
            order=False,
            prefetch=1,
            prefetch_bytes=1,
            rate_limit=None,
            invisible_time_ms=1,
            tags=None,
            init="max",  # type: ignore[arg-type]
        )
    assert raised.value.details == ('init must be "earliest" or "latest", not \'max\'',)


def test_a_pop_begins_where_its_init_says_in_the_words_of_a_subscription(job: MemoryJob) -> None:
    with job.consumer("billing") as consumer:
        assert [message.value for message in consumer.pop("orders", 0, init="latest")] == []
        assert len(consumer.pop("orders", 1, init="earliest")) > 0
        with pytest.raises(Invalid, match='init must be "earliest" or "latest", not \'min\''):
            consumer.pop("orders", 2, init="min")  # type: ignore[arg-type]


def test_records_that_are_late_or_gone_or_damaged_hold_up_nobody(job: MemoryJob) -> None:
    job.payloads.deleted = {("orders", 0, 3)}
    job.payloads.late = {("orders", 1, offset) for offset in range(10)}
    job.payloads.damaged = {("orders", 2, offset) for offset in range(10)}
    found: list[Message] = []

    def released_count() -> int:
        changes = [command for command in sent(job, ChangeInvisible) if isinstance(command, ChangeInvisible)]
        return sum(last - first + 1 for change in changes for entry in change.entries for first, last in entry.offsets)

    with job.consumer("billing", topics=["orders"]) as consumer:
        drained = in_thread(lambda: drain(consumer, 39, found))
        eventually(lambda: len(found) == 19 and released_count() == 20)
        job.payloads.late.clear()
        job.payloads.damaged.clear()
        job.advance(1_100)
        drained.join(60)
    undisturbed = {value for value in ALL if value[:1] in (b"0", b"3") and value != b"0-3"}
    assert {message.value for message in found[:19]} == undisturbed
    # What was late had no attempt; what could not be read had one, so that it cannot come for ever.
    assert {(message.queue_id, message.attempt) for message in found[19:]} == {(1, 1), (2, 2)}


# The handler.


def handled(consumer: Consumer, handle: Callable[[Message], object], count: int, **options: int) -> None:
    """Run the handler until as many messages were given to it."""
    calls: list[Message] = []

    def counted(message: Message) -> None:
        calls.append(message)
        handle(message)

    ran = in_thread(lambda: consumer.run(counted, **options))
    eventually(lambda: len(calls) >= count)
    consumer.stop()
    ran.join(60)
    assert not ran.is_alive()
    consumer.flush()


def test_a_handled_message_is_acked(job: MemoryJob) -> None:
    found: list[Message] = []
    with job.consumer("billing", topics=["orders"]) as consumer:
        handled(consumer, found.append, 40, workers=3)
    assert {message.value for message in found} == ALL
    assert job_has_left(job) == []


def test_a_message_whose_handler_fails_comes_again_later_and_alone(job: MemoryJob) -> None:
    def handle(message: Message) -> None:
        if message.value == b"1-4":
            raise ValueError("bad order")

    with job.consumer("billing", topics=["orders"], back_off=[2]) as consumer:
        handled(consumer, handle, 40)
    job.advance(1_999)
    assert job_has_left(job) == []
    job.advance(1)
    assert job_has_left(job) == [(1, 4, 2)]


def test_what_the_handler_settles_itself_stays_so(job: MemoryJob) -> None:
    def handle(message: Message) -> None:
        if message.queue_id == 0:
            message.reject("not an order")
        elif message.queue_id == 1:
            message.release(delay_s=5)

    with job.consumer("billing", topics=["orders"]) as consumer:
        handled(consumer, handle, 40)
    assert sum(len(reject.entries) for reject in sent(job, Reject) if isinstance(reject, Reject)) == 10
    job.advance(5_000)
    assert job_has_left(job) == [(1, offset, 2) for offset in range(10)]


def test_a_failure_in_a_set_returns_it_and_all_after_it_in_one_request(job: MemoryJob) -> None:
    sets: list[list[int]] = []

    def handle(messages: Sequence[Message]) -> None:
        sets.append([message.queue_offset for message in messages])
        for message in messages[:2]:
            message.ack()
        raise ValueError("the third one is bad")

    job.write("single", 0, [b"%d" % number for number in range(6)])
    with job.consumer("billing", topics=["single"]) as consumer:
        ran = in_thread(lambda: consumer.run_sets(handle, set_size=6))
        eventually(lambda: len(sets) >= 1)
        consumer.stop()
        ran.join(60)
        consumer.flush()
    assert sets[0] == [0, 1, 2, 3, 4, 5]
    change = sent(job, ChangeInvisible)[0]
    assert isinstance(change, ChangeInvisible)
    assert [(entry.offsets, entry.suspend) for entry in change.entries] == [([(2, 2)], False), ([(3, 5)], True)]


def test_an_orderly_failure_returns_the_rest_of_the_pop(job: MemoryJob) -> None:
    seen: list[tuple[int, int]] = []
    failed = threading.Event()

    def handle(message: Message) -> None:
        seen.append((message.queue_offset, message.attempt))
        if message.queue_offset == 3 and not failed.is_set():
            failed.set()
            raise ValueError("not yet")

    job.write("steps", 0, [b"%d" % number for number in range(6)])
    with job.consumer("billing", topics=["steps"], order=True, back_off=[0.5]) as consumer:
        ran = in_thread(lambda: consumer.run(handle, workers=3))
        eventually(lambda: len(sent(job, ChangeInvisible)) == 1)
        job.advance(500)
        eventually(lambda: len(seen) == 7)
        consumer.stop()
        ran.join(60)
    assert [offset for offset, _ in seen] == [0, 1, 2, 3, 3, 4, 5]
    assert dict(seen)[3] == 2


def test_an_orderly_iteration_waits_for_the_message_before(job: MemoryJob) -> None:
    job.write("steps", 0, [b"%d" % number for number in range(5)])
    with job.consumer("billing", topics=["steps"], order=True) as consumer:
        subscription = consumer.subscribe()
        (first,) = subscription.take(1)
        assert subscription.take(1, timeout_s=0.05) == []
        first.ack()
        (second,) = subscription.take(1)
        assert (first.queue_offset, second.queue_offset) == (0, 1)


def test_a_worker_that_dies_ends_run_and_gives_its_message_back(job: MemoryJob) -> None:
    def handle(_: Message) -> None:
        raise SystemExit(3)

    with job.consumer("billing", topics=["orders"]) as consumer, pytest.raises(SystemExit):
        consumer.run(handle, workers=2)
    assert len(job_has_left(job)) >= 38


def test_what_was_popped_for_a_while_stays_when_its_thread_has_handed_it_on(job: MemoryJob) -> None:
    """The thread that pops may end while others work on what it has popped; the lease says for how long."""
    with job.consumer("billing", renewal=RenewalPolicy(check_ms=20)) as consumer:
        popped: list[Message] = []
        in_thread(lambda: popped.extend(consumer.pop("orders", 0, 4))).join()
        renewed: list[Message] = []
        in_thread(lambda: renewed.extend(consumer.pop("orders", 1, 4, renew=True))).join()
        eventually(lambda: consumer.held_count == 4)
        assert all(outcome.applied for outcome in consumer.ack(popped))


def test_what_a_dead_thread_held_goes_back_as_if_its_handler_had_failed(job: MemoryJob) -> None:
    policy = RenewalPolicy(check_ms=20)
    with job.consumer("billing", renewal=policy) as consumer:
        in_thread(lambda: consumer.pop("orders", 0, 4, renew=True)).join()
        eventually(lambda: consumer.held_count == 0)
        consumer.flush()
        (change,) = sent(job, ChangeInvisible)
        assert isinstance(change, ChangeInvisible)
        assert [(entry.offsets, entry.invisible_time_ms) for entry in change.entries] == [([(0, 3)], 1_000)]


# Renewal.


def test_what_takes_long_is_renewed_and_the_ack_is_good(job: MemoryJob) -> None:
    policy = RenewalPolicy(steps_ms=(90_000,), ahead_ms=59_990, check_ms=10)
    with job.consumer("billing", topics=["orders"], renewal=policy, prefetch=4) as consumer:
        message = next(iter(consumer))
        before = message.handle
        eventually(lambda: message.handle != before)
        assert message.next_visible_time_ms >= job.now_ms + 90_000
        assert message.ack().result(60).applied


def test_a_plain_pop_is_not_renewed_unless_asked(job: MemoryJob) -> None:
    policy = RenewalPolicy(ahead_ms=10_000_000, check_ms=10)
    with job.consumer("billing", renewal=policy) as consumer:
        plain = consumer.pop("orders", 0, 2).messages
        renewed = consumer.pop("orders", 1, 2, renew=True).messages
        handles = [message.handle for message in plain]
        eventually(lambda: all(message.next_visible_time_ms == job.now_ms + 60_000 for message in renewed))
        eventually(lambda: len(sent(job, ChangeInvisible)) >= 2)
        assert [message.handle for message in plain] == handles
        assert all(change.queue_id == 1 for change in sent(job, ChangeInvisible))


@pytest.mark.parametrize(("invisible_time_ms", "poll_time_ms"), [(60_000, 5_000), (6_000, 3_000)])
def test_no_pop_outlasts_the_leases_of_a_consumer_that_is_killed(invisible_time_ms: int, poll_time_ms: int) -> None:
    job = MemoryJob()
    job.write("orders", 0, [b"held"])

    def parked() -> list[int]:
        return [pop.poll_time_ms for pop in sent(job, Pop) if isinstance(pop, Pop)]

    with job.consumer("billing", topics=["orders"], invisible_time_ms=invisible_time_ms) as consumer:
        held = next(iter(consumer))
        eventually(lambda: len(parked()) == 2)
        assert parked() == [10_000, poll_time_ms], "the second would get the message again that is held since the first"
        held.ack()


# The filter.


def test_a_filter_decides_before_messages_are_handed_out(job: MemoryJob) -> None:
    def judge(message: Message) -> FilterVerdict:
        if message.queue_offset == 9:
            raise RuntimeError("keeps the message")
        verdicts = (FilterVerdict.CONSUME, FilterVerdict.RELEASE, FilterVerdict.REJECT)
        return verdicts[message.queue_offset % 3]

    with job.consumer("billing", message_filter=judge) as consumer:
        found = consumer.pop("orders", 0, 10).messages
        assert [message.queue_offset for message in found] == [0, 3, 6, 9]
        consumer.flush()
        (change,), (reject,) = sent(job, ChangeInvisible), sent(job, Reject)
        assert isinstance(change, ChangeInvisible)
        assert isinstance(reject, Reject)
        assert [entry.offsets for entry in change.entries] == [[(1, 1), (4, 4), (7, 7)]]
        assert [entry.offsets for entry in reject.entries] == [[(2, 2), (5, 5), (8, 8)]]
        assert consumer.held_count == 4


# Pops of any queue.


def test_a_pop_of_a_topic_finds_whatever_is_there(job: MemoryJob) -> None:
    with job.consumer("billing") as consumer:
        found: set[bytes | None] = set()
        while popped := consumer.pop("orders", max_messages=7).messages:
            assert len(popped) <= 7
            found |= {message.value for message in popped}
        assert found == ALL


def test_a_pop_of_a_topic_waits_at_all_its_queues_and_leaves_nothing_behind(job: MemoryJob) -> None:
    with job.consumer("billing") as consumer:
        while consumer.pop("orders", max_messages=100).messages:
            pass
        popped: list[Message] = []
        thread = in_thread(lambda: popped.extend(consumer.pop("orders", max_messages=8, poll_time_ms=60_000)))
        eventually(lambda: sum(isinstance(pop, Pop) and pop.poll_time_ms > 0 for pop in job.records) == 4)
        job.write("orders", 3, [b"late"])
        thread.join(60)
        assert [message.value for message in popped] == [b"late"]
        job.write("orders", 0, [b"later"])
    assert (0, 10, 1) in job_has_left(job)


def test_a_pop_of_a_topic_needs_only_some_of_its_queues_declared(job: MemoryJob) -> None:
    job.make_topic("orders", 6)
    with job.consumer("billing") as consumer:
        assert len(consumer.pop("orders", max_messages=6)) == 4


# ClosedAtExit.


def test_the_next_start_of_a_client_gives_back_what_its_killed_process_held(job: MemoryJob) -> None:
    killed = job.consumer("billing", client_id="c1")
    killed.pop("orders", 0, 10)
    killed.close(release=False)
    with job.consumer("billing", client_id="c1", release_earlier_leases=True) as started:
        assert [message.attempt for message in started.pop("orders", 0, 10)] == [2] * 10
        started.pop("orders", 0, 10)
    assert len(sent(job, ReturnClient)) == 1


def test_a_consumer_that_may_not_release_asks_no_more(job: MemoryJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job with admin keys: what an earlier process held stays leased, and everything else works."""
    decide = job._decide

    def refusing(key: bytes, value: bytes) -> list[bytes]:
        command = msgspec.json.decode(value, type=Command)
        if not isinstance(command, ReturnClient):
            return list(decide(key, value))
        job.records.append(command)
        fields = {"code": 16, "reason": Reason.NO_PERMISSION, "applied": False, "now_ms": 1}
        answer = Answer(op_id=str(command.op_id), type="return_client", topic="orders", queue_id=0, **fields)  # type: ignore[arg-type]
        return [frame_of([answer])]

    monkeypatch.setattr(job, "_decide", refusing)
    with job.consumer("billing", client_id="c1", release_earlier_leases=True) as started:
        assert len(started.pop("orders", 0, 10)) == 10
        eventually(lambda: started._pops._releases_earlier_of is None)
        assert len(started.pop("orders", 1, 10)) == 10
    assert len(sent(job, ReturnClient)) == 1


def test_read_looks_without_a_lease(job: MemoryJob) -> None:
    with job.consumer("billing") as consumer:
        records = consumer.read("orders", 0, 8, 5)
        assert [(record.queue_offset, record.value) for record in records] == [(8, b"0-8"), (9, b"0-9")]
        assert len(consumer.pop("orders", 0, 10)) == 10


def test_where_batches_are_not_supported_singles_are_sent(job: MemoryJob) -> None:
    with job.consumer("billing") as consumer:
        messages = consumer.pop("orders", 0, 3).messages
        job.is_old = True
        outcomes = consumer.change_invisible(messages, 5_000)
        assert [outcome.applied for outcome in outcomes] == [True] * 3
        consumer.change_invisible(messages, 6_000)
        changes = [change for change in sent(job, ChangeInvisible) if isinstance(change, ChangeInvisible)]
        offsets = [[entry.offsets for entry in change.entries] for change in changes]
        assert offsets == [[[(0, 2)]], *[[[(offset, offset)]] for offset in (0, 1, 2, 0, 1, 2)]]


def test_batches_can_be_turned_off(job: MemoryJob) -> None:
    with job.consumer("billing", enable_batch_change_invisible=False) as consumer:
        messages = consumer.pop("orders", 0, 3).messages
        assert all(outcome.applied for outcome in consumer.change_invisible(messages, 5_000))
        assert len(sent(job, ChangeInvisible)) == 3


def test_a_change_without_an_answer_is_sent_again_as_it_was(job: MemoryJob) -> None:
    with job.consumer("billing", resend_after_ms=50) as consumer:
        messages = consumer.pop("orders", 0, 3).messages
        job.silent.add(("orders", 0))
        thread = in_thread(lambda: consumer.change_invisible(messages, 5_000))
        eventually(lambda: len(sent(job, ChangeInvisible)) >= 2)
        job.silent.clear()
        thread.join(60)
        assert len({change.op_id for change in sent(job, ChangeInvisible)}) == 1
        assert messages[0].next_visible_time_ms == job.now_ms + 5_000


@pytest.fixture(autouse=True)
def no_thread_stays() -> Iterator[None]:
    """A closed consumer leaves no thread behind."""
    with leaves_no_thread(soon=True):
        yield


def test_an_orderly_iteration_goes_on_after_an_ack_by_receipt(job: MemoryJob) -> None:
    with job.consumer("billing", topics=["orders"], order=True) as consumer:
        subscription = consumer.subscribe()
        (first,) = subscription.take(1, 60)
        (outcome,) = consumer.ack([first.receipt])
        assert outcome.applied
        assert first.is_settled
        found = [subscription.take(1, 60)[0]]
        while found[-1].queue_id != first.queue_id:
            found[-1].ack()
            found += subscription.take(1, 60)
        assert found[-1].queue_offset == 1


def test_a_topic_that_was_found_before_may_be_unknown_for_a_while(
    job: MemoryJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("popstream.pop.queue_discovery.REFRESH_S", 0.01)
    monkeypatch.setattr("popstream.pop.queue_discovery.RETRY_PAUSE_S", 0.01)
    find, looks = job.payloads.queue_ids, itertools.count(1)

    def find_sometimes(topic: str) -> Sequence[int]:
        if next(looks) in (3, 5):
            message = f"{topic} does not exist"
            raise Invalid(message, subject=topic)
        return find(topic)

    monkeypatch.setattr(job.payloads, "queue_ids", find_sometimes)
    with job.consumer("billing", topics=["orders"]) as consumer:
        subscription = consumer.subscribe()
        eventually(lambda: next(looks) > 20)
        assert not subscription.is_stopped


def test_pops_in_flight_when_a_subscription_fails_lease_nothing(
    job: MemoryJob, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with job.consumer("billing", topics=["orders"]) as consumer:
        drain(consumer, len(ALL))
        subscription = consumer.subscribe()
        eventually(lambda: len(subscription._in_flight) == 4)
        monkeypatch.setattr(subscription._discovery, "refresh", lambda _now_s: 1 / 0)
        eventually(lambda: subscription.is_stopped and not consumer._pops._in_flight)
        assert f"{consumer.client_id} has stopped popping" in caplog.messages
        job.write("orders", 0, [b"later"])
        with job.consumer("billing") as other:
            assert [message.value for message in other.pop("orders", 0)] == [b"later"]
