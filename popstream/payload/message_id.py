"""Message ids: a text that a producer gives to each message, the same for a message that is sent again.

`<producer>-<number>`, the number in hexadecimal. A plain record has it as header `popstream-message-id`; in an inner
batch only the first one's travels, as `popstream-batch-base` (RocketMQ's counterpart is the property UNIQ_KEY).
"""

from __future__ import annotations

import secrets
import threading
from typing import TYPE_CHECKING

import msgspec

from popstream.wire.headers import MESSAGE_ID_HEADER

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["MessageId", "MessageIds", "message_id_of"]

PRODUCER_BYTES = 6
TEXT_BYTES_MAX = 64
"""A longer one is not ours; each message of a unit would have a copy of it."""


class MessageId(msgspec.Struct, frozen=True, gc=False):
    """The id of a message, from which those that follow it are derived."""

    producer: str
    number: int

    def text_of(self, index: int = 0) -> str:
        """Text of the id that comes `index` after this one.

        >>> MessageId("a1b2", 9).text_of(1)
        'a1b2-a'
        """
        return f"{self.producer}-{self.number + index:x}"

    @classmethod
    def parse(cls, text: bytes | None) -> MessageId | None:
        """An id out of a header; None: it is none.

        >>> MessageId.parse(b"a1b2-a"), MessageId.parse(b"a1b2"), MessageId.parse(None)
        (MessageId(producer='a1b2', number=10), None, None)
        """
        producer, _, number = (text or b"").decode(errors="replace").rpartition("-")
        try:
            return cls(producer, int(number, 16)) if producer and len(text or b"") <= TEXT_BYTES_MAX else None
        except ValueError:
            return None


class MessageIds:
    """Gives the ids of one producer. Safe for use by many threads."""

    def __init__(self) -> None:
        self._producer = secrets.token_hex(PRODUCER_BYTES)
        self._lock = threading.Lock()
        self._number = 0

    def take(self, count: int) -> list[str]:
        """So many ids, one after the other, that nobody else gets."""
        with self._lock:
            first = self._number
            self._number += count
        return [f"{self._producer}-{number:x}" for number in range(first, first + count)]


def message_id_of(headers: Iterable[tuple[str, bytes | None]]) -> str:
    """The id that a plain record carries; empty when it has none.

    >>> message_id_of([("popstream-message-id", b"a1b2-a")]), message_id_of([])
    ('a1b2-a', '')
    """
    return (dict(headers).get(MESSAGE_ID_HEADER) or b"").decode(errors="replace")
