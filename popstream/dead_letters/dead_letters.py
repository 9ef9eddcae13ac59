"""Dead letters of a job: look at them, send their messages again, put them aside."""

from __future__ import annotations

import getpass
import os
import socket
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Self

from popstream.dead_letters.handling_run import HandlingCall, HandlingRun
from popstream.dead_letters.kafka_letter_topics import KafkaLetterTopics
from popstream.dead_letters.letter_reader import HandledLetters, read_letters
from popstream.dead_letters.redrive_plan import plan_redrive
from popstream.dead_letters.selection import LetterSelection
from popstream.settings import ClientSettings, new_client_id
from popstream.wire.base_errors import Invalid

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from types import TracebackType

    from popstream.dead_letters.handling_run import LettersReport
    from popstream.dead_letters.letter import Letter, LetterPlace
    from popstream.dead_letters.letter_topics import LetterTopics, LogBounds
    from popstream.dead_letters.redrive_plan import RedrivenRecord
    from popstream.wire.command import RedriveTarget

__all__ = ["DeadLetters"]

ALL = LetterSelection()


class DeadLetters:
    """The dead letters of a job: those that nobody has handled, and what became of the others.

    ```python
    with DeadLetters("localhost:9092") as dead_letters:
        for letter in dead_letters.list(LetterSelection(group="baristas")):
            print(letter.place, letter.reason, letter.value)
        dead_letters.redrive(LetterSelection(group="baristas", reason="*ConnectionError*"))
    ```

    A letter is handled once: it is redriven, or purged. Kafka commits the redriven messages in one transaction with the
    records that say so, up to 2,000 letters or 8 MiB at a time. So a redrive that is killed has lost none, and the next
    one goes on where it ended and sends none twice. A second redrive or purge stops the first one.

    Not thread-safe.

    Args:
        bootstrap_servers: `host:port` of one or more brokers, separated by commas.
        client_id: Name in Kafka's logs; by default as that of a `Consumer`.
        prefix: Name of the job, see `ClientSettings`.
        topics: Other topics than those of Kafka, for tests.
        **settings: Other fields of `ClientSettings`.

    Raises:
        Unavailable: Kafka does not answer.
        Invalid: A setting is wrong.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        client_id: str | None = None,
        prefix: str = "popstream",
        topics: LetterTopics | None = None,
        **settings: Any,  # noqa: ANN401 - ClientSettings checks them
    ) -> None:
        self.settings = ClientSettings(
            bootstrap_servers=bootstrap_servers, client_id=client_id or new_client_id(), prefix=prefix, **settings
        )
        self._topics = topics or KafkaLetterTopics(self.settings)

    def list(self, selection: LetterSelection = ALL, *, handled: bool = False) -> Iterator[Letter]:
        """Yield the selected letters that nobody has handled, oldest first; with `handled` also those that were.

        Letters that arrive meanwhile are left out.

        Raises:
            Invalid: There is no dead-letter topic: the prefix is wrong, or no job was ever started.
            Unavailable: Kafka does not answer.
            Corrupt: A letter cannot be read.
        """
        bounds = self._bounds()
        known = self._handled()
        for letter in read_letters(self._topics, _within(bounds, selection)):
            if selection.matches(letter) and (handled or letter.letter_id not in known):
                yield known.of(letter)

    def get(self, place: LetterPlace) -> Letter:
        """Return the letter at a (partition, offset) of the dead-letter topic, handled or not.

        Raises:
            Invalid: There is no such letter.
            Unavailable: Kafka does not answer.
            Corrupt: The letter cannot be read.
        """
        for letter in self.list(LetterSelection(places=frozenset([place])), handled=True):
            return letter
        message = f"there is no dead letter {place[0]}/{place[1]}"
        raise Invalid(message, subject=f"{place[0]}/{place[1]}")

    def redrive(
        self,
        selection: LetterSelection = ALL,
        *,
        to: RedriveTarget = "group",
        limit: int | None = None,
        comment: str = "",
        by: str | None = None,
        dry_run: bool = False,
        on_progress: Callable[[LettersReport], None] = lambda _: None,
    ) -> LettersReport:
        """Send the messages of the selected letters again, oldest first, at the end of their queues.

        They are new messages: their attempts count from 1. Only what was not handled before is sent. Letters whose
        message or queue is gone, or that Kafka or the job refuses, are left as they are. The job must run: its audit
        has an operation `redrive` for each group and queue, up to 2,000 letters, before their messages are sent.

        Args:
            selection: Which letters.
            to: "group": only the group that gave the message up gets it. "topic": all groups of its topic do.
            limit: At most this number of letters; None: all.
            comment: Why, to be recorded.
            by: Who does it, to be recorded; by default `user@host`.
            dry_run: Write nothing.
            on_progress: Is told after each transaction.

        Raises:
            Invalid: There is no dead-letter topic, Kafka does not allow writing, or the job wants an admin key.
            NotDeclared: The job does not know a queue yet.
            Unavailable: Kafka does not answer, or a partition has no leader. What is done is recorded; call it again.
            Fenced: Another redrive or purge has begun.
            Corrupt: A letter cannot be read.
            AnswerTimeout: The job does not answer. Where it does not build a topic, what was sent there is dispatched
                by the next redrive, before anything else.
        """
        queue_ids: dict[str, Mapping[int, LogBounds]] = {}

        def plan(letter: Letter) -> Sequence[RedrivenRecord]:
            if not letter.cannot_redrive and letter.topic not in queue_ids:
                queue_ids[letter.topic] = self._topics.bounds(letter.topic)
            return plan_redrive(letter, to, self._topics.type_of, queue_ids.get(letter.topic, {}))

        call = HandlingCall("redriven", by or _who(), comment, to)
        run = HandlingRun(self._topics, call, plan, on_progress)
        return self._run(run, selection, limit, dry_run=dry_run)

    def purge(
        self,
        selection: LetterSelection = ALL,
        *,
        limit: int | None = None,
        comment: str = "",
        by: str | None = None,
        dry_run: bool = False,
        on_progress: Callable[[LettersReport], None] = lambda _: None,
    ) -> LettersReport:
        """Record that nobody wants the selected letters any more; nothing is sent, and they stay in their topic.

        Arguments are those of `redrive`, and errors those of Kafka; the job need not run.
        """
        call = HandlingCall("purged", by or _who(), comment)
        run = HandlingRun(self._topics, call, lambda _: (), on_progress)
        return self._run(run, selection, limit, dry_run=dry_run)

    def erase(self, *, dry_run: bool = False, also_handled: Collection[str] = ()) -> dict[int, int]:
        """Delete the letters of each partition before the first one that nobody has handled.

        What became of them is still recorded, so that a restored job that writes one again does no harm.

        Args:
            dry_run: Delete nothing.
            also_handled: Ids of letters that count as handled, for a dry run: of those that a purge would handle.

        Returns:
            The number of offsets that were deleted, by partition, or with `dry_run` would have been.

        Raises:
            Invalid: There is no dead-letter topic, or Kafka does not allow deleting.
            Unavailable: Kafka does not answer.
            Corrupt: A letter cannot be read.
            ValueError: `also_handled` is given without `dry_run`.
        """
        if also_handled and not dry_run:
            message = "also_handled is for a dry run: purge the letters"
            raise ValueError(message)
        bounds = self._bounds()
        known = self._handled()
        ends = {}
        for partition, found in bounds.items():
            letters = read_letters(self._topics, {partition: found})
            waiting = (
                letter.kafka_offset
                for letter in letters
                if letter.letter_id not in known and letter.letter_id not in also_handled
            )
            end = next(waiting, found[1])
            if end > found[0]:
                ends[partition] = end
        if ends and not dry_run:
            self._topics.erase(ends)
        return {partition: end - bounds[partition][0] for partition, end in ends.items()}

    def close(self) -> None:
        """Disconnect."""
        self._topics.close()

    def __enter__(self) -> Self:
        """Return it."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Disconnect."""
        self.close()

    def _run(self, run: HandlingRun, selection: LetterSelection, limit: int | None, *, dry_run: bool) -> LettersReport:
        if dry_run:
            run.pretend(self._selected(selection), limit)
        else:
            with self._topics.writer() as writer:
                run.write(writer, self._selected(selection), limit)
        return run.report

    def _selected(self, selection: LetterSelection) -> Iterator[Letter]:
        for letter in read_letters(self._topics, _within(self._bounds(), selection)):
            if selection.matches(letter):
                yield letter

    def _bounds(self) -> Mapping[int, LogBounds]:
        bounds = self._topics.bounds(self._topics.dead_letters)
        if not bounds:
            message = f"there is no topic {self._topics.dead_letters}: is the prefix right, and was a job started?"
            raise Invalid(message, subject=self._topics.dead_letters)
        return bounds

    def _handled(self) -> HandledLetters:
        known = HandledLetters(self._topics)
        if self._topics.bounds(self._topics.handled):  # a job of an older version has none; its letters can be read
            known.read_on()
        return known


def _within(bounds: Mapping[int, LogBounds], selection: LetterSelection) -> Mapping[int, LogBounds]:
    """Return the bounds between which the selected letters lie.

    Raises:
        Invalid: A letter is named that does not exist.
    """
    if selection.places is None:
        return bounds
    offsets = defaultdict(list)
    for partition, kafka_offset in sorted(selection.places):
        start, end = bounds.get(partition, (0, 0))
        if not start <= kafka_offset < end:
            message = f"there is no dead letter {partition}/{kafka_offset}"
            raise Invalid(message, subject=f"{partition}/{kafka_offset}")
        offsets[partition].append(kafka_offset)
    return {partition: (found[0], found[-1] + 1) for partition, found in offsets.items()}


def _who() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"
