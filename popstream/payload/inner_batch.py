"""Inner batches: Kafka records that carry several messages, described by their headers.

    popstream-batch-count   number of messages: ASCII digits, 1 to 1,000,000
    popstream-batch-bytes   length of the value: ASCII digits
    popstream-batch-base    id of the first message; the others have the following numbers
    popstream-batch-keys    hashes of the keys and message ids inside, 8 bytes each, big-endian; optional
    popstream-tag           tag of all messages
    popstream-deliver-at    when all messages can be popped (popstream.wire.deliver_at)

Only records of topics of the type batch are inner batches; elsewhere these headers have no meaning.

The value is MessagePack, `[1, created_ms, [[value, after_ms, key, headers], ...]]`: `after_ms` is the time from
`created_ms` until the message was sent; headers are pairs of name and value.

Of several headers with the same name the last one counts. A record without the first header is a single message. A
record whose headers contradict each other or the value is *unreadable*: it counts as one message, and consumers reject
it.

RocketMQ's counterpart is `MessageDecoder.encodeMessages`, with the properties INNER_NUM and INNER_BASE. There the
broker sets the base, and the value takes 22 bytes per message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from popstream.payload.message_id import MessageId
from popstream.wire.base_errors import Corrupt
from popstream.wire.decode_errors import DECODE_ERRORS
from popstream.wire.deliver_at import AT_ONCE, deliver_at_ms_of
from popstream.wire.headers import (
    BATCH_BASE_HEADER,
    BATCH_BYTES_HEADER,
    BATCH_COUNT_HEADER,
    BATCH_KEYS_HEADER,
    DELIVER_AT_HEADER,
    TAG_HEADER,
    without_own_headers,
)
from popstream.wire.key_hash import KEY_HASH_BYTES, key_hash
from popstream.wire.limits import INNER_BATCH_KEYS_BYTES_MAX, INNER_BATCH_MESSAGES_MAX
from popstream.wire.tag import tag_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from popstream.outcome import Headers
    from popstream.payload.payloads import Payload
    from popstream.wire.command import QueueType

    TypeOf = Callable[[str], QueueType | None]

__all__ = [
    "DIGITS_MAX",
    "InnerMessage",
    "Unwrapped",
    "encode_inner_batch",
    "inner_count",
    "unwrap",
    "unwrap_payload",
]

DIGITS_MAX = 10
VERSION = 1


class InnerMessage(msgspec.Struct, array_like=True, gc=False):
    """One message of an inner batch, as it is encoded."""

    value: bytes | None
    after_ms: int
    key: bytes | None = None
    headers: list[tuple[str, bytes | None]] = []


class InnerBatch(msgspec.Struct, array_like=True):
    """The value of an inner batch."""

    version: int
    created_ms: int
    messages: list[InnerMessage]


class Unwrapped(msgspec.Struct, frozen=True):
    """One message of an inner batch, as it was sent."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    timestamp_ms: int
    tag: str
    message_id: str
    inner_index: int
    inner_count: int
    deliver_at_ms: int


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(InnerBatch).decode


def encode_inner_batch(
    messages: Sequence[InnerMessage],
    *,
    created_ms: int,
    ids: Sequence[str],
    tag: str | None = None,
    deliver_at_ms: int = AT_ONCE,
) -> tuple[bytes, list[tuple[str, bytes]]]:
    """Return the value and headers of the record for messages with consecutive ids.

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
    if deliver_at_ms:
        headers.append((DELIVER_AT_HEADER, b"%d" % deliver_at_ms))
    return value, headers


def unwrap_payload(topic: str, payload: Payload, type_of: TypeOf) -> list[Unwrapped] | None:
    """Return the messages of an inner batch; None: the record is a single message.

    Args:
        topic: Its topic.
        payload: The record.
        type_of: Returns the type of a topic; None: the job does not build it, so who dispatches a record says what it
            is. It is called only for records with the header of an inner batch.

    Raises:
        Corrupt: The headers contradict each other or the value.
    """
    has_header = any(name == BATCH_COUNT_HEADER for name, _ in payload.headers)
    if not has_header or type_of(topic) not in (None, "batch"):
        return None
    return unwrap(payload.value, payload.headers)


def unwrap(value: bytes | None, headers: Headers) -> list[Unwrapped] | None:
    """Return the messages of an inner batch; None: the record is a single message.

    Raises:
        Corrupt: The headers contradict each other or the value.
    """
    found = dict(headers)
    if BATCH_COUNT_HEADER not in found:
        return None
    count = inner_count(headers, len(value or b""))
    try:
        inner = _decode(value or b"")
    except DECODE_ERRORS as error:
        message = f"the value is not an inner batch: {error}"
        raise Corrupt(message) from error
    if inner.version != VERSION or len(inner.messages) != count:
        found_count = len(inner.messages)
        message = f"an inner batch of version {inner.version} has {found_count} messages, and its header says {count}"
        raise Corrupt(message)
    base = MessageId.parse(found.get(BATCH_BASE_HEADER))
    tag, deliver_at_ms = tag_text(headers), deliver_at_ms_of(headers)
    return [
        Unwrapped(
            one.key,
            one.value,
            without_own_headers(one.headers) if one.headers else one.headers,
            inner.created_ms + one.after_ms,
            tag,
            base.text_of(index) if base is not None else "",
            index,
            count,
            deliver_at_ms,
        )
        for index, one in enumerate(inner.messages)
    ]


def inner_count(headers: Iterable[tuple[str, bytes | None]], value_bytes: int) -> int | None:
    """Return the number of messages in the headers of a record; None: the headers are malformed.

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
    is_true = length == value_bytes and not len(keys) % KEY_HASH_BYTES and len(keys) <= INNER_BATCH_KEYS_BYTES_MAX
    return count if count is not None and 1 <= count <= INNER_BATCH_MESSAGES_MAX and is_true else None


def _number(text: bytes | None) -> int | None:
    return int(text) if text is not None and text.isdigit() and len(text) <= DIGITS_MAX else None
