"""Names of the headers that popstream gives to Kafka records; of several headers of one name the last one counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "BATCH_BASE_HEADER",
    "BATCH_BYTES_HEADER",
    "BATCH_COUNT_HEADER",
    "BATCH_KEYS_HEADER",
    "DEAD_LETTER_ATTEMPTS_HEADER",
    "DEAD_LETTER_CAUSE_HEADER",
    "DEAD_LETTER_GONE_HEADER",
    "DEAD_LETTER_GROUP_HEADER",
    "DEAD_LETTER_HEADERS",
    "DEAD_LETTER_HISTORY_HEADER",
    "DEAD_LETTER_QUEUE_ID_HEADER",
    "DEAD_LETTER_QUEUE_OFFSET_HEADER",
    "DEAD_LETTER_REASON_HEADER",
    "DEAD_LETTER_TOO_LARGE_HEADER",
    "DEAD_LETTER_TOPIC_HEADER",
    "DEDUP_ID_HEADER",
    "DELIVER_AT_HEADER",
    "MESSAGE_ID_HEADER",
    "OWN_PREFIX",
    "REDELIVERY_HEADER",
    "REDRIVEN_HEADER",
    "TAG_HEADER",
    "header_value",
    "is_own_header",
    "without_own_headers",
]

OWN_PREFIX = "popstream-"
"""Names of message headers that begin so belong to popstream: a producer sets them, and a consumer removes them."""

TAG_HEADER = "popstream-tag"
"""Tag of a message, or of all messages of an inner batch, in UTF-8 (popstream.wire.tag)."""

DELIVER_AT_HEADER = "popstream-deliver-at"
"""When a message can be popped, ms since 1970, in ASCII digits; without it as soon as it is written."""

DEDUP_ID_HEADER = "popstream-dedup-id"
"""Id of a message by which the builder recognises repeats, in UTF-8 (popstream.wire.dedup_id)."""

MESSAGE_ID_HEADER = "popstream-message-id"
"""Id of a message that is a record of its own (popstream.payload.message_id)."""

REDELIVERY_HEADER = "popstream-resent"
"""JSON about a message that a consumer sent again as a record of its own (popstream.payload.redelivery)."""

REDRIVEN_HEADER = "popstream-redriven"
"""JSON about a message that was a dead letter and was sent again (popstream.payload.redriven)."""

# An inner batch: one record with many messages (popstream.payload.inner_batch).

BATCH_COUNT_HEADER = "popstream-batch-count"
"""Number of messages, in ASCII digits. A record without this header is one message."""

BATCH_BYTES_HEADER = "popstream-batch-bytes"
"""Length of the value in bytes, in ASCII digits."""

BATCH_BASE_HEADER = "popstream-batch-base"
"""Id of the first message; those of the others follow from it."""

BATCH_KEYS_HEADER = "popstream-batch-keys"
"""Hashes of the keys and ids of the messages, 8 bytes each, big-endian; optional."""

# A record of the dead-letter topic has the headers of its message, and these; all values are text.

DEAD_LETTER_REASON_HEADER = "popstream.reason"
"""`attempt_limit`, or the cause that the consumer gave."""

DEAD_LETTER_CAUSE_HEADER = "popstream.cause"
"""Present when a handler failed in the last delivery: `handler`, or `handler: ` and what it raised."""

DEAD_LETTER_GROUP_HEADER = "popstream.group"
"""Consumer group that gave the message up."""

DEAD_LETTER_TOPIC_HEADER = "popstream.topic"
"""Message topic."""

DEAD_LETTER_QUEUE_ID_HEADER = "popstream.queue_id"
"""Queue, which is the partition, in digits."""

DEAD_LETTER_QUEUE_OFFSET_HEADER = "popstream.queue_offset"
"""Queue offset, which is the Kafka offset, in digits."""

DEAD_LETTER_ATTEMPTS_HEADER = "popstream.attempts"
"""Deliveries of the message, in digits."""

DEAD_LETTER_HISTORY_HEADER = "popstream.history"
"""JSON: epoch and time of the last pop, time of the decision, place of its record in the ops topic."""

DEAD_LETTER_GONE_HEADER = "popstream.gone"
"""Present when the message had left the log; the record has no value then."""

DEAD_LETTER_TOO_LARGE_HEADER = "popstream.too_large"
"""Present when the message is too long to be copied; the record has no value then."""

DEAD_LETTER_HEADERS = frozenset(
    (
        DEAD_LETTER_REASON_HEADER,
        DEAD_LETTER_CAUSE_HEADER,
        DEAD_LETTER_GROUP_HEADER,
        DEAD_LETTER_TOPIC_HEADER,
        DEAD_LETTER_QUEUE_ID_HEADER,
        DEAD_LETTER_QUEUE_OFFSET_HEADER,
        DEAD_LETTER_ATTEMPTS_HEADER,
        DEAD_LETTER_HISTORY_HEADER,
        DEAD_LETTER_GONE_HEADER,
        DEAD_LETTER_TOO_LARGE_HEADER,
    )
)
"""The names of all of them."""


def header_value(headers: Iterable[tuple[str, bytes | None]], name: str) -> bytes:
    """Return the value of a header of a record; empty when there is none.

    >>> header_value([("a", b"1"), ("b", b"2"), ("a", b"3")], "a"), header_value([("a", None)], "a")
    (b'3', b'')
    """
    value = b""
    for each, found in headers:
        if each == name:
            value = found or b""
    return value


def is_own_header(name: str) -> bool:
    """Tell whether a header of a message belongs to popstream, and not to the sender of the message.

    >>> is_own_header("popstream-tag"), is_own_header("popstream.reason"), is_own_header("trace")
    (True, False, False)
    """
    return name.startswith(OWN_PREFIX)


def without_own_headers(headers: Iterable[tuple[str, bytes | None]]) -> list[tuple[str, bytes | None]]:
    """Return the headers of a message as its sender gave them."""
    return [header for header in headers if not is_own_header(header[0])]
