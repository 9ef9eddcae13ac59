"""Claim: a message of a process that was killed waits no longer than the lease that its pop asked for.

Method: the kernel itself, in memory; and the renewer with a clock of the test.
"""

from __future__ import annotations

import pytest

from popstream import Message, Receipt, ReceiptHandle, RenewalPolicy
from popstream.lease.entries import BatchFuture, Change
from popstream.lease.held_messages import HeldMessages
from popstream.lease.renewal import LeaseRenewer
from popstream.testing.memory_job import MemoryJob
from popstream.wire.base_errors import Invalid
from popstream.wire.command import ChangeInvisible
from tests.support.threads import eventually

ALWAYS_DUE = RenewalPolicy(ahead_ms=10**9, check_ms=10)


@pytest.fixture
def job() -> MemoryJob:
    made = MemoryJob()
    made.write("orders", 0, [b"x"] * 4)
    return made


def renewals_ms(job: MemoryJob) -> list[int]:
    return [
        entry.invisible_time_ms
        for change in job.records
        if isinstance(change, ChangeInvisible)
        for entry in change.entries
    ]


@pytest.mark.parametrize("lease_ms", [7_000, 600_000])
def test_a_renewal_is_as_long_as_the_pop_asked_for(job: MemoryJob, lease_ms: int) -> None:
    with job.consumer("billing", renewal=ALWAYS_DUE) as consumer:
        consumer.pop("orders", 0, invisible_time_ms=lease_ms, renew=True)
        eventually(lambda: len(renewals_ms(job)) >= 3)
        assert set(renewals_ms(job)) == {lease_ms}


def test_it_is_no_longer_after_an_extension_of_ones_own(job: MemoryJob) -> None:
    policy = RenewalPolicy(ahead_ms=10**9, check_ms=10**9)
    with job.consumer("billing", renewal=policy) as consumer:
        (message,) = consumer.pop("orders", 0, 1, invisible_time_ms=600_000, renew=True).messages
        assert message.extend(3_600).result(60).applied
        consumer._leases.renew_due()
        consumer.flush()
        assert renewals_ms(job) == [3_600_000, 600_000]


def test_after_a_kill_the_messages_come_again_when_their_invisible_time_is_over(job: MemoryJob) -> None:
    killed = job.consumer("billing", topics=["orders"], invisible_time_ms=9_000, renewal=ALWAYS_DUE)
    first: Message = next(iter(killed))
    before = first.handle
    eventually(lambda: first.handle != before)
    killed.stop()
    eventually(lambda: killed.held_count == 1)
    killed.flush()  # what it has not handed out is given back before the others pop
    killed.close(release=False)
    with job.consumer("billing") as other:
        other.ack(other.pop("orders", 0).messages)
        job.advance(8_999)
        assert len(other.pop("orders", 0)) == 0
        job.advance(1)
        assert [(message.queue_offset, message.attempt) for message in other.pop("orders", 0)] == [(0, 2)]


class Sender:
    """Stands for the sender of entries; keeps what was asked."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def change(self, changes: list[tuple[Receipt, Change]], *, is_renewal: bool) -> object:
        assert is_renewal
        self.asked += [change.invisible_time_ms for _, change in changes]
        return BatchFuture(1).future


@pytest.mark.parametrize(
    ("lease_ms", "due_with_ms"), [(3_000, 1_500), (10_000, 5_000), (20_000, 10_000), (600_000, 10_000)]
)
def test_a_lease_is_renewed_ten_seconds_or_half_of_it_ahead(lease_ms: int, due_with_ms: int) -> None:
    held, sender = HeldMessages(), Sender()
    renewer = LeaseRenewer("test", held, sender, RenewalPolicy(check_ms=10**9))  # type: ignore[arg-type]
    receipt = Receipt(topic="orders", queue_id=0, queue_offset=7, handle=ReceiptHandle("1"))
    held.hold([receipt], lease_ms / 1000, 0.0, first_lease_ms=lease_ms, is_renewed=True)
    due_s = (lease_ms - due_with_ms) / 1000
    assert renewer.check(0.0) == due_s
    assert sender.asked == []
    renewer.check(due_s)
    assert sender.asked == [lease_ms]


def test_values_below_one_are_refused() -> None:
    for values in ({"steps_ms": (0,)}, {"ahead_ms": 0}, {"check_ms": 0}, {"refused_max": 0}, {"total_ms": 0}):
        with pytest.raises(Invalid, match="at least 1"):
            RenewalPolicy(**values)
