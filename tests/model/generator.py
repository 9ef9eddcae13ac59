# ruff: noqa: ARG002  (operations are made alike)
"""Random records of the ops topic, made beside the reference model so that they carry real handles.

`iterate(seed)` gives records; `play(seed)` gives each with the model's outcome. A seed is a small world of its own:
2 topics of 2 queues and one queue of a lite topic, 3 groups, 3 clients, with its own mixture of operations, paces and
habits, so that one world is mostly retention and another mostly changes. Each group has its own mode, and
some pop now this way and now that.
"""

import random
from collections import deque
from collections.abc import Iterator
from typing import Any

import msgspec

from popstream.wire.handle import Handle, decode_handle, encode_handle, lane_check
from tests.model.reference_model import (
    MAX_OFFSET,
    WORK_LIMITS,
    ModelOutcome,
    Record,
    ReferenceModel,
    WorkLimits,
    partition_of,
    queue_key,
)

__all__ = ["PARTITIONS", "RECORDS_PER_SEED", "World", "iterate", "play"]

PARTITIONS = 3
RECORDS_PER_SEED = 2_000

QUEUES = [("orders", 0), ("orders", 1), ("parcels", 0), ("parcels", 1), ("%LMQ%$orders$urgent", 0)]
GROUPS = ["billing", "audit", "search"]
POLICY_GROUPS = [f"policy-{number}" for number in range(30)]
"""Groups that only policies name: each makes a lane, so that the quota of new lanes meets policies too."""
CLIENTS = ["c1", "c2", "c3"]
TAGS = [0, 1, 2, 3, 2**64 - 1]
ATTEMPTS = ["attempt 1", "attempt 2"]
LITE_TOPICS = ["urgent", "urgent", "later", "s$urgent", "", " ", "\u3000"]

WEIGHTS = {
    "pop": 26,
    "ack": 20,
    "change_invisible": 13,
    "reject": 4,
    "dispatch": 12,
    "cancel": 5,
    "return_client": 2,
    "reset_offset": 2,
    "forget_lane": 0.7,
    "policy": 2.5,
    "redrive": 0.5,
    "tick": 4,
    "declare": 0.7,
    "again": 6,
    "misrouted": 1.2,
    "unknown_queue": 0.8,
    "invalid": 4,
}

COMMANDS = list(WEIGHTS)[:13]

_GROUP_OF_CHECK = {queue: {lane_check(*queue, group): group for group in GROUPS} for queue in QUEUES}

_encode = msgspec.json.Encoder().encode


def iterate(seed: int, records: int = RECORDS_PER_SEED) -> Iterator[Record]:
    """The records of one seed."""
    for record, _ in World(seed).play(records):
        yield record


def play(seed: int, records: int = RECORDS_PER_SEED) -> Iterator[tuple[Record, ModelOutcome]]:
    """The records of one seed, each with what the model made of it."""
    return World(seed).play(records)


