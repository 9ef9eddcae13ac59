"""Claim: the checker of client histories sees each kind of violation, and nothing in what the kernel really does.

Method: seeded workloads are decided by the kernel, with answers that are lost, operations that arrive late or never,
and repetitions; no history may have a violation. Then answers are falsified as a broken job would have given them, in
histories that are otherwise true, and each must be found, as the kind that it is.
"""

from __future__ import annotations

import hashlib
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from functools import cache, partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from broker_state.kernel.context.decision import Decision, OpRecord
from broker_state.kernel.fold import fold
from broker_state.store.memory_kv import MemoryKv
from broker_state.store.overlay import Overlay
from pipelines.cli.app import app
from popstream import AnswerTimeout, ClientSettings, Transport
from popstream.history.check import Report, ViolationKind, check_history
from popstream.history.recorder import HistoryEvent, HistoryRecorder, Invoke, Ok, Unknown, read_history
from popstream.testing._memory_link import MemoryLink, frame_of
from popstream.testing.memory_job import MemoryJob
from popstream.wire.answer import Answer, LeasedRange, Run
from popstream.wire.base_errors import Invalid
from popstream.wire.command import (
    Ack,
    AckEntry,
    Cancel,
    ChangeEntry,
    ChangeInvisible,
    Command,
    Declare,
    Dispatch,
    ForgetLane,
    HandleRef,
    Policy,
    Pop,
    Reject,
    RejectEntry,
    Release,
    ResetOffset,
    ReturnClient,
    Tick,
    WrittenRange,
    encode_command,
)
from popstream.wire.handle import Handle, decode_handle
from popstream.wire.reason import Reason

QUEUES = (("orders", 0), ("parcels", 3))
CONCURRENT, ORDERLY = ("billing", "search"), ("accounts", "ledger")
CLIENTS = ("c0", "c1", "c2")
START_MS = 1_700_000_000_000
Lane = tuple[str, int, str]


