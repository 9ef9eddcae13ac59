"""Dead letters by the API: a page of them, one whole, and a redrive of some, from and to the Kafka of the job."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Annotated

import msgspec

from pipelines.control.letter_facts import LetterContent, LetterFacts
from pipelines.control.page_messages import Limit, Skip
from pipelines.http_api.endpoint import OneAtATime
from popstream.dead_letters.dead_letters import DeadLetters
from popstream.dead_letters.handling_run import UnredrivenLetter
from popstream.dead_letters.letter import parse_place
from popstream.dead_letters.selection import LetterSelection
from popstream.settings import new_client_id
from popstream.wire.command import RedriveTarget

if TYPE_CHECKING:
    from collections.abc import Callable

    from popstream.kafka_connection import KafkaConnection
    from popstream.wire.signing import AdminKey

__all__ = ["LetterPage", "LetterRequest", "Letters", "LettersRequest", "RedriveReport", "RedriveRequest"]

WAIT_S = 10.0
ANSWER_TIMEOUT_MS = 8_000
"""Others wait for a redrive: the job of this very process answers, or does not decide now."""
REDRIVEN_MAX = 500
"""Letters of a request at most: one transaction, so that a caller sees progress, and may stop."""


class LettersRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Asks for a page of the dead letters, oldest first.

    Attributes:
        topic: Only messages of this topic.
        group: Only what this group gave up.
        since_ms: Only what was given up since then, in ms since 1970.
        reason: Only with this reason, or by what the handler raised; a pattern with `*`, `?` and `[]`.
        handled: Also those that were redriven or purged.
        skip: Letters before the page.
        limit: Letters of the page at most.
    """

    topic: str | None = None
    group: str | None = None
    since_ms: int | None = None
    reason: str | None = None
    handled: bool = False
    skip: Skip = 0
    limit: Limit = 50


class LetterPage(msgspec.Struct, frozen=True, kw_only=True):
    """Some letters, and whether there are more. To count them all, the whole topic would have to be read."""

    letters: list[LetterFacts]
    has_more: bool


class LetterRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Asks for one letter with its message.

    Attributes:
        letter: Its partition and offset in the dead-letter topic, such as 2/17.
    """

    letter: str


class RedriveRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Asks to send the messages of letters again that nobody has handled; all properties have to fit.

    Attributes:
        letters: Only these, such as 2/17; None: all.
        topic: Only messages of this topic.
        group: Only what this group gave up.
        since_ms: Only what was given up since then, in ms since 1970.
        reason: Only with this reason, or by what the handler raised; a pattern with `*`, `?` and `[]`.
        to: `group`: only the group that gave a message up gets it; `topic`: every group does.
        limit: Letters at most, the oldest first. Ask again for more.
        comment: Why, to be recorded with each letter.
        dry_run: Only say what would be done.
    """

    letters: list[str] | None = None
    topic: str | None = None
    group: str | None = None
    since_ms: int | None = None
    reason: str | None = None
    to: RedriveTarget = "group"
    limit: Annotated[int, msgspec.Meta(ge=1, le=REDRIVEN_MAX)] = REDRIVEN_MAX
    comment: str = ""
    dry_run: bool = False


class RedriveReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was done, or would be.

    Attributes:
        call: Id of the redrive, which is recorded with each letter.
        letters: Letters that were redriven.
        messages: Messages that were sent.
        left_count: Letters that could not be redriven, and stay.
        left: The first 100 of them, and why.
    """

    call: str
    letters: int
    messages: int
    left_count: int
    left: list[UnredrivenLetter]


class Letters:
    """The dead letters of a job.

    Args:
        kafka: Returns the Kafka of the job, and the prefix of its topics.
        admin_key: Signs what a redrive announces and dispatches; None: the job has no keys.
        connect: Opens the dead letters with options of a client, for tests.
    """

    def __init__(
        self,
        kafka: Callable[[], tuple[KafkaConnection, str]],
        admin_key: AdminKey | None,
        connect: Callable[..., DeadLetters] = DeadLetters,
    ) -> None:
        self._kafka = kafka
        self._admin_key = admin_key
        self._connect = connect
        self._turn = OneAtATime("dead letters", WAIT_S)

    def page(self, request: LettersRequest, _caller: str) -> LetterPage:
        """Return a page. Raises the errors of `DeadLetters.list`."""
        end = request.skip + request.limit
        with self._turn, self._opened() as letters:
            found = islice(letters.list(_selection(request), handled=request.handled), request.skip, end + 1)
            facts = [LetterFacts.of(letter) for letter in found]
        return LetterPage(letters=facts[: request.limit], has_more=len(facts) > request.limit)

    def show(self, request: LetterRequest, _caller: str) -> LetterContent:
        """Return one letter. Raises the errors of `DeadLetters.get`."""
        place = parse_place(request.letter)
        with self._turn, self._opened() as letters:
            return LetterContent.whole(letters.get(place))

    def redrive(self, request: RedriveRequest, caller: str) -> RedriveReport:
        """Redrive letters. Raises the errors of `DeadLetters.redrive`."""
        selection = msgspec.structs.replace(
            _selection(request),
            places=None if request.letters is None else frozenset(map(parse_place, request.letters)),
        )
        with self._turn, self._opened() as letters:
            report = letters.redrive(
                selection,
                to=request.to,
                limit=request.limit,
                comment=request.comment,
                by=f"the API, from {caller}",
                dry_run=request.dry_run,
            )
        return RedriveReport(
            call=report.call,
            letters=report.letters,
            messages=report.messages,
            left_count=report.unredriven_count,
            left=report.unredriven,
        )

    def _opened(self) -> DeadLetters:
        connection, prefix = self._kafka()
        return self._connect(
            **connection.client_options,
            client_id=f"popstream-api-{new_client_id()}",
            prefix=prefix,
            admin_key=self._admin_key,
            answer_timeout_ms=ANSWER_TIMEOUT_MS,
        )


def _selection(request: LettersRequest | RedriveRequest) -> LetterSelection:
    return LetterSelection(topic=request.topic, group=request.group, since_ms=request.since_ms, reason=request.reason)
