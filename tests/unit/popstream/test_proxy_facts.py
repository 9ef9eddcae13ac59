"""Claim: the client does what RocketMQ's proxy is tested to do, but where a difference is named here.

Method: every fact of tests/data/rocketmq_proxy_facts.json, its figures read from there, against renewal, handles and
the kernel in memory.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from popstream import Consumer, Outcome, Receipt, ReceiptHandle, Refused
from popstream.awaitable import AwaitableFuture
from popstream.errors import AnswerTimeout
from popstream.lease.entries import Change, OutcomesFuture
from popstream.lease.held_messages import HeldMessages
from popstream.lease.renewal import LeaseRenewer, RenewalPolicy
from popstream.testing.memory_job import MemoryJob
from popstream.wire.command import ChangeInvisible
from popstream.wire.handle import decode_handle
from popstream.wire.reason import Reason

FACTS: dict[str, dict[str, Any]] = {
    fact["id"]: fact
    for fact in json.loads((Path(__file__).parents[2] / "data" / "rocketmq_proxy_facts.json").read_text())["vectors"]
}
POLICY = RenewalPolicy.rocketmq_ladder()
DIFFERENT = {
    "PRX-03": "the back-off after an attempt is the lane's: of a `policy`, or as its consumers declare it",
    "PRX-10": "after 3 h a message is left to expire; RocketMQ gives it one more lease",
    "PRX-15": "acks are always sent: an expired handle is good for an ack until the message is leased again",
}


class Script:
    """Stands for the sender of entries: answers renewals as told, and keeps what was asked."""

    def __init__(self, held: HeldMessages, *results: str) -> None:
        self.held = held
        self.results = deque(results)
        self.durations: list[int] = []

    def change(self, changes: Iterable[tuple[Receipt, Change]], *, is_renewal: bool) -> OutcomesFuture:
        assert is_renewal
        ((receipt, change),) = changes
        self.durations.append(change.invisible_time_ms)
        future: OutcomesFuture = AwaitableFuture()
        if (self.results.popleft() if self.results else "err") == "OK":
            holding = self.held.find(receipt)
            if holding is not None:
                # A handle that is due again at the next look.
                holding.until_s = holding.until_s + 1
            future.set_result([Outcome(True, Reason.OK, 0, 0, change.invisible_time_ms, 0, ReceiptHandle("new"))])
        else:
            error = AnswerTimeout("no answer", op_ids=(), in_log=False)
            error.outcomes = (None,)
            future.set_exception(error)
        return future


class Renewing:
    """One held message, and a renewer whose checks the test calls."""

    def __init__(self, *results: str, remaining_ms: int = 9_000, age_ms: int = 0) -> None:
        self.held = HeldMessages()
        self.now_s = 100_000.0
        self.receipt = Receipt(topic="orders", queue_id=0, queue_offset=7, handle=ReceiptHandle("old"))
        since_s = self.now_s - age_ms / 1000
        self.held.hold(
            [self.receipt], self.now_s + remaining_ms / 1000, since_s, first_lease_ms=60_000, is_renewed=True
        )
        self.script = Script(self.held, *results)
        self.renewer = LeaseRenewer("test", self.held, self.script, POLICY)  # type: ignore[arg-type]

    def look(self, times: int = 1) -> list[int]:
        for _ in range(times):
            self.renewer.check(self.now_s)
        return self.script.durations

    @property
    def is_renewed(self) -> bool:
        holding = self.held.find(self.receipt)
        return holding is not None and holding.is_renewed


def test_durations_of_renewals() -> None:
    fact = FACTS["PRX-01"]
    assert [POLICY.invisible_time_ms(count, first_lease_ms=60_000) for count in fact["ops"]] == fact["expect"]


def test_a_lease_is_renewed_when_little_of_it_is_left() -> None:
    fact = FACTS["PRX-04"]
    assert fact["given"]["renewAhead"] == POLICY.ahead_ms
    renewing = Renewing("OK", remaining_ms=fact["given"]["remaining_ms"])
    durations = renewing.look()
    assert (len(durations), durations[0]) == (fact["expect"]["changes"], fact["expect"]["duration"])


def test_each_renewal_is_longer_than_the_one_before() -> None:
    assert Renewing("OK", "OK").look(2) == FACTS["PRX-06"]["expect"]["durations"]


def test_refusals_in_a_row_end_it() -> None:
    renewing = Renewing()
    assert len(renewing.look(10)) == FACTS["PRX-07"]["expect"]["changes"]
    assert renewing.is_renewed is not FACTS["PRX-07"]["expect"]["group_empty"]


def test_a_success_forgives_the_refusals_before_it() -> None:
    fact = FACTS["PRX-09"]
    assert len(Renewing(*fact["given"]["results"]).look(20)) == fact["expect"]["changes"]


def test_after_hours_a_message_is_left_to_expire(caplog: pytest.LogCaptureFixture) -> None:
    """Differs: see DIFFERENT."""
    fact = FACTS["PRX-10"]
    assert fact["given"]["age_ms"] == POLICY.total_ms
    renewing = Renewing("OK", age_ms=fact["given"]["age_ms"])
    assert renewing.look(3) == []
    assert renewing.is_renewed is not fact["expect"]["group_empty"]
    assert "left to expire" in caplog.text


def test_a_lease_with_much_left_is_not_renewed() -> None:
    fact = FACTS["PRX-12"]
    assert len(Renewing("OK", remaining_ms=fact["given"]["remaining_ms"]).look()) == fact["expect"]["changes"]


def test_a_message_that_was_let_go_is_not_renewed() -> None:
    renewing = Renewing("OK")
    renewing.held.release([renewing.receipt])
    assert len(renewing.look()) == FACTS["PRX-13"]["expect"]["changes"]


@pytest.fixture
def job() -> MemoryJob:
    made = MemoryJob()
    for queue_id in range(3):
        made.write("orders", queue_id, [b"x"] * 4)
    return made


@pytest.fixture
def consumer(job: MemoryJob) -> Iterator[Consumer]:
    with job.consumer("billing", client_id="c1") as made:
        yield made


def learn_time(consumer: Consumer) -> None:
    """Any answer tells the broker's time."""
    consumer.cancel("orders", 0, "no-such-pop")


