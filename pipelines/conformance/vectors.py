"""Differential vectors: steps with what RocketMQ answered, run against `OrderInfo` itself or against the kernel."""

from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any

import msgspec

from broker_state.errors import Invalid
from broker_state.reason import Reason, code_of
from pipelines.conformance.broker import Broker, RocketHandle
from pipelines.conformance.order_infos import OrderInfoTable, order_counts
from pipelines.conformance.rules import (
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
from pipelines.conformance.verdict import Comparison, Outcome, Verdict

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
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        return Verdict(subject, Outcome.FAIL, f"cannot be read as a vector: {error!r}")


def _run(subject: str, vector: dict[str, Any]) -> Verdict:
    component, steps = vector["component"], vector.get("steps", [])
    if component in _ELSEWHERE:
        return Verdict(subject, Outcome.NOT_APPLICABLE, _ELSEWHERE[component])
    comparison = Comparison()
    run = (
        OrderInfoTable(vector.get("clock") or 0, comparison) if component in _ORDER_INFO else _Steps(vector, comparison)
    )
    if component not in _ORDER_INFO | _KERNEL:
        return Verdict(subject, Outcome.FAIL, f"there is no component {component!r}")
    for step in steps:
        part = next((what for op, what in _PARTS.items() if step["op"] == op or step["op"].startswith(f"{op}_")), None)
        if part is not None:
            return Verdict(subject, Outcome.NOT_APPLICABLE, part)
        if not run.knows(step["op"]):
            return Verdict(subject, Outcome.FAIL, f"there is no step {step['op']!r}")
    for number, step in enumerate(steps):
        run.run(f"step {number} ({step['op']})", step)
    return comparison.verdict(subject)


def _request(step: dict[str, Any]) -> tuple[tuple[str, str, int], int, RocketHandle]:
    """(lane, offset, handle) of an ack or a change."""
    lane = (step["group"], step["topic"], step["queue_id"])
    return lane, step["offset"], RocketHandle.parse(step["extra_info"])


class _Steps:
    """The steps that go through the kernel."""

    def __init__(self, vector: dict[str, Any], comparison: Comparison) -> None:
        self._broker = Broker(vector.get("clock") or 0)
        self._comparison = comparison
        self._is_buffered = bool(vector.get("config", {}).get("enablePopBufferMerge"))
        self._queues = {"T": vector.get("config", {}).get("readQueueNums", 1)}
        self._next_queue = 0
        self._lost: set[tuple[str, str, int]] = set()
        """Lanes whose entry RocketMQ was made to lose."""
        self._consumer_offsets: dict[tuple[str, str, int], int] = {}
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
        self._broker.reset_offset(step["group"], step["topic"], step["queue_id"], step["offset"])

    def _do_admin_reset_offset(self, _: str, step: dict[str, Any]) -> None:
        lane = (step["group"], step["topic"], step["queue_id"])
        info = self._broker.order_info(*lane)
        if info is not None and info.is_blocked(self._broker.now_ms):
            self._reset_while_blocked[lane] = info.free_ms()
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
        self._lost.add((step["group"], step["topic"], step["queue_id"]))

    def _do_oi_check_block(self, where: str, step: dict[str, Any]) -> None:
        info = self._broker.order_info(step["group"], step["topic"], step["queue_id"])
        ours = info is not None and info.check_block(step["attempt_id"], step["invisible_time"], self._broker.now_ms)
        self._check(where, step, step.get("expect"), ours, [])

    def _do_pop(self, where: str, step: dict[str, Any]) -> None:
        topic, count = step["topic"], self._queues.get(step["topic"], 1)
        queues = [step["queue_id"]]
        if step["queue_id"] < 0:
            queues = [(self._next_queue + number) % count for number in range(count)]
            self._next_queue += 1
        for queue_id in queues:
            answer = self._broker.pop(
                step["group"],
                topic,
                queue_id,
                count=step["max"],
                invisible_time_ms=step["invisible_time"],
                order=step.get("order", False),
                attempt_id=step.get("attempt_id"),
                tag=step.get("tag"),
            )
            if answer.handle is not None:
                break
        offsets = [(at, m.attempt - 1) for m in answer.messages for at in range(m.first, m.last + 1)]
        info = self._broker.order_info(step["group"], topic, queue_id)
        told = {
            "messages": [[topic, queue_id, at, 0] for at, _ in offsets],
            "order_count_info": order_counts(info, queue_id) if info is not None and offsets else None,
            "pop_time": answer.pop_time_ms,
            "invisible_time": answer.invisible_time_ms,
            "revive_qid": answer.revive_queue_id,
        }
        expected = {key: value for key, value in (step.get("expect") or {}).items() if key not in _HEADERS}
        ours = {key: told.get(key) for key in expected}
        lane = (step["group"], topic, queue_id)
        if "expect" not in step or lane in self._parted:
            return
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

    def _end(self, lane: tuple[str, str, int]) -> int:
        state = self._broker.lane(*lane)
        return state.queue.written.floor if state is not None else 0

    def _do_ack(self, where: str, step: dict[str, Any]) -> None:
        lane, offset, handle = _request(step)
        request = self._broker.request(*lane, offset, handle)
        ours = self._broker.ack(*lane, offset, handle)
        info = request.order_info
        if info is not None and request.is_current and offset >= request.commit_offset and not ours["code"]:
            self._woken += [] if info.is_blocked(self._broker.now_ms) else [f"{lane[1]}@{lane[0]}@{lane[2]}"]
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
        if expected.get("code"):
            expected |= {key: None for key in expected if key != "code"}
        mapped, rules = apply(map_change, {"code": None, **expected}, request)
        self._check(
            where, step, {key: mapped[key] for key in expected}, {key: answer.get(key) for key in expected}, rules
        )

    def _do_batch_ack(self, where: str, step: dict[str, Any]) -> None:
        """RocketMQ: one code for all, without checks of the single entries; popstream: an outcome for each."""
        acks = step.get("acks") or []
        codes: list[int] = []
        mapped = {"code": 0}
        for ack in acks:
            handle = RocketHandle(ack["start_offset"], ack["pop_time"], ack["invisible_time"], ack["revive_qid"])
            lane = (ack["group"], ack["topic"], ack["queue_id"])
            offsets = [ack["start_offset"] + bit for bit in ack["bits"]]
            requests = [self._broker.request(*lane, offset, handle) for offset in offsets]
            code = self._broker.ack_many(*lane, offsets, handle)
            codes.append(code)
            for request in requests:
                single = self._single_code(request)
                mapped["code"] = mapped["code"] or single
        ours = {"code": next((code for code in codes if code), 0)}
        rules: list[str] = []
        expected = step.get("expect") or {"code": None}
        if not acks:
            ours = {"code": self._broker_refuses_nothing()}
            mapped, rules = {"code": code_of(Reason.INVALID_PARAMETER)}, [RANGE_CHECKED]
        elif mapped != expected:
            is_unknown = mapped["code"] == code_of(Reason.UNKNOWN_HANDLE)
            rules = [FENCED_HANDLES if is_unknown else RESULTS_PER_ENTRY]
        self._check(where, step, mapped, ours, rules)

    def _broker_refuses_nothing(self) -> int:
        self._broker.declare("T", 0)
        return self._broker.ack_many("G", "T", 0, [], None)

    def _single_code(self, request: Request) -> int:
        """What a single ack of RocketMQ's answers, by the rules."""
        if not request.is_queue:
            return code_of(Reason.TOPIC_NOT_EXIST)
        if request.order_info is None and not request.known:
            return code_of(Reason.UNKNOWN_HANDLE)
        if request.offset >= request.max_offset:
            return code_of(Reason.ABOVE_MAX)
        info = request.order_info
        if info is not None and request.is_current and request.offset >= request.commit_offset:
            return 0 if info.members_within(request.offset, request.offset + 1) else code_of(Reason.OUTSIDE_POP)
        return 0

    def _do_offsets(self, where: str, step: dict[str, Any]) -> None:
        lane = (step["group"], step["topic"], step["queue_id"])
        expected = {key: value for key, value in (step.get("expect") or {}).items() if key == "consumer"}
        ours = {"consumer": self._broker.commit_offset(*lane)}
        mapped, rules = expected, []
        if lane in self._parted:
            return
        if lane in self._lost and expected != ours:
            mapped, rules = ours if self._holds_back(lane) else expected, [NEVER_LOST]
        elif self._broker.order_info(*lane) is None and expected != ours:
            mapped, rules = {"consumer": self._first_not_done(lane)}, [CONTIGUOUS_COMMIT_OFFSET]
        if "expect" in step:
            self._comparison.check(where, expected, mapped, ours, rules)

    def _holds_back(self, lane: tuple[str, str, int]) -> bool:
        """The rule: the commit offset is the first unacked member of the entry that RocketMQ lost."""
        info = self._broker.order_info(*lane)
        assert info is not None, "a lost entry was there before"
        first = next((first for first, _, _ in info.unacked()), info.end)
        return first == self._broker.commit_offset(*lane)

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
        """How often RocketMQ writes for it; popstream writes once a micro-batch (tests/unit/test_store.py)."""
