"""The messages of a demo: made here, or the lines of a user's file; told apart by their content."""

import hashlib
import zlib
from array import array
from collections.abc import Iterator
from pathlib import Path

import msgspec

from popstream.wire.failures import Invalid

__all__ = [
    "HASH_BYTES",
    "MESSAGE_BYTES_MAX",
    "Source",
    "content_hash",
    "is_poison",
    "is_whole",
    "key_of",
    "split_lines",
]

HASH_BYTES = 8
MESSAGE_BYTES_MAX = 15 * 1024 * 1024
"""Kafka takes 16 MiB, with what it adds."""

POISON_EVERY = 1000
POISON_AT = 500
_POISON = b'"poison":true'
_CUSTOMERS = 840
"""Divisible by every number of queues up to 8: a customer's messages, dealt out in turn, are in one queue."""
_KEY = b'"customer":"'
_READ_BYTES = 1024 * 1024


def content_hash(value: bytes) -> bytes:
    """What stands for the content of a message in journals and checks."""
    return hashlib.blake2b(value, digest_size=HASH_BYTES).digest()


def is_poison(value: bytes) -> bool:
    """Whether a message that was made here says that it cannot be processed.

    >>> is_poison(Source(count=501).make(500)), is_poison(Source(count=501).make(499))
    (True, False)
    """
    return _POISON in value


def key_of(value: bytes) -> bytes:
    """The customer of a message that was made here; nothing of any other.

    >>> key_of(Source(count=1).make(7)), key_of(b"line of a file")
    (b'c-00007', b'')
    """
    return value.partition(_KEY)[2].partition(b'"')[0]


def is_whole(value: bytes) -> bool:
    """Whether a message that was made here is what it was: its last eight characters are the CRC-32 of the rest.

    >>> value = Source(count=1).make(0)
    >>> is_whole(value), is_whole(value[1:])
    (True, False)
    """
    body, _, check = value.rpartition(b" ")
    return check == b"%08x" % zlib.crc32(body)


def split_lines(blocks: Iterator[bytes]) -> Iterator[bytes]:
    r"""Lines of a file, without their ends: `\n`, or `\r\n`. Empty lines count; nothing follows a last `\n`.

    >>> list(split_lines(iter([b"a\r", b"\n\nb\r\r\nc"])))
    [b'a', b'', b'b\r', b'c']
    """
    parts: list[bytes] = []
    for block in blocks:
        first, *lines = block.split(b"\n")
        parts.append(first)
        for line in lines:
            yield b"".join(parts).removesuffix(b"\r")
            parts = [line]
    rest = b"".join(parts)
    if rest:
        yield rest.removesuffix(b"\r")


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """Where the messages come from: `count` that are made here, or the lines of `file`."""

    count: int = 0
    file: str | None = None

    @property
    def is_made(self) -> bool:
        """Whether the messages are made here, so that their content says whether they are whole."""
        return self.file is None

    def values(self) -> Iterator[bytes]:
        """Every message, in order.

        Raises:
            Invalid: The file cannot be read.
        """
        if self.file is None:
            yield from map(self.make, range(self.count))
            return
        try:
            with Path(self.file).open("rb") as file:
                yield from split_lines(iter(lambda: file.read(_READ_BYTES), b""))
        except OSError as error:
            message = f"{self.file} cannot be read: {error.strerror}"
            raise Invalid(message, subject=self.file) from error

    def make(self, sequence: int) -> bytes:
        """Message `sequence` of those that are made here; every thousandth is poison."""
        poison = _POISON + b"," if sequence % POISON_EVERY == POISON_AT else b""
        body = b'{"sequence":%d,%b"customer":"c-%05d","amount_cents":%d}' % (
            sequence,
            poison,
            sequence % _CUSTOMERS,
            sequence * 104_729 % 1_000_000,
        )
        return body + b" %08x" % zlib.crc32(body)

    def measure(self) -> "Contents":
        """Go through all messages once.

        Raises:
            Invalid: The file cannot be read, holds nothing, or has a line that is too long.
        """
        hashes = array("Q")
        poison = set()
        for number, value in enumerate(self.values(), 1):
            if len(value) > MESSAGE_BYTES_MAX:
                message = (
                    f"line {number} of {self.file} has {len(value)} bytes; a message has at most {MESSAGE_BYTES_MAX}"
                )
                raise Invalid(message, subject=str(self.file))
            hashed = int.from_bytes(content_hash(value), "big")
            hashes.append(hashed)
            if self.is_made and is_poison(value):
                poison.add(hashed)
        if not hashes:
            message = f"{self.file} holds no lines" if self.file else "a demo without messages shows nothing"
            raise Invalid(message, subject=str(self.file or ""))
        return Contents(hashes, frozenset(poison))


class Contents:
    """What was to be sent: the hash of each message, in order, and which hashes are those of poison."""

    def __init__(self, hashes: "array[int]", poison: frozenset[int] = frozenset()) -> None:
        self.hashes = hashes
        self.poison = poison

    def __len__(self) -> int:
        return len(self.hashes)

    def queue_lengths(self, queues: int) -> list[int]:
        """How many messages each queue gets: they are dealt out in turn.

        >>> Contents(array("Q", range(10))).queue_lengths(4)
        [3, 3, 2, 2]
        """
        return [len(range(queue_id, len(self.hashes), queues)) for queue_id in range(queues)]