def sent_changes(job: MemoryJob) -> int:
    return sum(isinstance(record, ChangeInvisible) for record in job.records)


def test_expired_changes_are_answered_here_and_acks_always_sent(job: MemoryJob, consumer: Consumer) -> None:
    """Differs for acks: see DIFFERENT."""
    fact = FACTS["PRX-15"]
    messages = consumer.pop("orders", 0, fact["given"]["entries"], invisible_time_ms=1_000).messages
    job.advance(1_001)
    learn_time(consumer)
    outcomes = consumer.change_invisible(messages, 5_000)
    assert sent_changes(job) == fact["expect"]["service_calls"]
    assert [outcome.reason for outcome in outcomes] == [Reason.EXPIRED_LOCALLY] * fact["expect"]["results"]
    assert not any(outcome.applied for outcome in outcomes)
    assert [outcome.applied for outcome in consumer.ack(messages)] == [True] * len(messages)


def test_one_bad_entry_fails_no_other(job: MemoryJob, consumer: Consumer) -> None:
    fact = FACTS["PRX-16"]
    count = fact["given"]["entries"]
    expired = consumer.pop("orders", 2, count["expired"], invisible_time_ms=1_000).messages
    good = consumer.pop("orders", 0, count["broker1"]).messages
    refused = consumer.pop("orders", 1, count["broker2"]).messages
    consumer.ack([message.receipt for message in refused])
    job.advance(1_001)
    learn_time(consumer)
    shuffled = [refused[0], good[0], *expired, good[1], refused[1], good[2], refused[2]]
    outcomes = consumer.change_invisible(shuffled, 5_000)
    expected = {id(message): Reason.EXPIRED_LOCALLY for message in expired}
    expected |= {id(message): Reason.OK for message in good}
    expected |= {id(message): Reason.ALREADY_ACKED for message in refused}
    assert [outcome.reason for outcome in outcomes] == [expected[id(message)] for message in shuffled]
    assert len(outcomes) + count["errBroker"] == fact["expect"]["results"]