class Workload:
    """Clients of some groups on two queues, decided by the kernel record by record; `events` is what they recorded.

    Calm: every operation is answered, and nothing but dispatches, pops, acks, rejects and changes is done.
    """

    def __init__(self, seed: int, *, calm: bool = False, steps: int = 220, drain: bool = False) -> None:
        self.events: list[HistoryEvent] = []
        self.chance = random.Random(seed)
        self.calm = calm
        self.has_tags = not calm and seed % 4 == 0
        self.now_ms = START_MS
        self.overlay = Overlay(kv := MemoryKv())
        self.kv = kv
        self.number = 0
        self.calls: dict[str, str] = {}
        """op_id -> call that waits for its answer"""
        self.late: list[tuple[int, Command]] = []
        """(steps from now, operation that is still in flight)"""
        self.again: list[tuple[str, Command]] = []
        self.held: list[tuple[tuple[str, int], str, str, list[LeasedRange]]] = []
        self.pops: list[tuple[tuple[str, int], str]] = []
        self.written = dict.fromkeys(QUEUES, 0)
        self.left_out: list[tuple[tuple[str, int], int]] = []
        for queue in QUEUES:
            self.send(Declare(**at(queue), topic_id=f"id-{queue[0]}"), sure=True)
            self.begin(queue)
        for _ in range(steps):
            self.step()
        if drain:
            self.drain()

    def begin(self, queue: tuple[str, int]) -> None:
        if self.calm:
            return
        if self.chance.random() < 0.5:
            policy = Policy(**at(queue), group="billing", max_attempts=self.chance.choice([2, 3]), back_off_ms=[200])
            self.send(policy, sure=True)
        if self.chance.random() < 0.3:
            self.send(Policy(**at(queue), max_attempts=4, in_flight_max=self.chance.choice([0, 6])), sure=True)

    def step(self) -> None:
        self.now_ms += self.chance.choice([0, 0, 1, 5, 60, 300, 900])
        if not self.calm and self.chance.random() < 0.004:
            self.now_ms += 11 * 60_000
        self.late = [(left - 1, command) for left, command in self.late]
        for _, command in [entry for entry in self.late if entry[0] < 0]:
            self.decide(command)
        self.late = [entry for entry in self.late if entry[0] >= 0]
        queue = self.chance.choice(QUEUES)
        what = self.chance.random()
        if what < 0.16:
            self.dispatch(queue)
        elif what < 0.5:
            self.pop(queue)
        elif what < 0.9:
            self.settle()
        elif self.calm:
            self.send(Tick(**at(queue)))
        else:
            self.disturb(queue)

    def dispatch(self, queue: tuple[str, int]) -> None:
        if self.left_out and self.chance.random() < 0.7:
            other, offset = self.left_out.pop()
            ranges, skip = [WrittenRange(offset, offset)], []
            if not self.calm and self.chance.random() < 0.5:
                ranges, skip = [], [(offset, offset)]
            self.send(Dispatch(**at(other), ranges=ranges, skip=skip), sure=True)
            return
        first = self.written[queue]
        if self.chance.random() < 0.1:
            self.left_out.append((queue, first))
            first += 1
        last = first + self.chance.randrange(8)
        self.written[queue] = last + 1
        tag = self.chance.choice([0, 7, 8]) if self.has_tags else 0
        skip = [(first - 2, first - 2)] if not self.calm and first > 4 and self.chance.random() < 0.06 else []
        if not self.calm and first > 9 and self.chance.random() < 0.03:
            skip = [(0, first - 8)]
        self.send(Dispatch(**at(queue), ranges=[WrittenRange(first, last, tag)], skip=skip), sure=True)

    def pop(self, queue: tuple[str, int]) -> None:
        chance = self.chance
        group = chance.choice(CONCURRENT + ORDERLY)
        fields: dict[str, Any] = {}
        if group == "ledger" and chance.random() < 0.5:
            fields["attempt_id"] = chance.choice(["a", "b"])
        if self.has_tags and group in {"search", "accounts"} and chance.random() < 0.5:
            fields["tags"] = [7]
        if not self.calm and group == "search" and chance.random() < 0.1:
            fields["init"] = "max"
        command = Pop(
            **at(queue),
            group=group,
            max_messages=chance.choice([1, 3, 8]),
            invisible_time_ms=chance.choice([200, 1_000, 5_000, 20_000]),
            order=group in ORDERLY,
            poll_time_ms=chance.choice([0, 0, 0, 500]),
            client_id=chance.choice([*CLIENTS, None]),
            **fields,
        )
        self.pops.append((queue, self.send(command)))

    def settle(self) -> None:
        chance = self.chance
        if not self.held:
            return
        place = len(self.held) - 1 - min(int(chance.expovariate(0.4)), len(self.held) - 1)
        queue, group, handle, ranges = self.held[place]
        offsets = [offset for leased in ranges for offset in range(leased.first, leased.last + 1)]
        kept = offsets if chance.random() < 0.5 else chance.sample(offsets, chance.randrange(1, len(offsets) + 1))
        spans = [(offset, offset) for offset in sorted(kept)] if len(kept) < len(offsets) else spans_of(ranges)
        if not self.calm and chance.random() < 0.03:
            spans.append((0, 10_000))
        refs = [HandleRef(group, handle)]
        what = chance.random()
        client = chance.choice(CLIENTS)
        if what < 0.66:
            entries = [AckEntry(0, spans)]
            self.send(Ack(**at(queue), handles=refs, entries=entries, client_id=client))
        elif what < 0.74:
            self.send(Reject(**at(queue), handles=refs, entries=[RejectEntry(0, spans)], client_id=client))
        else:
            invisible_ms = chance.choice([0, 300, 4_000, 30_000])
            releases: list[Release | None] = [None, None, "after", "back_off"]
            release = chance.choice(releases)
            changes = [ChangeEntry(0, spans, invisible_ms, suspend=chance.random() < 0.2, release=release)]
            self.send(ChangeInvisible(**at(queue), handles=refs, entries=changes, client_id=client))

    def disturb(self, queue: tuple[str, int]) -> None:
        chance = self.chance
        what = chance.random()
        group = chance.choice(CONCURRENT + ORDERLY)
        if what < 0.35 and self.again:
            client, command = chance.choice(self.again[-20:])
            if command.op_id not in self.calls:
                self.send(command, client=client)
        elif what < 0.6 and self.pops:
            target_queue, op_id = chance.choice(self.pops[-15:])
            self.send(Cancel(**at(target_queue), target_op_id=op_id))
        elif what < 0.75:
            self.send(ReturnClient(**at(queue), group=group, client_id=chance.choice(CLIENTS)))
        elif what < 0.83:
            self.send(ResetOffset(**at(queue), group=group, queue_offset=chance.randrange(self.written[queue] + 1)))
        elif what < 0.86:
            self.send(ForgetLane(**at(queue), group=group))
        elif what < 0.88 and chance.random() < 0.2:
            self.send(Declare(**at(queue), topic_id="another"))
        else:
            self.send(Tick(**at(queue)))

    def drain(self) -> None:
        """Every group pops and does all that there is."""
        for _, command in self.late:
            self.decide(command)
        self.late = []
        for queue, offset in self.left_out:
            self.send(Dispatch(**at(queue), ranges=[WrittenRange(offset, offset)]), sure=True)
        for queue in QUEUES:
            for group in CONCURRENT + ORDERLY:
                for _ in range(60):
                    self.now_ms += 40_000
                    command = Pop(
                        **at(queue), group=group, max_messages=50, invisible_time_ms=10_000, order=group in ORDERLY
                    )
                    before = len(self.held)
                    self.send(command, sure=True)
                    if len(self.held) == before:
                        break
                    _, _, handle, ranges = self.held[-1]
                    entries = [AckEntry(0, spans_of(ranges))]
                    self.send(Ack(**at(queue), handles=[HandleRef(group, handle)], entries=entries), sure=True)

    def send(self, command: Command, *, client: str | None = None, sure: bool = False) -> str:
        """Record the invoke, and let it come to the job: now, later, never; and its answer be lost, or not."""
        chance = self.chance
        self.number += 1
        client = client or chance.choice(CLIENTS)
        if command.op_id is None:
            reply_to = CLIENTS.index(client)
            command = msgspec.structs.replace(command, op_id=f"op-{self.number}", reply_to=reply_to)
        op_id = str(command.op_id)
        call = f"{client}-{self.number}"
        self.events.append(
            Invoke(
                call=call,
                client_id=client,
                op_id=op_id,
                at_ns=self.now_ms * 1_000_000,
                monotonic_ns=self.number,
                command=command,
            )
        )
        self.calls[op_id] = call
        chance_of_answer = 1.0 if self.calm or sure else chance.random()
        if chance_of_answer < 0.12:
            del self.calls[op_id]
            self.again.append((client, command))
            if chance.random() < 0.5:
                self.end(Unknown, call, op_id, cause="AnswerTimeout")
        if chance_of_answer < 0.04:
            return op_id
        if chance_of_answer < 0.08:
            self.late.append((chance.randrange(40), command))
            return op_id
        self.decide(command)
        return op_id

    def decide(self, command: Command) -> None:
        decision = Decision()
        value = encode_command(command)
        self.number += 1
        record = OpRecord(0, self.number, self.now_ms, command, hashlib.blake2b(value, digest_size=16).digest())
        fold(self.overlay, [record], decision)
        self.kv.write(self.overlay)
        for _, encoded in decision.answers:
            answer = msgspec.json.decode(encoded, type=Answer)
            call = self.calls.pop(answer.op_id, None)
            if call is not None:
                self.end(Ok, call, answer.op_id, answer=answer)
                self.learn(answer)

    def end(self, kind: type[Ok | Unknown], call: str, op_id: str, **fields: Any) -> None:
        at_ns = self.now_ms * 1_000_000
        client = call.split("-", maxsplit=1)[0]
        self.events.append(
            kind(call=call, client_id=client, op_id=op_id, at_ns=at_ns, monotonic_ns=self.number, **fields)
        )

    def learn(self, answer: Answer) -> None:
        command = next(
            event.command
            for event in reversed(self.events)
            if isinstance(event, Invoke) and event.op_id == answer.op_id
        )
        queue = (command.topic, command.queue_id)
        if isinstance(command, Pop) and answer.messages and answer.handle is not None:
            self.held.append((queue, command.group, answer.handle, answer.messages))
        if isinstance(command, ChangeInvisible) and self.chance.random() < 0.7:
            for run in answer.runs:
                if run.applied and run.handle is not None:
                    entry = command.entries[run.entry]
                    group = command.handles[entry.handle].group
                    ranges = [LeasedRange(run.first, min(run.last, run.first + 20), 1)]
                    self.held.append((queue, group, answer.handles[run.handle], ranges))


