"""The job in memory, on a clock that the test moves: for tests of programs that use the client.

The decisions are made by the kernel of the job, so a test sees the answers that the job would give.

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
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import msgspec

from broker_state.kernel.context.decision import Decision, OpRecord
from broker_state.kernel.fold import fold
from broker_state.store.memory_kv import MemoryKv
from broker_state.store.overlay import Overlay
from popstream.consumer import Consumer
from popstream.dead_letters.dead_letters import DeadLetters
from popstream.exchange.partitioner import ops_key, partition_of
from popstream.exchange.transport import Transport
from popstream.payload.payloads import Payload
from popstream.pop.consumer_sources import ConsumerSources
from popstream.producer import Producer
from popstream.settings import ClientSettings, new_client_id
from popstream.testing._memory_clock import MemoryClock
from popstream.testing._memory_kafka import MemoryKafka
from popstream.testing._memory_letters import DEAD_LETTERS, OWN_TOPICS, MemoryLetterTopics
from popstream.testing._memory_link import MemoryLink, frame_of
from popstream.testing._memory_topics import MemoryTopics
from popstream.wire.answer import Answer
from popstream.wire.command import ChangeInvisible, Command, Declare, Dispatch, Tick, WrittenRange, encode_command
from popstream.wire.dead_letter_record import copy_of
from popstream.wire.dedup_id import DEDUP_WINDOW_MS_DEFAULT
from popstream.wire.queue_name import QueueName
from popstream.wire.reason import Reason, code_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import TracebackType

    from popstream.wire.command import QueueType
    from popstream.wire.dead_letter import DeadLetter

__all__ = ["MemoryJob"]

PARTITION_COUNT = 4
_TRANSPORT_SETTINGS = frozenset(("answer_timeout_ms", "resend_after_ms"))
_decode_command = msgspec.json.Decoder(Command).decode


class MemoryJob:
    """A job, its message topics and its clock. Safe for use by many threads.

    Operations are decided when they are sent. Only `advance` moves the clock: only then do leases expire, and delayed
    messages become visible.

    Args:
        now_ms: The time at the start, in milliseconds.

    Attributes:
        now_ms: The broker's clock, in milliseconds.
        records: The operations that were sent, in order.
        silent: (topic, queue_id) of queues whose operations are decided, but not answered.
        payloads: The records of the message topics, also for `ConsumerSources`. Its sets `deleted`, `late` and
            `damaged` of (topic, queue_id, queue_offset) make records disappear or fail.
        cpu_s: CPU time of all decisions, in seconds.
        is_old: Refuse changes of more than one message with NOT_SUPPORTED, as an old job.
    """

    def __init__(self, now_ms: int = 1_000_000) -> None:
        self.now_ms = now_ms
        self.records: list[Command] = []
        self.silent: set[QueueName] = set()
        self.is_old = False
        self.cpu_s = 0.0
        self.payloads = MemoryTopics()
        self._queue_types: dict[str, QueueType] = {}
        self._accepted_ms: dict[tuple[str, int, bytes], int] = {}
        self._lock = threading.Lock()
        self._kv = MemoryKv()
        self._links: list[MemoryLink] = []
        self._clients: weakref.WeakSet[Consumer[Any] | Producer[Any]] = weakref.WeakSet()
        self._listeners: list[tuple[str, Callable[[QueueName], None]]] = []

    def consumer(self, group: str, **options: Any) -> Consumer:  # noqa: ANN401 - as Consumer's
        """Return a consumer of this job.

        Args:
            group: The consumer group.
            **options: Arguments of `Consumer`; also `answer_timeout_ms` and `resend_after_ms`.
        """
        settings = {name: options.pop(name) for name in _TRANSPORT_SETTINGS & options.keys()}
        made = _MemoryConsumer(
            "memory",
            group=group,
            transport=self.transport(**settings),
            sources=ConsumerSources(
                payloads=self.payloads,
                notifications=partial(self.listen, group),
                job_types=self._queue_types.get,
            ),
            **options,
        )
        self._clients.add(made)
        return made

    def producer(self, **options: Any) -> Producer[Any]:  # noqa: ANN401 - as Producer's
        """Return a producer whose messages are dispatched at once. A topic that does not exist gets one queue.

        Args:
            **options: Arguments of `Producer`; `queue_types` are the types of topics that the job does not know yet.
        """
        given: dict[str, QueueType] = dict(options.get("queue_types") or {})

        def type_of(topic: str) -> QueueType:
            return self._queue_types.get(topic) or given.get(topic, "simple")

        kafka = MemoryKafka(self, partitions=None, type_of=type_of)
        made = _MemoryProducer(
            "memory", kafka_producer=kafka, job_types=self._queue_types.get, now_ms=lambda: self.now_ms, **options
        )
        self._clients.add(made)
        return made

    def dead_letters(self) -> DeadLetters:
        """Return the dead letters of this job. What is redriven is poppable at once."""
        return DeadLetters("memory", topics=MemoryLetterTopics(self))

    def type_of(self, topic: str) -> QueueType | None:
        """Return the type of a message topic; None: the job does not know it."""
        return self._queue_types.get(topic)

    def write(
        self,
        topic: str,
        queue_id: int,
        values: Sequence[bytes | None],
        *,
        headers: Sequence[tuple[str, bytes | None]] = (),
        dispatch: bool = True,
    ) -> None:
        """Append messages to a queue of the type simple, all with the same headers, and make them poppable."""
        written = self.payloads.queue(topic, queue_id)
        first = len(written)
        written.extend(Payload(None, value, [*headers], self.now_ms) for value in values)
        if not first:
            self.send(Declare(v=1, topic=topic, queue_id=queue_id, topic_id=topic))
        if dispatch and values:
            ranges = [WrittenRange(first, len(written) - 1)]
            self.send(Dispatch(v=1, topic=topic, queue_id=queue_id, ranges=ranges))

    def append(
        self,
        topic: str,
        queue_id: int,
        payload: Payload,
        *,
        tag: int = 0,
        count: int = 1,
        deliver_at_ms: int = 0,
        dedup_id: bytes = b"",
        queue_type: QueueType = "batch",
    ) -> int:
        """Append one record to a queue, of this type if it is new, and dispatch it as a unit of `count` messages.

        Returns:
            Its queue offset.
        """
        written = self.payloads.queue(topic, queue_id)
        written.append(payload)
        queue_offset = len(written) - 1
        if not queue_offset:
            self.send(Declare(v=1, topic=topic, queue_id=queue_id, topic_id=topic, queue_type=queue_type))
        if dedup_id and self._is_duplicate(topic, queue_id, dedup_id):
            self.send(Dispatch(v=1, topic=topic, queue_id=queue_id, skip=[(queue_offset, queue_offset)]))
        else:
            ranges = [WrittenRange(queue_offset, queue_offset, tag, count, deliver_at_ms)]
            self.send(Dispatch(v=1, topic=topic, queue_id=queue_id, ranges=ranges))
        return queue_offset

    def _is_duplicate(self, topic: str, queue_id: int, dedup_id: bytes) -> bool:
        """Tell whether the queue has accepted the id within the window; if not, it accepts it now."""
        accepted_ms = self._accepted_ms.get((topic, queue_id, dedup_id))
        if accepted_ms is not None and self.now_ms - accepted_ms < DEDUP_WINDOW_MS_DEFAULT:
            return True
        self._accepted_ms[topic, queue_id, dedup_id] = self.now_ms
        return False

    def make_topic(self, topic: str, queue_count: int) -> None:
        """Create a topic with empty queues, which the job does not know yet."""
        for queue_id in range(queue_count):
            self.payloads.queue(topic, queue_id)

    def advance(self, time_ms: int) -> None:
        """Move the clock; everything that becomes due takes effect in all queues."""
        self.now_ms += time_ms
        for topic, queue_id in self.payloads.queues:
            if topic in OWN_TOPICS:
                continue
            self.send(Tick(v=1, topic=topic, queue_id=queue_id))

    def send(self, command: Command) -> None:
        """Decide an operation without an answer."""
        self._decide(ops_key(command.topic, command.queue_id), encode_command(command))

    def transport(self, **settings: Any) -> Transport:  # noqa: ANN401 - ClientSettings checks them
        """Return a transport to this job, for clients that share one."""
        named = {"bootstrap_servers": "memory", "client_id": new_client_id(), **settings}
        return Transport(ClientSettings(**named), link=self.link(), broker_clock=MemoryClock())

    def link(self) -> MemoryLink:
        """Return a link to this job, with a partition of answers of its own."""
        link = MemoryLink(self._decide, reply_to=len(self._links))
        self._links.append(link)
        return link

    def listen(self, group: str, listener: Callable[[QueueName], None]) -> Callable[[], None]:
        """Call `listener` with each queue that becomes poppable for a group; return an unsubscribe callable."""
        listening = (group, listener)
        self._listeners.append(listening)
        return lambda: self._listeners.remove(listening)

    def close(self) -> None:
        """Close the consumers and producers that are still open."""
        self.silent.clear()
        for client in list(self._clients):
            client.close()

    def __enter__(self) -> Self:
        """Return the job."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close its clients."""
        self.close()

    def _decide(self, key: bytes, value: bytes) -> list[bytes]:
        began_s = time.thread_time()
        with self._lock:
            command = _decode_command(value)
            self.records.append(command)
            if isinstance(command, Declare):
                self._queue_types.setdefault(command.topic, command.queue_type)
            if self.is_old and isinstance(command, ChangeInvisible) and _message_count(command) > 1:
                return [frame_of([_not_supported(command, self.now_ms)])]
            overlay, decision = Overlay(self._kv), Decision()
            digest = hashlib.blake2b(value, digest_size=16).digest()
            partition = partition_of(key, PARTITION_COUNT)
            fold(overlay, [OpRecord(partition, len(self.records), self.now_ms, command, digest)], decision)
            self._kv.write(overlay)
            self.cpu_s += time.thread_time() - began_s
        self._write_dead_letters(decision.dead_letters)
        if (command.topic, command.queue_id) in self.silent:
            return []
        for notification in decision.notifications:
            for group, listener in list(self._listeners):
                if group == notification.group:
                    listener((notification.topic, notification.queue_id))
        for reply_to, answer in decision.answers:
            self._links[reply_to].bring(b'{"v":1,"answers":[' + answer + b"]}")
        return []

    def _write_dead_letters(self, letters: Iterable[DeadLetter]) -> None:
        for letter in letters:
            messages = self.payloads.queue(letter.topic, letter.queue_id)
            for queue_offset in range(letter.first, letter.last + 1):
                is_gone = (letter.topic, letter.queue_id, queue_offset) in self.payloads.deleted
                # A test may dispatch offsets that it has written no messages to.
                is_gone = is_gone or queue_offset >= len(messages)
                copied = copy_of(letter, queue_offset, None if is_gone else messages[queue_offset])
                record = Payload(copied.key, copied.value, [*copied.headers], self.now_ms)
                self.payloads.queue(DEAD_LETTERS, 0).append(record)


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
    def __init__(self, *args: Any, **options: Any) -> None:  # noqa: ANN401 - as Consumer's
        super().__init__(*args, **options)
        self._owns_transport = True


class _MemoryProducer(Producer[Any]):
    def __init__(self, *args: Any, now_ms: Callable[[], int], **options: Any) -> None:  # noqa: ANN401 - as Producer's
        self._job_now_ms = now_ms
        super().__init__(*args, **options)

    def _now_ms(self) -> int:
        return self._job_now_ms()
