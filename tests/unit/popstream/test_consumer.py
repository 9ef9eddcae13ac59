"""Claim: what a consumer does with messages is what the job decides. Method: the kernel itself, in memory."""

from __future__ import annotations

import itertools
import os
import re
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import Any

import pytest

from popstream import (
    AnswerTimeout,
    ClientClosed,
    Consumer,
    Invalid,
    Message,
    NotDeclared,
    PayloadMissing,
    PopResult,
    Receipt,
    Refused,
    RenewalPolicy,
    all_applied,
    new_op_id,
)
from popstream.payload.inner_batch import InnerMessage, encode_inner_batch
from popstream.payload.payloads import Fetched, Payload
from popstream.pop import pops_of_call
from popstream.pop.consumer_sources import ConsumerSources
from popstream.testing._memory_link import MemoryLink
from popstream.testing.memory_job import MemoryJob
from popstream.wire.answer import Answer
from popstream.wire.command import Ack, Cancel, ChangeInvisible, Command, Pop, Reject, ReturnClient
from popstream.wire.reason import Reason, code_of
from tests.support.held_back_job import HeldBackJob
from tests.support.threads import eventually, in_thread, leaves_no_thread


@pytest.fixture
def job() -> MemoryJob:
    made = MemoryJob()
    made.write("orders", 0, [b"%d" % number for number in range(10)])
    return made


@pytest.fixture
def consumer(job: MemoryJob) -> Iterator[Consumer]:
    with job.consumer("billing", client_id="c1") as made:
        yield made


def sent(job: MemoryJob, kind: type[Command]) -> list[Command]:
    return [record for record in job.records if isinstance(record, kind)]


def test_a_consumer_is_named_after_its_process_and_no_two_are_alike(job: MemoryJob) -> None:
    name = f"{socket.gethostname()}-{os.getpid()}"
    with job.consumer("billing") as one, job.consumer("billing") as other:
        assert one.client_id != other.client_id
        assert all(re.fullmatch(rf"{re.escape(name)}(-\d+)?", made.client_id) for made in (one, other))