def at(queue: tuple[str, int]) -> dict[str, Any]:
    return {"v": 1, "topic": queue[0], "queue_id": queue[1]}


def spans_of(ranges: Iterable[LeasedRange]) -> list[tuple[int, int]]:
    return [(leased.first, leased.last) for leased in ranges]


# --- no false alarm ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", range(0, 50, 10))
def test_what_the_kernel_does_is_no_violation(start: int) -> None:
    """10 histories each, with doubts of all kinds; together more than 20,000 events."""
    event_count = 0
    for seed in range(start, start + 10):
        workload = Workload(seed)
        report = check_history(workload.events)
        assert [str(violation) for violation in report.violations] == [], seed
        assert report.unjudged_lane_count == 0
        event_count += report.event_count
    assert event_count > 2_500


def test_the_histories_have_what_could_be_mistaken() -> None:
    reasons: set[str] = set()
    unknown = deliveries = 0
    for seed in range(40):
        workload = Workload(seed)
        report = check_history(workload.events)
        unknown += report.unknown_count
        deliveries += report.delivery_count
        for event in workload.events:
            if isinstance(event, Ok):
                reasons |= {event.answer.reason, *(run.reason for run in event.answer.runs)}
    wanted = {
        "OK",
        "ALREADY_ACKED",
        "STALE_HANDLE",
        "SUPERSEDED",
        "OUTSIDE_POP",
        "BELOW_MIN",
        "NO_MESSAGE",
        "CANCELLED",
    }
    assert wanted <= reasons
    assert unknown > 300
    assert deliveries > 5_000


@pytest.mark.parametrize("calm", [True, False])
def test_a_drained_history_has_lost_nothing(calm: bool) -> None:  # noqa: FBT001 - a parameter
    for seed in range(100, 120):
        report = check_history(Workload(seed, calm=calm, drain=True).events, drained=True)
        assert [str(violation) for violation in report.violations] == [], seed


# --- each violation is seen ----------------------------------------------------------------------------------------


class Case:
    """A calm history, and what is in it, so that it can be falsified."""

    def __init__(self, seed: int, *, drain: bool) -> None:
        self.chance = random.Random(seed)
        self.events = Workload(seed, calm=True, drain=drain).events
        invokes = {event.call: event.command for event in self.events if isinstance(event, Invoke)}
        self.oks = [
            (place, invokes[event.call], event.answer)
            for place, event in enumerate(self.events)
            if isinstance(event, Ok)
        ]
        self.pops: dict[Lane, list[tuple[int, Pop, Answer, Handle]]] = defaultdict(list)
        self.runs: dict[Lane, list[tuple[int, Command, Answer, int, Run, Handle]]] = defaultdict(list)
        self.commits: dict[Lane, list[tuple[int, int, int]]] = defaultdict(list)
        """(place, now, commit offset)"""
        for place, command, answer in self.oks:
            head = (command.topic, command.queue_id)
            if isinstance(command, Pop) and answer.handle is not None and (handle := decode_handle(answer.handle)):
                self.pops[*head, command.group].append((place, command, answer, handle))
            elif isinstance(command, Ack | ChangeInvisible | Reject):
                for number, run in enumerate(answer.runs):
                    ref = command.handles[command.entries[run.entry].handle]
                    handle = decode_handle(ref.handle)
                    assert handle is not None
                    self.runs[*head, ref.group].append((place, command, answer, number, run, handle))
                for group, commit_offset in answer.commit_offsets.items():
                    self.commits[*head, group].append((place, answer.now_ms, commit_offset))
        for pops in self.pops.values():
            pops.sort(key=lambda pop: pop[3].epoch)

    def lanes(self, *, orderly: bool) -> list[Lane]:
        return [lane for lane in self.pops if (lane[2] in ORDERLY) == orderly]

    def is_popped_at(self, lane: Lane, now_ms: int) -> bool:
        return any(answer.now_ms == now_ms for _, _, answer, _ in self.pops[lane])

    def steps(self, lane: Lane, offset: int) -> list[tuple[Command, Answer, Run, Handle]]:
        return [
            (command, answer, run, handle)
            for _, command, answer, _, run, handle in self.runs[lane]
            if run.first <= offset <= run.last
        ]

    def done_ms(self, lane: Lane, offset: int) -> int | None:
        """When a message was acked or rejected, the first time."""
        done = [
            answer.now_ms
            for command, answer, run, _ in self.steps(lane, offset)
            if run.applied and not isinstance(command, ChangeInvisible)
        ]
        return min(done, default=None)

    def with_answer(self, place: int, **fields: Any) -> list[HistoryEvent]:
        event = self.events[place]
        assert isinstance(event, Ok)
        changed = msgspec.structs.replace(event, answer=msgspec.structs.replace(event.answer, **fields))
        return [*self.events[:place], changed, *self.events[place + 1 :]]

    def with_run(self, place: int, number: int, **fields: Any) -> list[HistoryEvent]:
        event = self.events[place]
        assert isinstance(event, Ok)
        runs = list(event.answer.runs)
        runs[number] = msgspec.structs.replace(runs[number], **fields)
        return self.with_answer(place, runs=runs)

    def with_command(self, place: int, command: Command) -> list[HistoryEvent]:
        """Another command for the call that ends at `place`."""
        call = self.events[place].call
        return [
            msgspec.structs.replace(event, command=command)
            if event.call == call and isinstance(event, Invoke)
            else event
            for event in self.events
        ]

    def without(self, place: int) -> list[HistoryEvent]:
        call = self.events[place].call
        return [event for event in self.events if event.call != call]

    def with_ack(self, lane: Lane, text: str, offset: int, now_ms: int, reason: Reason) -> list[HistoryEvent]:
        """An ack more, with its answer."""
        topic, queue_id, group = lane
        entries = [AckEntry(0, [(offset, offset)])]
        handles = [HandleRef(group, text)]
        command = Ack(topic=topic, queue_id=queue_id, v=1, op_id="more", handles=handles, entries=entries)
        run = Run(entry=0, first=offset, last=offset, code=0, reason=reason, applied=reason is Reason.OK)
        answer = Answer(
            op_id="more", type="ack", code=0, reason=reason, applied=run.applied, topic=topic, queue_id=queue_id,
            now_ms=now_ms, runs=[run],
        )  # fmt: skip
        name: dict[str, Any] = {"call": "more-1", "client_id": "more", "op_id": "more", "at_ns": 0, "monotonic_ns": 0}
        return [*self.events, Invoke(**name, command=command), Ok(**name, answer=answer)]

    def redelivered(self, *, orderly: bool) -> Iterator[tuple[Lane, int, Any, Any]]:
        """(lane, offset, pop, next pop that got it)"""
        for lane in self.lanes(orderly=orderly):
            last: dict[int, Any] = {}
            for pop in self.pops[lane]:
                for offset in offsets_of(pop[2].messages):
                    if offset in last:
                        yield lane, offset, last[offset], pop
                    last[offset] = pop


