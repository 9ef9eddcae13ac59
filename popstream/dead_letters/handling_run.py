"""One redrive or purge: plans what to send for each letter, and writes it in transactions."""

from __future__ import annotations

import secrets
import time
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

import msgspec

from popstream.dead_letters.letter_reader import HandledLetters
from popstream.dead_letters.letter_topics import HandledLetter, LetterRefusedError
from popstream.errors import NotDeclared, Refused
from popstream.exchange.coalescer import ranges_of
from popstream.payload.payloads import merge_ranges
from popstream.wire.base_errors import Invalid
from popstream.wire.command import Redrive
from popstream.wire.letter_handling import LetterHandling
from popstream.wire.queue_name import QueueName
from popstream.wire.reason import Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import Literal

    from popstream.dead_letters.letter import Letter, LetterPlace
    from popstream.dead_letters.letter_topics import LetterTopics, LetterWriter
    from popstream.dead_letters.redrive_plan import RedrivenRecord
    from popstream.wire.command import RedriveTarget

__all__ = ["HandlingCall", "HandlingRun", "LettersReport", "UnredrivenLetter"]

TRANSACTION_LETTERS_MAX = 2_000
"""Readers of the queues wait until it is committed, for about a second."""
TRANSACTION_BYTES_MAX = 8 * 1024 * 1024
DISPATCH_EACH_S = 5.0
"""Messages of topics that the job does not build are dispatched so often: others behind them wait for it."""
UNREDRIVEN_MAX = 100


class UnredrivenLetter(msgspec.Struct, frozen=True):
    """A letter that could not be redriven: its partition and offset, and why."""

    place: str
    why: str


class LettersReport(msgspec.Struct, kw_only=True):
    """What a redrive or a purge has done so far, or with `dry_run` would have done.

    Attributes:
        call: Its id, which is recorded with each letter.
        letters: Letters that were redriven or purged.
        messages: Messages that were sent; those of a unit count one by one if they are sent one by one.
        duplicates: Copies of these letters in the topic, after a restore that could not recognise them.
        unredriven_count: Letters that could not be redriven. They stay as they were.
        unredriven: The first 100 of them.
        letters_of: Letters that were redriven or purged, by (group, topic).
        places: With `dry_run`, where the letters are, by their ids.
    """

    call: str
    letters: int = 0
    messages: int = 0
    duplicates: int = 0
    unredriven_count: int = 0
    unredriven: list[UnredrivenLetter] = []
    letters_of: Counter[tuple[str, str]] = msgspec.field(default_factory=Counter)
    places: dict[str, LetterPlace] = {}


class HandlingCall(msgspec.Struct, frozen=True):
    """What is recorded about all letters of a call, as in `LetterHandling`."""

    action: Literal["redriven", "purged"]
    by: str
    comment: str
    to: RedriveTarget | None = None
    call: str = msgspec.field(default_factory=lambda: secrets.token_hex(8))

    def handling_of(self, letter: Letter) -> LetterHandling:
        """Return what is recorded about a letter."""
        return LetterHandling(
            v=1,
            action=self.action,
            at_ms=int(time.time() * 1000),
            by=self.by,
            call=self.call,
            partition=letter.partition,
            kafka_offset=letter.kafka_offset,
            group=letter.group,
            topic=letter.topic,
            queue_id=letter.queue_id,
            queue_offset=letter.queue_offset,
            to=self.to,
            comment=self.comment,
        )


