"""Claim: a load accounts for every message, however its workers ack, and for no message that is not its own."""

from __future__ import annotations

import ctypes
import multiprocessing
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from pipelines.cli.clients.perf import load_processes, run_perf
from pipelines.cli.clients.perf.ack_form import AckForm
from pipelines.cli.clients.perf.ledger import GroupLedger, LoadDelivery, ProcessCounts, quantiles_of, seconds_between
from pipelines.cli.clients.perf.load_message import VALUE_BYTES_MIN, made_value, read_value
from pipelines.cli.clients.perf.load_processes import Worker, send_load
from pipelines.cli.clients.perf.plan import Plan
from pipelines.cli.clients.perf.progress import Progress, progress_line
from pipelines.cli.clients.perf.run_perf import new_plan
from pipelines.cli.target import Target
from popstream import AnswerTimeout, Outcome
from popstream.kafka_connection import KafkaConnection
from popstream.testing import MemoryJob
from popstream.wire.reason import Reason
from tests.support.wire import wait_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from popstream import Consumer, Message

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


def at(number: int, *, granted_ms: int = 1, queue_offset: int = 0) -> LoadDelivery:
    return LoadDelivery(number, queue_offset, granted_ms)


def timed_out(outcomes: Sequence[Outcome | None]) -> Future[list[Outcome]]:
    error = AnswerTimeout("no answer", op_ids=["ack"], in_log=True)
    error.outcomes = tuple(outcomes)
    future: Future[list[Outcome]] = Future()
    future.set_exception(error)
    return future


def consumed_load(plan: Plan) -> Any:
    """Return a load whose messages were sent and delivered, and all but the last one acked, within a second."""
    load = run_perf._Load(plan)
    (((own,),), (ledger,)) = load._workers.values(), load._ledgers.values()
    load._sent.messages = own.messages = plan.messages
    own.first_ns, own.last_ns = 1_000_000_000, 2_000_000_000
    for number in range(plan.messages):
        ledger.note_delivery(at(number), 1.0)
        if number < plan.messages - 1:
            ledger.note_ack(at(number), 1.0)
    return load


def open_consumer(job: MemoryJob, plan: Plan) -> Consumer:
    return job.consumer(plan.groups[0], topics=[plan.topic], prefetch=plan.prefetch)


@pytest.mark.parametrize("ack", list(AckForm))
def test_every_message_is_delivered_and_acked(ack: AckForm) -> None:
    plan, job = plan_of(ack=ack), MemoryJob()
    for queue_id in range(plan.queues):
        numbers = range(queue_id, plan.messages, plan.queues)
        job.write(
            plan.topic,
            queue_id,
            [b"of somebody else", *(made_value(plan, number, time.time_ns()) for number in numbers)],
        )
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
        "outcome_unknown": 0,
        "redelivered": 0,
        "refused": 0,
        "others": 2,
    }
    assert own.messages == 52
    assert len(ledger.delivery_times_ms()) == len(ledger.ack_times_ms()) == 50
    assert all(ledger._acked_granted_ms), "the job said when it leased each of them"
    assert ledger.delivered_after_ack() == []
    assert 0 <= seconds_between([own, counts()]) < 60
    with open_consumer(job, plan) as consumer:
        assert not consumer.pop(plan.topic, None, 100).messages


