"""Histories recorded from a real RocketMQ 5.5.0 broker, replayed with the recorded times."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from popstream.wire.base_errors import Invalid
from tests.conformance.conformance_verdict import Comparison, NotApplicableError, Verdict, VerdictKind
from tests.conformance.histories.history_fields import what_is_not_understood
from tests.conformance.kernel.epilogue import follow_to_the_end
from tests.conformance.kernel.kernel_broker import Lane, RocketHandle
from tests.conformance.rocketmq.broker import BROKER_5_5_0, RocketPop
from tests.conformance.rules import CONTIGUOUS_COMMIT_OFFSET, RESET_AT_ONCE
from tests.conformance.side_by_side import BothPops, RocketChange, SideBySide
from tests.model.reference_model import Record

__all__ = ["decided_in", "run_histories"]

_COMPARED = ("popTime", "i", "o", "cm", "ot", "oc", "a")
_SLACK_MS = 51
_SCAN_MS = 1_100
_NOT_FOUND = 22


def run_histories(path: Path) -> Iterator[Verdict]:
    """One verdict for each history of a file.

    Raises:
        Invalid: the file cannot be read.
    """
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        message = f"the histories cannot be read: {error}"
        raise Invalid(message, subject=str(path)) from error
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield _run(f"line {number}", line)


def decided_in(path: Path) -> Iterator[list[Record]]:
    """The records of the ops topic that each history of a file leads to, as far as it can be replayed."""
    for line in path.read_bytes().splitlines():
        replay = _Replay(msgspec.json.decode(line))
        with contextlib.suppress(NotApplicableError):
            replay.run("")
        yield replay.records


def _run(subject: str, line: bytes) -> Verdict:
    try:
        history = msgspec.json.decode(line)
        subject = f"{history['kind']}-{history['seed']}"
        wrong = list(what_is_not_understood(history))
        if wrong:
            return Verdict(subject, VerdictKind.FAIL, "; ".join(wrong))
        return _Replay(history).run(subject)
    except NotApplicableError as error:
        return Verdict(subject, VerdictKind.NOT_APPLICABLE, str(error))
    except Exception as error:  # noqa: BLE001 - whatever is in the file
        return Verdict(subject, VerdictKind.FAIL, f"cannot be read as a history: {error!r}")


class _Replay:
    """One history: an orderly one of a single queue, or a concurrent one of all queues of a topic."""

    def __init__(self, history: dict[str, Any]) -> None:
        self._history = history
        self._group, self._topic = history["group"], history["topic"]
        self._is_orderly = history["kind"] == "orderly"
        self._comparison = Comparison()
        first_ms = history["ops"][0]["clock_ms"] if history["ops"] else 0
        self._both = SideBySide(BROKER_5_5_0, {}, first_ms, self._comparison)
        self._both.rocketmq.add_topic(self._topic, history["read_queues"])
        self._queue_ids = [history["queue_id"]] if self._is_orderly else list(range(history["read_queues"]))
        for queue_id in self._queue_ids:
            self._both.broker.declare(self._topic, queue_id)

    @property
    def records(self) -> list[Record]:
        """What was decided."""
        return self._both.broker.pair.records

    def run(self, subject: str) -> Verdict:
        """Every operation, and what was found afterwards."""
        for op in self._history["ops"]:
            where = f"op {op['i']} ({op['op']})"
            self._both.at(where)
            if op["op"] != "wait":
                self._both.broker.now_ms = op["clock_ms"]
                self._both.revive()
                getattr(self, f"_do_{op['op']}")(where, op)
                self._comparison.agree(where, self._both.broker.pair.disagreement)
            self._check_probes(where, op)
        if self._is_orderly and "final_order_info" in self._history:
            self._check_final(self._lane(self._queue_ids[0]))
        follow_to_the_end(self._both.broker, self._comparison)
        return self._comparison.verdict(subject)

    def _lane(self, queue_id: int) -> Lane:
        return self._topic, self._group, queue_id

    def _do_send(self, where: str, op: dict[str, Any]) -> None:
        messages = op["result"]["messages"]
        tags = [message["tag"] for message in messages]
        rocketmq, ours = self._both.send(self._topic, op["args"]["queue_id"], tags)
        recorded = [message["queue_offset"] for message in messages]
        self._comparison.compare(where, recorded=recorded, rocketmq=rocketmq, ours=ours, rules=[])

    def _do_set_offset(self, where: str, op: dict[str, Any]) -> None:
        rocketmq, ours, rules = self._both.commit(self._lane(op["args"]["queue_id"]), op["args"]["offset"])
        recorded = op["result"]["code"]
        self._comparison.compare(where, recorded=recorded, rocketmq=rocketmq, ours=ours, rules=rules)

    def _do_reset_offset(self, where: str, op: dict[str, Any]) -> None:
        rocketmq, ours, rules = self._both.reset(self._lane(op["args"]["queue_id"]), op["args"]["offset"])
        recorded = op["result"]["code"]
        self._comparison.compare(where, recorded=recorded, rocketmq=rocketmq, ours=ours, rules=rules)

    def _do_pop(self, where: str, op: dict[str, Any]) -> None:
        args, result = op["args"], op["result"]
        request = RocketPop(
            self._topic,
            self._group,
            args["queue_id"],
            args["max"],
            args["invisible_ms"],
            args["order"],
            args["attempt_id"],
            None if args["exp"] in {"*", None} else args["exp"],
            init_max=args["init_mode"] == 1,
        )
        both = self._both.pop(request) if not args["poll_time"] else self._wait(where, request, op)
        popped = both.rocketmq
        self._compare_with_record(where, args, result, both)
        if args["order"]:
            shown = self._both.shown_by_rocketmq(popped)
        else:
            shown = [[m.real_topic, m.queue_id, m.offset, m.original.reconsume_times] for m in popped.messages]
        prefix = [] if args["order"] else [self._topic]
        ours = [[*prefix, queue_id, offset, attempt - 1] for queue_id, offset, attempt in both.ours]
        self._comparison.compare(f"{where}, messages", rocketmq=shown, ours=ours, rules=both.rules)
        codes = [answer.code for answer in both.answers.values() if answer is not None]
        rocketmq_code = 0 if popped.messages else 210
        self._comparison.compare(
            f"{where}, code", rocketmq=rocketmq_code, ours=min(codes, default=210), rules=both.rules
        )
        header = (popped.pop_time_ms, popped.invisible_time_ms, popped.revive_queue_id)
        for answer in both.answers.values():
            if answer is not None and answer.messages:
                told = (answer.pop_time_ms, answer.invisible_time_ms, answer.revive_queue_id)
                rules = both.rules if args["poll_time"] else []
                self._comparison.compare(f"{where}, header", rocketmq=header, ours=told, rules=rules)

    def _compare_with_record(self, where: str, args: dict[str, Any], result: dict[str, Any], both: BothPops) -> None:
        """The recorded answer against that of RocketMQ's shadow."""
        popped = both.rocketmq
        recorded: dict[str, Any] = {
            "code": result["code"],
            "messages": [
                [m["real_topic"], m["queue_id"], m["queue_offset"], m["orig_queue_id"], m["orig_queue_offset"]]
                for m in result["messages"]
            ],
            "counts": [m["reconsume_times"] for m in result["messages"]],
            "header": [result["pop_time"], result["invisible_time"], result["revive_qid"]],
            "order_counts": _parsed_counts(result["order_count_info"] or "") if args["order"] else {},
        }
        counts = [m.original.reconsume_times for m in popped.messages]
        if args["order"]:
            counts = [count for *_, count in self._both.shown_by_rocketmq(popped)]
        rocketmq = {
            "code": 0 if popped.messages else 210,
            "messages": [
                [m.real_topic, m.queue_id, m.offset, m.original.queue_id, m.original.offset] for m in popped.messages
            ],
            "counts": counts,
            "header": [popped.pop_time_ms, popped.invisible_time_ms, popped.revive_queue_id],
            "order_counts": popped.order_counts,
        }
        self._comparison.compare(where, recorded=recorded, rocketmq=rocketmq, ours=rocketmq, rules=[])

    def _wait(self, where: str, request: RocketPop, op: dict[str, Any]) -> BothPops:
        """A pop that may wait: it is sent at the beginning, RocketMQ answers it anew at the end."""
        args, broker = op["args"], self._both.broker
        if args["queue_id"] < 0:
            message = "a pop of any queue that waits"
            raise NotApplicableError(message)
        broker.now_ms = op["at_ms"][0]
        ours = self._both.pop_that_waits(request, args["poll_time"], until_ms=op["clock_ms"])
        self._comparison.agree(where, broker.pair.disagreement)
        return ours

    def _do_ack(self, where: str, op: dict[str, Any]) -> None:
        args = op["args"]
        lane = (args["topic"], self._group, args["queue_id"])
        both = self._both.ack(lane, args["offset"], RocketHandle.parse(args["handle"]))
        recorded = {"code": op["result"]["code"]}
        ours = both.rocketmq if both.ours is None else both.ours
        self._comparison.compare(where, recorded=recorded, rocketmq=both.rocketmq, ours=ours, rules=both.rules)

    def _do_change(self, where: str, op: dict[str, Any]) -> None:
        args, result = op["args"], op["result"]
        lane = (args["topic"], self._group, args["queue_id"])
        handle = RocketHandle.parse(args["handle"])
        both = self._both.change(RocketChange(lane, args["offset"], handle, args["invisible_ms"], args["suspend"]))
        recorded = {key: result[key] for key in ("code", "pop_time", "invisible_time", "revive_qid")}
        if recorded["code"]:  # RocketMQ writes a header of zeros
            recorded = {key: value or None for key, value in recorded.items()}
        ours = both.rocketmq if both.ours is None else both.ours
        self._comparison.compare(where, recorded=recorded, rocketmq=both.rocketmq, ours=ours, rules=both.rules)

    def _check_probes(self, where: str, op: dict[str, Any]) -> None:
        """The offsets that were asked for after the operation."""
        if self._is_orderly:
            lane = self._lane(self._queue_ids[0])
            self._check_commit_offset(where, lane, (op.get("committed") or {}).get("offset"), is_recorded=True)
            return
        for probe in op["committed"]:
            lane = (probe["topic"], self._group, probe["queue_id"])
            if probe["topic"] == self._topic:
                self._check_commit_offset(where, lane, probe["offset"], is_recorded=True)
        self._check_retry_topic(where, op)

    def _check_commit_offset(self, where: str, lane: Lane, recorded: int | None, *, is_recorded: bool) -> None:
        consumer = self._both.rocketmq.consumer_offset(lane)
        rocketmq = None if consumer < 0 else consumer
        state = self._both.broker.lane(lane)
        rules = self._both.rules(lane)
        if not self._is_orderly:
            rules.append(CONTIGUOUS_COMMIT_OFFSET)
        self._comparison.compare(
            f"{where}, committed offset",
            recorded=recorded if is_recorded else rocketmq,
            rocketmq=rocketmq,
            ours=None if state is None else state["commit"],
            rules=rules,
        )

    def _check_retry_topic(self, where: str, op: dict[str, Any]) -> None:
        """The end of the retry topic: a probe may find a revive of these moments done, or not yet."""
        rocketmq = self._both.rocketmq
        end = rocketmq.end(self._history["retry_topic"], 0)
        due = [record.visible_ms for record in rocketmq.store.records()]
        least = end + sum(visible_ms <= op["at_ms"][1] - _SCAN_MS for visible_ms in due)
        most = end + sum(visible_ms <= op["probe_ms"] - _SLACK_MS for visible_ms in due)
        if not least <= op["retry_max"] <= most:
            self._comparison.fail(
                f"at {where}: RocketMQ's retry topic ends at {op['retry_max']}, by its rules at {least}..{most}"
            )

    def _check_final(self, lane: Lane) -> None:
        """The entry at the end; RocketMQ keeps the old one while a reset waits for its pop."""
        entry = self._both.rocketmq.orders.entry(lane)
        recorded, stored = self._history["final_order_info"], entry.stored() if entry is not None else None
        if recorded is None or stored is None:
            self._comparison.compare("the final order info", recorded=recorded, rocketmq=stored, ours=stored, rules=[])
        else:
            recorded = {key: recorded.get(key) for key in _COMPARED}
            stored = {key: stored[key] for key in _COMPARED}
            self._comparison.compare("the final order info", recorded=recorded, rocketmq=stored, ours=stored, rules=[])
        if lane in self._both.rocketmq.resets:
            self._comparison.compare("the final batch", rocketmq=stored, ours=None, rules=[RESET_AT_ONCE])
            return
        ours = self._both.stored_batch(lane)
        if stored is not None and ours is not None:
            stored, ours, rules = self._both.comparable_batches(lane, stored, ours)
            for rule in rules:
                self._comparison.compare(f"the final batch, {rule}", rocketmq=True, ours=False, rules=[rule])
        self._comparison.compare("the final batch", rocketmq=stored, ours=ours, rules=self._both.rules(lane))


def _parsed_counts(info: str) -> dict[str, int]:
    """`0 qo3%7 2;0 3 1` as {"0@qo3%7": 2, "0@3": 1}."""
    words = [entry.split(" ") for entry in info.split(";") if entry]
    return {f"{flag}@{what}": int(count) for flag, what, count in words}
