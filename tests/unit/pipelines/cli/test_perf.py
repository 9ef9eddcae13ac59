"""Claim: a load accounts for every message, however its workers ack, and for no message that is not its own."""

from __future__ import annotations

import ctypes
import multiprocessing
import threading
from concurrent.futures import Future
from contextlib import nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from pipelines.cli.clients.perf import run_perf
from pipelines.cli.clients.perf.ack_form import AckForm
from pipelines.cli.clients.perf.ledger import GroupLedger, ProcessCounts, quantiles_of, seconds_between
from pipelines.cli.clients.perf.load_message import VALUE_BYTES_MIN, made_value, read_value
from pipelines.cli.clients.perf.load_processes import Worker
from pipelines.cli.clients.perf.plan import Plan
from pipelines.cli.clients.perf.run_perf import new_plan
from pipelines.cli.target import Target
from popstream.kafka_connection import KafkaConnection
from popstream.testing import MemoryJob
from popstream.wire.reason import Reason
from tests.support.wire import wait_for

if TYPE_CHECKING:
    from popstream import Consumer

CONTEXT = multiprocessing.get_context("spawn")
OPTIONS: dict[str, Any] = {
    "queues": 2,
    "messages": 50,
    "message_bytes": 60,
    "rate": 0.0,
    "workers": 1,
    "threads": 2,
    "ack": AckForm.MESSAGE,
    "pop_size": 8,
    "prefetch": 20,
    "invisible_time_ms": 60_000,
    "stall_s": 5.0,
}


def plan_of(**options: Any) -> Plan:
    return new_plan(
        Target(KafkaConnection("localhost:1"), "popstream"), topic="load", groups=1, **{**OPTIONS, **options}
    )


def counts() -> ProcessCounts:
    made: ProcessCounts = CONTEXT.RawValue(ProcessCounts)
    return made


def open_consumer(job: MemoryJob, plan: Plan) -> Consumer:
    return job.consumer(plan.groups[0], topics=[plan.topic], prefetch=plan.prefetch)


@pytest.mark.parametrize("ack", list(AckForm))
def test_every_message_is_delivered_and_acked(ack: AckForm) -> None:
    plan, job = plan_of(ack=ack), MemoryJob()
    for queue_id in range(plan.queues):
        numbers = range(queue_id, plan.messages, plan.queues)
        job.write(plan.topic, queue_id, [b"of somebody else", *(made_value(plan, number) for number in numbers)])
    ledger, own = GroupLedger(CONTEXT, plan.messages), counts()
    stopping = CONTEXT.RawValue(ctypes.c_bool, False)
    with open_consumer(job, plan) as consumer:
        thread = threading.Thread(target=Worker(plan, consumer, ledger, own).consume, args=(stopping,))
        thread.start()
        try:
            wait_for(lambda: ledger.result([own]).is_complete)
        finally:
            stopping.value = True
            consumer.stop()
            while thread.is_alive():
                job.advance(1_000)  # a pop that waits
                thread.join(0.02)
    result = ledger.result([own])
    assert msgspec.to_builtins(result) == {
        "delivered": 50,
        "missing": 0,
        "unacked": 0,
        "redelivered": 0,
        "refused": 0,
        "others": 2,
    }
    assert own.messages == 52
    assert len(ledger.delivery_times_ms()) == len(ledger.ack_times_ms()) == 50
    assert 0 <= seconds_between([own, counts()]) < 60
    with open_consumer(job, plan) as consumer:
        assert not consumer.pop(plan.topic, None, 100).messages


def test_what_is_missing_refused_and_redelivered_is_counted() -> None:
    ledger, own = GroupLedger(CONTEXT, 4), counts()
    own.refused = 1
    for number in (0, 1, 1, 1, 2):
        ledger.note_delivery(number, 5.0 + number)
    ledger.note_ack(1, 3.0)
    result = ledger.result([own])
    assert (result.delivered, result.missing, result.unacked, result.redelivered) == (3, 1, 2, 2)
    assert (result.refused, result.is_complete) == (1, False)
    assert list(ledger.delivery_times_ms()) == [5.0, 6.0, 7.0]
    for _ in range(300):
        ledger.note_delivery(3, 1.0)
    assert ledger.result([own]).redelivered == 2 + 254


def test_values_of_other_loads_are_told_apart() -> None:
    plan = plan_of()
    value = made_value(plan, 7)
    assert len(value) == 60
    number, since_ms = read_value(plan, value) or (None, -1.0)
    assert number == 7
    assert since_ms >= 0
    assert read_value(plan_of(), value) is None, "each load has an id of its own"
    assert read_value(plan, made_value(plan, 50)) is None
    assert read_value(plan, b"short") is read_value(plan, None) is None
    assert len(made_value(plan_of(message_bytes=VALUE_BYTES_MIN), 1)) == VALUE_BYTES_MIN


def test_quantiles() -> None:
    assert quantiles_of([float(value) for value in range(1, 1001)]) == {
        "p50": 500.0,
        "p95": 950.0,
        "p99": 990.0,
        "p999": 999.0,
        "max": 1000.0,
    }
    assert quantiles_of([]) is None
    assert seconds_between([counts()]) == 0


@pytest.mark.parametrize(("reason", "said"), [(Reason.OK, ""), (Reason.NO_PERMISSION, "NO_PERMISSION")])
def test_lanes_that_the_job_does_not_forget_are_said(
    reason: Reason, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = SimpleNamespace(reason=reason)
    done: Future[Any] = Future()
    done.set_result(answer)
    transport = SimpleNamespace(submit=lambda _: done)
    monkeypatch.setattr(run_perf, "Transport", lambda _: nullcontext(transport))
    run_perf._clean_up(plan_of(), delete_topic=False)
    shown = capsys.readouterr().err
    assert (said in shown, bool(shown)) == (True, bool(said))
