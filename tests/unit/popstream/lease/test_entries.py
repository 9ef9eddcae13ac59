"""Claim: every message gets the outcome the job gave it, in the caller's order. Method: random requests, told apart."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from popstream import AnswerTimeout, AnswerUnreadable, Outcome, Receipt, ReceiptHandle
from popstream.lease.entries import (
    REQUEST_MESSAGES_MAX,
    BatchFuture,
    MessageRequest,
    Plan,
    SingleFuture,
    outcomes,
    plan,
)
from popstream.wire.answer import Answer, Run
from popstream.wire.reason import Reason


def request(offset: int, handle: str = "h", label: str = "l", index: int = 0) -> MessageRequest[str]:
    receipt = Receipt(topic="t", queue_id=0, queue_offset=offset, handle=ReceiptHandle(handle))
    return MessageRequest(receipt, receipt.handle.text, label, BatchFuture(1), index)


def answer_with(runs: list[Run], reason: Reason = Reason.OK) -> Answer:
    return Answer(
        op_id="o", type="ack", code=0, reason=reason, applied=True, topic="t", queue_id=0, now_ms=1, runs=runs,
        handles=["new"],
    )  # fmt: skip


def runs_of(planned: Plan[str]) -> list[Run]:
    """A run for each range, whose code says which entry and offset it is for."""
    return [
        Run(entry=index, first=offset, last=offset, code=1000 * index + offset, reason=Reason.OK, applied=True)
        for index, entry in enumerate(planned.entries)
        for first, last in entry.ranges
        for offset in range(first, last + 1)
    ]


def test_neighbours_of_one_handle_become_one_range() -> None:
    (planned,) = plan([request(offset) for offset in (3, 1, 2, 7)])
    assert planned.handles == ["h"]
    assert [entry.ranges for entry in planned.entries] == [[(1, 3), (7, 7)]]


@given(st.lists(st.tuples(st.integers(0, 12), st.sampled_from("abc"), st.sampled_from("xy"))))
def test_plans_hold_every_request_once_and_each_message_once_a_record(wanted: list[tuple[int, str, str]]) -> None:
    requests = [request(offset, handle, label, index) for index, (offset, handle, label) in enumerate(wanted)]
    plans = plan(requests)
    assert [found for planned in plans for found in planned.requests] == requests
    for planned in plans:
        offsets = [offset for entry in planned.entries for a, b in entry.ranges for offset in range(a, b + 1)]
        assert len(offsets) == len(set(offsets)) == len(planned.requests)
        assert len(set(planned.handles)) == len(planned.handles)
        for asked, outcome in zip(planned.requests, outcomes(planned, answer_with(runs_of(planned))), strict=True):
            entry = planned.entries[outcome.code // 1000]
            assert (planned.handles[entry.handle], entry.label) == (asked.receipt.handle.text, asked.label)
            assert outcome.code % 1000 == asked.receipt.queue_offset


def test_a_record_has_no_more_messages_than_the_job_decides() -> None:
    plans = plan([request(offset, f"h{offset}") for offset in range(2 * REQUEST_MESSAGES_MAX + 1)])
    assert [len(planned.handles) for planned in plans] == [REQUEST_MESSAGES_MAX, REQUEST_MESSAGES_MAX, 1]


def test_runs_are_spread_over_their_messages_with_the_new_handle() -> None:
    (planned,) = plan([request(2), request(0), request(1)])
    runs = [
        Run(entry=0, first=0, last=1, code=0, reason=Reason.OK, applied=True, pop_time_ms=10, invisible_time_ms=5,
            handle=0),
        Run(entry=0, first=2, last=2, code=13, reason=Reason.STALE_HANDLE, applied=False),
    ]  # fmt: skip
    changed = Outcome(
        applied=True, reason=Reason.OK, code=0, pop_time_ms=10, invisible_time_ms=5, handle=ReceiptHandle("new")
    )
    refused = Outcome(applied=False, reason=Reason.STALE_HANDLE, code=13)
    assert outcomes(planned, answer_with(runs)) == [refused, changed, changed]


def test_a_refusal_of_the_whole_record_is_one_of_each_message() -> None:
    (planned,) = plan([request(0), request(1)])
    found = outcomes(planned, answer_with([], Reason.TOPIC_NOT_EXIST))
    assert [outcome.reason for outcome in found] == [Reason.TOPIC_NOT_EXIST] * 2


def test_an_answer_that_leaves_a_message_out_is_an_error() -> None:
    (planned,) = plan([request(0), request(5)])
    run = Run(entry=0, first=0, last=0, code=0, reason=Reason.OK, applied=True)
    with pytest.raises(AnswerUnreadable, match="offset 5"):
        outcomes(planned, answer_with([run]))


def test_a_call_spread_over_records_waits_for_all_of_them() -> None:
    batch_future = BatchFuture(3)
    ok = Outcome(applied=True, reason=Reason.OK, code=0)
    batch_future.settle([(2, ok), (0, ok)])
    assert not batch_future.future.done()
    batch_future.settle([(1, Outcome(applied=False, reason=Reason.ALREADY_ACKED, code=0))])
    assert [outcome.applied for outcome in batch_future.future.result(0)] == [True, False, True]


def test_what_is_known_comes_with_the_error_about_the_rest() -> None:
    batch_future = BatchFuture(2)
    ok = Outcome(applied=True, reason=Reason.OK, code=0)
    batch_future.settle([(1, ok)])
    batch_future.settle([(0, None)], AnswerTimeout("late", op_ids=["a"], in_log=True))
    with pytest.raises(AnswerTimeout) as raised:
        batch_future.future.result(0)
    assert raised.value.outcomes == (None, ok)
    assert raised.value.op_ids == ("a",)


def test_the_future_of_a_single_message_has_its_outcome_or_an_error_of_its_own() -> None:
    settled, *late = SingleFuture(), SingleFuture(), SingleFuture()
    ok = Outcome(applied=True, reason=Reason.OK, code=0)
    settled.settle([(0, ok)])
    assert settled.future.result(0) is ok
    error = AnswerTimeout("late", op_ids=["a"], in_log=True)
    raised = []
    for single in late:
        single.settle([(0, None)], error)
        with pytest.raises(AnswerTimeout) as found:
            single.future.result(0)
        raised.append(found.value)
    assert [(one.op_ids, one.outcomes) for one in raised] == [(("a",), (None,))] * 2
    assert raised[0] is not raised[1], "tracebacks of several threads are not mixed"