def offsets_of(ranges: Iterable[LeasedRange]) -> list[int]:
    return [offset for leased in ranges for offset in range(leased.first, leased.last + 1)]


def with_offset(ranges: list[LeasedRange], offset: int) -> list[LeasedRange]:
    return sorted([*ranges, LeasedRange(offset, offset, 1)], key=lambda leased: leased.first)


def ranges_without(ranges: list[LeasedRange], offset: int) -> list[LeasedRange]:
    return [LeasedRange(o, o, leased.attempt) for leased in ranges for o in offsets_of([leased]) if o != offset]


@cache
def case_of(seed: int, *, drain: bool = False) -> Case:
    return Case(seed, drain=drain)


Falsified = Iterator[list[HistoryEvent]]
FALSIFIERS: list[tuple[ViolationKind, Callable[[Case], Falsified]]] = []


def violates(kind: ViolationKind) -> Callable[[Callable[[Case], Falsified]], Callable[[Case], Falsified]]:
    def register(falsify: Callable[[Case], Falsified]) -> Callable[[Case], Falsified]:
        FALSIFIERS.append((kind, falsify))
        return falsify

    return register


@violates(ViolationKind.TWO_LIVE_LEASES)
def a_held_message_is_handed_out(case: Case) -> Falsified:
    for lane in case.lanes(orderly=False):
        for before, after in zip(case.pops[lane], case.pops[lane][1:], strict=False):
            place, _, answer, _ = after
            if answer.now_ms >= before[2].now_ms + before[1].invisible_time_ms:
                continue
            for offset in offsets_of(before[2].messages):
                if all(step[1].now_ms > answer.now_ms for step in case.steps(lane, offset)):
                    yield case.with_answer(place, messages=with_offset(answer.messages, offset))


@violates(ViolationKind.TWO_LIVE_LEASES)
def a_lease_ends_too_early(case: Case) -> Falsified:
    for lane, offset, before, after in case.redelivered(orderly=False):
        if not any(run.applied and handle.epoch == before[3].epoch for _, _, run, handle in case.steps(lane, offset)):
            longer_ms = after[2].now_ms - before[2].now_ms + 1
            yield case.with_command(before[0], msgspec.structs.replace(before[1], invisible_time_ms=longer_ms))


@violates(ViolationKind.TWO_LIVE_LEASES)
def a_renewal_is_forgotten(case: Case) -> Falsified:
    for lane, offset, before, after in case.redelivered(orderly=False):
        changes = [
            (handle.revision, place, command, answer, run)
            for place, command, answer, _, run, handle in case.runs[lane]
            if isinstance(command, ChangeInvisible)
            and run.applied
            and run.first <= offset <= run.last
            and handle.epoch == before[3].epoch
        ]
        if changes:
            _, place, command, answer, run = max(changes, key=lambda change: change[0])
            entries = list(command.entries)
            longer_ms = after[2].now_ms - answer.now_ms + 1
            entries[run.entry] = msgspec.structs.replace(entries[run.entry], invisible_time_ms=longer_ms, release=None)
            yield case.with_command(place, msgspec.structs.replace(command, entries=entries))


@violates(ViolationKind.TWO_LIVE_LEASES)
def an_orderly_lease_ends_too_early(case: Case) -> Falsified:
    for lane, offset, before, after in case.redelivered(orderly=True):
        is_again = before[1].attempt_id is not None and before[1].attempt_id == after[1].attempt_id
        is_touched = any(
            handle.epoch == before[3].epoch for _, _, run, handle in case.steps(lane, offset) if run.code == 0
        )
        if after[3].epoch == before[3].epoch + 1 and not is_again and not is_touched:
            longer_ms = after[2].now_ms - before[2].now_ms + 1
            yield case.with_command(before[0], msgspec.structs.replace(before[1], invisible_time_ms=longer_ms))


@violates(ViolationKind.DELIVERED_AFTER_DONE)
def an_acked_message_is_handed_out(case: Case) -> Falsified:
    for lane in case.lanes(orderly=False):
        for place, _, answer, _ in case.pops[lane]:
            for _, command, acked, _, run, _ in case.runs[lane]:
                if run.applied and not isinstance(command, ChangeInvisible) and acked.now_ms < answer.now_ms:
                    yield case.with_answer(place, messages=with_offset(answer.messages, run.first))