class HandlingRun:
    """One redrive or purge. Not thread-safe.

    Args:
        topics: The topics.
        call: What is recorded.
        plan: Returns what to send for a letter; raises Invalid if it cannot be redriven.
        on_progress: Is told after each transaction.

    Attributes:
        report: What it has done so far.
    """

    def __init__(
        self,
        topics: LetterTopics,
        call: HandlingCall,
        plan: Callable[[Letter], Sequence[RedrivenRecord]],
        on_progress: Callable[[LettersReport], None],
    ) -> None:
        self.report = LettersReport(call=call.call)
        self._topics = topics
        self._call = call
        self._plan = plan
        self._on_progress = on_progress
        self._handled = HandledLetters(topics)
        self._undispatched: defaultdict[QueueName, list[tuple[int, int]]] = defaultdict(list)
        self._declared: set[QueueName] = set()
        self._announced_count = 0
        self._dispatched_s = time.monotonic()

    def pretend(self, letters: Iterable[Letter], limit: int | None) -> None:
        """Report what `write` would do."""
        self._handled.read_on()
        for one in self._planned(letters, limit):
            self._count(one)
            self.report.places[one.letter.letter_id] = (one.letter.partition, one.letter.kafka_offset)

    def write(self, writer: LetterWriter, letters: Iterable[Letter], limit: int | None) -> None:
        """Handle those letters that nobody has handled, in their order. Raises the errors of `DeadLetters.redrive`."""
        writer.open()
        self._handled.read_on()
        if self._call.action == "redriven":
            # It may have been killed before.
            self._note_undispatched(self._handled.last_redrive)
            self._dispatch()
        for batch in _batches(self._planned(letters, limit)):
            self._declare(batch)
            if permitted := self._announce(batch):
                self._write(writer, permitted)
            self._on_progress(self.report)
            if time.monotonic() - self._dispatched_s > DISPATCH_EACH_S:
                self._dispatch()
        self._dispatch()

    def _planned(self, letters: Iterable[Letter], limit: int | None) -> Iterator[HandledLetter]:
        planned: set[str] = set()
        for letter in letters:
            if letter.letter_id in planned:
                self.report.duplicates += 1
                continue
            if letter.letter_id in self._handled:
                continue
            if len(planned) == limit:
                return
            try:
                records = self._plan(letter)
            except Invalid as error:
                self._leave(letter, error)
                continue
            planned.add(letter.letter_id)
            yield HandledLetter(letter, records, self._call.handling_of(letter))

    def _write(self, writer: LetterWriter, batch: Sequence[HandledLetter]) -> None:
        try:
            handlings = writer.write(batch)
        except LetterRefusedError as refused:
            # Nothing of the batch is written: find the letter that is to blame, and write the others without it.
            # Meanwhile another redrive may have handled some.
            writer.open()
            self._handled.read_on()
            if len(batch) == 1:
                self._leave(batch[0].letter, refused.why)
                return
            left = [one for one in batch if one.letter.letter_id not in self._handled]
            middle = (len(left) + 1) // 2
            for part in (left[:middle], left[middle:]):
                if part:
                    self._write(writer, part)
            return
        for one in batch:
            self._count(one)
        self._note_undispatched(handlings)

    def _count(self, one: HandledLetter) -> None:
        self.report.letters += 1
        self.report.messages += len(one.records)
        self.report.letters_of[one.letter.group, one.letter.topic] += 1

    def _leave(self, letter: Letter, why: Invalid) -> None:
        self.report.unredriven_count += 1
        if len(self.report.unredriven) < UNREDRIVEN_MAX:
            self.report.unredriven.append(UnredrivenLetter(letter.place, why.message))

    def _note_undispatched(self, handlings: Iterable[LetterHandling]) -> None:
        for one in handlings:
            if one.sent and self._topics.type_of(one.topic) is None:
                self._undispatched[one.topic, one.queue_id] += one.sent

    def _dispatch(self) -> None:
        """Dispatch what was sent to topics that the job does not build."""
        if self._undispatched:
            self._topics.dispatch({queue: merge_ranges(ranges) for queue, ranges in self._undispatched.items()})
            self._undispatched.clear()
        self._dispatched_s = time.monotonic()

    def _announce(self, batch: Sequence[HandledLetter]) -> Sequence[HandledLetter]:
        """Have the job audit what is about to be redriven; return the letters that it lets be redriven.

        Before anything is sent: the job refuses a client without the right to do so.

        Raises:
            NotDeclared: The job does not know a queue yet, as after it has lost its state.
        """
        if self._call.to is None:
            return batch
        letters_of: defaultdict[tuple[str, int, str], list[HandledLetter]] = defaultdict(list)
        for one in batch:
            letters_of[one.letter.topic, one.letter.queue_id, one.letter.group].append(one)
        answers = self._topics.announce(
            [self._redrive(*lane, self._call.to, letters) for lane, letters in letters_of.items()]
        )
        permitted: list[HandledLetter] = []
        for letters, answer in zip(letters_of.values(), answers, strict=True):
            if answer.reason is Reason.OK:
                permitted += letters
            elif answer.reason is Reason.TOPIC_NOT_EXIST:
                raise NotDeclared.of(answer)
            else:
                for one in letters:
                    self._leave(one.letter, Refused(answer))
        return permitted

    def _redrive(
        self, topic: str, queue_id: int, group: str, to: RedriveTarget, letters: Iterable[HandledLetter]
    ) -> Redrive:
        self._announced_count += 1
        return Redrive(
            v=1,
            topic=topic,
            queue_id=queue_id,
            op_id=f"redrive-{self._call.call}-{self._announced_count}",
            group=group,
            offsets=ranges_of(one.letter.queue_offset for one in letters),
            to=to,
            by=self._call.by,
            comment=self._call.comment,
        )

    def _declare(self, batch: Sequence[HandledLetter]) -> None:
        """Declare the queues that the job does not build."""
        queues = {
            (one.letter.topic, one.letter.queue_id)
            for one in batch
            if one.records and self._topics.type_of(one.letter.topic) is None
        } - self._declared
        if queues:
            self._topics.declare(sorted(queues))
            self._declared |= queues


def _batches(letters: Iterable[HandledLetter]) -> Iterator[list[HandledLetter]]:
    """Yield the letters of one transaction after the other."""
    batch: list[HandledLetter] = []
    size_bytes = 0
    for one in letters:
        batch.append(one)
        size_bytes += one.letter.size_bytes
        if len(batch) == TRANSACTION_LETTERS_MAX or size_bytes >= TRANSACTION_BYTES_MAX:
            yield batch
            batch, size_bytes = [], 0
    if batch:
        yield batch
