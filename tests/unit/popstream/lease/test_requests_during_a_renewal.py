"""Claim: what is asked for while a renewal is in flight takes effect, although the renewal replaces the handle.

Method: the kernel in memory decides the renewal, and its answer is held back meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from popstream import Message, Outcome, Reason, RenewalPolicy
from popstream.awaitable import AwaitableFuture
from popstream.consumer import Consumer
from popstream.message import MessageState
from popstream.wire.answer import Answer
from popstream.wire.base_errors import Invalid
from popstream.wire.command import ChangeInvisible, Command
from tests.support.held_back_job import HeldBackJob
from tests.support.threads import eventually

LEASE_MS = 60_000
BY_HAND = RenewalPolicy(ahead_ms=10**9, check_ms=10**9)


@pytest.fixture
def job() -> HeldBackJob:
    made = HeldBackJob()
    made.write("orders", 0, [b"x"])
    return made


def renewed(job: HeldBackJob, consumer: Consumer, lease_ms: int = LEASE_MS) -> Message:
    """Pop a message, and let the job decide a renewal of which the consumer does not know yet."""
    (message,) = consumer.pop("orders", 0, invisible_time_ms=lease_ms, renew=True).messages
    job.holds_back = True
    consumer._leases.renew_due()
    eventually(lambda: any(isinstance(record, ChangeInvisible) for record in job.records))
    return message


def available(job: HeldBackJob) -> list[int]:
    """Return the attempts of the messages that another consumer gets."""
    with job.consumer("billing") as other:
        return [message.attempt for message in other.pop("orders", 0)]


def test_a_release_makes_the_message_visible(job: HeldBackJob) -> None:
    with job.consumer("billing", renewal=BY_HAND) as consumer:
        released = renewed(job, consumer).release()
        job.deliver()
        assert released.result(60).applied
        assert available(job) == [2]


def test_a_failed_handler_gives_back_with_its_back_off_and_its_cause(job: HeldBackJob) -> None:
    with job.consumer("billing", renewal=BY_HAND, back_off=[5]) as consumer:
        message = renewed(job, consumer)
        with pytest.raises(ValueError, match="no milk"), message:
            raise ValueError("no milk")
        job.deliver()
        consumer.flush()
        last = job.records[-1]
        assert isinstance(last, ChangeInvisible)
        assert [(entry.invisible_time_ms, entry.cause) for entry in last.entries] == [(5_000, "ValueError: no milk")]
        job.advance(4_999)
        assert available(job) == []
        job.advance(1)
        assert available(job) == [2]


def test_an_extension_takes_precedence_over_the_renewal(job: HeldBackJob) -> None:
    with job.consumer("billing", renewal=BY_HAND) as consumer:
        message = renewed(job, consumer)
        extended = message.extend(3_600)
        job.deliver()
        assert extended.result(60).applied
        assert message.next_visible_time_ms == job.now_ms + 3_600_000


def test_the_renewal_does_not_take_precedence_over_an_extension(job: HeldBackJob) -> None:
    with job.consumer("billing", renewal=BY_HAND) as consumer:
        (message,) = consumer.pop("orders", 0, invisible_time_ms=LEASE_MS, renew=True).messages
        job.holds_back = True
        extended = message.extend(3_600)
        consumer._leases.renew_due()
        job.deliver()
        assert extended.result(60).applied
        consumer.flush()
        assert message.next_visible_time_ms == job.now_ms + 3_600_000


def test_closing_releases_the_message(job: HeldBackJob) -> None:
    consumer = job.consumer("billing", renewal=BY_HAND)
    renewed(job, consumer)
    closing = threading.Thread(target=consumer.close)
    closing.start()
    eventually(lambda: sum(isinstance(record, ChangeInvisible) for record in job.records) == 2)
    job.deliver()
    closing.join(60)
    assert available(job) == [2]


def test_a_release_is_sent_although_the_lease_that_is_known_has_ended(job: HeldBackJob) -> None:
    policy = RenewalPolicy(ahead_ms=10**9, check_ms=10**9, steps_ms=(LEASE_MS,))
    with job.consumer("billing", renewal=policy) as consumer:
        message = renewed(job, consumer, lease_ms=2_000)
        message.next_visible_time_ms = 0  # as if that time were over
        released = message.release()
        job.deliver()
        assert released.result(60).reason is Reason.OK
        assert available(job) == [2]


@pytest.mark.parametrize("ask", [lambda message: message.release(5), lambda message: message.extend(3_600)])
def test_a_renewal_that_begins_between_the_call_and_its_record_changes_nothing(
    job: HeldBackJob, monkeypatch: pytest.MonkeyPatch, ask: Callable[[Message], AwaitableFuture[Outcome]]
) -> None:
    with job.consumer("billing", renewal=BY_HAND) as consumer:
        (message,) = consumer.pop("orders", 0, invisible_time_ms=LEASE_MS, renew=True).messages
        entries = consumer._leases._entries
        let_go = entries.let_go

        def let_go_late(*arguments: Any) -> None:
            patch.undo()
            consumer._leases.renew_due()
            let_go(*arguments)

        job.holds_back = True
        with monkeypatch.context() as patch:
            patch.setattr(entries, "let_go", let_go_late)
            asked = ask(message)
        renewal, change = (record for record in job.records if isinstance(record, ChangeInvisible))
        assert renewal.handles == change.handles
        job.deliver()
        assert asked.result(60).applied
        consumer.flush()
        again = job.records[-1]
        assert isinstance(again, ChangeInvisible)
        assert again.entries == change.entries
        assert again.handles != change.handles


def settle_between(
    consumer: Consumer, monkeypatch: pytest.MonkeyPatch, settle: Callable[[Message], AwaitableFuture[Outcome] | None]
) -> Message:
    """Settle a message after a check has found that its lease is due, and before it is renewed, after another queue."""
    consumer.pop("orders", 0, invisible_time_ms=LEASE_MS, renew=True)
    (message,) = consumer.pop("orders", 1, invisible_time_ms=LEASE_MS, renew=True).messages
    submit = consumer._transport.submit
    settled = []

    def submit_slowly(command: Command, **options: Any) -> Future[Answer]:
        if isinstance(command, ChangeInvisible) and command.queue_id == 0:
            outcome = settle(message)
            settled.append(outcome is None or outcome.result(60).applied)
        return submit(command, **options)

    with monkeypatch.context() as patch:
        patch.setattr(consumer._transport, "submit", submit_slowly)
        consumer._leases.renew_due()
    consumer.flush()
    assert settled == [True]
    return message


@pytest.mark.parametrize("settle", [Message.ack, Message.reject, lambda message: message.release(5)])
def test_what_was_settled_since_the_check_is_neither_renewed_nor_held(
    job: HeldBackJob, monkeypatch: pytest.MonkeyPatch, settle: Callable[[Message], AwaitableFuture[Outcome]]
) -> None:
    job.write("orders", 1, [b"y"])
    with job.consumer("billing", renewal=BY_HAND) as consumer:
        message = settle_between(consumer, monkeypatch, settle)
        is_released = message.state is MessageState.RELEASED
        changes = [record for record in job.records if isinstance(record, ChangeInvisible) and record.queue_id == 1]
        assert len(changes) == is_released
        assert consumer.held_count == 1
        job.advance(5_000)
        with job.consumer("billing") as other:
            assert [again.attempt for again in other.pop("orders", 1)] == [2] * is_released


def test_what_waits_for_its_ack_to_be_sent_is_not_renewed(job: HeldBackJob, monkeypatch: pytest.MonkeyPatch) -> None:
    job.write("orders", 1, [b"y"])
    with job.consumer("billing", renewal=BY_HAND, ack_delay_ms=10**6) as consumer:
        settle_between(consumer, monkeypatch, lambda message: consumer._leases.settlement.finish([message]))
        changes = [record for record in job.records if isinstance(record, ChangeInvisible)]
        assert [change.queue_id for change in changes] == [0]
        assert consumer.held_count == 1


@pytest.mark.parametrize("seconds", [-1, 50_000])
def test_a_time_that_the_job_would_refuse_leaves_the_message_held(job: HeldBackJob, seconds: int) -> None:
    with job.consumer("billing") as consumer:
        (message,) = consumer.pop("orders", 0, renew=True).messages
        for ask in (message.release, message.extend):
            with pytest.raises(Invalid, match=r"0\.\.43200000 ms"):
                ask(seconds)
        assert consumer.held_count == 1
        assert not message.is_settled