@violates(ViolationKind.DELIVERED_AFTER_DONE)
def an_ack_is_forgotten(case: Case) -> Falsified:
    for lane, offset, before, after in case.redelivered(orderly=False):
        now_ms = case.chance.randint(before[2].now_ms, after[2].now_ms)
        yield case.with_ack(lane, before[2].handle, offset, now_ms, Reason.OK)


@violates(ViolationKind.DELIVERED_AFTER_DONE)
def a_message_is_handed_out_that_was_called_acked(case: Case) -> Falsified:
    for lane, offset, before, after in case.redelivered(orderly=False):
        now_ms = after[2].now_ms - 1
        yield case.with_ack(lane, before[2].handle, offset, now_ms, Reason.ALREADY_ACKED)


@violates(ViolationKind.DELIVERED_AFTER_DONE)
def an_orderly_message_below_the_commit_offset_is_handed_out(case: Case) -> Falsified:
    for lane in case.lanes(orderly=True):
        for place, _, answer, _ in case.pops[lane]:
            for _, now_ms, commit_offset in case.commits[lane]:
                if commit_offset > 0 and now_ms < answer.now_ms:
                    yield case.with_answer(place, messages=with_offset(answer.messages, commit_offset - 1))


@violates(ViolationKind.OUT_OF_ORDER)
def an_orderly_pop_leaves_out_a_message(case: Case) -> Falsified:
    for lane in case.lanes(orderly=True):
        pops = case.pops[lane]
        for number, (place, _, answer, _) in enumerate(pops):
            later = {offset for pop in pops[number + 1 :] for offset in offsets_of(pop[2].messages)}
            for offset in offsets_of(answer.messages)[:-1]:
                if offset in later:
                    yield case.with_answer(place, messages=ranges_without(answer.messages, offset))


@violates(ViolationKind.OUT_OF_ORDER)
def the_messages_of_an_orderly_pop_are_turned_round(case: Case) -> Falsified:
    for lane in case.lanes(orderly=True):
        for place, _, answer, _ in case.pops[lane]:
            offsets = offsets_of(answer.messages)
            if len(offsets) > 1:
                cut = case.chance.randrange(1, len(offsets))
                turned = [LeasedRange(offset, offset, 1) for offset in offsets[cut:] + offsets[:cut]]
                yield case.with_answer(place, messages=turned)


@violates(ViolationKind.OUT_OF_ORDER)
def two_orderly_batches_change_places(case: Case) -> Falsified:
    for lane in case.lanes(orderly=True):
        for before, after in zip(case.pops[lane], case.pops[lane][1:], strict=False):
            if offsets_of(before[2].messages)[-1] < offsets_of(after[2].messages)[0]:
                first = case.with_answer(before[0], messages=after[2].messages)
                changed = first[after[0]]
                assert isinstance(changed, Ok)
                answer = msgspec.structs.replace(changed.answer, messages=before[2].messages)
                yield [*first[: after[0]], msgspec.structs.replace(changed, answer=answer), *first[after[0] + 1 :]]


@violates(ViolationKind.OUT_OF_ORDER)
def a_blocked_lane_is_served(case: Case) -> Falsified:
    """A longer batch, of which the next pop got the beginning again, was held still; its end comes later."""
    for lane, _, before, after in case.redelivered(orderly=True):
        is_again = before[1].attempt_id is not None and before[1].attempt_id == after[1].attempt_id
        rest = set(offsets_of(before[2].messages)) - set(offsets_of(after[2].messages))
        later = {o for pop in case.pops[lane] if pop[3].epoch > after[3].epoch for o in offsets_of(pop[2].messages)}
        untouched = [offset for offset in rest & later if not case.steps(lane, offset)[:1]]
        if after[3].epoch == before[3].epoch + 1 and not is_again:
            for _ in untouched[:1]:
                longer_ms = after[2].now_ms - before[2].now_ms + 1
                yield case.with_command(before[0], msgspec.structs.replace(before[1], invisible_time_ms=longer_ms))


def accepted(case: Case, reason: Reason, kinds: Any, *, orderly: bool) -> Falsified:
    for lane in case.lanes(orderly=orderly):
        for place, command, answer, number, run, _ in case.runs[lane]:
            if run.reason is reason and isinstance(command, kinds) and not case.is_popped_at(lane, answer.now_ms):
                yield case.with_run(place, number, reason=Reason.OK, applied=True, code=0)


@violates(ViolationKind.STALE_HANDLE_ACCEPTED)
def a_stale_ack_is_applied(case: Case) -> Falsified:
    return accepted(case, Reason.STALE_HANDLE, Ack | Reject, orderly=False)


@violates(ViolationKind.STALE_HANDLE_ACCEPTED)
def a_stale_change_is_applied(case: Case) -> Falsified:
    return accepted(case, Reason.STALE_HANDLE, ChangeInvisible, orderly=False)


@violates(ViolationKind.STALE_HANDLE_ACCEPTED)
def a_superseded_change_is_applied(case: Case) -> Falsified:
    return accepted(case, Reason.SUPERSEDED, ChangeInvisible, orderly=False)


@violates(ViolationKind.STALE_HANDLE_ACCEPTED)
def a_stale_orderly_handle_is_good(case: Case) -> Falsified:
    return accepted(case, Reason.STALE_HANDLE, Ack | Reject | ChangeInvisible, orderly=True)


@violates(ViolationKind.STALE_HANDLE_ACCEPTED)
def an_ack_is_applied_twice(case: Case) -> Falsified:
    for lane in case.lanes(orderly=False):
        for _, command, answer, _, run, handle in case.runs[lane]:
            if run.applied and not isinstance(command, ChangeInvisible):
                given = next(pop for pop in case.pops[lane] if pop[3].epoch == handle.epoch)
                now_ms = answer.now_ms + case.chance.randrange(3)
                yield case.with_ack(lane, str(given[2].handle), run.first, now_ms, Reason.OK)


