"""Histories recorded from a real RocketMQ 5.5.0 broker, replayed with the recorded times."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from popstream.wire.failures import Invalid
from popstream.wire.reason import Reason, code_of
from tests.conformance.broker import Broker, RocketHandle
from tests.conformance.order_infos import order_counts, stored_form
from tests.conformance.rules import (
    CHANGE_OUTSIDE_ITS_POP,
    RANGE_CHECKED,
    apply,
    map_ack,
    map_change,
    map_commit_offset,
)
from tests.conformance.verdict import Comparison, Outcome, Verdict

__all__ = ["run_histories"]

_COMPARED = ("popTime", "i", "o", "cm", "ot", "oc", "a")


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


def _run(subject: str, line: bytes) -> Verdict:
    """The verdict on one line; what cannot be read as a history fails, and the others are run."""
    try:
        history = msgspec.json.decode(line)
        subject = f"{history['kind']}-{history['seed']}"
        if history["kind"] != "orderly":
            return Verdict(subject, Outcome.NOT_APPLICABLE, "concurrent lanes have rules of their own")
        return _Replay(history).run(subject)
    except Exception as error:  # noqa: BLE001 - whatever is in the file
        return Verdict(subject, Outcome.FAIL, f"cannot be read as a history: {error!r}")


class _Replay:
    """One orderly history: a queue, a group."""

    def __init__(self, history: dict[str, Any]) -> None:
        self._history = history
        self._group, self._topic, self._queue_id = history["group"], history["topic"], history["queue_id"]
        self._lane = (self._group, self._topic, self._queue_id)
        self._broker = Broker(history["ops"][0]["clock_ms"] if history["ops"] else 0)
        self._broker.declare(self._topic, self._queue_id)
        self._comparison = Comparison()
        self._max_offset = 0
        self._is_reset_pending = False
        self._not_stored: dict[str, int] = {}
        """Times that RocketMQ stored for the batch and popstream refused, by offset."""

    def run(self, subject: str) -> Verdict:
        for op in self._history["ops"]:
            self._broker.now_ms = op["clock_ms"]
            where = f"op {op['i']} ({op['op']})"
            if op["op"] == "wait":
                continue
            getattr(self, f"_do_{op['op']}")(where, op["args"], op["result"])
            expected = (op.get("committed") or {}).get("offset")
            mapped, rules = map_commit_offset(expected, self._max_offset)
            ours = self._broker.commit_offset(*self._lane)
            self._comparison.check(f"{where}, committed offset", expected, mapped, ours, rules)
        self._check_final()
        return self._comparison.verdict(subject)

    def _check(self, where: str, expected: object, ours: object) -> None:
        self._comparison.check(where, expected, expected, ours, [])

    def _do_send(self, where: str, _: dict[str, Any], result: dict[str, Any]) -> None:
        messages = result["messages"]
        offsets = self._broker.send(self._topic, self._queue_id, [message["tag"] for message in messages])
        self._check(where, [message["queue_offset"] for message in messages], offsets)
        self._max_offset += len(messages)

    def _do_set_offset(self, where: str, args: dict[str, Any], result: dict[str, Any]) -> None:
        self._check(where, result["code"], self._broker.reset_offset(*self._lane, args["offset"]))

    def _do_reset_offset(self, where: str, args: dict[str, Any], result: dict[str, Any]) -> None:
        """RocketMQ takes the offset after the last one too, and corrects it with the next pop."""
        code = self._broker.reset_offset(*self._lane, args["offset"])
        mapped, rules = result["code"], []
        if args["offset"] > self._max_offset:
            mapped, rules = code_of(Reason.ABOVE_MAX), [RANGE_CHECKED]
        if not result["code"] and mapped:
            self._broker.reset_offset(*self._lane, self._max_offset)  # where RocketMQ ends up
        self._comparison.check(where, result["code"], mapped, code, rules)
        self._is_reset_pending = not result["code"]

    def _do_pop(self, where: str, args: dict[str, Any], result: dict[str, Any]) -> None:
        answer = self._broker.pop(
            *self._lane,
            count=args["max"],
            invisible_time_ms=args["invisible_ms"],
            order=args["order"],
            attempt_id=args["attempt_id"],
            tag=None if args["exp"] in {"*", None} else args["exp"],
        )
        self._is_reset_pending = False
        expected = {
            "code": result["code"],
            "messages": [[m["queue_offset"], m["reconsume_times"]] for m in result["messages"]],
        }
        info = self._broker.order_info(*self._lane)
        counts: dict[str, int] = {}
        if answer.handle is not None and info is not None:
            self._not_stored.clear()
            counts = order_counts(info, self._queue_id)
        offsets = [at for m in answer.messages for at in range(m.first, m.last + 1)]
        # What RocketMQ's client shows: the count of the offset, else the least of the queue.
        least = counts.get(f"0@{self._queue_id}", 0)
        shown = [[at, counts.get(f"0@qo{self._queue_id}%{at}", least)] for at in offsets]
        ours = {"code": answer.code, "messages": shown}
        self._check(where, expected, ours)
        if not result["code"]:
            self._check(f"{where}, order counts", _parsed_counts(result["order_count_info"]), counts)
            header = {"pop_time": result["pop_time"], "invisible_time": result["invisible_time"]}
            told = {"pop_time": answer.pop_time_ms, "invisible_time": answer.invisible_time_ms}
            self._check(
                f"{where}, header",
                {**header, "revive_qid": result["revive_qid"]},
                {**told, "revive_qid": answer.revive_queue_id},
            )

    def _do_ack(self, where: str, args: dict[str, Any], result: dict[str, Any]) -> None:
        handle = RocketHandle.parse(args["handle"])
        request = self._broker.request(*self._lane, args["offset"], handle)
        ours = self._broker.ack(*self._lane, args["offset"], handle)
        mapped, rules = apply(map_ack, {"code": result["code"]}, request)
        self._comparison.check(where, {"code": result["code"]}, mapped, ours, rules)

    def _do_change(self, where: str, args: dict[str, Any], result: dict[str, Any]) -> None:
        handle, offset, asked_ms = RocketHandle.parse(args["handle"]), args["offset"], args["invisible_ms"]
        request = self._broker.request(*self._lane, offset, handle, asked_ms)
        ours = self._broker.change(*self._lane, offset, handle, invisible_time_ms=asked_ms, suspend=args["suspend"])
        expected = {key: result[key] for key in ("code", "pop_time", "invisible_time", "revive_qid")}
        if expected["code"]:  # RocketMQ writes a header of zeros
            expected = {key: value or None for key, value in expected.items()}
        mapped, rules = apply(map_change, expected, request)
        self._comparison.check(where, expected, mapped, ours, rules)
        is_stored = not result["code"] and request.is_current and offset >= request.commit_offset
        if is_stored and CHANGE_OUTSIDE_ITS_POP in rules:
            self._not_stored[str(offset)] = self._broker.now_ms + asked_ms
        elif is_stored and asked_ms < 0:
            # What RocketMQ made visible in the past is visible now: go on as if that had been asked for.
            self._broker.change(*self._lane, offset, handle, invisible_time_ms=0, suspend=args["suspend"])
            self._not_stored[str(offset)] = self._broker.now_ms + asked_ms

    def _check_final(self) -> None:
        """The entry at the end; while a reset waits for the next pop, which clears it, RocketMQ's is void."""
        if "final_order_info" not in self._history or self._is_reset_pending:
            return
        expected = self._history["final_order_info"]
        info = self._broker.order_info(*self._lane)
        ours = stored_form(info) if info is not None and info.head.member_count else None
        if expected is None or ours is None:
            self._check("the final order info", expected, ours)
            return
        wanted = {key: expected.get(key) for key in _COMPARED}
        told = {key: ours[key] for key in _COMPARED}
        # The time of a member that is acked is read by nobody: RocketMQ stores a change of it, popstream refuses it.
        done = {str(at) for first, end, m in info.runs() if m.acked for at in range(first, end)} if info else set()
        for times in (wanted, told):
            times["ot"] = {offset: ms for offset, ms in (times["ot"] or {}).items() if offset not in done}
        times = {offset: ms for offset, ms in wanted["ot"].items() if self._not_stored.get(offset) != ms}
        members = (
            {str(at) for first, end, m in info.runs() if m.is_member for at in range(first, end)} if info else set()
        )
        refused = {offset for offset in self._not_stored if offset in wanted["ot"] and offset not in times}
        rules = [CHANGE_OUTSIDE_ITS_POP] if refused - members else []
        if refused & members:
            rules.append(RANGE_CHECKED)
            times |= {offset: told["ot"][offset] for offset in refused & members if offset in told["ot"]}
        self._comparison.check("the final order info", wanted, {**wanted, "ot": times}, told, rules)


def _parsed_counts(info: str) -> dict[str, int]:
    """`0 qo3%7 2;0 3 1` as {"0@qo3%7": 2, "0@3": 1}."""
    words = [entry.split(" ") for entry in info.split(";") if entry]
    return {f"{flag}@{what}": int(count) for flag, what, count in words}
