"""Differential vectors: steps with what RocketMQ answered, run against `OrderInfo` itself or against the kernel."""

from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any

import msgspec

from broker_state.kernel.orderly import is_same_attempt
from popstream.wire.answer import Answer
from popstream.wire.failures import Invalid
from popstream.wire.reason import Reason, code_of
from tests.conformance.broker import Broker, RocketHandle
from tests.conformance.order_info_steps import OrderInfoSteps
from tests.conformance.order_infos import is_member, order_counts
from tests.conformance.rules import (
    CONTIGUOUS_COMMIT_OFFSET,
    EQUAL_DEADLINE,
    FENCED_HANDLES,
    NEVER_LOST,
    RANGE_CHECKED,
    RESET_AT_ONCE,
    RESULTS_PER_ENTRY,
    TRUE_WAKE_UP,
    Request,
    apply,
    map_ack,
    map_change,
)
from tests.conformance.step_fields import ORDER_INFO_STEPS, what_is_wrong
from tests.conformance.verdict import Comparison, NotApplicableError, Outcome, Verdict

__all__ = ["run_vector", "run_vectors"]

_ELSEWHERE = {
    "receipt_handle": "the text of RocketMQ's handles",
    "extra_info": "RocketMQ's header strings and retry-topic names",
    "record_key": "the keys of RocketMQ's record store",
    "kv_store": "RocketMQ's record store",
    "cache": "RocketMQ's memory buffer",
    "lock": "RocketMQ's locks",
    "long_polling": "facts about RocketMQ's polling service, without steps",
}
_PARTS = {
    "revive": "RocketMQ's revive loop and retry topic",
    "cache": "RocketMQ's memory buffer",
    "lock": "RocketMQ's locks",
    "kv": "RocketMQ's record store",
    "fail": "faults of RocketMQ's record store",
    "set_revive_current_time": "RocketMQ's revive loop and retry topic",
    "pop_should_stop": "RocketMQ's count of records in memory",
    "pending_filter_count": "a count of RocketMQ's proxy",
    "queue_max": "RocketMQ's retry topic",
    "ack_bad_code": "RocketMQ's request codes",
}
_HEADERS = {"start_offset_info", "msg_offset_info", "rest"}
"""Strings of RocketMQ's response header, and a number that depends on its order of queues."""
_ILLEGAL = 13
_ORDER_INFO, _KERNEL = (
    {"order_info", "order_info_timer"},
    {"pop_orderly", "pop_kv", "ack_processor", "change_processor", "batch_change"},
)


def run_vectors(path: Path) -> Iterator[Verdict]:
    """One verdict for each vector of a file.

    Raises:
        Invalid: the file cannot be read, or has no vectors.
    """
    try:
        vectors = list(msgspec.json.decode(path.read_bytes())["vectors"])
    except (OSError, msgspec.DecodeError, KeyError, TypeError) as error:
        message = f"the file has no vectors that can be read: {error}"
        raise Invalid(message, subject=str(path)) from error
    yield from map(run_vector, vectors)


def run_vector(vector: dict[str, Any]) -> Verdict:
    """The verdict on one vector; what cannot be read as one fails."""
    subject = str(vector.get("id", "?")) if isinstance(vector, dict) else "?"
    try:
        return _run(subject, vector)
    except NotApplicableError as error:
        return Verdict(subject, Outcome.NOT_APPLICABLE, str(error))
    except Exception as error:  # noqa: BLE001 - whatever is in the file
        return Verdict(subject, Outcome.FAIL, f"cannot be read as a vector: {error!r}")