@violates(ViolationKind.STALE_HANDLE_ACCEPTED)
def a_change_is_applied_after_the_ack(case: Case) -> Falsified:
    for lane in case.lanes(orderly=False):
        for place, command, answer, number, run, _ in case.runs[lane]:
            done_ms = case.done_ms(lane, run.first)
            is_later = done_ms is not None and done_ms < answer.now_ms
            if isinstance(command, ChangeInvisible) and run.reason is Reason.ALREADY_ACKED and is_later:
                yield case.with_run(place, number, reason=Reason.OK, applied=True, code=0)


def refused(case: Case, reasons: tuple[Reason, ...], kinds: Any, *, orderly: bool) -> Falsified:
    for lane in case.lanes(orderly=orderly):
        for place, command, answer, number, run, _ in case.runs[lane]:
            if run.applied and isinstance(command, kinds) and not case.is_popped_at(lane, answer.now_ms):
                reason = case.chance.choice(reasons)
                yield case.with_run(place, number, reason=reason, applied=False, code=13)


@violates(ViolationKind.VALID_ACK_REFUSED)
def a_good_ack_is_called_stale(case: Case) -> Falsified:
    return refused(case, (Reason.STALE_HANDLE,), Ack, orderly=False)


@violates(ViolationKind.VALID_ACK_REFUSED)
def a_good_ack_is_called_something_else(case: Case) -> Falsified:
    reasons = (Reason.UNKNOWN_HANDLE, Reason.SUPERSEDED, Reason.OUTSIDE_POP, Reason.ABOVE_MAX)
    return refused(case, reasons, Ack, orderly=False)


@violates(ViolationKind.VALID_ACK_REFUSED)
def a_good_orderly_ack_is_refused(case: Case) -> Falsified:
    return refused(case, (Reason.STALE_HANDLE, Reason.UNKNOWN_HANDLE), Ack, orderly=True)


@violates(ViolationKind.VALID_ACK_REFUSED)
def a_good_reject_is_refused(case: Case) -> Falsified:
    return refused(case, (Reason.STALE_HANDLE, Reason.UNKNOWN_HANDLE), Reject, orderly=False)


def passed(case: Case, *, is_done_later: bool) -> Falsified:
    for lane in case.pops:
        delivered = {
            offset: answer.now_ms
            for _, _, answer, _ in reversed(case.pops[lane])
            for offset in offsets_of(answer.messages)
        }
        for place, now_ms, commit_offset in case.commits[lane]:
            for offset, at_ms in delivered.items():
                done_ms = case.done_ms(lane, offset)
                is_open = done_ms is None or done_ms > now_ms
                if offset >= commit_offset and at_ms < now_ms and is_open and (done_ms is not None) == is_done_later:
                    yield case.with_answer(place, commit_offsets={lane[2]: offset + 1})


@violates(ViolationKind.POSITION_GAP)
def the_commit_offset_passes_what_is_done_later(case: Case) -> Falsified:
    return passed(case, is_done_later=True)


@violates(ViolationKind.POSITION_GAP)
def the_commit_offset_passes_what_is_never_done(case: Case) -> Falsified:
    return passed(case, is_done_later=False)


@violates(ViolationKind.POSITION_GAP)
def the_commit_offset_goes_on_without_an_ack(case: Case) -> Falsified:
    for lane in case.lanes(orderly=False):
        for place, command, answer, _, run, _ in case.runs[lane]:
            if not isinstance(command, Ack) or not run.applied:
                continue
            told = [step for step in case.steps(lane, run.first) if step[2].reason in {Reason.OK, Reason.ALREADY_ACKED}]
            is_only = all(step[1] is answer or isinstance(step[0], ChangeInvisible) for step in told)
            is_only &= not any(step[2].reason is Reason.ALREADY_ACKED for step in told)
            if is_only and any(at != place and commit > run.first for at, _, commit in case.commits[lane]):
                yield case.without(place)


@violates(ViolationKind.POSITION_MOVED_BACK)
def the_commit_offset_goes_back(case: Case) -> Falsified:
    for commits in case.commits.values():
        for place, now_ms, _ in commits:
            before = max((commit for _, at_ms, commit in commits if at_ms < now_ms), default=0)
            if before:
                group = next(iter(answer_at(case, place).commit_offsets))
                yield case.with_answer(place, commit_offsets={group: case.chance.randrange(before)})


@violates(ViolationKind.POSITION_MOVED_BACK)
def the_commit_offset_leaps_ahead_for_once(case: Case) -> Falsified:
    for commits in case.commits.values():
        for place, now_ms, commit in commits:
            if any(at_ms > now_ms for _, at_ms, _ in commits):
                group = next(iter(answer_at(case, place).commit_offsets))
                yield case.with_answer(place, commit_offsets={group: commit + 1_000})


@violates(ViolationKind.POSITION_MOVED_BACK)
def the_commit_offset_begins_anew(case: Case) -> Falsified:
    """From some answer on, as after a state that was lost."""
    for lane, commits in case.commits.items():
        for place, now_ms, _ in commits:
            if max((commit for _, at_ms, commit in commits if at_ms < now_ms), default=0):
                events = list(case.events)
                for later, at_ms, _ in commits:
                    if later >= place and at_ms >= now_ms:
                        event = events[later]
                        assert isinstance(event, Ok)
                        answer = msgspec.structs.replace(event.answer, commit_offsets={lane[2]: 0})
                        events[later] = msgspec.structs.replace(event, answer=answer)
                yield events


@violates(ViolationKind.LOST_MESSAGE)
def a_message_is_never_handed_out(case: Case) -> Falsified:
    for lane in case.pops:
        for offset in {offset for pop in case.pops[lane] for offset in offsets_of(pop[2].messages)}:
            events = list(case.events)
            for place, _, answer, _ in case.pops[lane]:
                event = events[place]
                assert isinstance(event, Ok)
                rest = msgspec.structs.replace(answer, messages=ranges_without(answer.messages, offset))
                events[place] = msgspec.structs.replace(event, answer=rest)
            yield events


@violates(ViolationKind.LOST_MESSAGE)
def a_pop_gets_nothing_and_its_messages_are_gone(case: Case) -> Falsified:
    for pops in case.pops.values():
        for place, _, answer, _ in pops:
            elsewhere = {offset for pop in pops if pop[0] != place for offset in offsets_of(pop[2].messages)}
            if not set(offsets_of(answer.messages)) <= elsewhere:
                yield case.with_answer(place, messages=[], handle=None, reason=Reason.NO_MESSAGE, applied=False)


