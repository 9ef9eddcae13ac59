"""The record of the dead-letter topic: a copy of the message, with headers that say who gave it up, and why."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

import msgspec
import xxhash

from popstream.wire.dead_letter import DeadLetter
from popstream.wire.headers import (
    DEAD_LETTER_ATTEMPTS_HEADER,
    DEAD_LETTER_CAUSE_HEADER,
    DEAD_LETTER_GONE_HEADER,
    DEAD_LETTER_GROUP_HEADER,
    DEAD_LETTER_HEADERS,
    DEAD_LETTER_HISTORY_HEADER,
    DEAD_LETTER_QUEUE_ID_HEADER,
    DEAD_LETTER_QUEUE_OFFSET_HEADER,
    DEAD_LETTER_REASON_HEADER,
    DEAD_LETTER_TOO_LARGE_HEADER,
    DEAD_LETTER_TOPIC_HEADER,
)

__all__ = [
    "COPY_BYTES_MAX",
    "DeadLetterCopy",
    "DeadLetterHistory",
    "copy_of",
    "headers_of",
    "identity_of",
    "job_headers_of",
]

COPY_BYTES_MAX = 15 * 1024 * 1024
"""Key, value and headers of a message that is copied whole; the rest of 16 MiB is for our headers and Kafka's."""

IDENTITY = (
    DEAD_LETTER_TOPIC_HEADER,
    DEAD_LETTER_QUEUE_ID_HEADER,
    DEAD_LETTER_QUEUE_OFFSET_HEADER,
    DEAD_LETTER_GROUP_HEADER,
    DEAD_LETTER_HISTORY_HEADER,
)


class KafkaMessage(Protocol):
    """The part of a Kafka record that is copied."""

    @property
    def key(self) -> bytes | None:
        """Key."""

    @property
    def value(self) -> bytes | None:
        """Value."""

    @property
    def headers(self) -> Sequence[tuple[str, bytes | None]] | None:
        """Names and values; names may repeat."""


class DeadLetterCopy(NamedTuple):
    """A record of the dead-letter topic."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]]


class DeadLetterHistory(msgspec.Struct, frozen=True):
    """The value of the header `popstream.history`."""

    epoch: int
    last_pop_time_ms: int
    dead_lettered_ms: int
    ops_partition: int
    ops_kafka_offset: int


def copy_of(letter: DeadLetter, queue_offset: int, message: KafkaMessage | None) -> DeadLetterCopy:
    """Return the copy of a message, with headers that name its place, the reason and the history.

    Headers of the message that have such names are left out: the job writes some of them only where they apply, so a
    sender's would pass for the job's. A message that left the log (None), or is too long to be copied, is represented
    by the headers alone.
    """
    headers = headers_of(letter, queue_offset)
    if message is None:
        headers.append((DEAD_LETTER_GONE_HEADER, b"the message had left the log; these are its coordinates"))
        return DeadLetterCopy(None, b"", headers)
    # kafka-python cannot send a header without a value.
    message_headers = [(name, text or b"") for name, text in message.headers or () if name not in DEAD_LETTER_HEADERS]
    size = sum(len(part or b"") for part in (message.key, message.value))
    size += sum(len(name.encode()) + len(text) for name, text in message_headers)
    if size > COPY_BYTES_MAX:
        why = f"the message takes {size} bytes, more than a dead letter may; it is still at its coordinates"
        headers.append((DEAD_LETTER_TOO_LARGE_HEADER, why.encode()))
        return DeadLetterCopy(None, b"", headers)
    # Nor a record with neither key nor value.
    value = b"" if message.key is None and message.value is None else message.value
    return DeadLetterCopy(message.key, value, [*message_headers, *headers])


def headers_of(letter: DeadLetter, queue_offset: int) -> list[tuple[str, bytes]]:
    """Return the headers that a copy has besides those of its message. The first one is that of the reason."""
    history = DeadLetterHistory(
        epoch=letter.epoch,
        last_pop_time_ms=letter.pop_time_ms,
        dead_lettered_ms=letter.at_ms,
        ops_partition=letter.partition,
        ops_kafka_offset=letter.kafka_offset,
    )
    headers = [
        (DEAD_LETTER_REASON_HEADER, letter.reason.encode()),
        (DEAD_LETTER_GROUP_HEADER, letter.group.encode()),
        (DEAD_LETTER_TOPIC_HEADER, letter.topic.encode()),
        (DEAD_LETTER_QUEUE_ID_HEADER, str(letter.queue_id).encode()),
        (DEAD_LETTER_QUEUE_OFFSET_HEADER, str(queue_offset).encode()),
        (DEAD_LETTER_ATTEMPTS_HEADER, str(letter.attempts).encode()),
        (DEAD_LETTER_HISTORY_HEADER, msgspec.json.encode(history)),
    ]
    if letter.cause is not None:
        headers.append((DEAD_LETTER_CAUSE_HEADER, letter.cause.encode()))
    return headers


def job_headers_of(headers: Sequence[tuple[str, bytes | None]]) -> dict[str, bytes]:
    """Return the headers of a letter that the job has written, and none of the same name that its message had.

    Copies of older versions have both: first those of the message, then those of the job.

    >>> job_headers_of([("popstream.gone", b"?"), ("popstream.reason", b"rejected"), ("popstream.group", b"billing")])
    {'popstream.reason': b'rejected', 'popstream.group': b'billing'}
    """
    first = max((place for place, (name, _) in enumerate(headers) if name == DEAD_LETTER_REASON_HEADER), default=0)
    return {name: value or b"" for name, value in headers[first:] if name in DEAD_LETTER_HEADERS}


def identity_of(headers: Iterable[tuple[str, bytes | None]]) -> bytes:
    """Return the hash (16 bytes) of the headers by which a letter is recognised.

    They name its message, its group and the operation that gave it up. The headers of the message may come first.
    """
    found = dict(headers)
    return xxhash.xxh3_128_digest(msgspec.msgpack.encode([found.get(name) for name in IDENTITY]))