def _run(subject: str, vector: dict[str, Any]) -> Verdict:
    component, steps = vector["component"], vector.get("steps", [])
    if component in _ELSEWHERE:
        return Verdict(subject, Outcome.NOT_APPLICABLE, _ELSEWHERE[component])
    comparison = Comparison()
    run: Any = (
        OrderInfoSteps(vector.get("clock") or 0, steps, comparison)
        if component in _ORDER_INFO
        else _Steps(vector, comparison)
    )
    if component not in _ORDER_INFO | _KERNEL:
        return Verdict(subject, Outcome.FAIL, f"there is no component {component!r}")
    for step in steps:
        part = next((what for op, what in _PARTS.items() if step["op"] == op or step["op"].startswith(f"{op}_")), None)
        if part is not None:
            return Verdict(subject, Outcome.NOT_APPLICABLE, part)
    wrong = [
        f"step {number}: {what}"
        for number, step in enumerate(steps)
        for what in (what_is_wrong(step, ORDER_INFO_STEPS) if component in _ORDER_INFO else ())
    ]
    if wrong:
        return Verdict(subject, Outcome.FAIL, "; ".join(wrong))
    for number, step in enumerate(steps):
        if not run.knows(step["op"]):
            return Verdict(subject, Outcome.FAIL, f"there is no step {step['op']!r}")
        run.run(f"step {number} ({step['op']})", step)
    return comparison.verdict(subject)


def _request(step: dict[str, Any]) -> tuple[tuple[str, str, int], int, RocketHandle]:
    """(lane, offset, handle) of an ack or a change."""
    lane = (step["group"], step["topic"], step["queue_id"])
    return lane, step["offset"], RocketHandle.parse(step["extra_info"])


def _single_code(request: Request) -> int:
    """What a single ack is answered, by the rules."""
    if not request.is_queue:
        return code_of(Reason.TOPIC_NOT_EXIST)
    if request.order_info is None and not request.known:
        return code_of(Reason.UNKNOWN_HANDLE)
    if request.offset >= request.max_offset:
        return code_of(Reason.ABOVE_MAX)
    info = request.order_info
    if info is not None and request.is_current and request.offset >= request.commit_offset:
        return 0 if is_member(info, request.offset) else code_of(Reason.OUTSIDE_POP)
    return 0


