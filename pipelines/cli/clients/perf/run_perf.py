"""`popstream perf`: run a load, show its progress, and account for every message."""

import ctypes
import multiprocessing
import queue
import secrets
import time
from collections.abc import Callable, Sequence
from multiprocessing.context import SpawnContext
from multiprocessing.process import BaseProcess
from typing import Any

import msgspec
import typer

from connectors.kafka.topic_admin import create_message_topic, describe, open_admin
from pipelines.cli.clients.perf.ledger import GroupLedger, GroupResult, ProcessCounts, quantiles_of, seconds_between
from pipelines.cli.clients.perf.load_processes import LOOK_S, consume_load, send_load
from pipelines.cli.clients.perf.plan import Plan
from pipelines.cli.clients.perf.progress import Progress, progress_line
from pipelines.cli.exits import Exit, say
from pipelines.cli.printing import print_facts, standard_output
from pipelines.cli.target import Target
from popstream import Transport
from popstream.wire.base_errors import PopstreamError
from popstream.wire.command import ForgetLane
from popstream.wire.reason import Reason

__all__ = ["LoadReport", "new_plan", "run_perf"]

PROGRESS_S = 2.0
NAMED_MAX = 3
"""Messages that a line about several of them names."""
JOIN_S = 30.0


class LoadReport(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a load.

    Attributes:
        complete: Whether every message was sent, and delivered and acked in every group. An ack without a known outcome
            is good for that if the message has not come again. False also if a message was delivered after an ack of it
            had been applied.
        messages: Messages to send.
        sent: Messages that were sent.
        send_s: Seconds from the first message to the moment at which the last one could be popped.
        sent_per_s: Messages sent a second.
        consume_s: Seconds from the first delivery to the last ack, of all groups.
        consumed_per_s: Messages acked a second, of all groups together; without acks of unknown outcome.
        delivery_ms: Quantiles of the milliseconds from when a message was due to be sent to its first delivery; None
            when all were sent first.
        ack_ms: Quantiles of the milliseconds from ack to outcome.
        groups: By name, what became of the messages.
        delivered_after_ack: By group, how many messages were delivered after an ack of them had been applied, while the
            load ran. Those of records with several messages are not looked at.
        failures: Errors of the processes of the load, and the groups with such messages.
    """

    complete: bool
    messages: int
    sent: int
    send_s: float
    sent_per_s: float
    consume_s: float
    consumed_per_s: float
    delivery_ms: dict[str, float] | None
    ack_ms: dict[str, float] | None
    groups: dict[str, GroupResult]
    delivered_after_ack: dict[str, int]
    failures: list[str]


def new_plan(target: Target, *, topic: str | None, groups: int, **options: Any) -> Plan:  # noqa: ANN401 - those of Plan
    """Return a plan whose topic and groups have names of their own."""
    load_id = secrets.token_hex(4)
    return Plan(
        target=target,
        load_id=load_id.encode(),
        topic=topic or f"popstream-perf-{load_id}",
        groups=tuple(f"perf-{load_id}-{number}" for number in range(groups)),
        **options,
    )


def run_perf(plan: Plan, *, keep: bool, as_json: bool) -> None:
    """Run a load, print its report, and exit with 1 if a message is not accounted for.

    Args:
        plan: The load.
        keep: Leave topic and lanes as they are at the end.
        as_json: Print the report as one line of JSON.

    Raises:
        KeyboardInterrupt: It was interrupted; the report of what was done until then is printed.
        Invalid: Kafka refuses the topic.
        Unavailable: Kafka does not answer.
    """
    existing = describe(plan.target.connection, [plan.topic]).get(plan.topic)
    if existing is None:
        create_message_topic(plan.target.connection, plan.topic, plan.queues)
    else:
        plan = msgspec.structs.replace(plan, queues=existing.partition_count)
    load = _Load(plan)
    interrupted = None
    try:
        load.run()
    except KeyboardInterrupt as error:
        interrupted = error
        load.failures.append("it was interrupted")
    finally:
        load.stop()
        if not keep:
            _clean_up(plan, delete_topic=existing is None)
    report = load.report()
    _print(plan, report, as_json=as_json)
    if interrupted is not None:
        raise interrupted
    if not report.complete:
        raise typer.Exit(Exit.NOT_AS_ASKED)


class _Load:
    """The processes of a load, and what they share."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        context = multiprocessing.get_context("spawn")
        self._stopping: Any = context.RawValue(ctypes.c_bool, False)
        self._reported: Any = context.Queue()
        self._sent: ProcessCounts = context.RawValue(ProcessCounts)
        self._ledgers = {group: GroupLedger(context, plan.messages) for group in plan.groups}
        self._workers: dict[str, list[ProcessCounts]] = {
            group: [context.RawValue(ProcessCounts) for _ in range(plan.workers)] for group in plan.groups
        }
        self._sender = context.Process(target=send_load, args=(plan, self._sent, self._stopping, self._reported))
        self._consumers = self._made_consumers(context)
        self._shown = Progress(time.monotonic(), 0, 0)
        self.failures: list[str] = []
        self._killed: set[int | None] = set()
        """Processes whose end is among `failures`."""

    def _made_consumers(self, context: SpawnContext) -> list[BaseProcess]:
        return [
            context.Process(
                target=consume_load,
                args=(self._plan, group, self._ledgers[group], counts, self._stopping, self._reported),
            )
            for group, workers in self._workers.items()
            for counts in workers
        ]

    def run(self) -> None:
        """Run until every message is accounted for, a process fails, or nothing has moved for `stall_s`.

        Messages whose acks have no known outcome are waited for until their leases are over, and `stall_s` more.
        """
        self._shown = Progress(time.monotonic(), 0, 0)
        if self._plan.rate:
            self._start(self._consumers)
        self._start([self._sender])
        self._wait(lambda: not self._sender.is_alive(), "sent", lambda: self._sent.messages)
        if not self._plan.rate and not self.failures:
            self._start(self._consumers)
        self._wait(self._is_complete, "consumed", self._taken)

    def stop(self) -> None:
        """End the processes; one that does not end is killed."""
        self._stopping.value = True
        deadline_s = time.monotonic() + JOIN_S
        for process in [self._sender, *self._consumers]:
            if process.pid is None:
                continue
            process.join(max(0.0, deadline_s - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()
        self._collect_failures()

    def report(self) -> LoadReport:
        """Return what is known now."""
        plan = self._plan
        groups = self._results()
        send_s = seconds_between([self._sent])
        consume_s = seconds_between([counts for workers in self._workers.values() for counts in workers])
        acked = sum(each.acked for each in groups.values())
        ledgers = self._ledgers.values()
        sent = self._sent.messages
        after_ack = {group: ledger.delivered_after_ack() for group, ledger in self._ledgers.items()}
        failures = [
            *self.failures,
            *(self._after_ack_text(group, found) for group, found in after_ack.items() if found),
        ]
        return LoadReport(
            complete=sent == plan.messages and all(each.is_accounted_for for each in groups.values()) and not failures,
            messages=plan.messages,
            sent=sent,
            send_s=round(send_s, 2),
            sent_per_s=round(sent / send_s, 1) if send_s else 0.0,
            consume_s=round(consume_s, 2),
            consumed_per_s=round(acked / consume_s, 1) if consume_s else 0.0,
            delivery_ms=quantiles_of([ms for each in ledgers for ms in each.delivery_times_ms()])
            if plan.rate
            else None,
            ack_ms=quantiles_of([ms for each in ledgers for ms in each.ack_times_ms()]),
            groups=groups,
            delivered_after_ack={group: len(found) for group, found in after_ack.items()},
            failures=failures,
        )

    def _after_ack_text(self, group: str, found: list[tuple[int, int]]) -> str:
        plan = self._plan
        names = [f"{plan.topic}/{number % plan.queues}/{queue_offset}" for number, queue_offset in found[:NAMED_MAX]]
        more = ", ..." if len(found) > NAMED_MAX else ""
        return (
            f"delivered to {group} after an ack had been applied: {len(found):,} ({', '.join(names)}{more});"
            f" `popstream why {names[0]}` tells the history"
        )

    def _start(self, processes: Sequence[BaseProcess]) -> None:
        for process in processes:
            process.start()

    def _wait(self, is_over: Callable[[], bool], verb: str, count: Callable[[], int]) -> None:
        """Wait, and say every two seconds how far it is."""
        moved, moved_s = count(), time.monotonic()
        while not self.failures and not is_over():
            time.sleep(LOOK_S)
            self._collect_failures()
            now_s, now = time.monotonic(), count()
            if now != moved:
                moved, moved_s = now, now_s
            elif now_s - moved_s > self._patience_s():
                if self._is_accounted_for():
                    return  # what has not come again by now was acked
                self.failures.append(f"nothing was {verb} for {self._plan.stall_s:g} s")
            if now_s - self._shown.at_s >= PROGRESS_S:
                shown = Progress(now_s, self._sent.messages, self._taken())
                say(progress_line(self._plan, self._shown, shown, self._ledgers.values()))
                self._shown = shown

    def _patience_s(self) -> float:
        """Return how long nothing may move. A message whose ack has no known outcome may come again after its lease."""
        lease_s = self._plan.invisible_time_ms / 1000 if self._is_accounted_for() else 0.0
        return self._plan.stall_s + lease_s

    def _is_complete(self) -> bool:
        return self._is_all_taken() and all(result.is_complete for result in self._results().values())

    def _is_accounted_for(self) -> bool:
        return self._is_all_taken() and all(result.is_accounted_for for result in self._results().values())

    def _is_all_taken(self) -> bool:
        return self._taken() >= self._plan.messages * len(self._plan.groups)

    def _results(self) -> dict[str, GroupResult]:
        return {group: ledger.result(self._workers[group]) for group, ledger in self._ledgers.items()}

    def _taken(self) -> int:
        return sum(counts.messages for group in self._workers.values() for counts in group)

    def _collect_failures(self) -> None:
        while True:
            try:
                self.failures.append(self._reported.get_nowait())
            except queue.Empty:
                break
        for process in [self._sender, *self._consumers]:
            if process.exitcode and process.pid not in self._killed:
                self._killed.add(process.pid)
                self.failures.append(f"process {process.pid} ended with {process.exitcode}")


def _clean_up(plan: Plan, *, delete_topic: bool) -> None:
    """Forget the lanes of the load, and delete its topic; what cannot be removed is said."""
    try:
        with Transport(plan.target.client_settings("perf")) as transport:
            futures = [
                transport.submit(ForgetLane(v=1, topic=plan.topic, queue_id=queue_id, group=group))
                for group in plan.groups
                for queue_id in range(plan.queues)
            ]
            refused = {answer.reason for future in futures if (answer := future.result()).reason is not Reason.OK}
        if refused:
            say(f"lanes of the load are left: the job refuses to forget them: {', '.join(sorted(refused))}")
        if delete_topic:
            with open_admin(plan.target.connection) as admin:
                admin.delete(plan.topic)
    except PopstreamError as error:
        say(f"the lanes and the topic {plan.topic} of the load are left: {error}")


def _print(plan: Plan, report: LoadReport, *, as_json: bool) -> None:
    if as_json:
        print(msgspec.json.encode({"plan": _described(plan), **msgspec.to_builtins(report)}).decode())
        return
    facts = {
        "sent": f"{report.sent:,} of {report.messages:,} messages of {plan.message_bytes} bytes,"
        f" {report.sent_per_s:,.0f} a second",
        "consumed": f"{report.consumed_per_s:,.0f} a second by {len(plan.groups)} x {plan.workers} workers",
        "from due to delivered": _line(report.delivery_ms)
        if plan.rate
        else "not measured: all were sent first (--rate)",
        "ack to outcome": _line(report.ack_ms),
    }
    for group, result in report.groups.items():
        facts[group] = (
            f"{result.delivered:,} delivered, {result.missing:,} missing, {result.unacked:,} not acked,"
            f" {result.outcome_unknown:,} with an unknown outcome of the ack, {result.redelivered:,} redelivered,"
            f" {result.refused:,} acks refused"
        )
    print_facts(standard_output(), facts)
    for failure in report.failures:
        say(failure)
    say("every message is accounted for" if report.complete else "the load is not complete")


def _described(plan: Plan) -> dict[str, Any]:
    fields = msgspec.structs.asdict(plan)
    return {name: value for name, value in fields.items() if name not in {"target", "load_id"}}


def _line(quantiles: dict[str, float] | None) -> str:
    return "none" if quantiles is None else ", ".join(f"{name} {ms:,.1f} ms" for name, ms in quantiles.items())
