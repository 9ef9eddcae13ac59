"""Claim: no orderly lane delivers a later message for the first time before each earlier one was redelivered or acked,
none delivers one below its commit offset, and none delivers anything while the batch before it is out.

Method: random histories of one queue go through the kernel's fold, record by record, and an observer who knows the
log and the answers alone holds every delivery against the claim. A history is a list of (kind, number) whose choices
come from the number and from what the answers said so far, so that one which fails can be shortened. Counts say how
much was seen; the same observer on a lane that is not orderly says that it can see.
"""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from typing import Any

import pytest

from broker_state.kernel.context.decision import Decision, OpRecord
from broker_state.kernel.fold import fold
from broker_state.store.memory_kv import MemoryKv
from broker_state.store.overlay import Overlay
from pipelines.decide_ops.decode import Decoder, KafkaRecord
from popstream.exchange.partitioner import ops_key
from tests.model.comparison import shrink

HISTORIES = int(os.environ.get("TEST_ORDERLY_HISTORIES", "100"))
ACTIONS = 160
MS = 1_790_000_000_000
TAGS_OF_GROUP: dict[str, list[int] | None] = {"all": None, "some": [1, 2]}
ATTEMPTS = ["a", "b"]
CLIENTS = ["c1", "c2"]
WEIGHTS = {
    "dispatch": 14,
    "fill": 4,
    "late_skip": 1,
    "retention": 1,
    "pop": 34,
    "ack": 30,
    "reject": 2,
    "change": 12,
    "cancel": 2,
    "return_client": 2,
    "reset": 0.7,
    "policy": 1,
    "other_mode": 2,
    "tick": 4,
}

Action = tuple[str, int]


class OutOfOrderError(AssertionError):
    """A delivery breaks the claim."""


class Observer:
    """What can be known of one lane without being told by the code that decides."""

    def __init__(self) -> None:
        self.commit = 0
        self.delivered: set[int] = set()
        self.done: set[int] = set()  # acked, rejected or dead-lettered since it was delivered last
        self.out: dict[int, int] = {}  # member of the latest batch that is not done -> when it is visible again
        self.attempt_id: str | None = None


