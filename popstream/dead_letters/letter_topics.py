"""What the redrive needs of Kafka and the job: reads, announcements, transactions, dispatches.

`MemoryJob` has another one, for tests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, Self

import msgspec

from popstream.wire.queue_name import QueueName

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from types import TracebackType

    from popstream.dead_letters.letter import Letter
    from popstream.dead_letters.redrive_plan import RedrivenRecord
    from popstream.payload.payloads import Payloads
    from popstream.wire.answer import Answer
    from popstream.wire.base_errors import Invalid
    from popstream.wire.command import QueueType, Redrive
    from popstream.wire.letter_handling import LetterHandling

__all__ = ["HandledLetter", "LetterRefusedError", "LetterTopics", "LetterWriter", "LogBounds"]

LogBounds = tuple[int, int]
"""First offset of the log of a partition, and the one after its last committed record."""


class LetterRefusedError(Exception):
    """Kafka refuses a record, so that nothing of the batch is written. Its cause is an `Invalid` that says why."""

    def __init__(self, why: Invalid) -> None:
        super().__init__(str(why))
        self.why = why


class HandledLetter(msgspec.Struct, frozen=True):
    """A letter that is redriven or purged.

    Attributes:
        letter: The letter.
        records: What is sent for it; nothing: it is purged.
        handling: What is recorded about it, but for the offsets of what is sent.
    """

    letter: Letter
    records: Sequence[RedrivenRecord]
    handling: LetterHandling


class LetterWriter(Protocol):
    """Writes what is sent for letters, with the records that say so. One at a time has the right to write."""

    def __enter__(self) -> Self:
        """Return it, not open yet."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Abandon what is not committed, and disconnect."""

    def open(self) -> None:
        """Take the right to write: what an earlier writer has not committed is abandoned, and its next write fails.

        Raises:
            Unavailable: Kafka does not answer.
            Invalid: Kafka does not allow it.
        """

    def write(self, batch: Sequence[HandledLetter]) -> list[LetterHandling]:
        """Write all or nothing of a batch, and return what is recorded about each letter.

        Raises:
            LetterRefusedError: Kafka refuses a record, and would again. `open` comes next.
            Fenced: Another writer was opened; nothing is written.
            Unavailable: It is not written, or whether it is written is unknown.
            Invalid: The client may not write to the topic.
        """


class LetterTopics(Protocol):
    """The topics of dead letters, of what became of them, and of messages.

    Attributes:
        dead_letters: Name of the dead-letter topic.
        handled: Name of the topic with what became of letters.
        payloads: Reads them.
    """

    dead_letters: str
    handled: str
    payloads: Payloads

    def bounds(self, topic: str) -> Mapping[int, LogBounds]:
        """Return the bounds of all partitions of a topic; none: it does not exist.

        Raises:
            Unavailable: Kafka does not answer, or a partition has no leader.
            Invalid: Kafka refuses.
        """

    def type_of(self, topic: str) -> QueueType | None:
        """Return the type of a message topic; None: the job does not build it."""

    def writer(self) -> LetterWriter:
        """Return a writer."""

    def declare(self, queues: Iterable[QueueName]) -> None:
        """Declare queues that the job does not build, so that what is sent to them can be dispatched.

        Raises:
            AnswerTimeout: The job does not answer.
            Refused: The job refuses it.
            Invalid: The job wants an admin key, the queue does not exist, or Kafka refuses.
            Unavailable: Kafka does not answer.
        """

    def announce(self, redrives: Sequence[Redrive]) -> list[Answer]:
        """Tell the job what is about to be redriven, so that its audit has it; return the answer to each.

        Raises:
            AnswerTimeout: The job does not answer.
            Invalid: The job wants an admin key, or Kafka refuses.
            Unavailable: Kafka does not answer.
        """

    def dispatch(self, sent: Mapping[QueueName, Sequence[tuple[int, int]]]) -> None:
        """Dispatch offsets of message topics that the job does not build, and the holes among and behind them.

        Those that are gone, for example because their topic was deleted, are left out with a warning.

        Raises:
            AnswerTimeout: The job does not answer.
            Refused: The job refuses it.
            Invalid: The job wants an admin key.
            Unavailable: Kafka does not answer.
        """

    def erase(self, ends: Mapping[int, int]) -> None:
        """Delete the dead letters of each partition below an offset. Raises Unavailable or Invalid."""

    def close(self) -> None:
        """Disconnect."""