class _Steps:
    """The steps that go through the kernel."""

    def __init__(self, vector: dict[str, Any], comparison: Comparison) -> None:
        self._broker = Broker(vector.get("clock") or 0)
        self._comparison = comparison
        self._is_buffered = bool(vector.get("config", {}).get("enablePopBufferMerge"))
        self._queues = {"T": vector.get("config", {}).get("readQueueNums", 1)}
        self._pops: dict[tuple[str, str], int] = {}
        self._lost: dict[tuple[str, str, int], int | None] = {}
        """Lanes whose entry RocketMQ was made to lose, and its consumer offset since."""
        self._consumer_offsets: dict[tuple[str, str, int], int] = {}
        """RocketMQ's, of concurrent lanes: where the latest pop began to read."""
        self._pull_offsets: dict[tuple[str, str, int], int] = {}
        self._committed: dict[tuple[str, str, int], int] = {}
        self._kept: list[dict[str, Any]] = []
        """Leases that RocketMQ lost to a change to an equal deadline."""
        self._woken: list[str] = []
        """Lanes whose waiting pops RocketMQ wakes for an ack, whether there is anything left for them or not."""
        self._reset_while_blocked: dict[tuple[str, str, int], int] = {}
        """Until when RocketMQ keeps a lane blocked that was reset meanwhile."""
        self._parted: set[tuple[str, str, int]] = set()
        """Lanes that the two brokers have handed out differently: nothing more is compared of them."""

    def knows(self, op: str) -> bool:
        """Whether it is a step for the kernel."""
        return hasattr(self, f"_do_{op}")

    def run(self, where: str, step: dict[str, Any]) -> None:
        """One step; nothing is compared when it expects nothing."""
        if step["op"] in {"ack", "change"} and step["queue_id"] in range(self._queues.get(step["topic"], 0)):
            self._broker.declare(step["topic"], step["queue_id"])
        getattr(self, f"_do_{step['op']}")(where, step)

    def _check(self, where: str, step: dict[str, Any], mapped: object, ours: object, rules: list[str]) -> None:
        if "expect" in step:
            self._comparison.check(where, step["expect"], mapped, ours, rules)

    def _do_clock(self, _: str, step: dict[str, Any]) -> None:
        self._broker.now_ms = step["now"]

    def _do_advance(self, _: str, step: dict[str, Any]) -> None:
        self._broker.now_ms += step["ms"]

    def _do_add_topic(self, _: str, step: dict[str, Any]) -> None:
        self._queues[step["topic"]] = step.get("read_queue_nums", 1)

    def _do_add_group(self, _: str, __: dict[str, Any]) -> None:
        """Groups are made by their first pop."""

    def _do_send(self, _: str, step: dict[str, Any]) -> None:
        self._broker.send(step["topic"], step["queue_id"], step.get("tags") or [None] * step["count"])

    def _do_set_queue_range(self, _: str, step: dict[str, Any]) -> None:
        self._broker.declare(step["topic"], step["queue_id"], step["min"], step["max"])

    def _do_commit_offset(self, _: str, step: dict[str, Any]) -> None:
        lane = (step["group"], step["topic"], step["queue_id"])
        self._committed[lane] = step["offset"]
        self._broker.reset_offset(*lane, step["offset"])

    def _do_admin_reset_offset(self, _: str, step: dict[str, Any]) -> None:
        lane = (step["group"], step["topic"], step["queue_id"])
        info = self._broker.order_info(*lane)
        if info is not None and info.head.due_ms > self._broker.now_ms:
            self._reset_while_blocked[lane] = info.head.due_ms
        self._broker.reset_offset(*lane, step["offset"])

    def _do_notified(self, where: str, step: dict[str, Any]) -> None:
        """RocketMQ wakes the waiting pops of a lane that is free; popstream those of one that has something to give."""
        expected, woken = step.get("expect"), self._woken
        ours, self._broker.notified, self._woken = self._broker.notified, [], []
        mapped = expected
        if expected == woken:
            mapped = [name for name in woken if self._has_something(name)]
        self._check(where, step, mapped, ours, [TRUE_WAKE_UP] if mapped != expected else [])

    def _has_something(self, name: str) -> bool:
        topic, group, queue_id = name.split("@")
        lane = self._broker.lane(group, topic, int(queue_id))
        return lane is not None and lane.is_poppable

    def _do_oi_clear_block(self, _: str, step: dict[str, Any]) -> None:
        """RocketMQ loses the entry; popstream has no way to."""
        lane = (step["group"], step["topic"], step["queue_id"])
        self._lost[lane] = self._broker.commit_offset(*lane)

    def _do_oi_check_block(self, where: str, step: dict[str, Any]) -> None:
        info = self._broker.order_info(step["group"], step["topic"], step["queue_id"])
        is_free = info is None or is_same_attempt(info, step["attempt_id"]) or info.head.due_ms <= self._broker.now_ms
        ours = not is_free
        self._check(where, step, step.get("expect"), ours, [])

    def _do_pop(self, where: str, step: dict[str, Any]) -> None:
        topic, left = step["topic"], step["max"]
        told: dict[str, Any] = {"messages": [], "order_count_info": {}}
        for queue_id in self._queues_of_pop(step):
            lane = (step["group"], topic, queue_id)
            answer = self._broker.pop(
                *lane,
                count=left,
                invisible_time_ms=step["invisible_time"],
                order=step.get("order", False),
                attempt_id=step.get("attempt_id"),
                tag=step.get("tag"),
            )
            self._note_pull(lane, left, answer)
            offsets = [at for m in answer.messages for at in range(m.first, m.last + 1)]
            told["messages"] += [[topic, queue_id, at, 0] for at in offsets]
            info = self._broker.order_info(*lane)
            if info is not None and offsets:
                told["order_count_info"] |= order_counts(info, queue_id)
                self._lost.pop(lane, None)
            header = (answer.pop_time_ms, answer.invisible_time_ms, answer.revive_queue_id)
            if offsets or "pop_time" not in told:
                told |= dict(zip(("pop_time", "invisible_time", "revive_qid"), header, strict=True))
            left -= len(offsets)
            if not left:
                break
        if "expect" not in step or lane in self._parted:
            return
        expected = {key: value for key, value in step["expect"].items() if key not in _HEADERS}
        ours = {key: told.get(key) for key in expected}
        if self._broker.now_ms < self._reset_while_blocked.pop(lane, 0) and expected.get("messages") == []:
            # The block is gone with the batch that made it, as in 5.5.0; an older broker waits.
            first = self._broker.commit_offset(*lane) or 0
            messages = [[topic, queue_id, at, 0] for at in range(first, min(first + step["max"], self._end(lane)))]
            self._comparison.check(
                where, expected, {"messages": messages}, {"messages": told["messages"]}, [RESET_AT_ONCE]
            )
            self._parted.add(lane)
            return
        self._comparison.check(where, expected, expected, ours, [])

    def _queues_of_pop(self, step: dict[str, Any]) -> list[int]:
        """Queue -1 is each in turn, beginning one further with every pop of the group."""
        topic = step["topic"]
        begin = self._pops.get((step["group"], topic), 0)
        self._pops[step["group"], topic] = begin + 1
        count = self._queues.get(topic, 1)
        if step["queue_id"] >= 0:
            return [step["queue_id"]]
        return [(begin + number) % count for number in range(count)]

    def _note_pull(self, lane: tuple[str, str, int], asked: int, answer: Answer) -> None:
        """RocketMQ's concurrent pop commits where it began to read; it reads on until it is full, or to the end."""
        began = self._pull_offsets.get(lane, self._committed.get(lane, 0))
        self._consumer_offsets[lane] = began
        last = answer.messages[-1].last + 1 if answer.messages else began
        count = sum(m.last - m.first + 1 for m in answer.messages)
        self._pull_offsets[lane] = last if count == asked else self._end(lane)

    def _end(self, lane: tuple[str, str, int]) -> int:
        state = self._broker.lane(*lane)
        return state.queue.written.floor if state is not None else 0

    def _do_ack(self, where: str, step: dict[str, Any]) -> None:
        lane, offset, handle = _request(step)
        request = self._broker.request(*lane, offset, handle)
        ours = self._broker.ack(*lane, offset, handle)
        info = request.order_info
        if lane in self._lost and offset >= (self._lost[lane] or 0):
            self._lost[lane] = offset + 1
        if info is not None and request.is_current and offset >= request.commit_offset and not ours["code"]:
            self._woken += [] if info.head.due_ms > self._broker.now_ms else [f"{lane[1]}@{lane[0]}@{lane[2]}"]
        mapped, rules = apply(map_ack, step.get("expect") or {"code": None}, request)
        self._check(where, step, mapped, ours, rules)

    def _do_change(self, where: str, step: dict[str, Any]) -> None:
        lane, offset, handle = _request(step)
        asked_ms = step["invisible_time"]
        equal = [
            lease
            for lease in self._broker.leases()
            if lease["offset"] == offset and lease["visibility_timeout"] == self._broker.now_ms + asked_ms
        ]
        request = self._broker.request(*lane, offset, handle, asked_ms)
        answer = self._broker.change(
            *lane, offset, handle, invisible_time_ms=asked_ms, suspend=step.get("suspend", False)
        )
        if equal and not self._is_buffered:
            self._kept += [lease for lease in self._broker.leases() if lease["offset"] == offset]
        expected = dict(step.get("expect") or {})
        if expected.get("code"):  # RocketMQ writes a header of zeros
            expected = {key: value or None for key, value in expected.items()}
        mapped, rules = apply(map_change, {"code": None, **expected}, request)
        self._check(
            where, step, {key: mapped[key] for key in expected}, {key: answer.get(key) for key in expected}, rules
        )
        if asked_ms < 0 and RANGE_CHECKED in rules and request.is_current:
            # What RocketMQ made visible in the past is visible now: go on as if that had been asked for.
            self._broker.change(*lane, offset, handle, invisible_time_ms=0, suspend=step.get("suspend", False))

    def _do_batch_ack(self, where: str, step: dict[str, Any]) -> None:
        """RocketMQ: one code for all, without checks of the single entries; popstream: an outcome for each."""
        acks = step.get("acks") or []
        ours = single = 0
        rocketmq = 0 if acks else code_of(Reason.BELOW_MIN)
        for ack in acks:
            handle = RocketHandle(ack["start_offset"], ack["pop_time"], ack["invisible_time"], ack["revive_qid"])
            lane = (ack["group"], ack["topic"], ack["queue_id"])
            offsets = [ack["start_offset"] + bit for bit in ack["bits"]]
            for offset in offsets:
                code = _single_code(self._broker.request(*lane, offset, handle))
                single = single or code
                rocketmq = code if code == _ILLEGAL and self._broker.order_info(*lane) is not None else rocketmq
            ours = self._broker.ack_many(*lane, offsets, handle) or ours
        rules: list[str] = []
        if not acks:
            self._broker.declare("T", 0)
            ours = self._broker.ack_many("G", "T", 0, [], None)
            single, rules = code_of(Reason.INVALID_PARAMETER), [RANGE_CHECKED]
        elif single != rocketmq:
            rules = [FENCED_HANDLES if single == code_of(Reason.UNKNOWN_HANDLE) else RESULTS_PER_ENTRY]
        expected = step.get("expect")
        mapped = {"code": single} if expected == {"code": rocketmq} else expected
        self._check(where, step, mapped, {"code": ours}, rules)

    def _do_offsets(self, where: str, step: dict[str, Any]) -> None:
        lane = (step["group"], step["topic"], step["queue_id"])
        if lane in self._parted:
            return
        expected = {key: value for key, value in (step.get("expect") or {}).items() if key == "consumer"}
        ours = {"consumer": self._broker.commit_offset(*lane)}
        mapped, rules = expected, []
        info = self._broker.order_info(*lane)
        if lane in self._lost and info is not None:
            if expected == {"consumer": self._lost[lane]} != ours:
                first = next((first for first, _, _ in info.unacked()), info.head.end)
                mapped, rules = {"consumer": first}, [NEVER_LOST]
        elif info is None and expected == {"consumer": self._consumer_offsets.get(lane)} != ours:
            mapped, rules = {"consumer": self._first_not_done(lane)}, [CONTIGUOUS_COMMIT_OFFSET]
        if "expect" in step:
            self._comparison.check(where, expected, mapped, ours, rules)

    def _first_not_done(self, lane: tuple[str, str, int]) -> int | None:
        """The rule: the first offset that is leased or was never handed out."""
        leased = [lease["offset"] for lease in self._broker.leases() if lease["queue_id"] == lane[2]]
        state = self._broker.lane(*lane)
        return None if state is None else min([*leased, state.record.next_offset])

    def _do_store_state(self, where: str, step: dict[str, Any]) -> None:
        """RocketMQ's records are popstream's live leases; not while some may still be in the memory buffer."""
        if self._is_buffered or "expect" not in step:
            return
        keys = ("visibility_timeout", "pop_time", "invisible_time", "topic", "queue_id", "offset")
        expected = [{key: record[key] for key in keys} for record in step["expect"]]
        live = [lease for lease in self._kept if lease in self._broker.leases()]
        mapped = sorted([*expected, *live], key=itemgetter("visibility_timeout", "queue_id", "offset"))
        self._comparison.check(where, expected, mapped, self._broker.leases(), [EQUAL_DEADLINE] if live else [])

    def _do_store_count(self, where: str, step: dict[str, Any]) -> None:
        if not self._is_buffered:
            self._check(where, step, step.get("expect"), len(self._broker.leases()), [])

    def _do_store_write_calls(self, _: str, __: dict[str, Any]) -> None:
        """How often RocketMQ writes for it; popstream writes once a micro-batch (test_rocks_store.py)."""