class History:
    """One queue and its lanes, all orderly or none; `play` raises when a delivery breaks the claim.

    Each lane pops with one set of tags: what a pop leaves out by its tags is passed over, and overtaken on purpose.
    """

    def __init__(self, *, orderly: bool) -> None:
        self.orderly = orderly
        self.counts: Counter[str] = Counter()
        self.lanes = {group: Observer() for group in TAGS_OF_GROUP}
        self._kv = MemoryKv()
        self._overlay = Overlay(self._kv)
        self._decoder = Decoder(1)
        self._now = MS
        self._number = 0
        self._tags: dict[int, int] = {}  # written offset -> tag
        self._gap: list[int] = []
        self._high = 0
        self._low = 0
        self._handles: list[tuple[str, str, list[int]]] = []
        self._pops: dict[str, dict[str, Any]] = {}
        self._send("declare", topic_id="id")

    def play(self, actions: list[Action]) -> Counter[str]:
        """Decide what the actions come to, one after the other."""
        for kind, number in actions:
            chance = random.Random(number)
            self._now += chance.choice([0, 1, 7, 60, 60, 400, 400, 2_500, 86_500_000 if number % 50 == 0 else 30])
            getattr(self, "_" + kind)(chance)
        return self.counts

    # ------------------------------------------------------------------------------------------- operations

    def _dispatch(self, chance: random.Random) -> None:
        size = chance.choice([1, 1, 2, 4])
        if chance.random() < 0.2:  # another builder is late with these
            self._gap += range(self._high, self._high + 2)
            self._high += 2
        for offset in range(self._high, self._high + size):
            self._tags[offset] = chance.choice([0, 1, 2, 3])
        ranges = [{"first": o, "last": o, "tag": self._tags[o]} for o in range(self._high, self._high + size)]
        self._high += size
        skip = [[self._high, self._high]] if chance.random() < 0.15 else []
        self._high += len(skip)
        self._send("dispatch", ranges=ranges, skip=skip)

    def _fill(self, chance: random.Random) -> None:
        if not self._gap:
            return
        for offset in self._gap[:-1]:
            self._tags[offset] = chance.choice([0, 1, 2])
        ranges = [{"first": o, "last": o, "tag": self._tags[o]} for o in self._gap[:-1]]
        self._send("dispatch", ranges=ranges, skip=[[self._gap[-1], self._gap[-1]]])
        self._gap = []

    def _late_skip(self, chance: random.Random) -> None:
        written = sorted(self._tags)
        if len(written) > 1:
            offset = chance.choice(written[1:])  # the first would be retention
            self._leave(offset)
            self._send("dispatch", skip=[[offset, offset]])

    def _retention(self, chance: random.Random) -> None:
        start = min(lane.commit for lane in self.lanes.values())
        end = min(start + chance.choice([0, 1, 3]), self._high)
        if end <= self._low or any(offset < end for offset in self._gap):
            return
        for offset in [offset for offset in self._tags if offset < end]:
            self._leave(offset)
        skipped, self._low = [self._low, end - 1], end
        self._send("dispatch", skip=[skipped])

    def _leave(self, offset: int) -> None:
        del self._tags[offset]
        for lane in self.lanes.values():
            lane.out.pop(offset, None)

    def _pop(self, chance: random.Random) -> None:
        group = chance.choice(list(self.lanes))
        fields: dict[str, Any] = {
            "group": group,
            "order": self.orderly,
            "max_messages": chance.choice([1, 2, 3, 8]),
            "invisible_time_ms": chance.choice([1, 50, 500, 5_000]),
            "client_id": chance.choice(CLIENTS),
        }
        if TAGS_OF_GROUP[group] is not None:
            fields["tags"] = TAGS_OF_GROUP[group]
        if chance.random() < 0.5:
            fields["attempt_id"] = chance.choice(ATTEMPTS)
        if chance.random() < 0.4:
            fields["poll_time_ms"] = chance.choice([300, 4_000])
        self._send("pop", **fields)

    def _ack(self, chance: random.Random) -> None:
        self._entries("ack", chance)

    def _reject(self, chance: random.Random) -> None:
        self._entries("reject", chance)

    def _change(self, chance: random.Random) -> None:
        invisible = chance.choice([0, 0, 1, 300, 3_000])
        self._entries("change_invisible", chance, invisible_time_ms=invisible, suspend=chance.random() < 0.3)

    def _entries(self, kind: str, chance: random.Random, **fields: Any) -> None:
        if not self._handles:
            return
        group, handle, offsets = self._handles[-1 - min(chance.choice([0, 0, 0, 1, 4]), len(self._handles) - 1)]
        some = chance.choice(
            [offsets, offsets[:1], offsets[-1:], [chance.choice(offsets)], offsets[: len(offsets) // 2]]
        )
        if some:
            entry = {"handle": 0, "offsets": [[offset, offset] for offset in some], **fields}
            self._send(kind, handles=[{"group": group, "handle": handle}], entries=[entry])

    def _cancel(self, chance: random.Random) -> None:
        if self._pops:
            self._send("cancel", target_op_id=chance.choice(list(self._pops)[-3:]))

    def _return_client(self, chance: random.Random) -> None:
        self._send("return_client", group=chance.choice(list(self.lanes)), client_id=chance.choice(CLIENTS))

    def _reset(self, chance: random.Random) -> None:
        group = chance.choice(list(self.lanes))
        target = max(self._low, self.lanes[group].commit + chance.choice([-3, -1, 0, 1]))
        self._send("reset_offset", group=group, queue_offset=target)

    def _policy(self, chance: random.Random) -> None:
        fields = {"max_attempts": chance.choice([0, 2, 3]), "in_flight_max": chance.choice([0, 0, 2])}
        self._send("policy", group=chance.choice(list(self.lanes)), **fields)

    def _other_mode(self, chance: random.Random) -> None:
        groups = [group for group, lane in self.lanes.items() if lane.delivered]
        if groups:
            group = chance.choice(groups)
            self._send("pop", group=group, order=not self.orderly, max_messages=1, invisible_time_ms=1)

    def _tick(self, _: random.Random) -> None:
        self._send("tick")

    # ------------------------------------------------------------------------------------------- what comes of them

    def _send(self, kind: str, **fields: Any) -> None:
        self._number += 1
        op_id = f"op-{self._number}"
        if kind == "pop" and fields["order"] == self.orderly:
            self._pops[op_id] = fields
        operation = {"v": 1, "type": kind, "topic": "t", "queue_id": 0, "op_id": op_id, "reply_to": 0, **fields}
        value = json.dumps(operation).encode()
        key = ops_key("t", 0)
        record = self._decoder.decode(KafkaRecord(0, self._number, self._now, key, value, len(value)))
        assert isinstance(record, OpRecord)
        decision = Decision()
        fold(self._overlay, [record], decision)
        self._kv.write(self._overlay)
        answers = [json.loads(answer) for _, answer in decision.answers]
        # The record's own operation comes before what it lets pops have.
        for answer in answers:
            if answer["op_id"] == op_id:
                self._take_effect(kind, fields, answer)
        for dead in decision.dead_letters:
            self.counts["dead letter"] += 1
            self._done(self.lanes[dead.group], dead.first, dead.last)
        for row in decision.commit_positions:
            if row.group is not None:
                self.lanes[row.group].commit = row.to_offset
        for answer in answers:
            if answer["type"] == "pop" and answer.get("messages"):
                self._deliver(answer, waited=answer["op_id"] != op_id)

    def _take_effect(self, kind: str, fields: dict[str, Any], answer: dict[str, Any]) -> None:
        self.counts[f"{kind} {answer['reason']}"] += 1
        if kind == "pop":
            assert (answer["reason"] == "WRONG_MODE") == (fields["order"] != self.orderly)
        elif kind == "reset_offset" and answer["applied"]:
            self.lanes[fields["group"]] = Observer()
            self.lanes[fields["group"]].commit = answer["commit_offset"]
        elif kind in ("cancel", "return_client"):
            lane = self.lanes[fields.get("group") or self._pops[fields["target_op_id"]]["group"]]
            for first, last in answer.get("released", ()):
                self.counts[f"{kind} released"] += 1
                lane.out.update(dict.fromkeys(range(first, last + 1), self._now))
        elif kind in ("ack", "reject", "change_invisible"):
            lane = self.lanes[fields["handles"][0]["group"]]
            for run in answer["runs"]:
                self.counts[f"{kind} run {run['reason']}"] += 1
                if run["applied"] and kind == "change_invisible":
                    until = self._now + fields["entries"][0]["invisible_time_ms"]
                    lane.out.update(dict.fromkeys(range(run["first"], run["last"] + 1), until))
                elif run["applied"]:
                    self._done(lane, run["first"], run["last"])

    def _done(self, lane: Observer, first: int, last: int) -> None:
        for offset in range(first, last + 1):
            lane.done.add(offset)
            lane.out.pop(offset, None)

    def _deliver(self, answer: dict[str, Any], *, waited: bool) -> None:
        pop = self._pops[answer["op_id"]]
        lane, tags = self.lanes[pop["group"]], TAGS_OF_GROUP[pop["group"]]
        assert (answer["revive_queue_id"] == 999) == self.orderly
        given = [offset for first, last, _ in answer["messages"] for offset in range(first, last + 1)]
        assert given == sorted(set(given))
        what = f"lane {pop['group']!r} delivers {given}"
        if given[0] < lane.commit:
            raise OutOfOrderError(f"{what} though its commit offset is {lane.commit}")
        fresh = [offset for offset in given if offset not in lane.delivered]
        for offset in fresh:
            earlier = [
                o for o in sorted(self._tags) if lane.commit <= o < offset and (not tags or self._tags[o] in tags)
            ]
            overtaken = [o for o in earlier if o not in lane.done and o not in given]
            if overtaken:
                raise OutOfOrderError(f"{what}: {offset} for the first time, before {overtaken}")
        out = {offset: until for offset, until in lane.out.items() if until > answer["now_ms"]}
        attempt_id = pop.get("attempt_id")
        if out and (waited or attempt_id is None or attempt_id != lane.attempt_id):
            raise OutOfOrderError(f"{what} while {out} is out")
        self.counts["delivered for the first time"] += len(fresh)
        self.counts["delivered again"] += len(given) - len(fresh)
        self.counts["delivered again though acked"] += len(lane.done.intersection(given))
        self.counts["first time beside again"] += 0 < len(fresh) < len(given)
        self.counts["pop that waited"] += waited
        self.counts["pop of the same attempt while it was out"] += bool(out)
        lane.delivered.update(given)
        lane.done.difference_update(given)
        lane.out = dict.fromkeys(given, answer["now_ms"] + pop["invisible_time_ms"])
        lane.attempt_id = attempt_id
        self._handles.append((pop["group"], answer["handle"], given))


def actions_of(seed: int) -> list[Action]:
    chance = random.Random(seed)
    kinds = chance.choices(list(WEIGHTS), list(WEIGHTS.values()), k=ACTIONS)
    return [("dispatch", 0), *((kind, chance.randrange(2**32)) for kind in kinds)]


def complaint(actions: list[Action], *, orderly: bool) -> str | None:
    """What the observer has to say, None when all is well."""
    try:
        History(orderly=orderly).play(actions)
    except OutOfOrderError as error:
        return str(error)
    return None


def test_no_orderly_lane_delivers_out_of_order() -> None:
    total: Counter[str] = Counter()
    for seed in range(HISTORIES):
        history, actions = History(orderly=True), actions_of(seed)
        try:
            total += history.play(actions)
        except OutOfOrderError as error:
            short = shrink(actions, lambda part: complaint(list(part), orderly=True) is not None)
            pytest.fail(f"seed {seed}: {error}\n{short} comes to: {complaint(short, orderly=True)}")
    least = {
        "delivered for the first time": 30,
        "delivered again": 20,
        "delivered again though acked": 1,
        "first time beside again": 2,
        "pop that waited": 2,
        "pop of the same attempt while it was out": 1,
        "ack run OK": 10,
        "ack run STALE_HANDLE": 3,
        "reject run OK": 0.5,
        "change_invisible run OK": 5,
        "cancel released": 0.3,
        "return_client released": 0.2,
        "reset_offset OK": 0.5,
        "pop NO_MESSAGE": 10,
        "pop WRONG_MODE": 1,
        "dead letter": 0.3,
    }
    assert {what: total[what] / HISTORIES for what, number in least.items() if total[what] < number * HISTORIES} == {}


def test_the_observer_sees_what_a_lane_without_order_does() -> None:
    complaints = [complaint(actions_of(seed), orderly=False) for seed in range(10)]
    assert sum(text is not None and "for the first time, before" in text for text in complaints) >= 3
    assert sum(text is not None and "is out" in text for text in complaints) >= 3
