"""A shadow of RocketMQ's broker, its POP on the record store and its orderly lanes, written from its description.

The vectors come from a snapshot of its source, the histories from a 5.5.0 broker; `Release` has what is different.
Nothing of popstream is used here.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.conformance.rocketmq.order_info_manager import RocketOrders
from tests.conformance.rocketmq.pop_record_store import PopRecord, RecordStore

__all__ = [
    "BROKER_5_5_0",
    "SNAPSHOT",
    "Popped",
    "PoppedMessage",
    "Release",
    "Revived",
    "RocketBroker",
    "RocketPop",
    "retry_topic_of",
]

ORDERLY = 999
_SCAN_ENTRIES = 800
_NO_MESSAGE, _ILLEGAL, _NO_TOPIC, _FAILED = 208, 13, 17, 1

Lane = tuple[str, str, int]
"""(real topic, group, queue id)."""


class Release(NamedTuple):
    """What two releases do differently."""

    is_descending: bool
    """Whether a pop of any queue reads them from the last to the first."""
    resets_while_blocked: bool
    """Whether a pop applies a reset of a lane that is blocked."""


SNAPSHOT = Release(is_descending=False, resets_while_blocked=False)
BROKER_5_5_0 = Release(is_descending=True, resets_while_blocked=True)


class Original(NamedTuple):
    """A message of a queue: where it was first sent, its tag, and how often it was revived."""

    queue_id: int
    offset: int
    tag: str | None = None
    reconsume_times: int = 0


@dataclass
class _Queue:
    first: int = 0
    end: int = 0
    messages: dict[int, Original] = field(default_factory=dict)


class RocketPop(NamedTuple):
    """A pop request. `queue_id` -1: any; `init_max`: a group without an offset begins at the end."""

    topic: str
    group: str
    queue_id: int
    max_messages: int
    invisible_time_ms: int
    order: bool = False
    attempt_id: str | None = None
    tag: str | None = None
    init_max: bool = False


class PoppedMessage(NamedTuple):
    """A message that was handed out, and where it was first sent."""

    real_topic: str
    queue_id: int
    offset: int
    original: Original


@dataclass
class Popped:
    """The answer to a pop, which queues it read in which order, and where it began at those it knew nothing of."""

    pop_time_ms: int
    invisible_time_ms: int
    revive_queue_id: int
    messages: list[PoppedMessage] = field(default_factory=list)
    order_counts: dict[str, int] = field(default_factory=dict)
    visited: list[int] = field(default_factory=list)
    began: dict[int, int] = field(default_factory=dict)


class Revived(NamedTuple):
    """A retry copy: (group, normal topic) of the message, where it was first sent, its new place."""

    group: str
    topic: str
    original: Original
    retry_topic: str
    offset: int


class Acked(NamedTuple):
    """The code of an ack, and whether it did anything."""

    code: int
    had_effect: bool


class Changed(NamedTuple):
    """The answer to a change; whether a record or member was there to be changed, and whether the message is lost."""

    code: int
    pop_time_ms: int = 0
    invisible_time_ms: int = 0
    revive_queue_id: int = 0
    had_effect: bool = False
    is_lost: bool = False


class RocketBroker:
    """Queues, offsets, records and order infos of one broker."""

    def __init__(self, release: Release, config: dict[str, Any]) -> None:
        self.release = release
        self._reads_v1 = config.get("retrieveMessageFromPopRetryTopicV1", True)
        self._has_v2 = config.get("enableRetryTopicV2", False)
        self._checks_memory = config.get("initPopOffsetByCheckMsgInMem", True)
        self._retry_every = 100 // max(config.get("popFromRetryProbability", 20), 1)
        self.orders = RocketOrders()
        self.orders.topics["T"] = config.get("readQueueNums", 1)
        self.store = RecordStore(is_buffered=config.get("enablePopBufferMerge", False))
        self.resets: dict[Lane, int] = {}
        """Offsets of resets that no pop has applied yet."""
        self.notified: list[str] = []
        self._queues: dict[tuple[str, int], _Queue] = {}
        self._consumer: dict[Lane, int] = {}
        self._pull: dict[Lane, int] = {}
        self._pops: dict[tuple[str, str], int] = {}

    # Topics and queues.

    def add_topic(self, topic: str, read_queues: int) -> None:
        """Set the number of queues of a topic."""
        self.orders.topics[topic] = read_queues

    def set_range(self, topic: str, queue_id: int, first: int, end: int) -> None:
        """A queue holds [first, end)."""
        queue = self._queues.setdefault((topic, queue_id), _Queue())
        queue.first, queue.end = first, end

    def send(self, topic: str, queue_id: int, tags: list[str | None]) -> list[int]:
        """Append messages; their offsets."""
        queue = self._queues.setdefault((topic, queue_id), _Queue())
        first = queue.end
        for offset, tag in enumerate(tags, first):
            queue.messages[offset] = Original(queue_id, offset, tag)
        queue.end += len(tags)
        return list(range(first, queue.end))

    def has_queue(self, topic: str, queue_id: int) -> bool:
        """Whether the topic has this queue."""
        return 0 <= queue_id < self.orders.topics.get(topic, 0)

    def end(self, topic: str, queue_id: int) -> int:
        """The offset after the last message."""
        return self._queues.get((topic, queue_id), _Queue()).end

    def original(self, topic: str, queue_id: int, offset: int) -> Original | None:
        """Where a message was first sent; None when there is no such message."""
        queue = self._queues.get((topic, queue_id), _Queue())
        if not queue.first <= offset < queue.end:
            return None
        return queue.messages.get(offset, Original(queue_id, offset))

    # Offsets.

    def consumer_offset(self, lane: Lane) -> int:
        """As it is queried: of a reset that waits for its pop, else the stored one; -1: there is none."""
        return self.resets.get(lane, self._consumer.get(lane, -1))

    def pull_offset(self, lane: Lane) -> int:
        """From where the next concurrent pop reads."""
        return self.resets.get(lane, self._pull.get(lane, self.consumer_offset(lane)))

    def commit(self, lane: Lane, offset: int) -> None:
        """An offset is stored by hand."""
        self._consumer[lane] = offset

    def reset(self, lane: Lane, offset: int) -> int:
        """The code of a reset, which the next pop applies."""
        topic, group, queue_id = lane
        if not 0 <= offset <= self.end(topic, queue_id) + 1:
            return _FAILED
        self.resets[lane] = self._consumer[lane] = offset
        for other in [other for other in self._pull if other[:2] == (topic, group)]:
            del self._pull[other]
        return 0

    # Pop.

    def pop(self, request: RocketPop, now_ms: int) -> Popped:
        """Hand out messages."""
        popped = Popped(now_ms, request.invisible_time_ms, ORDERLY if request.order else 0)
        number = self._pops.get((request.topic, request.group), 0)
        self._pops[request.topic, request.group] = number + 1
        prefers_retry = number % self._retry_every == 0
        if not request.order and prefers_retry:
            self._read_retry(request, popped)
        popped.visited = self._queues_to_read(request, number)
        for queue_id in popped.visited:
            self._read(request, request.topic, queue_id, popped)
        if request.queue_id == -1 and not request.order and not prefers_retry:
            self._read_retry(request, popped)
        if not request.order:
            self.store.add([_record_of(request.group, message, popped) for message in popped.messages])
        return popped

    def _queues_to_read(self, request: RocketPop, number: int) -> list[int]:
        if request.queue_id != -1:
            return [request.queue_id]
        count = self.orders.topics.get(request.topic, 1)
        steps = range(count - 1, -1, -1) if self.release.is_descending else range(count)
        return [(number + step) % count for step in steps]

    def _read_retry(self, request: RocketPop, popped: Popped) -> None:
        for version, is_read in ((1, self._reads_v1), (2, self._has_v2)):
            topic = retry_topic_of(request.group, request.topic, version)
            if is_read and (topic, 0) in self._queues:
                self._read(request, topic, 0, popped)

    def _read(self, request: RocketPop, topic: str, queue_id: int, popped: Popped) -> None:
        now_ms, lane = popped.pop_time_ms, (topic, request.group, queue_id)
        if request.order and self._is_blocked(lane, request, now_ms):
            return
        left = request.max_messages - len(popped.messages)
        if left <= 0:
            return
        offset = self._offset_to_read(lane, request, popped)
        queue = self._queues.get((topic, queue_id), _Queue())
        if queue.end and not queue.first <= offset <= queue.end:
            self._consumer[lane] = start = queue.first if offset < queue.first else queue.end
        else:
            start = offset
        found, next_offset = self._scan(queue, queue_id, start, left, request.tag)
        popped.messages += [PoppedMessage(topic, queue_id, at, original) for at, original in found]
        if not request.order:
            least = self.store.least_buffered(request.group, topic, queue_id)
            self._pull[lane] = next_offset
            self._consumer[lane] = offset if least is None else least
        elif not found:
            self._consumer[lane] = next_offset
        else:
            self._consumer[lane] = offset
            entry = self.orders.update(
                lane,
                now_ms=now_ms,
                pop_time_ms=now_ms,
                invisible_time_ms=request.invisible_time_ms,
                offsets=[at for at, _ in found],
                attempt_id=request.attempt_id,
            )
            popped.order_counts |= entry.header(queue_id)

    def _is_blocked(self, lane: Lane, request: RocketPop, now_ms: int) -> bool:
        if lane in self.resets and self.release.resets_while_blocked:
            return False
        return self.orders.blocks(lane, request.attempt_id, request.invisible_time_ms, now_ms)

    def _offset_to_read(self, lane: Lane, request: RocketPop, popped: Popped) -> int:
        if lane in self.resets:
            offset = self._consumer[lane] = self.resets.pop(lane)
            self.store.forget_buffered(lane[1], lane[0], lane[2])
            self.orders.clear(lane)
            return offset
        offset = self._consumer.get(lane, -1) if request.order else self.pull_offset(lane)
        if offset >= 0:
            return offset
        offset = self._init_offset(lane, request)
        self._consumer[lane] = offset
        if lane[0] == request.topic:
            popped.began[lane[2]] = offset
        return offset

    def _init_offset(self, lane: Lane, request: RocketPop) -> int:
        queue = self._queues.get((lane[0], lane[2]), _Queue())
        if not request.init_max or lane[0] != request.topic:
            return queue.first
        if self._checks_memory and queue.first <= 0:
            return 0
        return max(queue.end - 1, 0)

    def _scan(
        self, queue: _Queue, queue_id: int, start: int, count: int, tag: str | None
    ) -> tuple[list[tuple[int, Original]], int]:
        """(offset, message) of what a read finds, and the offset after the last one that it looked at."""
        found: list[tuple[int, Original]] = []
        if not queue.end:
            return found, 0
        at = start
        while at < min(queue.end, start + _SCAN_ENTRIES) and len(found) < count:
            original = queue.messages.get(at, Original(queue_id, at))
            if tag is None or original.tag == tag:
                found.append((at, original))
            at += 1
        return found, at

    # Ack and change.

    def ack(self, lane: Lane, offset: int, handle: tuple[int, int, int], now_ms: int) -> Acked:
        """An ack by a handle, of which (pop time, invisible time, revive queue id) count."""
        topic, _, queue_id = lane
        if topic not in self.orders.topics:
            return Acked(_NO_TOPIC, had_effect=False)
        if not self.has_queue(topic, queue_id):
            return Acked(_ILLEGAL, had_effect=False)
        queue = self._queues.get((topic, queue_id), _Queue())
        if not queue.first <= offset <= queue.end:
            return Acked(_NO_MESSAGE, had_effect=False)
        return self._ack(lane, offset, handle, now_ms)

    def _ack(self, lane: Lane, offset: int, handle: tuple[int, int, int], now_ms: int) -> Acked:
        pop_time_ms, invisible_time_ms, revive_queue_id = handle
        if revive_queue_id != ORDERLY:
            topic, group, queue_id = lane
            message = (group, topic, queue_id, offset)
            return Acked(0, self.store.ack(message, pop_time_ms + invisible_time_ms))
        if offset < self.consumer_offset(lane):
            return Acked(0, had_effect=False)
        next_offset = self.orders.ack(lane, offset, pop_time_ms, now_ms)
        if next_offset < 0:
            return Acked(_ILLEGAL if next_offset == -1 else 0, had_effect=False)
        if lane not in self.resets:
            self._consumer[lane] = next_offset
            if not self.orders.blocks(lane, None, 0, now_ms):
                self.notified.append("@".join(map(str, lane)))
        return Acked(0, had_effect=True)

    def batch_ack(self, acks: list[dict[str, Any]], now_ms: int) -> int:
        """One code for all; what is out of range is left out without a word."""
        code = 0 if acks else _NO_MESSAGE
        for one in acks:
            topic = (
                one["topic"] if one["retry"] == "0" else retry_topic_of(one["group"], one["topic"], int(one["retry"]))
            )
            lane = (topic, one["group"], one["queue_id"])
            queue = self._queues.get((topic, one["queue_id"]))
            handle = (one["pop_time"], one["invisible_time"], one["revive_qid"])
            for offset in sorted(one["start_offset"] + bit for bit in one["bits"]):
                if queue is not None and queue.first <= offset <= queue.end:
                    code = self._ack(lane, offset, handle, now_ms).code or code
        return code

    def change(
        self,
        lane: Lane,
        offset: int,
        handle: tuple[int, int, int],
        invisible_time_ms: int,
        now_ms: int,
        *,
        suspend: bool = False,
    ) -> Changed:
        """A change by a handle."""
        topic, group, queue_id = lane
        if topic not in self.orders.topics:
            return Changed(_NO_TOPIC)
        if not self.has_queue(topic, queue_id):
            return Changed(_ILLEGAL)
        queue = self._queues.get((topic, queue_id), _Queue())
        if not queue.first <= offset < queue.end:
            return Changed(_NO_MESSAGE)
        pop_time_ms, old_invisible_time_ms, revive_queue_id = handle
        if revive_queue_id != ORDERLY:
            record = PopRecord(now_ms, invisible_time_ms, (group, topic, queue_id, offset), suspend=suspend)
            effect, is_lost = self.store.change(record, pop_time_ms + old_invisible_time_ms)
            return Changed(0, now_ms, invisible_time_ms, revive_queue_id, effect, is_lost)
        if offset < self.consumer_offset(lane):
            return Changed(0)
        next_visible_ms = now_ms + invisible_time_ms
        entry = self.orders.entry(lane)
        effect = entry is not None and entry.pop_time_ms == pop_time_ms and offset in entry.offsets
        self.orders.change(lane, offset, pop_time_ms, next_visible_ms, now_ms)
        return Changed(0, pop_time_ms, next_visible_ms - pop_time_ms, ORDERLY, effect)

    # Revive.

    def revive(self, now_ms: int, count_max: int | None = None) -> tuple[int, list[Revived]]:
        """One pass of the loop: how many records it took, and the copies that it wrote."""
        due = self.store.take_due(now_ms, count_max)
        return len(due), list(self._copies(due))

    def _copies(self, due: list[PopRecord]) -> Iterator[Revived]:
        for record in due:
            group, topic, queue_id, offset = record.message
            original = self.original(topic, queue_id, offset)
            if original is None:
                continue  # the message has left the log
            normal = _normal_topic(group, topic)
            retry = topic if topic != normal else retry_topic_of(group, topic, 2 if self._has_v2 else 1)
            if (retry, 0) not in self._queues:
                self._queues[retry, 0] = _Queue()
                self.orders.topics[retry] = 1
                self._consumer[retry, group, 0] = 0
            queue = self._queues[retry, 0]
            times = original.reconsume_times + (0 if record.suspend else 1)
            copied = queue.messages[queue.end] = original._replace(reconsume_times=times)
            queue.end += 1
            yield Revived(group, normal, copied, retry, queue.end - 1)


def retry_topic_of(group: str, topic: str, version: int = 1) -> str:
    """The retry topic of a group."""
    return f"%RETRY%{group}{'+' if version == 2 else '_'}{topic}"


def _normal_topic(group: str, topic: str) -> str:
    for prefix in (f"%RETRY%{group}+", f"%RETRY%{group}_"):
        if topic.startswith(prefix):
            return topic[len(prefix) :]
    return topic


def _record_of(group: str, message: PoppedMessage, popped: Popped) -> PopRecord:
    flag = 0
    if message.real_topic.startswith("%RETRY%"):
        flag = 2 if "+" in message.real_topic else 1
    return PopRecord(
        popped.pop_time_ms,
        popped.invisible_time_ms,
        (group, message.real_topic, message.queue_id, message.offset),
        flag,
    )
