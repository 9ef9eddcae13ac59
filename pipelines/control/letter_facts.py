"""Dead letters as JSON: for `popstream dead --json` and for the API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import msgspec
from msgspec import UNSET, UnsetType

from pipelines.bytes_as_json import bytes_fields
from popstream.wire.dead_letter_record import DeadLetterHistory
from popstream.wire.letter_handling import LetterHandling

if TYPE_CHECKING:
    from popstream.dead_letters.letter import Letter

__all__ = ["LetterContent", "LetterFacts"]


class LetterFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A dead letter without its message; the fields are those of `popstream.Letter`.

    Attributes:
        letter: Its partition and offset in the dead-letter topic, by which commands name it.
    """

    letter: str
    partition: int
    kafka_offset: int
    letter_id: str
    topic: str
    queue_id: int
    queue_offset: int
    group: str
    reason: str
    cause: str | None
    attempts: int
    history: DeadLetterHistory | None
    given_up_ms: int
    redrives: int
    cannot_redrive: str
    handling: LetterHandling | None

    @classmethod
    def of(cls, letter: Letter, **content: Any) -> Self:  # noqa: ANN401 - the fields of LetterContent
        """Return the facts of a letter."""
        fields = {name: getattr(letter, name) for name in LetterFacts.__struct_fields__ if name != "letter"}
        return cls(letter=letter.place, **fields, **content)


class LetterContent(LetterFacts, frozen=True, kw_only=True):
    """A dead letter with its message.

    Attributes:
        headers: Names and values; bytes that are not UTF-8 are written as backslash, x and two digits.
        key: The key, if it is UTF-8; None: there is none.
        key_base64: Any other key.
        value: The value, if it is UTF-8; None: there is none.
        value_base64: Any other value.
    """

    headers: list[tuple[str, str | None]]
    key: str | UnsetType | None = UNSET
    key_base64: str | UnsetType = UNSET
    value: str | UnsetType | None = UNSET
    value_base64: str | UnsetType = UNSET

    @classmethod
    def whole(cls, letter: Letter) -> Self:
        """Return a letter with its message."""
        headers = [
            (name, None if value is None else value.decode("utf-8", "backslashreplace"))
            for name, value in letter.headers
        ]
        return cls.of(letter, headers=headers, **bytes_fields("key", letter.key), **bytes_fields("value", letter.value))
