"""Inner batches: one Kafka record that carries many messages, and says so in its headers.

    popstream-batch-count   how many messages it carries: ASCII digits, 1 to 1,000,000
    popstream-batch-bytes   the length of its value: ASCII digits
    popstream-batch-base    message id of the first one; those that follow have the numbers that follow
    popstream-batch-keys    hashes of the keys and message ids inside, 8 bytes each, big-endian; may be absent
    popstream-tag           the tag of them all

Its value is MessagePack, `[1, created_ms, [[value, after_ms, key, headers], ...]]`: `after_ms` is how long after
`created_ms` a message was sent, headers are pairs of name and value.

Of headers with the same name the last one counts. A record without the first header is one message. One whose headers
contradict themselves or the value is *unreadable*: a unit of one message, which goes to the dead letters.

RocketMQ's counterpart: `MessageDecoder.encodeMessages`, with INNER_NUM and INNER_BASE as properties.
There the broker gives the base, and the value takes 22 bytes a message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from popstream.payload.message_id import MessageId
from popstream.wire.decoding import DECODE_ERRORS
from popstream.wire.failures import Corrupt
from popstream.wire.headers import (
    BATCH_BASE_HEADER,
    BATCH_BYTES_HEADER,
    BATCH_COUNT_HEADER,
    BATCH_KEYS_HEADER,
    TAG_HEADER,
)
from popstream.wire.key_hash import key_hash

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from popstream.outcome import Headers

__all__ = [
    "COUNT_MAX",
    "DIGITS_MAX",
    "KEYS_BYTES_MAX",
    "KEY_HASH_BYTES",
    "InnerMessage",
    "Unwrapped",
    "encode_inner_batch",
    "inner_count",
    "unwrap",
]

COUNT_MAX = 1_000_000
KEYS_BYTES_MAX = 256 * 1024
DIGITS_MAX = 10
KEY_HASH_BYTES = 8
VERSION = 1


class InnerMessage(msgspec.Struct, array_like=True, gc=False):
    """One message of an inner batch, as it travels."""

    value: bytes | None
    after_ms: int
    key: bytes | None = None
    headers: list[tuple[str, bytes | None]] = []


class InnerBatch(msgspec.Struct, array_like=True):
    """The value of a record that carries many messages."""

    version: int
    created_ms: int
    messages: list[InnerMessage]


class Unwrapped(msgspec.Struct, frozen=True):
    """A message as it was sent, out of a record that carries many."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    timestamp_ms: int
    message_id: str
    inner_index: int
    inner_count: int


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(InnerBatch).decode


def encode_inner_batch(
    messages: Sequence[InnerMessage], *, created_ms: int, ids: Sequence[str], tag: str | None = None
) -> tuple[bytes, list[tuple[str, bytes]]]:
    """Value and headers of the record for some messages, whose ids follow one another.

    >>> value, headers = encode_inner_batch([InnerMessage(b"1", 0)], created_ms=7, ids=["a1b2-a"])
    >>> len(value), [(name, len(text)) for name, text in headers]
    (11, [('popstream-batch-count', 1), ('popstream-batch-bytes', 2), ('popstream-batch-base', 6), \
('popstream-batch-keys', 8)])
    """
    value = _encode(InnerBatch(VERSION, created_ms, list(messages)))
    found = [text.encode() for text in ids]
    keys = dict.fromkeys(message.key for message in messages if message.key is not None)
    headers = [
        (BATCH_COUNT_HEADER, b"%d" % len(messages)),
        (BATCH_BYTES_HEADER, b"%d" % len(value)),
        (BATCH_BASE_HEADER, found[0]),
        (BATCH_KEYS_HEADER, b"".join(key_hash(one).to_bytes(KEY_HASH_BYTES, "big") for one in (*found, *keys))),
    ]
    if tag:
        headers.append((TAG_HEADER, tag.encode()))
    return value, headers


def unwrap(value: bytes | None, headers: Headers) -> list[Unwrapped] | None:
    """The messages that a record carries; None: it is one message.

    Raises:
        Corrupt: The headers contradict themselves or the value.
    """
    found = dict(headers)
    if BATCH_COUNT_HEADER not in found:
        return None
    count = inner_count(headers, len(value or b""))
    try:
        inner = _decode(value or b"")
    except DECODE_ERRORS as error:
        message = f"the value is no inner batch: {error}"
        raise Corrupt(message) from error
    if inner.version != VERSION or len(inner.messages) != count:
        message = f"an inner batch of version {inner.version} with {len(inner.messages)} messages says it has {count}"
        raise Corrupt(message)
    base = MessageId.parse(found.get(BATCH_BASE_HEADER))
    return [
        Unwrapped(
            one.key,
            one.value,
            one.headers,
            inner.created_ms + one.after_ms,
            base.text_of(index) if base is not None else "",
            index,
            count,
        )
        for index, one in enumerate(inner.messages)
    ]


def inner_count(headers: Iterable[tuple[str, bytes | None]], value_bytes: int) -> int | None:
    """How many messages a record says that it carries; None: it cannot be true.

    >>> inner_count([], 10), inner_count([("popstream-batch-count", b"3"), ("popstream-batch-bytes", b"10")], 10)
    (1, 3)
    >>> inner_count([("popstream-batch-count", b"3"), ("popstream-batch-bytes", b"10")], 11) is None
    True
    """
    found = dict(headers)
    if BATCH_COUNT_HEADER not in found:
        return 1
    count, length = _number(found[BATCH_COUNT_HEADER]), _number(found.get(BATCH_BYTES_HEADER))
    keys = found.get(BATCH_KEYS_HEADER) or b""
    is_true = length == value_bytes and not len(keys) % KEY_HASH_BYTES and len(keys) <= KEYS_BYTES_MAX
    return count if count is not None and 1 <= count <= COUNT_MAX and is_true else None


def _number(text: bytes | None) -> int | None:
    return int(text) if text is not None and text.isdigit() and len(text) <= DIGITS_MAX else None
