"""The dead letters of a `MemoryJob`."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Self

import msgspec

from popstream.exchange.coalescer import ranges_of
from popstream.exchange.partitioner import ops_key
from popstream.payload.payloads import Payload
from popstream.testing._memory_kafka import MemoryKafka
from popstream.wire.answer import decode_frame
from popstream.wire.command import encode_command
from popstream.wire.queue_name import QueueName

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from types import TracebackType

    from popstream.dead_letters.letter_topics import HandledLetter, LogBounds
    from popstream.payload.payloads import Payloads
    from popstream.testing.memory_job import MemoryJob
    from popstream.wire.answer import Answer
    from popstream.wire.command import QueueType, Redrive
    from popstream.wire.letter_handling import LetterHandling

__all__ = ["DEAD_LETTERS", "OWN_TOPICS", "MemoryLetterTopics"]

DEAD_LETTERS = "popstream.dead_letters"
HANDLED = "popstream.dead_letters_handled"
OWN_TOPICS = frozenset((DEAD_LETTERS, HANDLED))


class MemoryLetterTopics:
    """A `LetterTopics` of a job in memory."""

    def __init__(self, job: MemoryJob) -> None:
        self.dead_letters = DEAD_LETTERS
        self.handled = HANDLED
        self.payloads: Payloads = job.payloads
        self._job = job
        for topic in OWN_TOPICS:
            job.payloads.queue(topic, 0)

    def bounds(self, topic: str) -> dict[int, LogBounds]:
        """Return the bounds of the queues of a topic."""
        return {queue_id: self._bounds(name, queue_id) for name, queue_id in self._job.payloads.queues if name == topic}

    def _bounds(self, topic: str, queue_id: int) -> LogBounds:
        end = len(self._job.payloads.queue(topic, queue_id))
        is_left = ((topic, queue_id, offset) not in self._job.payloads.deleted for offset in range(end))
        return next(itertools.compress(itertools.count(), is_left), end), end

    def type_of(self, topic: str) -> QueueType | None:
        """Return the type of a topic."""
        return self._job.type_of(topic)

    def writer(self) -> MemoryLetterWriter:
        """Return a writer."""
        return MemoryLetterWriter(self._job)

    def declare(self, queues: Iterable[QueueName]) -> None:
        """Do nothing: what is written to is declared."""

    def announce(self, redrives: Sequence[Redrive]) -> list[Answer]:
        """Return the answers of the job."""
        link = self._job.link()
        for redrive in redrives:
            addressed = msgspec.structs.replace(redrive, reply_to=link.open())
            link.send(ops_key(redrive.topic, redrive.queue_id), encode_command(addressed), lambda _: None)
        return [answer for frame in link.receive(0) for answer in decode_frame(frame)]

    def dispatch(self, sent: Mapping[QueueName, Sequence[tuple[int, int]]]) -> None:
        """Do nothing: what is written is dispatched."""

    def erase(self, ends: Mapping[int, int]) -> None:
        """Delete the letters below an offset."""
        for partition, end in ends.items():
            self._job.payloads.deleted.update((DEAD_LETTERS, partition, offset) for offset in range(end))

    def close(self) -> None:
        """Do nothing."""


class MemoryLetterWriter:
    """A `LetterWriter` of a job in memory."""

    def __init__(self, job: MemoryJob) -> None:
        self._job = job
        self._kafka = MemoryKafka(job, partitions=None, type_of=lambda topic: job.type_of(topic) or "simple")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Do nothing."""

    def open(self) -> None:
        """Do nothing."""

    def write(self, batch: Sequence[HandledLetter]) -> list[LetterHandling]:
        """Write the messages, and what became of the letters."""
        return [self._write(one) for one in batch]

    def _write(self, one: HandledLetter) -> LetterHandling:
        offsets = [
            self._kafka.send(
                one.letter.topic,
                key=record.key,
                value=record.value,
                headers=record.headers,
                partition=one.letter.queue_id,
                timestamp_ms=self._job.now_ms,
            ).value.offset
            for record in one.records
        ]
        handling = msgspec.structs.replace(one.handling, sent=ranges_of(offsets), at_ms=self._job.now_ms)
        record = Payload(one.letter.letter_id.encode(), msgspec.json.encode(handling), [], self._job.now_ms)
        self._job.payloads.queue(HANDLED, 0).append(record)
        return handling