@pytest.mark.parametrize("ack", list(AckForm))
def test_acks_that_time_out_are_entered_as_far_as_they_are_known_and_their_worker_goes_on(
    ack: AckForm, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, job = plan_of(ack=ack), MemoryJob()
    for queue_id in range(plan.queues):
        job.write(
            plan.topic, queue_id, [made_value(plan, each, time.time_ns()) for each in range(queue_id, plan.messages, 2)]
        )
    ledger, own = GroupLedger(CONTEXT, plan.messages), counts()
    stopping = CONTEXT.RawValue(ctypes.c_bool, False)
    with open_consumer(job, plan) as consumer:
        real_ack, real_pop, popped = consumer.ack_async, consumer.pop, threading.Event()

        def ack_without_answers_of_queue_1(messages: Sequence[Message]) -> Future[list[Outcome]]:
            outcomes = real_ack(messages).result()
            return timed_out([None if each.queue_id else known for each, known in zip(messages, outcomes, strict=True)])

        def pop_after_a_time_out(*arguments: Any) -> Any:
            if not popped.is_set():
                popped.set()
                timed_out([]).result()
            return real_pop(*arguments)

        monkeypatch.setattr(consumer, "ack_async", ack_without_answers_of_queue_1)
        monkeypatch.setattr(consumer, "pop", pop_after_a_time_out)
        worker = Worker(plan, consumer, ledger, own)
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(worker.consume, stopping)
            try:
                wait_for(lambda: running.done() or ledger.result([own]).is_accounted_for)
            finally:
                stopping.value = True
                consumer.stop()
                while not running.done():
                    job.advance(1_000)  # a pop that waits
                    wait([running], 0.02)
            running.result()
    result = ledger.result([own])
    assert (result.delivered, result.acked, result.unacked, result.outcome_unknown) == (50, 25, 0, 25)
    assert (result.is_accounted_for, result.is_complete) == (True, False)
    assert (len(ledger.ack_times_ms()), own.last_ns) == (0, 0), "nobody knows when their outcomes came"


def test_an_error_other_than_a_time_out_is_logged_and_leaves_the_outcomes_unknown(
    caplog: pytest.LogCaptureFixture,
) -> None:
    plan, job = plan_of(), MemoryJob()
    ledger, own, failed = GroupLedger(CONTEXT, 50), counts(), Future[list[Outcome]]()
    failed.set_exception(OSError("no disk"))
    with open_consumer(job, plan) as consumer:
        ledger.note_delivery(at(7), 1.0)
        Worker(plan, consumer, ledger, own)._acked([at(7), None], 1, failed)
    assert ledger.result([own]).outcome_unknown == 1
    assert [record.getMessage() for record in caplog.records] == ["acks have no outcome: OSError: no disk"]


def test_a_message_that_comes_again_was_not_acked_before() -> None:
    ledger, own = GroupLedger(CONTEXT, 1), counts()
    ledger.note_delivery(at(0), 1.0)
    ledger.note_unknown(0)
    assert ledger.result([own]).outcome_unknown == 1
    ledger.note_delivery(at(0), 1.0)
    result = ledger.result([own])
    assert (result.unacked, result.outcome_unknown, result.is_accounted_for) == (1, 0, False)
    ledger.note_ack(at(0), 2.0)
    ledger.note_unknown(0)  # the first one's, late
    assert ledger.result([own]).is_complete


def test_a_load_waits_until_messages_with_an_unknown_outcome_would_have_come_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run_perf, "LOOK_S", 0)
    load = consumed_load(plan_of(stall_s=5.0, invisible_time_ms=60_000))
    (ledger,) = load._ledgers.values()
    assert load._patience_s() == 5, "an ack is on its way"
    ledger.note_unknown(49)
    assert load._patience_s() == 65
    monkeypatch.setattr(load, "_patience_s", lambda: -1.0)
    load._wait(load._is_complete, "consumed", load._taken)
    report = load.report()
    assert (load.failures, report.complete, report.consumed_per_s) == ([], True, 49.0)
    run_perf._print(load._plan, report, as_json=True)
    run_perf._print(load._plan, report, as_json=False)
    shown = capsys.readouterr()
    assert '"outcome_unknown":1' in shown.out
    assert "0 missing, 0 not acked, 1 with an unknown outcome of the ack" in shown.out
    assert "every message is accounted for" in shown.err


def test_a_load_with_messages_that_are_not_acked_fails_when_nothing_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_perf, "LOOK_S", 0)
    load = consumed_load(plan_of(stall_s=0.0))
    load._wait(load._is_complete, "consumed", load._taken)
    assert (load.failures, load.report().complete) == (["nothing was consumed for 0 s"], False)


def test_progress_while_messages_are_sent_tells_what_is_consumed_and_how_soon(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run_perf, "PROGRESS_S", 0)
    load = run_perf._Load(plan_of(rate=10.0))
    load._shown = Progress(time.monotonic(), 0, 0)
    load._sent.messages = 7
    (((own,),), (ledger,)) = load._workers.values(), load._ledgers.values()
    own.messages = 2
    for number, since_due_ms in ((0, 12.0), (1, 30.0)):
        ledger.note_delivery(at(number), since_due_ms)
    looks = iter([False, True])
    load._wait(lambda: next(looks), "sent", lambda: load._sent.messages)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("popstream: 7 sent, ")
    assert "; 2 consumed, " in line
    assert line.endswith("; from due to delivered p50 12 ms, p99 30 ms")


def test_a_line_of_progress_has_rates_and_the_times_of_the_newest_messages_of_each_group() -> None:
    plan = plan_of(rate=10.0, messages=3_000)
    ledgers = [GroupLedger(CONTEXT, plan.messages) for _ in range(2)]
    before, now = Progress(10.0, 1_000, 2_000), Progress(12.0, 2_500, 4_000)
    line = "2,500 sent, 750 a second; 4,000 consumed, 1,000 a second"
    assert progress_line(plan, before, now, ledgers) == line
    for number in range(2_500):
        ledgers[0].note_delivery(at(number), 9_000.0 if number < 1_500 else 40.0)
    ledgers[1].note_delivery(at(0), 80.0)
    assert progress_line(plan, before, now, ledgers) == f"{line}; from due to delivered p50 40 ms, p99 40 ms"
    assert progress_line(plan_of(), before, now, ledgers) == line, "all are sent first: the times tell nothing"


