"""The steps of a vector that go to a broker: pops, acks, changes, revives, offsets, RocketMQ's records."""

from collections.abc import Iterable
from typing import Any

from popstream.wire.reason import Reason
from tests.conformance.conformance_verdict import Comparison
from tests.conformance.kernel.epilogue import follow_to_the_end
from tests.conformance.kernel.kernel_broker import KernelOutcome, Lane, RocketHandle
from tests.conformance.rocketmq.broker import SNAPSHOT, RocketPop
from tests.conformance.rocketmq.pop_record_store import PopRecord
from tests.conformance.rules import (
    CONTIGUOUS_COMMIT_OFFSET,
    FENCED_HANDLES,
    IN_PLACE,
    RANGE_CHECKED,
    RESULTS_PER_ENTRY,
    TRUE_WAKE_UP,
    rule_of,
)
from tests.conformance.side_by_side import BothAnswers, RocketChange, SideBySide

__all__ = ["BrokerSteps"]

_NOT_COMPARED = {"start_offset_info", "msg_offset_info", "rest", "remark"}
"""Texts of RocketMQ's answers, and a number that depends on its order of queues."""
_ORDERLY = 999


class BrokerSteps:
    """A vector against both sides. With `is_batch` the changes of one moment go to popstream as one record."""

    def __init__(self, vector: dict[str, Any], comparison: Comparison, *, is_batch: bool = False) -> None:
        self._comparison = comparison
        self._is_batch = is_batch
        self.both = SideBySide(SNAPSHOT, vector.get("config", {}), vector.get("clock") or 0, comparison)
        self.change_outcomes: list[KernelOutcome | None] = []
        """popstream's, of each `change` step."""
        self.leases_at_the_end: list[tuple[int, int, str, str, int, int]] = []
        self.records_before_changes: list[PopRecord] = []
        """RocketMQ's, before the first change."""
        self.changed_at_ms = 0

    def run_all(self, steps: list[dict[str, Any]]) -> None:
        """Every step, then what is left."""
        at = 0
        while at < len(steps):
            together = 1
            if self._is_batch and steps[at]["op"] == "change":
                while at + together < len(steps) and _is_of_one_request(steps[at], steps[at + together]):
                    together += 1
            where = f"step {at} ({steps[at]['op']})"
            self.both.at(where)
            if steps[at]["op"] == "change":
                self._change(at, steps[at : at + together])
            else:
                getattr(self, f"_do_{steps[at]['op']}")(where, steps[at])
            self._comparison.agree(where, self.both.broker.pair.disagreement)
            at += together
        self.leases_at_the_end = self.leases()
        follow_to_the_end(self.both.broker, self._comparison)

    def _compare(self, where: str, step: dict[str, Any], rocketmq: object, ours: object, rules: Iterable[str]) -> None:
        recorded = {"recorded": step["expect"]} if "expect" in step else {}
        self._comparison.compare(where, rocketmq=rocketmq, ours=ours, rules=rules, **recorded)

    def _do_clock(self, _: str, step: dict[str, Any]) -> None:
        self.both.broker.now_ms = step["now"]

    def _do_advance(self, _: str, step: dict[str, Any]) -> None:
        self.both.broker.now_ms += step["ms"]

    def _do_add_topic(self, _: str, step: dict[str, Any]) -> None:
        self.both.rocketmq.add_topic(step["topic"], step.get("read_queue_nums", 1))

    def _do_add_group(self, _: str, step: dict[str, Any]) -> None:
        self.both.rocketmq.orders.groups.add(step["group"])

    def _do_send(self, where: str, step: dict[str, Any]) -> None:
        self._know_topic(step)
        tags = step.get("tags") or [None] * step["count"]
        rocketmq, ours = self.both.send(step["topic"], step["queue_id"], tags)
        self._compare(where, step, rocketmq, ours, [])

    def _do_set_queue_range(self, _: str, step: dict[str, Any]) -> None:
        self._know_topic(step)
        self.both.set_range(step["topic"], step["queue_id"], step["min"], step["max"])

    def _know_topic(self, step: dict[str, Any]) -> None:
        """A topic that has messages exists."""
        topics = self.both.rocketmq.orders.topics
        topics[step["topic"]] = max(topics.get(step["topic"], 1), step["queue_id"] + 1)

    def _do_commit_offset(self, where: str, step: dict[str, Any]) -> None:
        rocketmq, ours, rules = self.both.commit(_lane(step), step["offset"])
        self._comparison.compare(where, rocketmq=rocketmq, ours=ours, rules=rules)

    def _do_admin_reset_offset(self, where: str, step: dict[str, Any]) -> None:
        rocketmq, ours, rules = self.both.reset(_lane(step), step["offset"])
        self._compare(where, step, {"code": rocketmq}, {"code": ours}, rules)

    def _do_notified(self, where: str, step: dict[str, Any]) -> None:
        """RocketMQ wakes the waiting pops of a lane that is free; popstream those of one that has something to give."""
        rocketmq, self.both.rocketmq.notified = self.both.rocketmq.notified, []
        pair = self.both.broker.pair
        ours = [f"{topic}@{group}@{queue_id}" for group, topic, queue_id in pair.notified]
        pair.notified = []
        has_something = [name for name in rocketmq if self._has_something(name)]
        if "expect" in step:
            self._compare(where, step, rocketmq, ours, [TRUE_WAKE_UP] if has_something != rocketmq else [])
            self._comparison.compare(f"{where}, of what can be popped", rocketmq=has_something, ours=ours, rules=[])

    def _has_something(self, name: str) -> bool:
        topic, group, queue_id = name.split("@")
        lane = (topic, group, int(queue_id))
        state, queue = self.both.broker.lane(lane), self.both.broker.pair.queue(topic, int(queue_id))
        return bool(state and queue and state["commit"] < queue["commit_position"])

    def _do_oi_clear_block(self, _: str, step: dict[str, Any]) -> None:
        """RocketMQ loses the entry; in popstream only a reset ends a batch."""
        lane = _lane(step)
        self.both.rocketmq.orders.clear(lane)
        state = self.both.broker.lane(lane)
        if state is not None:
            self.both.broker.reset_offset(lane, state["commit"])

    def _do_oi_check_block(self, where: str, step: dict[str, Any]) -> None:
        lane, attempt_id = _lane(step), step["attempt_id"]
        rocketmq = self.both.rocketmq.orders.blocks(lane, attempt_id, step["invisible_time"], self.both.now_ms)
        tried = self.both.broker.fork()
        tried.send(lane[0], lane[2], [None])
        answer = tried.pop(lane, count=1, invisible_time_ms=1_000, order=True, attempt_id=attempt_id)
        self._comparison.agree(f"{where}, a pop", tried.pair.disagreement)
        ours = answer is None or answer.reason is Reason.NO_MESSAGE
        self._compare(where, step, rocketmq, ours, self.both.rules(lane))

    def _do_oi_state(self, where: str, step: dict[str, Any]) -> None:
        lane, wanted = _lane(step), step.get("expect")
        entry = self.both.rocketmq.orders.entry(lane)
        stored = entry.stored() if entry is not None else None
        if "expect" in step:
            recorded = {key: (stored or {}).get(key) for key in wanted} if isinstance(wanted, dict) else stored
            self._comparison.compare(where, recorded=wanted, rocketmq=recorded, ours=recorded, rules=[])
        ours = self.both.stored_batch(lane)
        if stored is not None and ours is not None:
            stored, ours, rules = self.both.comparable_batches(lane, {key: stored[key] for key in ours}, ours)
            for rule in rules:
                self._comparison.compare(f"{where}, {rule}", rocketmq=True, ours=False, rules=[rule])
        self._comparison.compare(f"{where}, the batch", rocketmq=stored, ours=ours, rules=self.both.rules(lane))

    def _do_oi_lock_free_timestamp(self, where: str, step: dict[str, Any]) -> None:
        entry = self.both.rocketmq.orders.entry(_lane(step))
        self._compare_wake_up(where, step, entry.lock_free_ms(self.both.now_ms) if entry is not None else None)

    def _do_oi_timer(self, where: str, step: dict[str, Any]) -> None:
        self._compare_wake_up(where, step, self.both.rocketmq.orders.armed.get(_lane(step)))

    def _compare_wake_up(self, where: str, step: dict[str, Any], rocketmq: int | None) -> None:
        """RocketMQ's timer may have fired before; both are due then."""
        lane, broker = _lane(step), self.both.broker
        ours = None if broker.batch(lane) is None else max(broker.free_ms(lane), broker.now_ms)
        rules = self.both.rules(lane)
        if rocketmq is not None and ours is not None and ours > rocketmq:
            rules.append(TRUE_WAKE_UP)
        if rocketmq is not None and max(rocketmq, broker.now_ms) == ours:
            ours = rocketmq
        self._compare(where, step, rocketmq, ours, rules)

    def _do_pop(self, where: str, step: dict[str, Any]) -> None:
        request = RocketPop(
            step["topic"],
            step["group"],
            step["queue_id"],
            step["max"],
            step["invisible_time"],
            step.get("order", False),
            step.get("attempt_id"),
            step.get("tag"),
            init_max=step.get("init_mode", 0) == 1,
        )
        if "messages" in step.get("expect", {}):
            # A vector may be of a release before 5.5.0 or of this one, which differ in a reset of a blocked lane.
            self.both.rocketmq.release = SNAPSHOT._replace(resets_while_blocked=bool(step["expect"]["messages"]))
        both = self.both.pop(request)
        popped, topic, rules = both.rocketmq, step["topic"], both.rules
        messages = [[m.real_topic, m.queue_id, m.offset, m.original.reconsume_times] for m in popped.messages]
        header = {
            "pop_time": popped.pop_time_ms,
            "invisible_time": popped.invisible_time_ms,
            "revive_qid": popped.revive_queue_id,
        }
        if "expect" in step:
            recorded = {key: value for key, value in step["expect"].items() if key not in _NOT_COMPARED}
            rocketmq = {"messages": messages, "order_count_info": popped.order_counts, **header}
            rocketmq = {key: rocketmq[key] for key in recorded}
            self._comparison.compare(where, recorded=recorded, rocketmq=rocketmq, ours=rocketmq, rules=[])
        answers = [answer for answer in both.answers.values() if answer is not None and answer.messages]
        if request.order:
            shown = self.both.shown_by_rocketmq(popped)
            ours = [[queue_id, offset, attempt - 1] for queue_id, offset, attempt in both.ours]
            self._comparison.compare(f"{where}, messages", rocketmq=shown, ours=ours, rules=rules)
        else:
            ours = [[topic, queue_id, offset, attempt - 1] for queue_id, offset, attempt in both.ours]
            self._comparison.compare(f"{where}, messages", rocketmq=messages, ours=ours, rules=rules)
        for answer in answers:
            told = (answer.pop_time_ms, answer.invisible_time_ms, answer.revive_queue_id)
            self._comparison.compare(f"{where}, header", rocketmq=tuple(header.values()), ours=told, rules=[])

    def _do_ack(self, where: str, step: dict[str, Any]) -> None:
        self._declare(step)
        both = self.both.ack(_lane(step), step["offset"], RocketHandle.parse(step["extra_info"]))
        self._compare_answers(where, step, both)

    def _change(self, number: int, steps: list[dict[str, Any]]) -> None:
        """Changes that are one request, or a single one."""
        if not self.change_outcomes:
            self.records_before_changes, self.changed_at_ms = self.both.rocketmq.store.everything(), self.both.now_ms
        for step in steps:
            self._declare(step)
        changes = [
            RocketChange(
                _lane(step),
                step["offset"],
                RocketHandle.parse(step["extra_info"]),
                step["invisible_time"],
                step.get("suspend", False),
            )
            for step in steps
        ]
        for at, (step, both) in enumerate(zip(steps, self.both.changes(changes), strict=True), number):
            self.change_outcomes.append(both.outcome)
            self._compare_answers(f"step {at} (change)", step, both)

    def _compare_answers(self, where: str, step: dict[str, Any], both: BothAnswers) -> None:
        """What is expected lists some fields of an answer; a refusal has zeros, or nothing, for a header."""
        recorded = step.get("expect")
        if recorded is not None:
            is_refused = bool(recorded.get("code"))
            recorded = {
                key: (value or None) if is_refused else value
                for key, value in recorded.items()
                if key not in _NOT_COMPARED
            }
            rocketmq = {key: both.rocketmq.get(key) for key in recorded}
            self._comparison.compare(where, recorded=recorded, rocketmq=rocketmq, ours=rocketmq, rules=[])
        if both.ours is not None:
            self._comparison.compare(where, rocketmq=both.rocketmq, ours=both.ours, rules=both.rules)

    def _declare(self, step: dict[str, Any]) -> None:
        """A queue that RocketMQ has exists in popstream too, empty."""
        if self.both.rocketmq.has_queue(step["topic"], step["queue_id"]) and not step["topic"].startswith("%RETRY%"):
            self.both.broker.declare(step["topic"], step["queue_id"])

    def _do_batch_ack(self, where: str, step: dict[str, Any]) -> None:
        """RocketMQ: one code for all, without checks of the single entries; popstream: an outcome for each."""
        acks = step.get("acks") or []
        rocketmq = self.both.rocketmq.batch_ack(acks, self.both.now_ms)
        ours, rules = (0, []) if acks else (29, [RANGE_CHECKED])
        for one in acks:
            handle = RocketHandle(one["start_offset"], one["pop_time"], one["invisible_time"], one["revive_qid"])
            lane = (one["topic"], one["group"], one["queue_id"])
            offsets = [one["start_offset"] + bit for bit in one["bits"]]
            for outcome in self.both.broker.ack(lane, offsets, handle):
                ours = ours or outcome.code
                is_orderly = self.both.is_orderly(lane)
                rule = rule_of(outcome.reason, is_orderly=is_orderly, is_change=False, is_zero_header=False)
                rules += [FENCED_HANDLES if rule == FENCED_HANDLES else RESULTS_PER_ENTRY] if outcome.code else []
        recorded = {"recorded": step["expect"]["code"]} if "code" in step.get("expect", {}) else {}
        self._comparison.compare(where, rocketmq=rocketmq, ours=ours, rules=rules, **recorded)

    def _do_offsets(self, where: str, step: dict[str, Any]) -> None:
        lane = _lane(step)
        rocketmq = {"consumer": self.both.rocketmq.consumer_offset(lane), "pull": self.both.rocketmq.pull_offset(lane)}
        if "expect" in step:
            rocketmq = {key: rocketmq[key] for key in step["expect"]}
            self._comparison.compare(where, recorded=step["expect"], rocketmq=rocketmq, ours=rocketmq, rules=[])
        state = self.both.broker.lane(lane)
        rules = self.both.rules(lane)
        if not self.both.is_orderly(lane):
            rules.append(CONTIGUOUS_COMMIT_OFFSET)
        consumer = self.both.rocketmq.consumer_offset(lane)
        ours = -1 if state is None else state["commit"]
        self._comparison.compare(f"{where}, commit offset", rocketmq=consumer, ours=ours, rules=rules)

    def _do_queue_max(self, where: str, step: dict[str, Any]) -> None:
        topic, queue_id = step["topic"], step["queue_id"]
        rocketmq = self.both.rocketmq.end(topic, queue_id)
        self._compare(where, step, rocketmq, self.both.broker.end_offset(topic, queue_id), [IN_PLACE])

    def _do_revive(self, where: str, step: dict[str, Any]) -> None:
        scanned, copies = self.both.revive(step.get("max"))
        rocketmq = {
            "scanned": scanned,
            "puts": [f"{copy.retry_topic}#0#{copy.offset} rc={copy.original.reconsume_times}" for copy in copies],
            "current_time": self.both.rocketmq.store.cursor_ms,
        }
        if "expect" in step:
            rocketmq = {key: rocketmq[key] for key in step["expect"]}
            self._comparison.compare(where, recorded=step["expect"], rocketmq=rocketmq, ours=rocketmq, rules=[])
        self._comparison.compare(f"{where}, copies", rocketmq=len(copies), ours=0, rules=[IN_PLACE])

    def _do_set_revive_current_time(self, _: str, step: dict[str, Any]) -> None:
        self.both.rocketmq.store.cursor_ms = step["value"]

    def _do_store_state(self, where: str, step: dict[str, Any]) -> None:
        """RocketMQ's records are popstream's live leases."""
        store = self.both.rocketmq.store
        if "expect" in step:
            rocketmq = [record.plain() for record in store.records()]
            self._comparison.compare(where, recorded=step["expect"], rocketmq=rocketmq, ours=rocketmq, rules=[])
        self._compare_leases(where)

    def _do_store_count(self, where: str, step: dict[str, Any]) -> None:
        count = len(self.both.rocketmq.store.records())
        self._compare(where, step, count, count, [])
        self._compare_leases(where)

    def _compare_leases(self, where: str) -> None:
        theirs = [
            (record.visible_ms, record.pop_time_ms, *record.message) for record in self.both.rocketmq.store.everything()
        ]
        ours = self.leases()
        rules = [
            rule for topic, group, queue_id, *_ in self._lanes() for rule in self.both.rules((topic, group, queue_id))
        ]
        if any(visible_ms <= self.both.now_ms for visible_ms, *_ in theirs):
            rules.append(IN_PLACE)
        self._comparison.compare(f"{where}, leases", rocketmq=theirs, ours=ours, rules=rules)

    def leases(self) -> list[tuple[int, int, str, str, int, int]]:
        """(deadline, pop time, group, topic, queue id, offset) of popstream's live leases in concurrent lanes."""
        return sorted(
            (message["deadline"], message["pop_time"], group, topic, queue_id, offset)
            for topic, group, queue_id, lane in self._lanes()
            for offset, message in lane["messages"].items()
            if message["state"] == "leased" and message["deadline"] > self.both.now_ms
        )

    def _lanes(self) -> list[tuple[str, str, int, dict[str, Any]]]:
        return [
            (topic, group, queue_id, lane)
            for (topic, queue_id), queue in self.both.broker.pair.queues().items()
            for group, lane in queue["lanes"].items()
        ]

    def _do_store_write_calls(self, where: str, step: dict[str, Any]) -> None:
        """How often RocketMQ writes for it; popstream writes once a micro-batch (test_rocks_store.py)."""
        store = self.both.rocketmq.store
        calls = {"put_batches": store.put_batches, "delete_batches": store.delete_batches}
        self._compare(where, step, calls, calls, [])


def _lane(step: dict[str, Any]) -> Lane:
    return step["topic"], step["group"], step["queue_id"]


def _is_of_one_request(first: dict[str, Any], other: dict[str, Any]) -> bool:
    names = ("op", "topic", "group", "queue_id")
    return [first[name] for name in names] == [other.get(name) for name in names]
