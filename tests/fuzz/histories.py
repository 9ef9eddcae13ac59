"""Bytes as a history of the ops topic, decided by the kernel and by the reference model side by side.

The generator of tests/model draws from habits that make long, likely histories. Here each byte is a decision of its
own, so that a fuzzer can change one thing at a time; handles are those that earlier answers gave, or forgeries of them.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from popstream.wire.handle import Handle, decode_handle, encode_handle, lane_check
from tests.fuzz.byte_reader import ByteReader
from tests.fuzz.cpu import not_counted
from tests.model.comparison import differences
from tests.model.generator import ATTEMPTS, CLIENTS, GROUPS, PARTITIONS, QUEUES, TAGS
from tests.model.kernel_subject import KernelSubject
from tests.model.reference_model import MAX_OFFSET, ModelOutcome, Record, ReferenceModel, partition_of, queue_key

__all__ = ["RECORDS_MAX", "History", "compare_history"]

RECORDS_MAX = 24
"""Of one history: enough for a declaration, some pops and what becomes of them."""

QueueName = tuple[str, int]
Operation = dict[str, Any]
Popped = tuple[str, str, list[int]]

_encode = msgspec.json.Encoder().encode
_START_MS = 1_700_000_000_000
_KEYS = {queue: queue_key(*queue) for queue in QUEUES}
_PARTITION_OF = {queue: partition_of(key, PARTITIONS) for queue, key in _KEYS.items()}
_GROUP_OF_CHECK = {queue: {lane_check(*queue, group): group for group in GROUPS} for queue in QUEUES}

# What is common comes early and often, since zeros and small bytes do.
_STEPS_MS = (0, 0, 1, 1, 9, 10, 11, 99, 100, 101, 500, 1_000, 1_001, 5_000, 30_000, 60_000, 600_000, 660_001)
_LEAPS_MS = (43_200_000, 86_400_000, 86_400_001, 4_400_000_000, -1, -100, -5_000, -_START_MS)
_INVISIBLE_MS = (10, 100, 1_000, 1, 5_000, 30_000, 43_200_000, 0, -1, 43_200_001)
_POLLS_MS = (0, 0, 100, 1_000, 10, 30_000, 43_200_000, -1, 43_200_001)
_MESSAGES = (1, 2, 3, 5, 8, 32, 64, 10_000, 0, 10_001)
_SIZES = (1, 2, 3, 5, 9, 16, 63, 64, 65, 70)
_OUT_OF_RANGE = (-1, -(2**63), 2**63 - 1, 2**63, 2**64 - 1, 2**64)
_NAMES = ("", "x" * 256, "\u00fc" * 128)
_MINIMA = (0, 0, 0, 5, 4_090, 2**40 - 5, MAX_OFFSET - 300, -1)
_HANDLE_BITS = (
    ("epoch", 64),
    ("revision", 32),
    ("start_offset", 64),
    ("pop_time_ms", 64),
    ("invisible_time_ms", 32),
    ("queue_id", 32),
    ("revive_queue_id", 16),
    ("lane_check", 32),
)
_KINDS = (
    *("pop",) * 8,
    *("ack",) * 6,
    *("change_invisible",) * 5,
    *("dispatch",) * 4,
    *("reject",) * 2,
    *("cancel",) * 2,
    *("tick",) * 2,
    *("policy",) * 2,
    "return_client",
    "reset_offset",
    "forget_lane",
    "redrive",
    "declare",
    "again",
)


class History:
    """The records of one input. `next_record` needs the model as it is after those before, `learn` its outcome."""

    def __init__(self, data: bytes, model: ReferenceModel) -> None:
        self._bytes = ByteReader(data)
        self._model = model
        self._left = RECORDS_MAX
        self._now = _START_MS
        self._kafka_offset = 0
        self._queues = self._bytes.pick((QUEUES[:1], QUEUES[:1], QUEUES[:2], QUEUES[-1:], QUEUES))
        self._popped: dict[QueueName, deque[Popped]] = {queue: deque(maxlen=8) for queue in QUEUES}
        self._sent: list[tuple[QueueName, Operation]] = []

    def next_record(self) -> Record | None:
        """The next record; None when the input or the length of a history is used up."""
        if self._bytes.is_dry or not self._left:
            return None
        self._left -= 1
        self._kafka_offset += 1
        bytes_ = self._bytes
        queue = bytes_.pick(self._queues)
        step = bytes_.byte()
        stamp = self._now
        if step >= 0xF0:
            stamp = max(0, self._now + _LEAPS_MS[step % len(_LEAPS_MS)])
        else:
            stamp += _STEPS_MS[step % len(_STEPS_MS)]
        self._now = max(self._now, stamp)
        queue, operation = self._operation(queue)
        key, partition = _KEYS[queue], _PARTITION_OF[queue]
        if bytes_.byte() == 0xFF:
            partition = (partition + 1) % PARTITIONS
        return Record(partition, self._kafka_offset, stamp, key, _encode(operation))

    def learn(self, outcome: ModelOutcome) -> None:
        """Remember the handles that were given out."""
        if outcome.repeated:
            return
        groups = _GROUP_OF_CHECK[outcome.queue]
        for answer in outcome.decisions:
            given = {answer["handle"]: [offset for offset, _ in answer["messages"]]} if answer["handle"] else {}
            for run in answer["runs"]:
                if run[9] is not None:
                    given.setdefault(run[9], []).extend(range(run[1], run[2] + 1))
            for text, offsets in given.items():
                handle = decode_handle(text)
                group = groups.get(handle.lane_check) if handle is not None else None
                if group is not None and offsets:
                    self._popped[outcome.queue].append((group, text, offsets))

    def _operation(self, queue: QueueName) -> tuple[QueueName, Operation]:
        bytes_ = self._bytes
        kind = bytes_.pick(_KINDS)
        state = self._model.queues.get(queue)
        if state is None and not bytes_.chance(8):
            kind = "declare"
        elif state is not None and not state["commit_position"] and not bytes_.chance(64):
            kind = "dispatch"
        if kind == "again" and self._sent:
            queue, operation = bytes_.pick(self._sent)
            if bytes_.chance(64):
                operation = {**operation, "reply_to": 2}
            return queue, operation
        make: Callable[[QueueName], Operation] = getattr(self, f"_{kind}", self._tick)
        operation = {**make(queue), "topic": queue[0], "queue_id": queue[1], "v": 1}
        how = bytes_.byte()
        if how < 0xF8:
            operation["op_id"] = f"op-{self._kafka_offset}"
        elif how < 0xFC:
            operation["op_id"] = ("", "x" * 129, "x" * 128, "op-2")[how & 3]
        if how % 16 != 15:
            operation["reply_to"] = how % 3
        if "op_id" in operation:
            self._sent.append((queue, operation))
        return queue, operation

    def _number(self, choices: tuple[int, ...]) -> int:
        """Mostly one of `choices`, else any number."""
        bytes_ = self._bytes
        how = bytes_.byte()
        return bytes_.number() if how >= 0xF8 else choices[how % len(choices)]

    def _name(self, choices: list[str]) -> str:
        how = self._bytes.byte()
        return _NAMES[how % len(_NAMES)] if how >= 0xF8 else choices[how % len(choices)]

    def _offset(self, queue: QueueName) -> int:
        """An offset near one of the ends of the queue, or anywhere."""
        bytes_ = self._bytes
        state = self._model.queues.get(queue)
        low, high = (state["min_offset"], state["commit_position"]) if state is not None else (0, 0)
        window = ((state["policy"] or {}) if state is not None else {}).get("window_max", 4_194_304)
        base: int = bytes_.pick((high, high, high, low, high + window, (low + high) // 2, 0, MAX_OFFSET))
        how = bytes_.byte()
        if how == 0xFF:
            return bytes_.pick(_OUT_OF_RANGE)
        return base + (how if how < 0x40 else how - 0xC0 if how >= 0x80 else 0)

    def _declare(self, _queue: QueueName) -> Operation:
        bytes_ = self._bytes
        topic_id = bytes_.pick(("id", "id", "id", "another"))
        kinds = ("simple", "simple", "batch", "sparse")
        minimum = self._number(_MINIMA)
        return {"type": "declare", "topic_id": topic_id, "queue_type": bytes_.pick(kinds), "min_offset": minimum}

    def _policy(self, _queue: QueueName) -> Operation:
        bytes_ = self._bytes
        operation: Operation = {"type": "policy"}
        which = bytes_.byte()
        if which & 1:
            operation["group"] = self._name(GROUPS)
        if which & 2:
            operation["max_attempts"] = self._number((1, 2, 3, 65_535, 0))
        if which & 4:
            operation["back_off_ms"] = [self._number((100, 0, 1_000, 43_200_000)) for _ in range(bytes_.byte() % 4)]
        if which & 8:
            operation["parked_max"] = self._number((1, 0, 2, 8_192))
        if which & 16:
            operation["in_flight_max"] = self._number((1, 3, 5, 20, 0, 2**31 - 1))
        if which & 32:
            operation["window_max"] = self._number((1_000_000, 1_073_741_824, 4_194_304))
        if which & 64:
            operation["orderly"] = bytes_.chance(128)
        return operation

    def _dispatch(self, queue: QueueName) -> Operation:
        bytes_ = self._bytes
        ranges: list[dict[str, int]] = []
        skip: list[list[int]] = []
        at = self._offset(queue)
        for _ in range(1 + bytes_.byte() % 3):
            how = bytes_.byte()
            # Never a million offsets that are in range: the model has an entry for each.
            last = at + (1_000_000 if how == 0xFF else -2 if how == 0xFE else self._bytes.pick(_SIZES) - 1)
            if how % 8 == 7:
                skip.append([at, last])
            else:
                written = {"first": at, "last": last}
                if how & 16:
                    written["tag"] = bytes_.pick(TAGS)
                if how & 32:
                    written["count"] = self._number((1, 2, 3, 7, 0))
                if how & 128:
                    written["deliver_at_ms"] = self._now + self._number((100, 3_000, 60_000, 700_000_000))
                ranges.append(written)
            at = last + 1 if how & 64 else self._offset(queue)
        return {"type": "dispatch", "ranges": ranges, "skip": skip}

    def _pop(self, _queue: QueueName) -> Operation:
        bytes_ = self._bytes
        operation: Operation = {
            "type": "pop",
            "group": self._name(GROUPS),
            "max_messages": self._number(_MESSAGES),
            "invisible_time_ms": self._number(_INVISIBLE_MS),
            "poll_time_ms": self._number(_POLLS_MS),
        }
        which = bytes_.byte()
        if which & 1:
            operation["client_id"] = self._name(CLIENTS)
        if which & 2:
            operation["order"] = True
        if which & 4:
            operation["attempt_id"] = self._name(ATTEMPTS)
        if which & 24 == 24:
            operation["tags"] = [bytes_.pick(TAGS) for _ in range(bytes_.byte() % 4)]
        if which & 96 == 96:
            operation["init"] = "max"
        if which & 136 == 136:
            operation["max_attempts"] = self._number((2, 1, 0, 65_535))
            operation["back_off_ms"] = [self._number((100, 0, 43_200_000)) for _ in range(bytes_.byte() % 3)]
        return operation

    def _ack(self, queue: QueueName) -> Operation:
        return self._entries(queue, "ack")

    def _reject(self, queue: QueueName) -> Operation:
        return self._entries(queue, "reject")

    def _change_invisible(self, queue: QueueName) -> Operation:
        operation = self._entries(queue, "change_invisible")
        for entry in operation["entries"]:
            entry["invisible_time_ms"] = self._number((0, *_INVISIBLE_MS))
            entry["suspend"] = self._bytes.chance(64)
            if self._bytes.chance(8):
                entry["lite_topic"] = self._bytes.pick(("urgent", "later", "", " "))
            if self._bytes.chance(96):
                entry["release"] = self._bytes.pick(("after", "back_off"))
                entry["cause"] = self._bytes.pick(("", "ValueError", "x" * 512, "x" * 513))
        return operation

    def _entries(self, queue: QueueName, kind: str) -> Operation:
        bytes_ = self._bytes
        handles: list[dict[str, str]] = []
        entries: list[Operation] = []
        for _ in range(1 + bytes_.byte() % 3):
            group, text, offsets = self._handle(queue)
            handles.append({"group": group, "handle": text})
            index = len(handles) - 1 if not bytes_.chance(16) else bytes_.signed(1)
            entries.append({"handle": index, "offsets": self._ranges(queue, offsets)})
        operation: Operation = {"type": kind, "handles": handles, "entries": entries}
        if bytes_.chance(128):
            operation["client_id"] = self._name(CLIENTS)
        return operation

    def _handle(self, queue: QueueName) -> Popped:
        bytes_ = self._bytes
        known = self._popped[queue]
        how = bytes_.byte()
        if not known:
            return GROUPS[how % len(GROUPS)], "1.nothing", [0]
        group, text, offsets = known[-1 - how % len(known)]
        if how < 0xE0:
            return group, text, offsets
        if how < 0xE8:
            return self._name([*GROUPS, "nobody"]), text, offsets
        if how < 0xEC:
            return group, bytes_.text(), offsets
        handle = decode_handle(text)
        assert handle is not None
        field, bits = bytes_.pick(_HANDLE_BITS)
        forged = (getattr(handle, field) + self._bytes.number()) % (1 << bits)
        fields = {name: getattr(handle, name) for name in Handle.__struct_fields__}
        return group, encode_handle(Handle(**{**fields, field: forged})), offsets

    def _ranges(self, queue: QueueName, offsets: list[int]) -> list[list[int]]:
        bytes_ = self._bytes
        first, last = offsets[0], offsets[-1]
        how = bytes_.byte()
        if how < 0x60:
            return [[first, last]]
        if how < 0xC0:
            picked = sorted({bytes_.pick(offsets[:256]) for _ in range(1 + how % 4)})
            return [[offset, offset] for offset in picked]
        if how < 0xF0:
            return [[self._offset(queue), self._offset(queue)] for _ in range(how % 3)]
        return [[0, MAX_OFFSET], [first, first]] if how < 0xF8 else [[first, last], [max(0, first - 1), last + 1]]

    def _cancel(self, _queue: QueueName) -> Operation:
        back = self._bytes.byte()
        return {"type": "cancel", "target_op_id": f"op-{self._kafka_offset - 1 - back % 8}" if back < 0xFC else ""}

    def _return_client(self, _queue: QueueName) -> Operation:
        return {"type": "return_client", "group": self._name(GROUPS), "client_id": self._name(CLIENTS)}

    def _reset_offset(self, queue: QueueName) -> Operation:
        return {"type": "reset_offset", "group": self._name(GROUPS), "queue_offset": self._offset(queue)}

    def _forget_lane(self, _queue: QueueName) -> Operation:
        return {"type": "forget_lane", "group": self._name([*GROUPS, "nobody"])}

    def _redrive(self, queue: QueueName) -> Operation:
        offsets = [[self._offset(queue), self._offset(queue)]]
        return {"type": "redrive", "group": self._name(GROUPS), "offsets": offsets, "to": "group"}

    def _tick(self, _queue: QueueName) -> Operation:
        return {"type": "tick"}


def compare_history(data: bytes) -> None:
    """Play the history in `data`; the first byte says how the kernel's log is cut into micro-batches.

    Raises:
        AssertionError: kernel and model disagree, or the model contradicts itself.
    """
    cuts = data[0] if data else 0
    model, subject = ReferenceModel(PARTITIONS), KernelSubject(None if cuts < 0x40 else cuts)
    history = History(data[1:], model)
    played: list[Record] = []
    while (record := history.next_record()) is not None:
        played.append(record)
        with not_counted():
            outcome = model.apply(record)
            model.check(*outcome.queue)
        decided = subject(record)
        found = differences(outcome, model.view(*outcome.queue), decided)
        if found:
            story = [f"t={at.timestamp_ms} {at.partition} {at.value.decode()[:600]}" for at in played]
            raise AssertionError("\n".join([*found, "after these records:", *story]))
        history.learn(outcome)
