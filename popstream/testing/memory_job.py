"""The job and its message topics in memory, on a clock moved by hand: for tests of programs that use the client.

The decisions are the kernel's own, so what a test sees is what the job answers.

>>> job = MemoryJob()
>>> job.write("orders", 0, [b"one", b"two"])
>>> with job.consumer("billing") as consumer:
...     messages = consumer.pop("orders", 0).messages
...     [(message.value, outcome.applied) for message, outcome in zip(messages, consumer.ack(messages))]
[(b'one', True), (b'two', True)]
"""

from __future__ import annotations

import hashlib
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from broker_state.kernel.decision import Decision, OpRecord
from broker_state.kernel.fold import fold
from broker_state.store.memory_kv import MemoryKv
from broker_state.store.overlay import Overlay
from popstream.consumer import Consumer
from popstream.exchange.coalescer import ranges_of
from popstream.exchange.partitioner import ops_key, partition_of
from popstream.exchange.transport import Transport
from popstream.payload.payloads import FetchCounts, Fetched, Payload, merge_ranges
from popstream.settings import ClientSettings, new_client_id
from popstream.testing.memory_link import MemoryLink, frame_of
from popstream.wire.answer import Answer
from popstream.wire.command import ChangeInvisible, Command, Declare, Dispatch, Tick, WrittenRange, encode_command
from popstream.wire.failures import Corrupt, Invalid
from popstream.wire.reason import Reason, code_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from popstream.outcome import QueueKey

__all__ = ["MemoryJob"]

PARTITION_COUNT = 4
_TRANSPORT_SETTINGS = frozenset(("answer_timeout_ms", "resend_after_ms"))
_decode_command = msgspec.json.Decoder(Command).decode


