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
from typing import TYPE_CHECKING, Any

import msgspec

from broker_state.batch import fold
from broker_state.command import Command, Declare, Dispatch, Tick, WrittenRange, encode_command
from broker_state.kernel.turn import Decision, OpRecord
from broker_state.memory_kv import MemoryKv
from broker_state.overlay import Overlay
from connectors.client.coalescer import ranges_of
from connectors.client.consumer import Consumer
from connectors.client.fetcher import Fetched, Payload
from connectors.client.memory_link import MemoryLink
from connectors.client.settings import ClientSettings, new_client_id
from connectors.client.transport import Transport
from connectors.kafka.partitioner import ops_key, partition_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from connectors.client.message import QueueKey

__all__ = ["MemoryJob"]

PARTITION_COUNT = 4
_decode_command = msgspec.json.Decoder(Command).decode


class MemoryJob:
    """Decides each operation as it is sent. Safe for use by many threads.

    Attributes:
        now_ms: The time of the next record; `advance` moves it.
        records: What was sent, in order.
        deleted: (topic, queue_id, offset) whose record is gone.
        late: (topic, queue_id, offset) whose record cannot be read yet.
    """

    def __init__(self, now_ms: int = 1_000_000) -> None:
        self.now_ms = now_ms
        self.records: list[Command] = []
        self.deleted: set[tuple[str, int, int]] = set()
        self.late: set[tuple[str, int, int]] = set()
        self._lock = threading.Lock()
        self._kv = MemoryKv()
        self._links: list[MemoryLink] = []
        self._topics: dict[QueueKey, list[Payload]] = {}

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
        return _MemoryConsumer("memory", group=group, transport=self.transport(), payloads=self, **options)

    def write(self, topic: str, queue_id: int, values: Sequence[bytes | None], *, dispatch: bool = True) -> None:
        """Append messages to a queue, and make them poppable."""
        written = self._topics.setdefault((topic, queue_id), [])
        first = len(written)
        written.extend(Payload(None, value, [], self.now_ms) for value in values)
        if not first:
            self.send(Declare(v=1, topic=topic, queue_id=queue_id, topic_id=topic))
        if dispatch and values:
            ranges = [WrittenRange(first, len(written) - 1)]
            self.send(Dispatch(v=1, topic=topic, queue_id=queue_id, ranges=ranges))

    def send(self, command: Command) -> None:
        """Decide an operation whose answer nobody waits for."""
        self._decide(ops_key(command.topic, command.queue_id), encode_command(command))

    def advance(self, time_ms: int) -> None:
        """Let time pass; what became due takes effect in every queue."""
        self.now_ms += time_ms
        for topic, queue_id in self._topics:
            self.send(Tick(v=1, topic=topic, queue_id=queue_id))

    def fetch(self, topic: str, queue_id: int, ranges: Sequence[tuple[int, int]], timeout_s: float) -> Fetched:  # noqa: ARG002
        """Payloads as a consumer asks for them."""
        written = self._topics[topic, queue_id]
        wanted = [offset for first, last in ranges for offset in range(first, last + 1)]
        gone = [offset for offset in wanted if (topic, queue_id, offset) in self.deleted]
        late = [offset for offset in wanted if (topic, queue_id, offset) in self.late]
        found = {offset: written[offset] for offset in wanted if offset not in {*gone, *late}}
        return Fetched(found, ranges_of(gone), ranges_of(late))

    def close(self) -> None:
        """Nothing to let go of."""

    def _decide(self, key: bytes, value: bytes) -> list[bytes]:
        with self._lock:
            command = _decode_command(value)
            self.records.append(command)
            overlay, decision = Overlay(self._kv), Decision()
            digest = hashlib.blake2b(value, digest_size=16).digest()
            partition = partition_of(key, PARTITION_COUNT)
            fold(overlay, [OpRecord(partition, len(self.records), self.now_ms, command, digest)], decision)
            self._kv.write(overlay)
        for reply_to, answer in decision.answers:
            self._links[reply_to].bring(b'{"v":1,"answers":[' + answer + b"]}")
        return []


class _MemoryConsumer(Consumer):
    def close(self, **options: Any) -> None:  # noqa: ANN401 - as Consumer's
        super().close(**options)
        self._transport.close()