def test_a_consumer_that_cannot_be_made_leaves_no_thread(job: MemoryJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """A constructor has nobody to close what it opened, but itself."""
    monkeypatch.setattr("popstream.consumer.Transport", lambda _: job.transport())

    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    with leaves_no_thread():
        with pytest.raises(TypeError):
            Consumer("memory", group="billing", ack_delay_ms="soon")  # type: ignore[arg-type]
        monkeypatch.setattr("popstream.consumer.close_at_exit", interrupted)
        with pytest.raises(KeyboardInterrupt):
            Consumer("memory", group="billing")


def test_messages_come_with_all_that_is_known_of_them(job: MemoryJob, consumer: Consumer) -> None:
    result = consumer.pop("orders", 0, max_messages=3, invisible_time_ms=5_000)
    assert [message.value for message in result] == [b"0", b"1", b"2"]
    message = result.messages[1]
    assert (message.topic, message.queue_id, message.queue_offset, message.attempt) == ("orders", 0, 1, 1)
    assert (message.pop_time_ms, message.next_visible_time_ms) == (job.now_ms, job.now_ms + 5_000)
    (pop,) = sent(job, Pop)
    assert isinstance(pop, Pop)
    assert (pop.client_id, pop.group, pop.op_id) == ("c1", "billing", result.op_id)


def test_acks_of_many_callers_travel_as_ranges_of_one_record(job: MemoryJob, consumer: Consumer) -> None:
    messages = consumer.pop("orders", 0, max_messages=10).messages
    futures = [consumer.ack_async([message]) for message in reversed(messages)]
    assert all(all_applied(future.result(60)) for future in futures)
    (ack,) = sent(job, Ack)
    assert isinstance(ack, Ack)
    assert len(ack.handles) == 1
    assert [entry.offsets for entry in ack.entries] == [[(0, 9)]]
    assert consumer.held_count == 0


def test_outcomes_come_in_the_callers_order_and_fail_one_by_one(consumer: Consumer) -> None:
    messages = consumer.pop("orders", 0, max_messages=3).messages
    consumer.ack([messages[1]])
    outcomes = consumer.ack([messages[2], messages[1], messages[0]])
    assert [outcome.reason for outcome in outcomes] == [Reason.OK, Reason.ALREADY_ACKED, Reason.OK]
    assert [outcome.applied for outcome in outcomes] == [True, False, True]


def test_a_message_acked_by_two_callers_is_judged_twice_in_turn(job: MemoryJob, consumer: Consumer) -> None:
    (message,) = consumer.pop("orders", 0, max_messages=1).messages
    first, second = consumer.ack_async([message]), consumer.ack_async([message])
    assert [first.result(60)[0].reason, second.result(60)[0].reason] == [Reason.OK, Reason.ALREADY_ACKED]
    assert len(sent(job, Ack)) == 2


def test_a_message_that_no_consumer_handed_out_is_refused_by_its_methods_which_name_those_that_take_it(
    consumer: Consumer,
) -> None:
    (message,) = consumer.pop("orders", 0, 1)
    bare = Message(
        topic="orders",
        queue_id=0,
        queue_offset=0,
        handle=message.handle,
        attempt=1,
        pop_time_ms=message.pop_time_ms,
        next_visible_time_ms=message.next_visible_time_ms,
    )
    for settle in (bare.ack, lambda: bare.extend(60), bare.release, bare.reject):
        with pytest.raises(Invalid, match="pass its receipt to the methods of a consumer") as raised:
            settle()
        assert type(raised.value) is Invalid, "not ClientClosed: no client was closed"
    assert all_applied(consumer.ack([bare.receipt]))


def test_an_old_receipt_does_not_spoil_a_good_one(job: MemoryJob, consumer: Consumer) -> None:
    """Both travel within the same few milliseconds; the job would refuse the second of one record as a duplicate."""
    old = consumer.pop("orders", 0, max_messages=1, invisible_time_ms=100).messages
    job.advance(100)
    new = consumer.pop("orders", 0, max_messages=1).messages
    assert [message.attempt for message in (*old, *new)] == [1, 2]
    first, second = consumer.ack_async(old), consumer.ack_async(new)
    assert [first.result(60)[0].reason, second.result(60)[0].reason] == [Reason.STALE_HANDLE, Reason.OK]


def test_acks_of_several_queues_are_one_call(job: MemoryJob, consumer: Consumer) -> None:
    job.write("orders", 1, [b"x", b"y"])
    first, second = consumer.pop("orders", 0).messages, consumer.pop("orders", 1).messages
    outcomes = consumer.ack([second[0], *first, second[1]])
    assert all_applied(outcomes)
    assert len(outcomes) == 12
    assert {(ack.topic, ack.queue_id) for ack in sent(job, Ack)} == {("orders", 0), ("orders", 1)}


def test_no_messages_need_no_operation(job: MemoryJob, consumer: Consumer) -> None:
    before = len(job.records)
    assert consumer.ack([]) == consumer.change_invisible([], 0) == consumer.reject([]) == []
    assert len(job.records) == before


def test_a_change_renews_the_handle_and_the_deadline(job: MemoryJob, consumer: Consumer) -> None:
    messages = consumer.pop("orders", 0, max_messages=2, invisible_time_ms=1_000).messages
    old = [message.receipt for message in messages]
    job.advance(500)
    assert all_applied(consumer.change_invisible(messages, 2_000))
    assert messages[0].next_visible_time_ms == job.now_ms + 2_000
    assert messages[0].handle != old[0].handle
    (superseded,) = consumer.change_invisible([old[0]], 9_000)
    assert superseded.reason is Reason.SUPERSEDED
    assert old[0].handle == messages[0].handle
    assert all_applied(consumer.change_invisible(messages, 3_000))
    assert all_applied(consumer.ack(old))


def test_a_released_message_is_no_longer_held(consumer: Consumer) -> None:
    messages = consumer.pop("orders", 0, max_messages=2).messages
    consumer.change_invisible(messages[:1], 0, suspend=True)
    assert consumer.held_count == 1
    again = consumer.pop("orders", 0, max_messages=1).messages
    assert [(message.queue_offset, message.attempt) for message in again] == [(0, 1)]


def test_a_waiting_ack_is_sent_before_what_is_asked_for_later(job: MemoryJob) -> None:
    with job.consumer("billing", ack_delay_ms=60_000) as consumer:
        messages = consumer.pop("orders", 0, max_messages=1).messages
        acked = consumer.ack_async(messages)
        (changed,) = consumer.change_invisible(messages, 1_000)
        assert acked.result(60)[0].applied
        assert changed.reason is Reason.ALREADY_ACKED


def test_a_rejected_message_is_done(job: MemoryJob, consumer: Consumer) -> None:
    messages = consumer.pop("orders", 0, max_messages=1).messages
    assert all_applied(consumer.reject(messages, "cannot be parsed"))
    (reject,) = sent(job, Reject)
    assert isinstance(reject, Reject)
    assert reject.entries[0].cause == "cannot be parsed"
    assert consumer.held_count == 0


def test_what_no_longer_exists_is_acked_as_gone(job: MemoryJob, consumer: Consumer) -> None:
    job.payloads.deleted = {("orders", 0, offset) for offset in (0, 4, 5)}
    result = consumer.pop("orders", 0, max_messages=6)
    assert [message.queue_offset for message in result] == [1, 2, 3]
    assert result.gone_count == 3
    consumer.flush()
    (ack,) = sent(job, Ack)
    assert isinstance(ack, Ack)
    assert [(entry.offsets, entry.cause) for entry in ack.entries] == [([(0, 0), (4, 5)], "GONE")]


def test_a_record_that_lies_about_its_inner_batch_goes_to_the_dead_letters(job: MemoryJob, consumer: Consumer) -> None:
    """Its length is not what its header says; the one whose headers are true is unwrapped."""
    value, headers = encode_inner_batch(
        [InnerMessage(b"one", 0), InnerMessage(b"two", 5)], created_ms=7, ids=["a-1", "a-2"]
    )
    for body in (value + b".", value):
        job.append("lies", 0, Payload(None, body, [*headers], job.now_ms))
    result = consumer.pop("lies", 0, max_messages=2)
    assert [(message.queue_offset, message.value) for message in result] == [(1, b"one"), (1, b"two")]
    consumer.flush()
    (reject,) = sent(job, Reject)
    assert isinstance(reject, Reject)
    assert [(entry.offsets, entry.cause) for entry in reject.entries] == [([(0, 0)], "UNREADABLE")]


def test_a_pop_of_nothing_but_gone_messages_is_empty_and_ok(job: MemoryJob, consumer: Consumer) -> None:
    job.payloads.deleted = {("orders", 0, 0)}
    result = consumer.pop("orders", 0, max_messages=1)
    assert (len(result), result.reason, result.gone_count) == (0, Reason.OK, 1)


def test_a_record_of_a_simple_topic_is_one_message_whatever_its_headers(job: MemoryJob, consumer: Consumer) -> None:
    """The builder counts it as one, and the pop too."""
    value, headers = encode_inner_batch(
        [InnerMessage(b"one", 0), InnerMessage(b"two", 5)], created_ms=7, ids=["a-1", "a-2"]
    )
    job.write("simple", 0, [value, value + b"."], headers=headers)
    (message,) = consumer.pop("simple", 0, max_messages=1)
    assert (message.value, message.headers, message.inner_count) == (value, [], 1)
    assert [record.value for record in consumer.read("simple", 0, 0, 9)] == [value, value + b"."]
    assert [message.value for message in consumer.pop("simple", 0)] == [value + b"."]


def test_what_cannot_be_read_yet_is_given_back_for_a_moment(job: MemoryJob, consumer: Consumer) -> None:
    job.payloads.late = {("orders", 0, 1)}
    result = consumer.pop("orders", 0, max_messages=2)
    assert ([message.queue_offset for message in result], result.late_count) == ([0], 1)
    consumer.flush()
    job.payloads.late.clear()
    job.advance(1_000)
    again = consumer.pop("orders", 0, max_messages=1).messages
    assert [(message.queue_offset, message.attempt) for message in again] == [(1, 1)]


@pytest.mark.parametrize("by", ["pop", "iteration"])
def test_a_pop_none_of_whose_records_can_be_read_yet_is_given_back_for_a_moment_too(job: MemoryJob, by: str) -> None:
    job.write("parcels", 0, [b"v"])
    job.payloads.late = {("parcels", 0, 0)}
    with job.consumer("billing", topics=["parcels"]) as consumer:
        if by == "pop":
            with pytest.raises(PayloadMissing):
                consumer.pop("parcels", 0)
        else:
            assert consumer.subscribe().take(1, timeout_s=0.5) == []
    with job.consumer("billing") as consumer:
        job.payloads.late.clear()
        assert len(consumer.pop("parcels", 0)) == 0
        job.advance(1_000)
        assert [message.attempt for message in consumer.pop("parcels", 0)] == [1]


def test_an_interrupt_takes_the_pop_back(job: MemoryJob, consumer: Consumer, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> Fetched:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(job.payloads, "fetch", interrupt)
        with pytest.raises(KeyboardInterrupt):
            consumer.pop("orders", 0, max_messages=5)
    assert len(consumer.pop("orders", 0, max_messages=10)) == 10


def test_an_unanswered_pop_is_taken_back(job: MemoryJob) -> None:
    transport = job.transport(answer_timeout_ms=100)
    with Consumer(
        "memory", group="billing", transport=transport, sources=ConsumerSources(payloads=job.payloads)
    ) as consumer:
        transport._reply_to = 1
        job.link()
        with pytest.raises(AnswerTimeout):
            consumer.pop("orders", 0)
        (cancel,) = sent(job, Cancel)
        assert cancel.reply_to is None
    transport.close()


def test_after_any_failed_pop_of_a_topic_nothing_is_in_flight(job: MemoryJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise `close` would wait for it, until its time is over."""
    for queue_id in range(4):
        job.write("parcels", queue_id, [])
    with job.consumer("billing") as consumer:
        job.silent.add(("parcels", 2))
        with pytest.raises(AnswerTimeout):
            consumer.pop("parcels", timeout_ms=100)
        assert consumer._pops._in_flight == {}
        assert 2 in [cancel.queue_id for cancel in sent(job, Cancel)]

        job.silent.clear()
        waits: list[object] = []

        def interrupted(*args: Any) -> object:
            waits.append(args)
            if len(waits) == 2:  # of the second round, which waits at the broker
                raise KeyboardInterrupt
            return wait(*args)

        with monkeypatch.context() as patch:
            patch.setattr(pops_of_call, "wait", interrupted)
            with pytest.raises(KeyboardInterrupt):
                consumer.pop("parcels", max_messages=2, poll_time_ms=60_000)
        assert consumer._pops._in_flight == {}

        job.write("parcels", 0, [b"x"])
        assert len(consumer.pop("parcels")) == 1
        assert consumer._pops._in_flight == {}


def test_what_it_holds_of_a_pop_keeps_no_message_from_its_iteration(job: MemoryJob) -> None:
    """The length of records is not known yet: no record has been fetched for the iteration."""
    with job.consumer("billing", topics=["orders"]) as consumer:
        popped = consumer.pop("orders", 0, max_messages=4)
        assert [message.value for message in popped.messages] == [b"0", b"1", b"2", b"3"]
        give_up = threading.Timer(20, consumer.stop)
        give_up.start()
        assert [message.value for message in itertools.islice(consumer, 1)] == [b"4"]
        give_up.cancel()


def test_refusals_say_what_to_do(consumer: Consumer) -> None:
    with pytest.raises(NotDeclared, match="declared"):
        consumer.pop("unknown", 0)
    with pytest.raises(Refused) as raised:
        consumer.pop("orders", 0, max_messages=0)
    assert raised.value.reason is Reason.INVALID_PARAMETER
    with pytest.raises(Refused):
        consumer.return_client("orders", 0, "x" * 256)


@pytest.mark.parametrize("tags", ["paid", b"paid", "", [], [""], ["paid", ""]])
def test_tags_are_a_list_since_a_pop_acks_what_has_none_of_them(job: MemoryJob, consumer: Consumer, tags: Any) -> None:
    with pytest.raises(Invalid, match="tags"):
        consumer.pop("orders", 0, tags=tags)
    with pytest.raises(Invalid, match="tags"):
        job.consumer("billing", topics=["orders"], tags=tags)
    assert sent(job, Pop) == []


def test_an_empty_queue_is_an_empty_result(consumer: Consumer) -> None:
    consumer.pop("orders", 0)
    result = consumer.pop("orders", 0)
    assert (len(result), result.reason, result.code) == (0, Reason.NO_MESSAGE, 210)


def waiting_pop(consumer: Consumer, op_id: str) -> tuple[threading.Thread, Future[PopResult]]:
    """A pop of an empty queue that waits at the broker, in a thread of its own."""
    consumer.pop("orders", 0, max_messages=100)
    found: Future[PopResult] = Future()

    def pop() -> None:
        with suppress(ClientClosed):
            found.set_result(consumer.pop("orders", 0, poll_time_ms=60_000, op_id=op_id))

    thread = threading.Thread(target=pop)
    thread.start()
    while op_id not in consumer._pops._in_flight:
        time.sleep(0.005)
    return thread, found


def test_a_waiting_pop_gets_what_is_written(job: MemoryJob, consumer: Consumer) -> None:
    thread, found = waiting_pop(consumer, new_op_id())
    job.write("orders", 0, [b"late"])
    assert [message.value for message in found.result(60)] == [b"late"]
    thread.join()


def test_a_waiting_pop_can_be_cancelled(consumer: Consumer) -> None:
    op_id = new_op_id()
    thread, found = waiting_pop(consumer, op_id)
    assert consumer.cancel("orders", 0, op_id).applied
    assert found.result(60).reason is Reason.CANCELLED
    thread.join()


def test_return_client_gives_back_what_a_client_holds(job: MemoryJob, consumer: Consumer) -> None:
    consumer.pop("orders", 0, max_messages=4)
    with job.consumer("billing") as other:
        assert other.return_client("orders", 0, "c1") == [(0, 3)]
        assert len(other.pop("orders", 0, max_messages=10)) == 10


def test_what_a_consumer_gives_back_of_itself_is_not_renewed_any_more(job: MemoryJob) -> None:
    job.write("orders", 1, [b"x"])
    always = RenewalPolicy(ahead_ms=10**9)
    with job.consumer("billing", client_id="c1", renewal=always) as consumer, job.consumer("billing") as other:
        messages = consumer.pop("orders", 0, max_messages=4, renew=True).messages
        consumer.pop("orders", 1, renew=True)
        assert consumer.return_client("orders", 0) == [(0, 3)]
        assert all(message.is_settled for message in messages)
        assert consumer.held_count == 1
        renewals = len(sent(job, ChangeInvisible))
        consumer._leases.renew_due()
        assert [change.queue_id for change in sent(job, ChangeInvisible)[renewals:]] == [1]
        assert [message.queue_offset for message in other.pop("orders", 0, max_messages=4)] == [0, 1, 2, 3]


@pytest.mark.parametrize("comes_last", [False, True])
def test_what_pops_before_it_have_leased_is_given_back_as_well(*, comes_last: bool) -> None:
    """The answer of a pop is on its way when the client gives back, and comes before or after that of the release."""
    job = HeldBackJob()
    job.write("orders", 0, [b"x"] * 10)
    with job.consumer("billing", client_id="c1") as consumer:
        job.holds_back = True
        popped, returned = Future[PopResult](), Future[list[tuple[int, int]]]()
        popping = in_thread(lambda: popped.set_result(consumer.pop("orders", 0, max_messages=4)))
        eventually(lambda: bool(sent(job, Pop)))
        returning = in_thread(lambda: returned.set_result(consumer.return_client("orders", 0)))
        eventually(lambda: bool(sent(job, ReturnClient)))
        if comes_last:
            own = next(place for place, (_, frame) in enumerate(job._waiting) if b'"pop"' in frame)
            job._waiting.append(job._waiting.pop(own))
        job.deliver()
        assert returned.result(60) == [(0, 3)]
        messages = popped.result(60).messages
        eventually(lambda: consumer.held_count == 0)
        assert all(message.is_settled for message in messages)
        again = consumer.pop("orders", 0, max_messages=4)
        assert [(message.queue_offset, message.attempt) for message in again] == [(offset, 2) for offset in range(4)]
        assert consumer.held_count == 4, "in the same millisecond, but later"
        popping.join(60)
        returning.join(60)


def test_what_was_leased_before_a_late_release_of_earlier_leases_is_not_held(job: MemoryJob) -> None:
    """The record of the release was not written at first, that of the pop behind it was."""
    with job.consumer("billing", client_id="c1", release_earlier_leases=True) as consumer:
        link = consumer._transport._link
        assert isinstance(link, MemoryLink)
        link.failures.append(TimeoutError("Kafka is away"))
        messages = consumer.pop("orders", 0, max_messages=4).messages
        assert sent(job, ReturnClient) == []
        job.advance(1)
        eventually(lambda: bool(sent(job, ReturnClient)))
        eventually(lambda: consumer.held_count == 0)
        assert all(message.is_settled for message in messages)
        assert len(consumer.pop("orders", 0, max_messages=4)) == consumer.held_count == 4


def test_what_a_consumer_may_not_give_back_of_itself_is_held_and_renewed_as_before(
    job: MemoryJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    always = RenewalPolicy(ahead_ms=10**9)
    with job.consumer("billing", client_id="c1", renewal=always) as consumer:
        messages = consumer.pop("orders", 0, max_messages=4, renew=True).messages
        consumer.flush()
        in_between: list[int] = []

        def refuse(command: ReturnClient, **_: object) -> Answer:
            renewals = len(sent(job, ChangeInvisible))
            consumer._leases.renew_due()
            in_between.append(len(sent(job, ChangeInvisible)) - renewals)
            return Answer(
                op_id="x",
                type="return_client",
                code=code_of(Reason.NO_PERMISSION),
                reason=Reason.NO_PERMISSION,
                applied=False,
                topic=command.topic,
                queue_id=command.queue_id,
                now_ms=job.now_ms,
            )

        with monkeypatch.context() as patch:
            patch.setattr(consumer._transport, "request", refuse)
            with pytest.raises(Refused):
                consumer.return_client("orders", 0)
        assert in_between == [0]
        assert consumer.held_count == 4
        assert not any(message.is_settled for message in messages)
        consumer.flush()
        renewals = len(sent(job, ChangeInvisible))
        consumer._leases.renew_due()
        eventually(lambda: len(sent(job, ChangeInvisible)) > renewals)


def test_close_finishes_acks_and_gives_back_the_rest_by_one_operation_a_queue(job: MemoryJob) -> None:
    job.write("orders", 1, [b"x"])
    consumer = job.consumer("billing", ack_delay_ms=60_000)
    messages = consumer.pop("orders", 0, max_messages=10).messages
    consumer.pop("orders", 1)
    acked = consumer.ack_async(messages[2:5])
    consumer.close()
    consumer.close()
    assert all_applied(acked.result(0))
    changes = {change.queue_id: change for change in sent(job, ChangeInvisible) if isinstance(change, ChangeInvisible)}
    assert [entry.offsets for entry in changes[0].entries] == [[(0, 1), (5, 9)]]
    assert [entry.offsets for entry in changes[1].entries] == [[(0, 0)]]
    with job.consumer("billing") as other:
        again = other.pop("orders", 0, max_messages=10)
        assert [(message.queue_offset, message.attempt) for message in again] == [(n, 2) for n in (0, 1, 5, 6, 7, 8, 9)]
    for call in (lambda: consumer.pop("orders", 0), lambda: consumer.ack(messages)):
        with pytest.raises(ClientClosed, match=f"consumer {consumer.client_id} is closed"):
            call()


def test_close_without_release_leaves_receipts_good_elsewhere(job: MemoryJob) -> None:
    consumer = job.consumer("billing")
    receipts: list[Receipt] = [message.receipt for message in consumer.pop("orders", 0)]
    consumer.close(release=False)
    with job.consumer("billing") as other:
        assert all_applied(other.ack(receipts))


def test_close_cancels_pops_that_wait(job: MemoryJob) -> None:
    consumer = job.consumer("billing")
    thread, found = waiting_pop(consumer, new_op_id())
    consumer.close()
    thread.join(60)
    assert not thread.is_alive()
    assert found.result(0).reason is Reason.CANCELLED
    job.write("orders", 0, [b"late"])
    with job.consumer("billing") as other:
        assert len(other.pop("orders", 0, max_messages=100)) == 11


@pytest.mark.parametrize("max_messages", [1, 10])
def test_close_cancels_a_pop_that_waits_for_any_queue(job: MemoryJob, max_messages: int) -> None:
    for queue_id in range(2):
        job.write("parcels", queue_id, [])
    consumer = job.consumer("billing")
    found: list[Reason] = []

    def pop() -> None:
        with suppress(ClientClosed):  # between the pops of the two queues
            found.append(consumer.pop("parcels", max_messages=max_messages, poll_time_ms=60_000).reason)

    thread = in_thread(pop)
    eventually(lambda: any(isinstance(pop, Pop) and pop.poll_time_ms for pop in sent(job, Pop)))
    consumer.close()
    assert consumer._pops._in_flight == {}
    thread.join(60)
    assert not thread.is_alive()
    assert found in ([Reason.CANCELLED], [])


def test_a_job_that_does_not_answer_cannot_keep_close(job: MemoryJob, caplog: pytest.LogCaptureFixture) -> None:
    transport = job.transport(answer_timeout_ms=60_000)
    consumer = Consumer("memory", group="billing", transport=transport, sources=ConsumerSources(payloads=job.payloads))
    consumer.pop("orders", 0)
    transport._reply_to = 1
    job.link()
    began_s = time.monotonic()
    consumer.close(timeout_ms=200)
    assert time.monotonic() - began_s < 5
    assert "could not finish" in caplog.text
    transport.close()


def test_what_is_left_of_the_time_of_close_is_what_kafka_gets(job: MemoryJob, monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = job.consumer("billing")
    left_s: list[float] = []
    monkeypatch.setattr(consumer._transport._link, "close", left_s.append)
    consumer.close(timeout_ms=3_000)
    assert 0 <= left_s[0] <= 3