class MemoryJob:
    """Decides each operation as it is sent. Safe for use by many threads.

    Attributes:
        now_ms: The time of the next record; `advance` moves it.
        records: What was sent, in order.
        deleted: (topic, queue_id, offset) whose record is gone.
        late: (topic, queue_id, offset) whose record cannot be read yet.
        damaged: (topic, queue_id, offset) whose record cannot be read at all.
        silent: Queues whose operations are decided, but the answers are lost.
        cpu_s: CPU time that the decisions took.
        is_old: Changes of more than one message are answered with NOT_SUPPORTED.
    """

    def __init__(self, now_ms: int = 1_000_000) -> None:
        self.now_ms = now_ms
        self.records: list[Command] = []
        self.deleted: set[tuple[str, int, int]] = set()
        self.late: set[tuple[str, int, int]] = set()
        self.damaged: set[tuple[str, int, int]] = set()
        self.silent: set[QueueKey] = set()
        self.is_old = False
        self.cpu_s = 0.0
        self._lock = threading.Lock()
        self._kv = MemoryKv()
        self._links: list[MemoryLink] = []
        self._topics: dict[QueueKey, list[Payload]] = {}
        self._counts = FetchCounts()
        self._listeners: list[tuple[str, Callable[[QueueKey], None]]] = []

    def link(self) -> MemoryLink:
        """A place to send to, with answers of its own."""
        link = MemoryLink(self._decide, reply_to=len(self._links))
        self._links.append(link)
        return link

    def transport(self, **settings: Any) -> Transport:  # noqa: ANN401 - ClientSettings checks them
        """A transport to this job."""
        named = {"bootstrap_servers": "memory", "client_id": new_client_id(), **settings}
        return Transport(ClientSettings(**named), link=self.link())

    def consumer(self, group: str, **options: Any) -> Consumer:  # noqa: ANN401 - as Consumer's
        """A consumer of this job; closing it closes its transport."""
        settings = {name: options.pop(name) for name in _TRANSPORT_SETTINGS & options.keys()}
        return _MemoryConsumer(
            "memory",
            group=group,
            transport=self.transport(**settings),
            payloads=self,
            notifications=partial(self.listen, group),
            **options,
        )

    def listen(self, group: str, listener: Callable[[QueueKey], None]) -> Callable[[], None]:
        """Call `listener` for each queue that becomes poppable for a group; gives what ends that."""
        listening = (group, listener)
        self._listeners.append(listening)
        return lambda: self._listeners.remove(listening)

    def make_topic(self, topic: str, queue_count: int) -> None:
        """Let a topic have so many queues, of which the job knows nothing yet."""
        for queue_id in range(queue_count):
            self._topics.setdefault((topic, queue_id), [])

    def queue_ids(self, topic: str) -> list[int]:
        """The queues of a topic."""
        found = sorted(queue_id for name, queue_id in self._topics if name == topic)
        if not found:
            message = f"topic {topic} does not exist"
            raise Invalid(message, subject=topic)
        return found

    def write(
        self,
        topic: str,
        queue_id: int,
        values: Sequence[bytes | None],
        *,
        headers: Sequence[tuple[str, bytes | None]] = (),
        dispatch: bool = True,
    ) -> None:
        """Append messages to a queue, all with the same headers, and make them poppable."""
        written = self._topics.setdefault((topic, queue_id), [])
        first = len(written)
        written.extend(Payload(None, value, [*headers], self.now_ms) for value in values)
        if not first:
            self.send(Declare(v=1, topic=topic, queue_id=queue_id, topic_id=topic))
        if dispatch and values:
            ranges = [WrittenRange(first, len(written) - 1)]
            self.send(Dispatch(v=1, topic=topic, queue_id=queue_id, ranges=ranges))

    def append(self, topic: str, queue_id: int, payload: Payload, *, tag: int = 0, count: int = 1) -> int:
        """Append one record to a queue and make it poppable, as a unit of so many messages; gives its queue offset."""
        written = self._topics.setdefault((topic, queue_id), [])
        written.append(payload)
        offset = len(written) - 1
        if not offset:
            self.send(Declare(v=1, topic=topic, queue_id=queue_id, topic_id=topic, queue_type="batch"))
        ranges = [WrittenRange(offset, offset, tag, count)]
        self.send(Dispatch(v=1, topic=topic, queue_id=queue_id, ranges=ranges))
        return offset

    def send(self, command: Command) -> None:
        """Decide an operation whose answer nobody waits for."""
        self._decide(ops_key(command.topic, command.queue_id), encode_command(command))

    def advance(self, time_ms: int) -> None:
        """Let time pass; what became due takes effect in every queue."""
        self.now_ms += time_ms
        for topic, queue_id in list(self._topics):
            self.send(Tick(v=1, topic=topic, queue_id=queue_id))

    def fetch(
        self,
        topic: str,
        queue_id: int,
        ranges: Sequence[tuple[int, int]],
        timeout_s: float,  # noqa: ARG002
        bytes_max: int | None = None,
    ) -> Fetched:
        """Payloads as a consumer asks for them."""
        written = self._topics[topic, queue_id]
        payloads: dict[int, Payload] = {}
        gone: list[int] = []
        late: list[int] = []
        left: list[int] = []
        wanted = [offset for first, last in merge_ranges(ranges) for offset in range(first, last + 1)]
        if any((topic, queue_id, offset) in self.damaged for offset in wanted):
            message = f"a record of {topic}/{queue_id} is damaged"
            raise Corrupt(message, subject=f"{topic}/{queue_id}")
        bytes_left = bytes_max
        for offset in wanted:
            size_bytes = written[offset].size_bytes
            if left:
                left.append(offset)
            elif (topic, queue_id, offset) in self.deleted:
                gone.append(offset)
            elif (topic, queue_id, offset) in self.late:
                late.append(offset)
            elif payloads and bytes_left is not None and size_bytes > bytes_left:
                left.append(offset)
            else:
                payloads[offset] = written[offset]
                bytes_left = None if bytes_left is None else bytes_left - size_bytes
        self._count(payloads.values())
        return Fetched(payloads, ranges_of(gone), ranges_of(late), ranges_of(left))

    def read(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        count: int,
        timeout_s: float,  # noqa: ARG002
    ) -> list[tuple[int, Payload]]:
        """Payloads from an offset on, up to the first one that is late."""
        if (topic, queue_id) not in self._topics:
            message = f"{topic}/{queue_id} does not exist"
            raise Invalid(message, subject=f"{topic}/{queue_id}")
        found: list[tuple[int, Payload]] = []
        for offset, payload in list(enumerate(self._topics[topic, queue_id]))[max(0, queue_offset) :]:
            if len(found) >= count or (topic, queue_id, offset) in self.late:
                break
            if (topic, queue_id, offset) not in self.deleted:
                found.append((offset, payload))
        self._count([payload for _, payload in found])
        return found

    def counts(self) -> FetchCounts:
        """What was handed out so far; nothing else is read here."""
        with self._lock:
            return self._counts

    def close(self) -> None:
        """Nothing to let go of."""

    def _count(self, payloads: Collection[Payload]) -> None:
        with self._lock:
            size_bytes = self._counts.bytes_read + sum(payload.size_bytes for payload in payloads)
            count = self._counts.records_read + len(payloads)
            self._counts = FetchCounts(
                bytes_read=size_bytes, bytes_delivered=size_bytes, records_read=count, records_delivered=count
            )

    def _decide(self, key: bytes, value: bytes) -> list[bytes]:
        began_s = time.thread_time()
        with self._lock:
            command = _decode_command(value)
            self.records.append(command)
            if self.is_old and isinstance(command, ChangeInvisible) and _message_count(command) > 1:
                return [frame_of([_not_supported(command, self.now_ms)])]
            overlay, decision = Overlay(self._kv), Decision()
            digest = hashlib.blake2b(value, digest_size=16).digest()
            partition = partition_of(key, PARTITION_COUNT)
            fold(overlay, [OpRecord(partition, len(self.records), self.now_ms, command, digest)], decision)
            self._kv.write(overlay)
            self.cpu_s += time.thread_time() - began_s
        if (command.topic, command.queue_id) in self.silent:
            return []
        for notification in decision.notifications:
            for group, listener in list(self._listeners):
                if group == notification.group:
                    listener((notification.topic, notification.queue_id))
        for reply_to, answer in decision.answers:
            self._links[reply_to].bring(b'{"v":1,"answers":[' + answer + b"]}")
        return []


def _message_count(command: ChangeInvisible) -> int:
    return sum(last - first + 1 for entry in command.entries for first, last in entry.offsets)


def _not_supported(command: ChangeInvisible, now_ms: int) -> Answer:
    return Answer(
        op_id=command.op_id or "",
        type="change_invisible",
        code=code_of(Reason.NOT_SUPPORTED),
        reason=Reason.NOT_SUPPORTED,
        applied=False,
        topic=command.topic,
        queue_id=command.queue_id,
        now_ms=now_ms,
    )


class _MemoryConsumer(Consumer):
    def close(self, **options: Any) -> None:  # noqa: ANN401 - as Consumer's
        super().close(**options)
        self._transport.close()
