"""Message ids: a text that the producer gives to each message, and that a redelivery keeps.

Its form is `<producer>-<number>`, with the number in hexadecimal. A plain record has it in the header
`popstream-message-id`; an inner batch has only the id of its first message, in `popstream-batch-base` (RocketMQ's
counterpart is the property UNIQ_KEY).
"""

from __future__ import annotations

import secrets
import threading
from typing import TYPE_CHECKING

import msgspec

from popstream.wire.headers import MESSAGE_ID_HEADER, header_value

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["MessageId", "MessageIds", "message_id_of"]

PRODUCER_BYTES = 6
TEXT_BYTES_MAX = 64
"""A longer id is not ours; each message of a unit would have a copy of it."""


class MessageId(msgspec.Struct, frozen=True, gc=False):
    """The id of a message, from which the ids of the following ones are derived."""

    producer: str
    number: int

    def text_of(self, index: int = 0) -> str:
        """Return the text of the id that is `index` after this one.

        >>> MessageId("a1b2", 9).text_of(1)
        'a1b2-a'
        """
        return f"{self.producer}-{self.number + index:x}"

    @classmethod
    def parse(cls, text: bytes | None) -> MessageId | None:
        """Decode an id; None: it is malformed.

        >>> MessageId.parse(b"a1b2-a"), MessageId.parse(b"a1b2"), MessageId.parse(None)
        (MessageId(producer='a1b2', number=10), None, None)
        """
        producer, _, number = (text or b"").decode(errors="replace").rpartition("-")
        try:
            return cls(producer, int(number, 16)) if producer and len(text or b"") <= TEXT_BYTES_MAX else None
        except ValueError:
            return None


class MessageIds:
    """Generates the ids of one producer. Safe for use by many threads."""

    def __init__(self) -> None:
        self._producer = secrets.token_hex(PRODUCER_BYTES)
        self._lock = threading.Lock()
        self._number = 0

    def take(self, count: int) -> list[str]:
        """Return `count` unique ids with consecutive numbers."""
        with self._lock:
            first = self._number
            self._number += count
        return [f"{self._producer}-{number:x}" for number in range(first, first + count)]


def message_id_of(headers: Iterable[tuple[str, bytes | None]]) -> str:
    """Return the id in the headers of a plain record, or an empty text.

    >>> message_id_of([("popstream-message-id", b"a1b2-a")]), message_id_of([])
    ('a1b2-a', '')
    """
    return header_value(headers, MESSAGE_ID_HEADER).decode(errors="replace")
