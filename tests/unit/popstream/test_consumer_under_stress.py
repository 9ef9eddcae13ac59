"""Claim: nothing is lost, kept or overtaken when things happen at the same time. Method: the kernel itself, in memory.

Each test is a sequence that once went wrong, or would in a simpler client.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence

import pytest

from popstream import AnswerTimeout, Consumer, Message, Outcome, Receipt, ReceiptHandle, RenewalPolicy
from popstream.lease.entries import BatchFuture, MessageRequest, outcomes, plan
from popstream.payload.payloads import Fetched
from popstream.testing.memory_job import MemoryJob
from popstream.wire.answer import Answer, Run
from popstream.wire.base_errors import Corrupt, Invalid
from popstream.wire.command import ChangeInvisible, Command
from popstream.wire.reason import Reason
from tests.support.threads import eventually, in_thread


@pytest.fixture
def job() -> MemoryJob:
    return MemoryJob()


def sent(job: MemoryJob, kind: type[Command]) -> list[Command]:
    return [record for record in job.records if isinstance(record, kind)]


def left(job: MemoryJob, topic: str, queue_id: int = 0) -> list[tuple[int, int]]:
    """(offset, attempt) of what can be popped now."""
    with job.consumer("billing") as other:
        return [(message.queue_offset, message.attempt) for message in other.pop(topic, queue_id, 1_000)]


def slow_fetch(job: MemoryJob, monkeypatch: pytest.MonkeyPatch, pause_s: float) -> None:
    fetch = job.payloads.fetch

    def slow(
        topic: str, queue_id: int, ranges: Sequence[tuple[int, int]], timeout_s: float, bytes_max: int | None = None
    ) -> Fetched:
        time.sleep(pause_s)
        return fetch(topic, queue_id, ranges, timeout_s, bytes_max)

    monkeypatch.setattr(job.payloads, "fetch", slow)


# Bounds.


@pytest.mark.parametrize("order", [False, True])
def test_a_byte_bound_that_cuts_what_was_popped_stops_nobody(
    job: MemoryJob, monkeypatch: pytest.MonkeyPatch, *, order: bool
) -> None:
    slow_fetch(job, monkeypatch, 0.002)
    for queue_id in range(2):
        job.write("big", queue_id, [b"x" * 1_000] * 60)
    done: list[tuple[int, int]] = []
    most: list[int] = []
    with job.consumer("billing", topics=["big"], order=order, prefetch_bytes=16_000) as consumer:

        def handle(message: Message) -> None:
            most.append(consumer._leases.held.payload_bytes)
            done.append((message.queue_id, message.queue_offset))

        ran = in_thread(lambda: consumer.run(handle, workers=8))
        eventually(lambda: len(done) == 120)
        consumer.stop()
        ran.join(60)
    assert len(set(done)) == 120
    assert max(most) <= 16_000
    if order:
        for queue_id in range(2):
            assert [offset for queue, offset in done if queue == queue_id] == list(range(60))


def test_a_message_whose_lease_is_over_is_not_handed_out(job: MemoryJob) -> None:
    job.write("orders", 0, [b"x"] * 4)
    with job.consumer("billing", topics=["orders"], renewal=None, invisible_time_ms=1_500) as consumer:
        iterator = iter(consumer)
        first = next(iterator)
        first.ack()
        time.sleep(1.6)
        job.advance(1_600)
        second = next(iterator)
        assert (second.attempt, second.ack().result(60).applied) == (2, True)


def test_counts_below_one_are_refused(job: MemoryJob) -> None:
    job.write("orders", 0, [b"x"])
    with job.consumer("billing", topics=["orders"]) as consumer:
        with pytest.raises(Invalid, match="at least one message"):
            consumer.subscribe().take(0)
        for workers, set_size in ((0, 1), (1, 0)):
            with pytest.raises(Invalid, match="at least one worker"):
                consumer.run_sets(print, set_size=set_size, workers=workers)


# Order.


def consumed_in_order(job: MemoryJob, act: Callable[[Message], object], count: int) -> list[tuple[int, int]]:
    """(offset, attempt) as they come to an iteration that treats each message by `act`."""
    seen: list[tuple[int, int]] = []
    ticking = threading.Event()

    def tick() -> None:
        while not ticking.wait(0.01):
            job.advance(50)

    with job.consumer("billing", topics=["steps"], order=True) as consumer:
        in_thread(tick)
        for message in consumer:
            seen.append((message.queue_offset, message.attempt))
            act(message)
            if len(seen) == count:
                break
        ticking.set()
    return seen


def test_nothing_overtakes_an_orderly_message_that_was_given_back(job: MemoryJob) -> None:
    job.write("steps", 0, [b"x"] * 4)

    def act(message: Message) -> None:
        if (message.queue_offset, message.attempt) == (1, 1):
            message.release(delay_s=0.1)
        else:
            message.ack()

    assert consumed_in_order(job, act, 5) == [(0, 1), (1, 1), (1, 2), (2, 1), (3, 1)]


def test_nothing_overtakes_an_orderly_message_that_cannot_be_read(job: MemoryJob) -> None:
    job.write("steps", 0, [b"x"] * 4)
    job.payloads.damaged = {("steps", 0, 1)}

    def act(message: Message) -> None:
        if message.queue_offset == 0:
            threading.Timer(0.2, job.payloads.damaged.clear).start()
        message.ack()

    seen = consumed_in_order(job, act, 4)
    assert [offset for offset, _ in seen] == [0, 1, 2, 3]
    assert dict(seen)[1] > 1
    assert (dict(seen)[2], dict(seen)[3]) == (1, 1)


def test_an_orderly_pop_hands_out_nothing_behind_a_message_that_is_late(job: MemoryJob) -> None:
    job.write("steps", 0, [b"x"] * 4)
    job.payloads.late = {("steps", 0, 1)}
    with job.consumer("billing") as consumer:
        popped = consumer.pop("steps", 0, order=True)
        assert ([message.queue_offset for message in popped], popped.late_count) == ([0], 1)
        consumer.ack(popped.messages)
        job.payloads.late.clear()
        job.advance(1_000)
        again = consumer.pop("steps", 0, order=True)
        assert [(message.queue_offset, message.attempt) for message in again] == [(1, 1), (2, 1), (3, 1)]


# Handles and renewals.


def test_an_answer_is_understood_after_the_handle_was_replaced() -> None:
    receipt = Receipt(topic="t", queue_id=0, queue_offset=7, handle=ReceiptHandle("old"))
    (planned,) = plan([MessageRequest(receipt, "old", None, BatchFuture(1), 0)])
    receipt.handle = ReceiptHandle("new")
    run = Run(entry=0, first=7, last=7, code=0, reason=Reason.OK, applied=True)
    answer = Answer(
        op_id="o", type="ack", code=0, reason=Reason.OK, applied=True, topic="t", queue_id=0, now_ms=1, runs=[run]
    )
    assert outcomes(planned, answer) == [Outcome(True, Reason.OK, 0)]


def test_a_renewal_in_flight_is_waited_for_beyond_the_lease(job: MemoryJob) -> None:
    """The job was away when the lease ended here; it decides by the time the renewal reached the log."""
    job.write("orders", 0, [b"x"])
    policy = RenewalPolicy(steps_ms=(60_000,), ahead_ms=900, check_ms=20)
    with job.consumer("billing", renewal=policy, resend_after_ms=500) as consumer:
        (message,) = consumer.pop("orders", 0, invisible_time_ms=1_000, renew=True).messages
        job.silent.add(("orders", 0))
        eventually(lambda: len(sent(job, ChangeInvisible)) > 0)
        time.sleep(1.2)
        assert consumer.held_count == 1
        job.silent.clear()
        eventually(lambda: message.next_visible_time_ms >= job.now_ms + 60_000)
        assert consumer.held_count == 1


def test_a_silent_queue_holds_up_no_renewal_of_the_others(job: MemoryJob) -> None:
    for queue_id in range(2):
        job.write("orders", queue_id, [b"x"])
    policy = RenewalPolicy(steps_ms=(4_000,), ahead_ms=4_000, check_ms=20)
    with job.consumer("billing", renewal=policy) as consumer:
        for queue_id in range(2):
            consumer.pop("orders", queue_id, invisible_time_ms=4_000, renew=True)
        job.silent.add(("orders", 0))
        begun = len(sent(job, ChangeInvisible))
        eventually(lambda: sum(change.queue_id for change in sent(job, ChangeInvisible)[begun:]) >= 3)
        job.silent.clear()


def test_a_short_extension_is_looked_at_in_time(job: MemoryJob) -> None:
    job.write("orders", 0, [b"x"])
    with job.consumer("billing", renewal=RenewalPolicy(steps_ms=(2_000,))) as consumer:
        (message,) = consumer.pop("orders", 0, renew=True).messages
        message.extend(2).result(60)
        renewed = len(sent(job, ChangeInvisible))
        eventually(lambda: len(sent(job, ChangeInvisible)) >= renewed + 2)
        assert consumer.held_count == 1


def test_a_stale_receipt_does_not_let_go_of_the_delivery_in_hand(job: MemoryJob) -> None:
    job.write("orders", 0, [b"x"])
    with job.consumer("billing") as consumer:
        stale = consumer.pop("orders", 0, invisible_time_ms=1_000).messages[0].receipt
        job.advance(1_000)
        consumer.pop("orders", 0)
        (outcome,) = consumer.ack([stale])
        assert (outcome.reason, consumer.held_count) == (Reason.STALE_HANDLE, 1)


def test_a_callback_may_speak_about_other_messages(job: MemoryJob) -> None:
    job.write("orders", 0, [b"x"] * 3)
    with job.consumer("billing") as consumer:
        first, second, third = consumer.pop("orders", 0).messages
        released = threading.Event()

        def then(_: object) -> None:
            second.release()
            released.set()

        acked = first.ack()
        acked.add_done_callback(then)
        assert released.wait(60)
        assert third.ack().result(60).applied
        consumer.flush(10_000)


# Pops of any queue.


def test_one_message_is_found_in_whatever_queue_it_is(job: MemoryJob) -> None:
    job.make_topic("orders", 4)
    for queue_id in range(3):
        job.write("orders", queue_id, [])
    job.write("orders", 3, [b"x"])
    with job.consumer("billing") as consumer:
        assert len(consumer.pop("orders", max_messages=1)) == 1


def test_a_silent_queue_does_not_keep_the_messages_of_the_others(job: MemoryJob) -> None:
    for queue_id in range(3):
        job.write("orders", queue_id, [b"x"])
    job.silent.add(("orders", 0))
    with job.consumer("billing", answer_timeout_ms=5_000) as consumer:
        began_s = time.monotonic()
        popped = consumer.pop("orders", max_messages=9)
        assert len(popped) >= 1
        assert time.monotonic() - began_s < 4
        job.silent.clear()


def test_attempts_at_a_record_that_cannot_be_read_count(job: MemoryJob) -> None:
    job.write("orders", 0, [b"x"])
    job.payloads.damaged = {("orders", 0, 0)}
    with job.consumer("billing") as consumer:
        for _ in range(3):
            with pytest.raises(Corrupt):
                consumer.pop("orders", 0)
            consumer.flush()
            job.advance(1_000)
        job.payloads.damaged.clear()
        assert [message.attempt for message in consumer.pop("orders", 0)] == [4]


# ClosedAtExit.


def test_stop_gives_back_what_was_not_handed_out_and_the_consumer_can_go_on(job: MemoryJob) -> None:
    job.write("orders", 0, [b"x"] * 10)
    with job.consumer("billing", topics=["orders"]) as consumer:
        first = next(iter(consumer))
        first.ack()
        consumer.stop()
        eventually(lambda: consumer.held_count == 0)
        consumer.flush()
        assert left(job, "orders") == [(offset, 1) for offset in range(1, 10)]
        again = next(iter(consumer))
        assert again.queue_offset == 1


def test_close_gives_back_although_one_queue_does_not_answer(job: MemoryJob) -> None:
    for queue_id in range(2):
        job.write("orders", queue_id, [b"x"] * 3)
    consumer = job.consumer("billing")
    stuck = consumer.pop("orders", 0).messages
    consumer.pop("orders", 1)
    job.silent.add(("orders", 0))
    consumer.ack_async(stuck[:1])
    consumer.close(timeout_ms=500)
    job.silent.clear()
    assert left(job, "orders", 1) == [(0, 2), (1, 2), (2, 2)]
    assert left(job, "orders", 0) == [(1, 2), (2, 2)]


def test_close_waits_for_the_handler_at_work(job: MemoryJob) -> None:
    job.write("orders", 0, [b"x"] * 3)
    begun, done = threading.Event(), []
    consumer = job.consumer("billing", topics=["orders"])

    def handle(message: Message) -> None:
        begun.set()
        time.sleep(0.3)
        done.append(message.queue_offset)

    in_thread(lambda: consumer.run(handle))
    assert begun.wait(60)
    consumer.close()
    assert done == [0]
    assert left(job, "orders") == [(1, 1), (2, 1)]


@pytest.mark.parametrize("settles", [False, True])
def test_close_by_a_handler_waits_for_the_other_one(job: MemoryJob, *, settles: bool) -> None:
    job.write("orders", 0, [b"x"] * 2)
    both, closing = threading.Barrier(2), threading.Event()
    consumer = job.consumer("billing", topics=["orders"])

    def handle(message: Message) -> None:
        both.wait(60)
        if message.queue_offset == 0:
            closing.set()
            consumer.close()
            return
        assert closing.wait(60)
        time.sleep(0.3)
        if settles:
            message.ack()

    consumer.run(handle, workers=2)
    assert left(job, "orders") == [(0, 2)]


def test_another_close_waits_for_the_first_one(job: MemoryJob) -> None:
    job.write("orders", 0, [b"x"])
    begun, go_on, done = threading.Event(), threading.Event(), []
    consumer = job.consumer("billing", topics=["orders"])

    def handle(_: Message) -> None:
        begun.set()
        assert go_on.wait(60)

    def close(name: str) -> None:
        consumer.close()
        done.append(name)

    ran = in_thread(lambda: consumer.run(handle))
    assert begun.wait(60)
    closing = [in_thread(lambda name=name: close(name)) for name in ("first", "second")]  # type: ignore[misc]
    eventually(lambda: consumer._is_closing)
    consumer.close(timeout_ms=50)
    assert done == []
    go_on.set()
    for thread in (ran, *closing):
        thread.join(60)
    assert sorted(done) == ["first", "second"]
    assert left(job, "orders") == []


def test_iteration_ends_when_the_consumer_is_closed_elsewhere(job: MemoryJob) -> None:
    job.write("orders", 0, [b"x"])
    consumer = job.consumer("billing", topics=["orders"])
    ended: list[str] = []

    def iterate() -> None:
        for message in consumer:
            message.ack()
        ended.append("in order")

    thread = in_thread(iterate)
    eventually(lambda: consumer.held_count == 0 and len(job.records) > 4)
    consumer.close()
    thread.join(60)
    assert ended == ["in order"]


def test_whatever_ends_the_pops_reaches_those_who_wait(job: MemoryJob, monkeypatch: pytest.MonkeyPatch) -> None:
    job.write("orders", 0, [b"x"])

    def fail(_: str) -> list[int]:
        raise RuntimeError("a defect")

    monkeypatch.setattr(job.payloads, "queue_ids", fail)
    with job.consumer("billing", topics=["orders"]) as consumer, pytest.raises(RuntimeError, match="a defect"):
        next(iter(consumer))


def test_an_unanswered_pop_ends_nothing(job: MemoryJob) -> None:
    job.write("orders", 0, [b"x"])
    job.silent.add(("orders", 0))
    with job.consumer("billing", answer_timeout_ms=200) as consumer:
        with pytest.raises(AnswerTimeout):
            consumer.pop("orders", 0)
        job.silent.clear()
        eventually(lambda: len(consumer.pop("orders", 0)) == 1)


SIGTERM_CODE = """
import threading, time
from popstream.testing.memory_job import MemoryJob
job = MemoryJob()
job.write("orders", 0, [b"x"] * 3)
consumer = job.consumer("billing", topics=["orders"])
def iterate():
    for message in consumer:
        message.ack()
        print("ready", flush=True)
threading.Thread(target=iterate).start()
time.sleep(60)
"""


def test_sigterm_ends_a_process_whose_other_thread_iterates() -> None:
    process = subprocess.Popen([sys.executable, "-c", SIGTERM_CODE], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM


def test_a_consumer_that_is_closed_hands_out_nothing(job: MemoryJob, monkeypatch: pytest.MonkeyPatch) -> None:
    slow_fetch(job, monkeypatch, 0.3)
    job.write("steps", 0, [b"x"] * 3)
    consumer: Consumer = job.consumer("billing", topics=["steps"], order=True)
    subscription = consumer.subscribe()
    found: list[Message] = []
    thread = in_thread(lambda: found.extend(subscription.take(10)))
    eventually(lambda: consumer.held_count == 3)
    consumer.close()
    thread.join(60)
    assert found == []
    monkeypatch.undo()
    with job.consumer("billing") as other:
        assert len(other.pop("steps", 0, order=True)) == 3