@violates(ViolationKind.LOST_MESSAGE)
def a_lease_ends_and_the_message_never_comes_back(case: Case) -> Falsified:
    for lane, offset, before, _ in case.redelivered(orderly=False):
        later = [pop for pop in case.pops[lane] if pop[3].epoch > before[3].epoch]
        if any(run.applied and handle.epoch <= before[3].epoch for _, _, run, handle in case.steps(lane, offset)):
            continue
        events = list(case.events)
        for place, _, answer, _ in later:
            rest = msgspec.structs.replace(answer, messages=ranges_without(answer.messages, offset))
            events[place] = with_fields(events[place], answer=rest)
        for place in {place for place, _, _, _, run, _ in case.runs[lane] if run.first <= offset <= run.last}:
            answer = answer_at(case, place)
            runs = [part for run in answer.runs for part in parts_without(run, offset)]
            events[place] = with_fields(events[place], answer=msgspec.structs.replace(answer, runs=runs))
        yield events


def with_fields(event: HistoryEvent, **fields: Any) -> HistoryEvent:
    return msgspec.structs.replace(event, **fields)


def parts_without(run: Run, offset: int) -> list[Run]:
    """What is left of a run without one of its offsets."""
    if not run.first <= offset <= run.last:
        return [run]
    spans = [(run.first, offset - 1), (offset + 1, run.last)]
    return [msgspec.structs.replace(run, first=first, last=last) for first, last in spans if first <= last]


@violates(ViolationKind.LOST_MESSAGE)
def more_is_written_than_ever_comes(case: Case) -> Falsified:
    for place, command, answer in case.oks:
        if isinstance(command, Dispatch):
            more = Run(entry=0, first=9_000, last=9_003, code=0, reason=Reason.OK, applied=True)
            yield case.with_answer(place, runs=[*answer.runs, more], commit_position=9_002)


def answer_at(case: Case, place: int) -> Answer:
    event = case.events[place]
    assert isinstance(event, Ok)
    return event.answer


SEEDS = range(200, 230)
PER_FALSIFIER = 14


def sampled(kind: ViolationKind, falsify: Callable[[Case], Falsified]) -> Iterator[tuple[int, list[HistoryEvent]]]:
    """Some falsified histories: up to three of each seed, until there are enough."""
    count = 0
    for seed in SEEDS:
        case = case_of(seed, drain=kind is ViolationKind.LOST_MESSAGE)
        found = list(falsify(case))
        for events in case.chance.sample(found, min(3, len(found))):
            if count == PER_FALSIFIER:
                return
            count += 1
            yield seed, events


def test_the_histories_that_are_falsified_are_true() -> None:
    for seed in SEEDS:
        for drain in (False, True):
            report = check_history(case_of(seed, drain=drain).events, drained=drain)
            assert report.violations == [], seed


COUNTS: dict[str, tuple[ViolationKind, int]] = {}


@pytest.mark.parametrize(("kind", "falsify"), FALSIFIERS, ids=[falsify.__name__ for _, falsify in FALSIFIERS])
def test_a_seeded_violation_is_seen(kind: ViolationKind, falsify: Callable[[Case], Falsified]) -> None:
    count = 0
    for seed, events in sampled(kind, falsify):
        report = check_history(events, drained=kind is ViolationKind.LOST_MESSAGE)
        assert kind in report.counts, (seed, count)
        count += 1
    assert count >= 3
    COUNTS[falsify.__name__] = (kind, count)


def test_300_seeded_violations_of_8_kinds_were_all_seen() -> None:
    if len(COUNTS) < len(FALSIFIERS):
        pytest.skip("counts what the tests before it have tried, and not all of them have run here")
    kinds = [kind for kind, _ in COUNTS.values()]
    assert [kind for kind in ViolationKind if kinds.count(kind) < 3] == []
    assert sum(count for _, count in COUNTS.values()) >= 300


# --- recording and reading -----------------------------------------------------------------------------------------


def write(path: Path, events: Iterable[HistoryEvent]) -> Path:
    path.write_bytes(b"".join(msgspec.json.encode(event) + b"\n" for event in events))
    return path


def test_a_history_is_read_as_it_was_written(tmp_path: Path) -> None:
    events = Workload(5).events
    one = [event for event in events if event.client_id == "c0"]
    others = [event for event in events if event.client_id != "c0"]
    paths = [write(tmp_path / "one", one), write(tmp_path / "others", others)]
    assert [*read_history(*paths)] == one + others
    assert check_history(read_history(*paths)) == check_history(events)


def test_a_torn_last_line_is_passed_over(tmp_path: Path) -> None:
    events = Workload(6, steps=20).events
    whole = write(tmp_path / "history", events).read_bytes()
    last = whole[:-1].rfind(b"\n") + 1
    for cut in range(last, len(whole) - 1):
        (tmp_path / "torn").write_bytes(whole[:cut])
        assert [*read_history(tmp_path / "torn")] == events[:-1]
    (tmp_path / "joined").write_bytes(whole[: last + 30] + whole)
    assert [*read_history(tmp_path / "joined")] == events[:-1] + events


def test_a_recorder_goes_on_after_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "history"
    first = HistoryRecorder(path, "c")
    first.post(Tick(v=1, topic="orders", queue_id=0, op_id="x"))
    first.close()
    path.write_bytes(path.read_bytes()[:-9])
    second = HistoryRecorder(path, "c")
    second.post(Tick(v=1, topic="orders", queue_id=0, op_id="y"))
    second.close()
    second.post(Tick(v=1, topic="orders", queue_id=0, op_id="z"))
    assert [(type(event), event.op_id) for event in read_history(path)] == [
        (Invoke, "x"),
        (Invoke, "y"),
        (Unknown, "y"),
    ]