def test_what_is_missing_refused_and_redelivered_is_counted() -> None:
    ledger, own = GroupLedger(CONTEXT, 4), counts()
    own.refused = 1
    for number in (0, 1, 1, 1, 2):
        ledger.note_delivery(at(number), 5.0 + number)
    ledger.note_ack(at(1), 3.0)
    result = ledger.result([own])
    assert (result.delivered, result.missing, result.unacked, result.redelivered) == (3, 1, 2, 2)
    assert (result.refused, result.is_complete) == (1, False)
    assert list(ledger.delivery_times_ms()) == [5.0, 6.0, 7.0]
    for _ in range(300):
        ledger.note_delivery(at(3), 1.0)
    assert ledger.result([own]).redelivered == 2 + 254


@pytest.mark.parametrize("ack_comes", ["before", "after"])
def test_a_message_delivered_after_its_applied_ack_fails_the_load_and_is_named(
    ack_comes: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whichever worker notes it first: it was granted later than the delivery whose ack was applied."""
    load = consumed_load(plan_of())
    (ledger,) = load._ledgers.values()
    ledger.note_ack(at(49), 1.0)
    assert load.report().complete
    again = at(7, granted_ms=2)
    ledger.note_delivery(again, 1.0)
    if ack_comes == "after":  # the second one was acked, too, and that was answered first
        ledger.note_ack(again, 1.0)
        ledger.note_ack(at(7), 1.0)
    report, (group,) = load.report(), load._plan.groups
    assert (report.complete, report.delivered_after_ack, report.groups[group].redelivered) == (False, {group: 1}, 1)
    run_perf._print(load._plan, report, as_json=False)
    said = capsys.readouterr().err
    name = f"{load._plan.topic}/1/0"
    assert f"delivered to {group} after an ack had been applied: 1 ({name}); `popstream why {name}` tells" in said
    assert "the load is not complete" in said


def test_a_redelivery_that_an_ack_need_not_have_prevented_is_only_counted() -> None:
    load = consumed_load(plan_of())
    (ledger,) = load._ledgers.values()
    ledger.note_delivery(at(49, granted_ms=3), 1.0)  # its lease had ended
    ledger.note_ack(at(49, granted_ms=3), 1.0)
    ledger.note_delivery(at(49, granted_ms=1), 1.0)  # the first one, noted late
    ledger.note_delivery(at(5, granted_ms=2, queue_offset=9), 1.0)  # another record of the message
    ledger.note_delivery(at(6, granted_ms=1), 1.0)  # the same moment: nobody knows
    report = load.report()
    assert report.complete
    assert [each.redelivered for each in report.groups.values()] == [4]
    assert list(report.delivered_after_ack.values()) == [0]


def test_messages_that_share_a_record_are_not_judged_by_their_acks() -> None:
    ledger = GroupLedger(CONTEXT, 1)
    ledger.note_delivery(at(0, granted_ms=0), 1.0)
    ledger.note_ack(at(0, granted_ms=0), 1.0)
    ledger.note_delivery(at(0, granted_ms=0), 1.0)
    assert ledger.delivered_after_ack() == []


@pytest.mark.parametrize(
    ("rate", "since_s"), [(10.0, [100.0, 100.1, 100.2, 100.3]), (0.0, [100.0, 100.5, 101.0, 101.5])]
)
def test_a_message_is_waited_for_from_when_it_was_due(
    rate: float, since_s: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sender takes half a second for each: those behind it are late, and their times have to show it."""
    now_s = 100.0
    values: list[bytes] = []

    class SlowProducer:
        def send(self, _topic: str, value: bytes, queue_id: int) -> Future[None]:
            nonlocal now_s
            now_s += 0.5
            assert queue_id == len(values) % 2
            values.append(value)
            done: Future[None] = Future()
            done.set_result(None)
            return done

    clock = SimpleNamespace(perf_counter=lambda: now_s, time_ns=lambda: round(now_s * 1e9), sleep=lambda _: None)
    monkeypatch.setattr(load_processes, "time", clock)
    monkeypatch.setattr(load_processes, "_child", lambda _: nullcontext())
    monkeypatch.setattr(load_processes, "Producer", lambda **_: nullcontext(SlowProducer()))
    sent = counts()
    send_load(plan_of(rate=rate, messages=4), sent, CONTEXT.RawValue(ctypes.c_bool, False), None)
    assert sent.messages == 4
    assert [int.from_bytes(value[16:24], "big") / 1e9 for value in values] == since_s


def test_values_of_other_loads_are_told_apart() -> None:
    plan = plan_of()
    value = made_value(plan, 7, time.time_ns())
    assert len(value) == 60
    number, since_ms = read_value(plan, value) or (None, -1.0)
    assert number == 7
    assert since_ms >= 0
    assert read_value(plan_of(), value) is None, "each load has an id of its own"
    assert read_value(plan, made_value(plan, 50, time.time_ns())) is None
    assert read_value(plan, b"short") is read_value(plan, None) is None
    assert len(made_value(plan_of(message_bytes=VALUE_BYTES_MIN), 1, time.time_ns())) == VALUE_BYTES_MIN


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
