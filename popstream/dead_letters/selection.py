"""Which dead letters a call is about."""

from __future__ import annotations

import json
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from popstream.dead_letters.letter import Letter, LetterPlace

__all__ = ["LetterSelection"]


class LetterSelection(msgspec.Struct, frozen=True, kw_only=True):
    """Dead letters that have all of these properties; None: any.

    Attributes:
        topic: Topic of the message.
        group: The group that gave it up.
        since_ms: Given up at this time or later, in ms since 1970.
        reason: Pattern with `*`, `?` and `[]` for the whole reason, or for what the handler raised.
        text: Part of the key, the value or a header of the message, also as JSON escapes it, or of what the handler
            raised.
        places: (partition, offset) of letters in the dead-letter topic.

    `reason="attempt_limit"` selects what had its last attempt, `reason="*ConnectionError*"` what failed by that.
    """

    topic: str | None = None
    group: str | None = None
    since_ms: int | None = None
    reason: str | None = None
    text: str | None = None
    places: frozenset[LetterPlace] | None = None

    def matches(self, letter: Letter) -> bool:
        """Return whether a letter is selected."""
        return (
            self.topic in (None, letter.topic)
            and self.group in (None, letter.group)
            and (self.since_ms is None or letter.given_up_ms >= self.since_ms)
            and (
                self.reason is None
                or any(fnmatchcase(text, self.reason) for text in (letter.reason, letter.cause or ""))
            )
            and (self.text is None or _has_text(letter, self.text))
            and (self.places is None or (letter.partition, letter.kafka_offset) in self.places)
        )


def _has_text(letter: Letter, text: str) -> bool:
    if text in letter.reason or text in (letter.cause or ""):
        return True
    parts = (letter.key, letter.value, *(value for _, value in letter.headers))
    spellings = (text.encode(), json.dumps(text)[1:-1].encode())
    return any(spelling in part for part in parts if part for spelling in spellings)