class World:
    """One seed's world: its model, its clock, and what its clients remember."""

    def __init__(self, seed: int) -> None:
        self.limits = WorkLimits(
            (WORK_LIMITS.search_cost, 1, 12)[seed % 3],
            (WORK_LIMITS.due_cost, 2, 40)[seed // 3 % 3],
            (WORK_LIMITS.dispatch_cost, 9)[seed // 9 % 2],
            (WORK_LIMITS.dispatch_pieces, 2, 5)[seed // 5 % 3],
            (WORK_LIMITS.entry_offsets, 6, WORK_LIMITS.entry_offsets)[seed // 18 % 3],
            (1, WORK_LIMITS.available_pages)[seed // 2 % 2],
        )
        self.model = ReferenceModel(PARTITIONS, self.limits)
        self.random = r = random.Random(seed)
        self._now = 1_700_000_000_000 + r.randrange(60_000)
        self._stamp = self._now
        self._kafka_offsets = [r.randrange(5) for _ in range(PARTITIONS)]
        self._keys = {name: queue_key(*name) for name in QUEUES}
        self._partitions = {name: partition_of(key, PARTITIONS) for name, key in self._keys.items()}
        self._kinds = list(WEIGHTS)
        self._weights = [weight * r.choice([0.4, 1, 1, 2]) for weight in WEIGHTS.values()]
        self._queues = r.sample(QUEUES, r.choice([1, 2, 2, 4]))
        self._pace = r.choice([(60, 25, 10, 4, 0.4, 1), (30, 30, 30, 8, 2, 1), (80, 15, 4, 1, 0.2, 0.5)])
        self._invisible = r.choice(
            [[50, 300, 2_000], [1_000, 10_000, 60_000], [20, 1_000, 30_000, 43_200_000], [1, 5, 30_000]]
        )
        self._order = {group: r.choice([0, 0, 0.02, 0.5, 0.98, 1, 1]) for group in GROUPS}
        self._by_attempt = r.choice([0.05, 0.3, 0.8])
        self._tagged = r.random() < 0.5
        self._counted = r.random() < 0.3
        self._delayed = r.random() < 0.3
        self._log = r.choice([15, 40, 80])  # how long the log of a queue gets
        self._handles: dict[tuple[str, int], deque[tuple[str, str, list[int]]]] = {q: deque(maxlen=24) for q in QUEUES}
        self._pops: dict[tuple[str, int], deque[str]] = {q: deque(maxlen=8) for q in QUEUES}
        self._sent: dict[str, deque[tuple[tuple[str, int], dict[str, Any]]]] = {}
        self._topic_ids = dict.fromkeys(QUEUES, 0)
        self._types = {q: r.choice(["simple", "batch", "sparse"]) for q in QUEUES}
        self._number = 0
        self._waking = 0

    def play(self, records: int) -> Iterator[tuple[Record, ModelOutcome]]:
        """The next `records` records with their outcomes."""
        for _ in range(records):
            record = self._next()
            outcome = self.model.apply(record)
            self._learn(outcome)
            yield record, outcome

    # ------------------------------------------------------------------------------------------- records

    def _next(self) -> Record:
        r = self.random
        self._pass_time()
        queue = r.choice(self._queues)
        kind = r.choices(self._kinds, self._weights)[0]
        if self._waking > 0:  # what was handed out days ago is still there, and somebody remembers it
            self._waking -= 1
            kind = r.choice([kind, "pop", "ack", "change_invisible", "change_invisible"])
        state = self.model.queues.get(queue)
        if state is None:
            kind = "declare" if r.random() < 0.6 else kind
        if kind == "again" and self._sent:
            return self._again()
        if kind == "misrouted":
            return self._misrouted(queue)
        if kind == "invalid":
            operation = self._invalid(queue)
        elif kind == "unknown_queue":
            return self._unknown_queue()
        elif kind == "again":
            operation = self._tick(queue)
        else:
            operation = getattr(self, "_" + kind)(queue)
        return self._send(queue, self._complete(queue, operation))

    def _pass_time(self) -> None:
        r = self.random
        pace = r.choices(range(6), self._pace)[0]
        if pace == 0:
            self._now += r.choice([0, 0, 1, 2])
        elif pace == 1:
            self._now += r.randrange(5, 500)
        elif pace == 2:
            self._now += r.randrange(500, 10_000)
        elif pace == 3:
            self._now += r.randrange(10_000, 90_000)
        elif pace == 4:
            minutes = r.randrange(60_000, 1_500_000)
            days = r.choice([86_400_000, 86_400_001, 100_000_000, 4_400_000_000])
            passes = r.choice([minutes, minutes, 600_000, 600_000, 43_200_000, days])
            self._now += passes
            self._waking = 5 * (passes > 43_200_000)
        # A record in a hundred comes with an older timestamp.
        self._stamp = self._now - (r.choice([1, 100, 5_000, 700_000, self._now]) if pace == 5 else 0)

    def _complete(self, queue: tuple[str, int], operation: dict[str, Any]) -> dict[str, Any]:
        r = self.random
        operation["topic"], operation["queue_id"], operation["v"] = queue[0], queue[1], 1
        if "op_id" not in operation and r.random() < 0.97:
            self._number += 1
            operation["op_id"] = f"op-{self._number}"
        if r.random() < 0.97:
            operation["reply_to"] = r.randrange(3)
        return operation

    def _send(self, queue: tuple[str, int], operation: dict[str, Any]) -> Record:
        if operation.get("op_id") is not None:
            self._sent.setdefault(operation["type"], deque(maxlen=8)).append((queue, operation))
            if operation["type"] == "pop":
                self._pops[queue].append(operation["op_id"])
        return self._record(self._partitions[queue], self._keys[queue], _encode(operation))

    def _record(self, partition: int, key: bytes, value: bytes) -> Record:
        self._kafka_offsets[partition] += 1
        return Record(partition, self._kafka_offsets[partition], self._stamp, key, value)

    def _learn(self, outcome: ModelOutcome) -> None:
        if outcome.repeated or outcome.queue not in self._handles:
            return
        known = self._handles[outcome.queue]
        for answer in outcome.decisions:
            if answer["handle"] is not None:
                handle = decode_handle(answer["handle"])
                lane = self._group_of(outcome.queue, handle)
                if lane is not None:
                    known.append((lane, answer["handle"], [offset for offset, _ in answer["messages"]]))
            if answer["runs"]:
                news: dict[str, list[int]] = {}
                for run in answer["runs"]:
                    if run[9] is not None:
                        news.setdefault(run[9], []).extend(range(run[1], run[2] + 1))
                for text, offsets in news.items():
                    lane = self._group_of(outcome.queue, decode_handle(text))
                    if lane is not None:
                        known.append((lane, text, offsets))

    def _group_of(self, queue: tuple[str, int], handle: Handle | None) -> str | None:
        return None if handle is None else _GROUP_OF_CHECK[queue].get(handle.lane_check)

    def _again(self) -> Record:
        r = self.random
        queue, operation = r.choice(self._sent[r.choice(list(self._sent))])
        waiting = [sent for sent in self._sent.get("pop", ()) if sent[1]["op_id"] in self._parked(sent[0])]
        if waiting and r.random() < 0.2:
            queue, operation = r.choice(waiting)
        if r.random() < 0.3:  # the same op_id on another operation, or on another queue, where it means nothing
            operation = dict(operation)
            if r.random() < 0.3:
                queue = r.choice(self._queues)
                operation["topic"], operation["queue_id"] = queue
            elif r.random() < 0.7:
                operation["reply_to"] = 2 - (operation.get("reply_to") or 0)
            else:
                operation = self._complete(queue, {**self._pop(queue), "op_id": operation["op_id"]})
        return self._record(self._partitions[queue], self._keys[queue], _encode(operation))

    def _parked(self, queue: tuple[str, int]) -> list[str]:
        lanes = self.model.queues.get(queue, {"lanes": {}})["lanes"].values()
        return [pop["command"].op_id for lane in lanes for pop in lane["parked"] if pop["command"].op_id is not None]

    def _misrouted(self, queue: tuple[str, int]) -> Record:
        r = self.random
        operation = self._complete(queue, getattr(self, "_" + r.choice(COMMANDS))(queue))
        partition, key = self._partitions[queue], self._keys[queue]
        if r.random() < 0.5:
            partition = (partition + r.randrange(1, PARTITIONS)) % PARTITIONS
        else:
            key = r.choice([self._keys[q] for q in QUEUES if q != queue] + [b"", key + b"0", key.replace(b"\0", b"-")])
            if r.random() < 0.8:
                partition = partition_of(key, PARTITIONS)
        return self._record(partition, key, _encode(operation))

    def _unknown_queue(self) -> Record:
        r = self.random
        queue = r.choice([("orders", 7), ("nothing", 0)])
        kind = r.choice([command for command in COMMANDS if command != "declare"])
        operation = self._complete(queue, getattr(self, "_" + kind)(r.choice(self._queues)))
        key = queue_key(*queue)
        return self._record(partition_of(key, PARTITIONS), key, _encode(operation))

    # ------------------------------------------------------------------------------------------- operations

    def _declare(self, queue: tuple[str, int]) -> dict[str, Any]:
        r = self.random
        state = self.model.queues.get(queue)
        if state is None:
            minimum = r.choice([0, 0, 0, 5, 4090, 4090, 2**40 - 5, MAX_OFFSET - 300])
        else:
            minimum = r.choice([0, 3])
            how = r.random()
            if how < 0.3:
                self._topic_ids[queue] += 1
                if r.random() < 0.3:
                    self._types[queue] = r.choice(["simple", "batch", "sparse"])
            elif how < 0.5:
                wrong = r.choice(["simple", "batch", "sparse"])
                return {"type": "declare", "topic_id": state["topic_id"], "queue_type": wrong}
        topic_id = f"{queue[0]}-{self._topic_ids[queue]}"
        operation: dict[str, Any] = {"type": "declare", "topic_id": topic_id, "queue_type": self._types[queue]}
        if minimum:
            operation["min_offset"] = minimum
        return operation

    def _policy(self, queue: tuple[str, int]) -> dict[str, Any]:
        r = self.random
        operation: dict[str, Any] = {"type": "policy"}
        if r.random() < 0.7:
            operation["group"] = r.choice(GROUPS if r.random() < 0.6 else POLICY_GROUPS)
        if r.random() < 0.6:
            operation["max_attempts"] = r.choice([1, 2, 2, 3, 5, 65_535])
        if r.random() < 0.5:
            operation["back_off_ms"] = r.choice(
                [[100], [1_000, 5_000], [0, 20_000], [10, 0, 3_000], [0], [43_200_000] * 32]
            )
        if r.random() < 0.5:
            operation["parked_max"] = r.choice([0, 1, 1, 2, 3, 8_192])
        if r.random() < 0.4:
            operation["in_flight_max"] = r.choice([1, 3, 5, 20, 2**31 - 1])
        if r.random() < 0.2:
            operation["window_max"] = r.choice([1_000_000, 1_073_741_824])
        if r.random() < 0.5:
            operation |= self._quotas()
        if r.random() < (0.5 if "group" in operation else 0.05):
            operation["orderly"] = r.random() < self._order.get(operation.get("group", ""), 0.5)
            if r.random() < 0.4:
                operation["orderly"] = not operation["orderly"]
        return operation

    def _quotas(self) -> dict[str, Any]:
        r = self.random
        quotas: dict[str, Any] = {}
        for quota in ("pops_per_s_max", "client_pops_per_s_max", "queue_pops_per_s_max"):
            if r.random() < 0.5:
                quotas[quota] = r.choice([1, 1, 2, 3])
        if r.random() < 0.9:
            quotas["client_parked_max"] = 1  # more pops of a client seldom wait
        for quota in ("queue_parked_max", "new_lanes_per_min_max", "resets_per_min_max"):
            if r.random() < 0.5:
                quotas[quota] = r.choice([1, 1, 2, 4])
        return quotas

    def _dispatch(self, queue: tuple[str, int]) -> dict[str, Any]:
        r = self.random
        state = self.model.queues.get(queue)
        low, high = (state["min_offset"], state["commit_position"]) if state is not None else (0, 0)
        ranges: list[dict[str, Any]] = []
        skip: list[list[int]] = []
        if high - low > self._log and r.random() < 0.4:
            skip.append([r.choice([low, low, 0, max(0, low - 3)]), r.randrange(low, low + self._log)])
        for _ in range(r.choice([1, 1, 1, 2, 3])):
            size = r.choice([1, 1, 2, 3, 5, 10])
            how = r.random()
            if how < 0.55:
                first = high
            elif how < 0.75:
                first = high + r.randrange(1, 8)
            elif how < 0.9:
                first = max(0, r.randrange(low - 2, high + 2))
            elif how < 0.93:
                first = high + self._window(state) - r.randrange(-1, 2 * size)
            else:
                first = max(0, high - size // 2)
            last = first + size - 1
            what = r.random()
            if what < 0.82:
                written = {"first": first, "last": last, **self._facts()}
                ranges.append(written)
                if first == high:
                    high = last + 1
            elif what < 0.92 or how < 0.9:
                skip.append([first, last])
            else:
                middle = r.randrange(low, max(high, low + 1))
                skip.append([middle, middle + r.randrange(3)])
        operation: dict[str, Any] = {"type": "dispatch", "ranges": ranges}
        if skip:
            operation["skip"] = skip
        return operation

    def _facts(self) -> dict[str, Any]:
        """Tag, count and delivery time of written offsets."""
        r = self.random
        facts: dict[str, Any] = {}
        if self._tagged and r.random() < 0.8:
            facts["tag"] = r.choice(TAGS)
        if self._counted and r.random() < 0.8:
            facts["count"] = r.choice([2, 3, 7])
        if self._delayed and r.random() < 0.4:
            facts["deliver_at_ms"] = self._now + r.choice([-1_000, 1, 150, 2_000, 30_000, 900_000, 700_000_000])
        return facts

    def _window(self, state: dict[str, Any] | None) -> int:
        policy = state["policy"] if state is not None else None
        return policy["window_max"] if policy is not None else 4_194_304

    def _pop(self, queue: tuple[str, int]) -> dict[str, Any]:
        r = self.random
        operation: dict[str, Any] = {
            "type": "pop",
            "group": r.choice(GROUPS),
            "max_messages": r.choice([1, 1, 2, 3, 5, 8, 32, 10_000]),
            "invisible_time_ms": r.choice(self._invisible),
        }
        if r.random() < 0.5:
            operation["poll_time_ms"] = r.choice([1, 200, 5_000, 20_000, 900_000, 43_200_000])
        if r.random() < 0.8:
            operation["client_id"] = r.choice(CLIENTS)
        if r.random() < 0.1:
            operation["max_attempts"] = r.choice([0, 0, 2, 3, 65_535])
        if r.random() < 0.1:
            operation["back_off_ms"] = r.choice([[], [], [300], [1_000, 0, 9_000]])
        if r.random() < 0.15:
            operation["init"] = "max"
        if self._tagged and r.random() < 0.3:
            operation["tags"] = r.sample(TAGS[1:], r.choice([1, 2, 3]))
        if r.random() < self._order[operation["group"]]:
            operation["order"] = True
        if r.random() < self._by_attempt:
            operation["attempt_id"] = r.choice(ATTEMPTS)
            latest = self._attempt_of(queue, operation["group"])
            if latest is not None and r.random() < 0.4:
                operation["attempt_id"] = latest
                if self._tagged and r.random() < 0.5:
                    operation["tags"] = [r.choice(TAGS[1:])]
        return operation

    def _attempt_of(self, queue: tuple[str, int], group: str) -> str | None:
        lane = self.model.queues.get(queue, {"lanes": {}})["lanes"].get(group)
        return lane["batch"]["attempt_id"] if lane is not None and lane["batch"] is not None else None

    def _ack(self, queue: tuple[str, int]) -> dict[str, Any]:
        operation = self._entries(queue, "ack")
        for entry in operation["entries"]:
            if self.random.random() < 0.05:
                entry["cause"] = self.random.choice(["GONE", "UNREADABLE"])
        return operation

    def _reject(self, queue: tuple[str, int]) -> dict[str, Any]:
        return self._entries(queue, "reject")

    def _change_invisible(self, queue: tuple[str, int]) -> dict[str, Any]:
        r = self.random
        operation = self._entries(queue, "change_invisible")
        for entry in operation["entries"]:
            entry["invisible_time_ms"] = r.choice([0, 0, 1, *self._invisible])
            if r.random() < 0.3:
                entry["suspend"] = True
            if r.random() < 0.05:
                entry["lite_topic"] = r.choice(LITE_TOPICS)
            if r.random() < 0.4:
                entry["release"] = r.choice(["after", "back_off"])
            if r.random() < 0.3:
                entry["cause"] = r.choice(["", "ValueError: no milk", "x" * 512])
        return operation

    def _entries(self, queue: tuple[str, int], kind: str) -> dict[str, Any]:
        r = self.random
        known = self._handles[queue]
        handles: list[dict[str, Any]] = []
        entries: list[dict[str, Any]] = []
        for _ in range(r.choice([1, 1, 1, 2, 4])):
            if not known:
                group, text, offsets = r.choice(GROUPS), "1.nothing", [0]
            elif r.random() < 0.6:
                group, text, offsets = known[-1 - r.randrange(min(5, len(known)))]
            else:
                group, text, offsets = r.choice(known)
            if r.random() < 0.08:
                group, text = self._forge(queue, group, text)
            reference = {"group": group, "handle": text}
            if reference not in handles:
                handles.append(reference)
            entries.extend(
                {"handle": handles.index(reference), "offsets": self._ranges(queue, offsets)}
                for _ in range(r.choice([1, 1, 1, 2]))
            )
        operation = {"type": kind, "handles": handles, "entries": entries}
        if r.random() < 0.7:
            operation["client_id"] = r.choice(CLIENTS)
        return operation

    def _ranges(self, queue: tuple[str, int], offsets: list[int]) -> list[list[int]]:
        r = self.random
        how = r.random()
        first, last = offsets[0], offsets[-1]
        if how < 0.3:
            return [[first, last]]  # holes and all
        if how < 0.4:  # in order, as far as it goes
            return [[first, r.choice(offsets)]]
        if how < 0.8:
            some = [o for o in offsets if r.random() < 0.6] or [r.choice(offsets)]
            ranges = [[some[0], some[0]]]
            for offset in some[1:]:
                if offset == ranges[-1][1] + 1:
                    ranges[-1][1] = offset
                else:
                    ranges.append([offset, offset])
            if r.random() < 0.1:
                r.shuffle(ranges)
            return ranges
        state = self.model.queues.get(queue)
        low, high = (state["min_offset"], state["commit_position"]) if state is not None else (0, 0)
        return r.choice(
            [
                [[max(0, first - 2), last + 2]],
                [[first, first], [first, last]],
                [[max(0, low - 2), last]] if low <= last else [[max(0, low - 2), low]],
                [[first, max(first, high + 1)]],
                [[0, MAX_OFFSET]],
                [[high, high + 3], [max(0, low - 1), low]],
            ]
        )

    def _forge(self, queue: tuple[str, int], group: str, text: str) -> tuple[str, str]:
        r = self.random
        how = r.randrange(9)
        handle = decode_handle(text)
        if handle is None or how == 0:
            return group, r.choice(
                ["", "1", "1.", "2.AAAA", "1.AAAA", "1.!", "x" * 300, text[: r.randrange(len(text))]]
            )
        if how == 1:
            return group, text[:-1]
        if how == 2:
            return r.choice(GROUPS), text
        if how == 3:
            return "nobody", text
        fields = {f: getattr(handle, f) for f in handle.__struct_fields__}
        if how == 4:
            fields["epoch"] = r.choice([0, handle.epoch + 1000, 2**64 - 1])
        elif how == 5:
            fields["epoch"] = max(1, handle.epoch + r.choice([-2, -1, 1, 2]))
        elif how == 6:
            fields["revision"] = handle.revision + r.choice([1, 1000])
        elif how == 7:
            fields["revive_queue_id"] = 999 - handle.revive_queue_id
        else:
            fields["queue_id"] = handle.queue_id + 1
        return group, encode_handle(Handle(**fields))

    def _cancel(self, queue: tuple[str, int]) -> dict[str, Any]:
        r = self.random
        how = r.random()
        target = f"op-{r.randrange(self._number + 5)}" if how < 0.15 else "never sent"
        if how >= 0.2 and self._pops[queue]:
            target = self._pops[queue][-1] if how < 0.6 else r.choice(self._pops[queue])
        parked = self._parked(queue)
        if how > 0.9 and parked:
            target = r.choice(parked)
        return {"type": "cancel", "target_op_id": target}

    def _return_client(self, queue: tuple[str, int]) -> dict[str, Any]:
        return {"type": "return_client", "group": self._group(), "client_id": self.random.choice(CLIENTS)}

    def _reset_offset(self, queue: tuple[str, int]) -> dict[str, Any]:
        r = self.random
        state = self.model.queues.get(queue)
        low, high = (state["min_offset"], state["commit_position"]) if state is not None else (0, 0)
        target = r.choice([low, high, low - 1, high + 1, *[r.randrange(low, high + 1) for _ in range(6)]])
        return {"type": "reset_offset", "group": r.choice(GROUPS), "queue_offset": target}

    def _forget_lane(self, queue: tuple[str, int]) -> dict[str, Any]:
        return {"type": "forget_lane", "group": self._group()}

    def _redrive(self, queue: tuple[str, int]) -> dict[str, Any]:
        r = self.random
        first = r.randrange(20)
        to = r.choice(["group", "topic"])
        return {"type": "redrive", "group": self._group(), "offsets": [[first, first + r.randrange(3)]], "to": to}

    def _tick(self, queue: tuple[str, int]) -> dict[str, Any]:
        return {"type": "tick"}

    def _group(self) -> str:
        return self.random.choice(GROUPS) if self.random.random() < 0.9 else "nobody"

    # ------------------------------------------------------------------------------------------- out of range

    def _invalid(self, queue: tuple[str, int]) -> dict[str, Any]:
        """An operation with one value out of its range (some at the last good value)."""
        r = self.random
        kind, field, values = r.choice(_WRONG)
        operation: dict[str, Any] = getattr(self, "_" + kind)(queue)
        value = r.choice(values)
        if field == "written":
            written = {"first": 3, "last": 5, **value}
            operation["ranges"] = [*operation["ranges"], written]
        elif field == "skip":
            operation["skip"] = [*operation.get("skip", []), value]
        elif field == "entry":
            r.choice(operation["entries"]).update(value)
        elif field == "handle group":
            r.choice(operation["handles"])["group"] = value
        elif field == "long":
            if r.random() < 0.8:
                return operation
            if kind == "dispatch":
                operation["ranges"] = [{"first": 1, "last": 1}] * (10_001 if value else 9_000)
                operation["skip"] = [[1, 1]] * (0 if value else 1_001)
            elif value == "entries":
                operation["entries"] = operation["entries"][:1] * 10_001
            elif value == "handles":
                operation["handles"] = operation["handles"][:1] * 10_001
            else:
                operation["entries"] = [{**operation["entries"][0], "offsets": [[0, 0]] * 10_001}]
        else:
            operation[field] = value
        return operation


_TOO_LONG = ["", "x" * 256, "\u00fc" * 128]
_ENTRIES = ("ack", "change_invisible", "reject")
_WRONG: list[tuple[str, str, list[Any]]] = [
    ("pop", "max_messages", [0, -1, 10_001, 10_000]),
    ("pop", "invisible_time_ms", [0, -5, 43_200_001, 43_200_000]),
    ("pop", "poll_time_ms", [-1, 43_200_001, 43_200_000]),
    ("pop", "group", _TOO_LONG),
    ("pop", "client_id", [*_TOO_LONG, "x" * 255, "\u00fc" * 127]),
    ("pop", "attempt_id", [*_TOO_LONG, "x" * 255]),
    ("pop", "tags", [[], [0], [2**64 - 1], [-1], [1, 2, 0], list(range(1, 66)), list(range(1, 65))]),
    ("pop", "op_id", ["", "x" * 129, "\u00fc" * 65]),
    ("declare", "op_id", ["", "x" * 129]),
    ("declare", "min_offset", [-1]),
    *[(kind, "op_id", ["", "x" * 129, "\u00fc" * 65]) for kind in ("ack", "dispatch", "tick", "policy", "cancel")],
    *[(kind, "client_id", _TOO_LONG) for kind in (*_ENTRIES, "return_client")],
    *[(kind, "group", _TOO_LONG) for kind in ("return_client", "reset_offset", "forget_lane", "policy", "redrive")],
    ("redrive", "offsets", [[], [[5, 4]], [[0, 1], [-1, 3]], [[0, 2**63]], [[0, 0]] * 10_001, [[0, 0]] * 10_000]),
    *[
        (
            kind,
            "entry",
            [
                {"handle": -1},
                {"handle": 99},
                {"offsets": []},
                {"offsets": [[5, 4]]},
                {"offsets": [[0, 1], [-1, 3]]},
                {"offsets": [[0, 2**63]]},
                {"handle": 99, "offsets": []},
            ],
        )
        for kind in _ENTRIES
    ],
    *[(kind, "handle group", _TOO_LONG) for kind in _ENTRIES],
    *[(kind, "long", ["entries", "handles", "offset ranges"]) for kind in _ENTRIES],
    *[(kind, "entries", [[]]) for kind in _ENTRIES],
    ("dispatch", "long", [0, 1]),
    ("change_invisible", "entry", [{"invisible_time_ms": -1}, {"invisible_time_ms": 43_200_001}, {"cause": "x" * 513}]),
    (
        "dispatch",
        "written",
        [
            {"first": 9},
            {"first": -1},
            {"last": 2**63},
            {"tag": -1},
            {"tag": 2**64},
            {"count": 0},
            {"last": 1_000_003},
            {"deliver_at_ms": -1},
            {"deliver_at_ms": 2**63},
        ],
    ),
    ("pop", "max_attempts", [-1, 65_536]),
    ("pop", "back_off_ms", [[0] * 33, [-1], [5, 43_200_001]]),
    ("dispatch", "skip", [[5, 4], [-1, 3], [2**63 - 1, 2**63], [0, 1_000_000]]),
    ("policy", "max_attempts", [-1, 65_536]),
    ("policy", "parked_max", [-1, 65_537]),
    ("policy", "in_flight_max", [-1, 2**31]),
    ("policy", "back_off_ms", [[0] * 33, [-1], [5, 43_200_001]]),
    ("policy", "window_max", [999_999, 1_073_741_825]),
    ("policy", "pops_per_s_max", [-1, 1_000_001]),
    ("policy", "client_parked_max", [-1, 65_537]),
    ("policy", "resets_per_min_max", [-1, 1_000_001]),
    ("policy", "orderly", [True, False]),
    ("cancel", "target_op_id", ["", "x" * 129]),
    ("reset_offset", "queue_offset", [-1, -(2**63), 2**63 - 1]),
]
