"""The messages of the demo: generated, or the lines of a user's file."""

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from popstream.wire.base_errors import Invalid

__all__ = ["MessageSource", "Position", "Sent", "content_hash"]

MESSAGE_BYTES_MAX = 15 * 1024 * 1024
"""Kafka takes 16 MiB, including what it adds."""

POISON_EVERY = 1000
POISON_AT = 500
_POISON = b'"poison":true'
_CUSTOMERS = 840

Position = tuple[int, int]
"""(queue_id, queue_offset)"""


class Sent(NamedTuple):
    """The content hash of each message by its position, and the positions of the poison messages."""

    contents: Mapping[Position, str]
    poison: frozenset[Position]


def content_hash(value: bytes) -> str:
    """Return 16 hex digits that stand for the content of a message."""
    return hashlib.blake2b(value, digest_size=8).hexdigest()


class MessageSource(msgspec.Struct, frozen=True, kw_only=True):
    """`count` generated messages, or the lines of `file`."""

    count: int = 0
    file: str | None = None

    def values(self) -> Iterator[bytes]:
        r"""Yield every message in order. A line ends with `\n` or `\r\n`; empty lines are messages too.

        Raises:
            Invalid: The file cannot be read.
        """
        if self.file is None:
            yield from map(_generate, range(self.count))
            return
        try:
            with Path(self.file).open("rb") as file:
                for line in file:
                    yield line.removesuffix(b"\n").removesuffix(b"\r")
        except OSError as error:
            message = f"{self.file} cannot be read: {error.strerror}"
            raise Invalid(message, subject=self.file) from error

    def is_poison(self, value: bytes | None) -> bool:
        """Return whether this is a generated message that consumers fail to process.

        >>> MessageSource(count=1).is_poison(_generate(500)), MessageSource(file="f").is_poison(_generate(500))
        (True, False)
        """
        return self.file is None and _POISON in (value or b"")

    def position(self, number: int, queues: int) -> Position:
        """Return where message `number` goes: the messages are dealt to the queues in turn."""
        return number % queues, number // queues

    def measure(self, queues: int) -> Sent:
        """Read all messages once.

        Raises:
            Invalid: The file cannot be read, holds nothing, or has a line that is too long.
        """
        contents: dict[Position, str] = {}
        poison = set()
        for number, value in enumerate(self.values()):
            if len(value) > MESSAGE_BYTES_MAX:
                size = f"{len(value)} bytes; a message has at most {MESSAGE_BYTES_MAX}"
                message = f"line {number + 1} of {self.file} has {size}"
                raise Invalid(message, subject=str(self.file))
            position = self.position(number, queues)
            contents[position] = content_hash(value)
            if self.is_poison(value):
                poison.add(position)
        if not contents:
            message = f"{self.file} holds no lines" if self.file else "a demo without messages shows nothing"
            raise Invalid(message, subject=str(self.file or ""))
        return Sent(contents, frozenset(poison))


def _generate(number: int) -> bytes:
    """Return message `number`; every thousandth is poison."""
    poison = _POISON + b"," if number % POISON_EVERY == POISON_AT else b""
    fields = number, poison, number % _CUSTOMERS, number * 104_729 % 1_000_000
    return b'{"sequence":%d,%b"customer":"c-%05d","amount_cents":%d}' % fields