def test_what_is_no_history_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="cannot be read"):
        list(read_history(tmp_path / "missing"))
    (tmp_path / "other").write_text('{"event":"invoke"}\n')
    with pytest.raises(Invalid, match="other:1 is not an event"):
        list(read_history(tmp_path / "other"))
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\n")
    with pytest.raises(Invalid, match="bytes:1 is not an event"):
        list(read_history(tmp_path / "bytes"))
    ends = [event for event in Workload(7, steps=5).events if isinstance(event, Ok)]
    with pytest.raises(Invalid, match="a part of it is missing"):
        check_history(ends)
    with pytest.raises(Invalid, match="cannot be written"):
        HistoryRecorder(tmp_path / "other" / "history", "c")


def transport_to(link: MemoryLink, path: Path, **settings: Any) -> Transport:
    return Transport(
        ClientSettings(bootstrap_servers="memory", client_id="c", history_file=path, **settings), link=link
    )


def answered(_key: bytes, value: bytes) -> list[bytes]:
    command = msgspec.json.decode(value, type=Command)
    return [
        frame_of(
            [
                Answer(
                    op_id=str(command.op_id), type="tick", code=0, reason=Reason.OK, applied=False, topic=command.topic,
                    queue_id=command.queue_id, now_ms=1,
                )
            ]
        )
    ]  # fmt: skip


def test_a_transport_records_what_it_sends_and_what_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "history"
    tick = Tick(v=1, topic="orders", queue_id=0)
    link = MemoryLink(answered)
    with transport_to(link, path) as transport:
        transport.request(tick)
        transport.post(tick)
    invoke, ok, posted, unknown = read_history(path)
    assert isinstance(invoke, Invoke)
    assert isinstance(ok, Ok)
    assert isinstance(posted, Invoke)
    assert isinstance(unknown, Unknown)
    assert [encode_command(event.command) for event in (invoke, posted)] == [value for _, value in link.sent]
    assert (ok.call, ok.op_id, ok.answer.op_id) == (invoke.call, invoke.op_id, invoke.op_id)
    assert (unknown.call, unknown.cause, posted.command.reply_to) == (posted.call, "posted", None)
    assert invoke.monotonic_ns <= ok.monotonic_ns
    assert invoke.at_ns > START_MS * 1_000_000


def test_an_operation_without_an_answer_is_unknown_and_its_re_sends_are_one_invoke(tmp_path: Path) -> None:
    path = tmp_path / "history"
    tick = Tick(v=1, topic="orders", queue_id=0)
    link = MemoryLink()
    with transport_to(link, path, answer_timeout_ms=800, resend_after_ms=20) as transport:
        with pytest.raises(AnswerTimeout):
            transport.request(tick)
        assert len(link.sent) > 1
        waiting = transport.submit(tick, timeout_ms=60_000)
    assert isinstance(waiting, Future)
    assert waiting.exception() is not None
    events = list(read_history(path))
    assert [type(event) for event in events] == [Invoke, Unknown, Invoke, Unknown]
    assert [event.cause for event in events if isinstance(event, Unknown)] == ["AnswerTimeout", "ClientClosed"]


def test_what_was_not_sent_is_not_recorded(tmp_path: Path) -> None:
    path = tmp_path / "history"
    with transport_to(MemoryLink(), path, ops_bytes_max=10) as transport, pytest.raises(Invalid):
        transport.request(Tick(v=1, topic="orders", queue_id=0))
    assert list(read_history(path)) == []


def test_a_consumer_s_history_is_clean(tmp_path: Path) -> None:
    job = MemoryJob()
    job.write("orders", 0, [b"one", b"two", b"three"])
    path = tmp_path / "history"
    with job.transport(history_file=path) as transport:
        for _ in range(4):
            with job_consumer(job, transport) as consumer:
                messages = consumer.pop("orders", 0, max_messages=1).messages
                assert all(outcome.applied for outcome in consumer.ack(messages))
    report = check_history(read_history(path), drained=True, written={("orders", 0): [(0, 2)]})
    assert report.violations == []
    assert report.delivery_count == 3
    lost = check_history(read_history(path), drained=True, written={("orders", 0): [(0, 4)]})
    assert [(found.kind, found.first, found.last) for found in lost.violations] == [("LOST_MESSAGE", 3, 4)]


def job_consumer(job: MemoryJob, transport: Transport) -> Any:
    from popstream import Consumer  # noqa: PLC0415 - as few as needed
    from popstream.pop.consumer_sources import ConsumerSources  # noqa: PLC0415 - as above

    return Consumer(
        "memory",
        group="billing",
        transport=transport,
        sources=ConsumerSources(payloads=job.payloads, notifications=partial(job.listen, "billing")),
    )


# --- the command line ----------------------------------------------------------------------------------------------


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["history", *arguments], env={"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"})


def test_the_command_says_that_a_history_is_clean(tmp_path: Path) -> None:
    events = Workload(101, drain=True).events
    half = len(events) // 2
    files = [write(tmp_path / "a", events[:half]), write(tmp_path / "b", events[half:])]
    result = run("check", *map(str, files), "--drained")
    assert result.exit_code == 0, result.output
    assert f"{len(events):,} events, " in result.stdout
    assert result.stdout.endswith("0 violations in 8 lanes\n")


def test_the_command_tells_violations_and_ends_with_code_1(tmp_path: Path) -> None:
    events = next(an_acked_message_is_handed_out(case_of(200)))
    file = str(write(tmp_path / "history", events))
    result = run("check", file)
    assert result.exit_code == 1
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("DELIVERED_AFTER_DONE")][:1]
    assert "handed out with epoch" in line
    assert "op-" in line
    shown = msgspec.json.decode(run("check", file, "--json").stdout, type=Report)
    assert shown == check_history(events)
    assert ViolationKind.DELIVERED_AFTER_DONE in shown.counts


def test_the_command_refuses_what_is_no_history(tmp_path: Path) -> None:
    result = run("check", str(tmp_path / "missing"))
    assert (result.exit_code, "cannot be read" in result.stderr) == (2, True)
    assert run("check").exit_code == 2
    assert "check" in run("--help").stdout
