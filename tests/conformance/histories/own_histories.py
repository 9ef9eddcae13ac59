"""Histories for what no recording has: suspended changes, pops that wait, and up to 32 members.

    python -m tests.conformance.histories.own_histories > tests/data/own_histories.jsonl

They have the format of the recordings, but the answers are those of RocketMQ's shadow: no RocketMQ was run for them.
"""

import random
import sys
from typing import Any

import msgspec

from tests.conformance.rocketmq.broker import BROKER_5_5_0, Popped, RocketBroker, RocketPop, retry_topic_of
from tests.conformance.rocketmq.order_info_manager import shown_counts

__all__ = ["histories"]

_START_MS = 1_800_000_000_000
_ZONE_MS = 1_100
_ORDERLY = 999
_OPS = 26


def histories() -> list[dict[str, Any]]:
    """All of them."""
    return [_Author(seed, is_orderly=seed % 2 == 0).history() for seed in range(90_000, 90_016)]


class _Author:
    """Writes one history: chooses operations, away from the moments at which something becomes visible."""

    def __init__(self, seed: int, *, is_orderly: bool) -> None:
        self._seed, self._random = seed, random.Random(seed)
        self._is_orderly = is_orderly
        self._topic, self._group = f"OWN_{seed}", "G_own"
        self._now_ms = _START_MS
        self._rocketmq = RocketBroker(BROKER_5_5_0, {})
        self._queues = 1 if is_orderly else self._random.choice([1, 2, 3])
        self._rocketmq.add_topic(self._topic, self._queues)
        self._init_mode = self._random.choice([0, 0, 1])
        self._handles: list[tuple[str, int, int, str, int]] = []
        """(real topic, queue id, offset, handle, pop time) of what was handed out."""
        self._visible_ms: set[int] = set()
        self._ops: list[dict[str, Any]] = []

    def history(self) -> dict[str, Any]:
        for queue_id in range(self._queues):
            self._send(queue_id, 40 // self._queues)
        for _ in range(_OPS):
            self._move_on()
            choice = self._random.random()
            if choice < 0.35 or not self._handles:
                self._pop()
            elif choice < 0.65:
                self._ack()
            elif choice < 0.87:
                self._change()
            elif choice < 0.9:
                self._send(self._random.randrange(self._queues), 2)
            elif choice < 0.92:
                self._reset()
            else:
                self._wait(self._random.choice([500, 2_500, 6_000]))
        self._wait(20_000)
        self._move_on()
        self._pop(32)
        entry = self._rocketmq.orders.entry(self._lane(self._topic))
        history: dict[str, Any] = {
            "seed": self._seed,
            "kind": "orderly" if self._is_orderly else "concurrent",
            "note": "derived from the rules, not recorded",
            "topic": self._topic,
            "group": self._group,
            "retry_topic": retry_topic_of(self._group, self._topic),
            "queue_id": 0 if self._is_orderly else None,
            "read_queues": self._queues,
            "tags": True,
            "ops": self._ops,
        }
        return (
            {**history, "final_order_info": entry.stored() if entry is not None else None}
            if self._is_orderly
            else history
        )

    def _lane(self, topic: str, queue_id: int = 0) -> tuple[str, str, int]:
        return topic, self._group, queue_id

    def _move_on(self) -> None:
        self._now_ms += 10
        while near := [at_ms for at_ms in self._visible_ms if self._now_ms - _ZONE_MS <= at_ms <= self._now_ms]:
            self._now_ms = max(near) + _ZONE_MS + 100
        self._rocketmq.revive(self._now_ms)

    def _note(
        self, name: str, args: dict[str, Any], result: dict[str, Any] | None, began_ms: int | None = None
    ) -> None:
        end_ms = self._now_ms + 1
        op = {
            "i": len(self._ops),
            "op": name,
            "args": args,
            "at_ms": [self._now_ms if began_ms is None else began_ms, end_ms],
            "clock_ms": self._now_ms,
            "margin_ms": None,
            "result": result,
        }
        retry_topic = retry_topic_of(self._group, self._topic)
        found = []
        for topic, queue_id in [*((self._topic, number) for number in range(self._queues)), (retry_topic, 0)]:
            offset = self._rocketmq.consumer_offset(self._lane(topic, queue_id))
            known = {"code": 22, "offset": None} if offset < 0 else {"code": 0, "offset": offset}
            found.append({"topic": topic, "queue_id": queue_id, **known})
        if self._is_orderly:
            op["committed"] = {"code": found[0]["code"], "offset": found[0]["offset"]}
        else:
            op |= {"committed": found, "retry_max": self._rocketmq.end(retry_topic, 0), "probe_ms": end_ms + 1}
        self._ops.append(op)

    def _send(self, queue_id: int, count: int) -> None:
        tags: list[str | None] = [self._random.choice(["A", "A", "B"]) for _ in range(count)]
        offsets = self._rocketmq.send(self._topic, queue_id, tags)
        messages = [
            {"queue_offset": offset, "body": f"s{self._seed}-q{queue_id}-m{offset}", "tag": tag}
            for offset, tag in zip(offsets, tags, strict=True)
        ]
        self._note("send", {"queue_id": queue_id, "count": count}, {"code": 0, "messages": messages})

    def _reset(self) -> None:
        queue_id = self._random.randrange(self._queues)
        offset = self._random.randint(0, self._rocketmq.end(self._topic, queue_id) + 1)
        code = self._rocketmq.reset(self._lane(self._topic, queue_id), offset)
        self._note("reset_offset", {"queue_id": queue_id, "offset": offset}, {"code": code, "remark": None})

    def _wait(self, ms: int) -> None:
        began_ms = self._now_ms
        self._now_ms += ms
        self._rocketmq.revive(self._now_ms)
        self._note("wait", {"ms": ms, "why": "some"}, None, began_ms)
        self._ops[-1]["clock_ms"] = began_ms

    def _pop(self, count: int | None = None) -> None:
        count = count or self._random.choice([1, 4, 9, 16, 32])
        invisible_ms = self._random.choice([2_000, 3_700, 5_000])
        began_ms, poll_time = self._now_ms, self._poll_time()
        attempt_id = self._random.choice([None, None, "A", "B"]) if self._is_orderly and not poll_time else None
        queue_id = 0 if self._is_orderly else self._random.choice([-1, *range(self._queues)])
        tag = self._random.choice([None, None, None, "A"])
        request = RocketPop(
            self._topic,
            self._group,
            queue_id,
            count,
            invisible_ms,
            self._is_orderly,
            attempt_id,
            tag,
            init_max=self._init_mode == 1,
        )
        popped = self._rocketmq.pop(request, self._now_ms)
        for message in popped.messages:
            flag = 0 if message.real_topic == self._topic else 1
            handle = f"{message.offset} {self._now_ms} {invisible_ms} {popped.revive_queue_id} {flag} b1"
            handle += f" {message.queue_id} {message.offset}"
            self._handles.append((message.real_topic, message.queue_id, message.offset, handle, self._now_ms))
        if popped.messages:
            self._visible_ms.add(self._now_ms + invisible_ms)
        args = {
            "queue_id": queue_id,
            "max": count,
            "invisible_ms": invisible_ms,
            "attempt_id": attempt_id,
            "exp": tag or "*",
            "init_mode": self._init_mode,
            "order": self._is_orderly,
            "poll_time": poll_time,
        }
        self._note("pop", args, self._popped(popped), began_ms)

    def _poll_time(self) -> int:
        """For a pop of an orderly lane that becomes free all at once: it waits, and is answered then."""
        lane = self._lane(self._topic)
        entry = self._rocketmq.orders.entry(lane)
        if entry is None or not self._is_orderly or lane in self._rocketmq.resets or self._random.random() < 0.5:
            return 0
        visible = {entry.next_visible_ms(offset) for offset in entry.unacked()}
        if len(visible) != 1 or min(visible) <= self._now_ms:
            return 0
        self._now_ms = min(visible)
        return 30_000

    def _popped(self, popped: Popped) -> dict[str, Any]:
        counts = popped.order_counts
        shown = shown_counts(counts, 0, [message.offset for message in popped.messages])
        return {
            "code": 0 if popped.messages else 210,
            "remark": None,
            "pop_time": popped.pop_time_ms,
            "invisible_time": popped.invisible_time_ms,
            "revive_qid": popped.revive_queue_id,
            "rest_num": None,
            "start_offset_info": None,
            "msg_offset_info": None,
            "order_count_info": ";".join(f"0 {key.partition('@')[2]} {count}" for key, count in counts.items()) or None,
            "messages": [
                {
                    "queue_id": message.queue_id,
                    "queue_offset": message.offset,
                    "real_topic": message.real_topic,
                    "orig_queue_id": message.original.queue_id,
                    "orig_queue_offset": message.original.offset,
                    "reconsume_times": shown[message.offset] if counts else message.original.reconsume_times,
                }
                for message in popped.messages
            ],
        }

    def _chosen(self) -> tuple[dict[str, Any], tuple[str, str, int], tuple[int, int, int]]:
        """Arguments, lane and handle of a message, mostly one of the latest."""
        latest = self._random.random() < 0.8
        known = self._random.choice(self._handles[-8:] if latest else self._handles)
        topic, queue_id, offset, handle, pop_time_ms = known
        if self._random.random() < 0.05:
            offset = self._random.randint(0, self._rocketmq.end(topic, queue_id) + 1)
        _, _, invisible_ms, revive, *_ = map(str, handle.split(" "))
        args = {
            "topic": topic,
            "queue_id": queue_id,
            "offset": offset,
            "handle": handle,
            "handle_pop_time": pop_time_ms,
            "handle_invisible_time": int(invisible_ms),
            "handle_revive_qid": int(revive),
            "why": "member",
        }
        return args, self._lane(topic, queue_id), (pop_time_ms, int(invisible_ms), int(revive))

    def _ack(self) -> None:
        args, lane, handle = self._chosen()
        acked = self._rocketmq.ack(lane, args["offset"], handle, self._now_ms)
        self._note("ack", args, {"code": acked.code, "remark": None})

    def _change(self) -> None:
        args, lane, handle = self._chosen()
        asked_ms, suspend = self._random.choice([-500, 0, 1_300, 2_900, 8_000]), self._random.random() < 0.5
        changed = self._rocketmq.change(lane, args["offset"], handle, asked_ms, self._now_ms, suspend=suspend)
        self._visible_ms.add(self._now_ms + asked_ms)
        if not changed.code and changed.revive_queue_id != _ORDERLY and not self._is_orderly:
            flag = 0 if lane[0] == self._topic else 1
            handle_text = f"{args['offset']} {self._now_ms} {asked_ms} 0 {flag} b1 {lane[2]} {args['offset']}"
            self._handles.append((lane[0], lane[2], args["offset"], handle_text, self._now_ms))
        result = {
            "code": changed.code,
            "remark": None,
            "pop_time": changed.pop_time_ms,
            "invisible_time": changed.invisible_time_ms,
            "revive_qid": changed.revive_queue_id,
            "new_handle": None,
        }
        self._note("change", {**args, "invisible_ms": asked_ms, "suspend": suspend}, result)


if __name__ == "__main__":
    for history in histories():
        sys.stdout.write(msgspec.json.encode(history).decode() + "\n")