def test_an_unanswered_queue_leaves_the_outcomes_of_the_others_known(job: MemoryJob) -> None:
    """The error of one broker in PRX-16: here a queue whose answer does not come."""
    with job.consumer("billing", answer_timeout_ms=200) as consumer:
        good, silent = (consumer.pop("orders", queue_id, 2).messages for queue_id in (0, 1))
        job.silent.add(("orders", 1))
        with pytest.raises(AnswerTimeout) as raised:
            consumer.change_invisible([silent[0], *good, silent[1]], 5_000)
        assert [outcome and outcome.reason for outcome in raised.value.outcomes] == [None, Reason.OK, Reason.OK, None]
        job.silent.clear()


def test_text_that_is_no_handle() -> None:
    (op,) = FACTS["PRX-18"]["ops"]
    assert decode_handle(op["decode"]) is None


def test_a_change_with_what_is_no_handle_is_refused_by_itself(consumer: Consumer) -> None:
    (good,) = consumer.pop("orders", 0, 1).messages
    bad = Receipt(topic="orders", queue_id=0, queue_offset=1, handle=ReceiptHandle("invalid_data"))
    outcomes = consumer.change_invisible([bad, good], 5_000)
    assert [outcome.reason for outcome in outcomes] == [Reason.UNKNOWN_HANDLE, Reason.OK]


def test_another_delivery_takes_the_place_of_the_one_held() -> None:
    held = HeldMessages()
    for until_s in (1.0, 2.0):
        receipt = Receipt(topic="orders", queue_id=0, queue_offset=7, handle=ReceiptHandle(f"{until_s}"))
        held.hold([receipt], until_s, 0.0, first_lease_ms=1_000)
    assert len(held) == len(held.holdings()) == FACTS["PRX-19"]["expect"]["handles_for_msg"]


def test_letting_go_wins_over_a_renewal_in_flight(job: MemoryJob) -> None:
    assert [expected["empty"] for expected in FACTS["PRX-21"]["expect"]] == [True, True]
    with job.consumer("billing", resend_after_ms=50) as consumer:
        (message,) = consumer.pop("orders", 0, 1).messages
        job.silent.add(("orders", 0))
        changed = message.extend(30)
        acked = message.ack()
        assert consumer.held_count == 0
        job.silent.clear()
        assert (changed.result(60).applied, acked.result(60).applied, consumer.held_count) == (True, True, 0)


def test_letting_go_wins_over_a_renewal_that_fails(job: MemoryJob) -> None:
    with job.consumer("billing", answer_timeout_ms=100) as consumer:
        (message,) = consumer.pop("orders", 0, 1).messages
        job.silent.add(("orders", 0))
        changed = message.extend(30)
        message.ack()
        assert isinstance(changed.exception(60), AnswerTimeout)
        assert consumer.held_count == 0
        job.silent.clear()


def test_invisible_times_out_of_range(consumer: Consumer) -> None:
    """RocketMQ's lower bound of a receive with a time of one's own is 10 s; ours is 1 ms."""
    for op, expected in zip(FACTS["PRX-22"]["ops"], FACTS["PRX-22"]["expect"], strict=True):
        assert expected == "ILLEGAL_INVISIBLE_TIME"
        duration_ms = op.get("duration_s", 0) * 1000 + op.get("duration_days", 0) * 86_400_000
        with pytest.raises(Refused) as raised:
            consumer.pop("orders", 0, invisible_time_ms=duration_ms)
        assert raised.value.reason is Reason.INVALID_PARAMETER


def test_every_fact_is_tested_or_named_as_a_difference() -> None:
    source = Path(__file__).read_text()
    tested = {fact for fact in FACTS if f'FACTS["{fact}"]' in source}
    assert tested | DIFFERENT.keys() == FACTS.keys()
