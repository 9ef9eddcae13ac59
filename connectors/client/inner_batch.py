"""Inner batches: one Kafka record that carries many messages, and says so in its headers.

    popstream-batch-count   how many messages it carries: ASCII digits, 1 to 1,000,000
    popstream-batch-bytes   the length of its value: ASCII digits
    popstream-batch-keys    hashes of the keys and message ids inside, 8 bytes each, big-endian; may be absent

Of headers with the same name the last one counts. A record without the first header is one message. One whose headers
contradict themselves or the value is *unreadable*: a unit of one message, which goes to the dead letters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "BYTES_HEADER",
    "COUNT_HEADER",
    "COUNT_MAX",
    "DIGITS_MAX",
    "KEYS_BYTES_MAX",
    "KEYS_HEADER",
    "KEY_HASH_BYTES",
    "inner_count",
]

COUNT_HEADER = "popstream-batch-count"
BYTES_HEADER = "popstream-batch-bytes"
KEYS_HEADER = "popstream-batch-keys"
COUNT_MAX = 1_000_000
KEYS_BYTES_MAX = 256 * 1024
DIGITS_MAX = 10
KEY_HASH_BYTES = 8


def inner_count(headers: Iterable[tuple[str, bytes | None]], value_bytes: int) -> int | None:
    """How many messages a record carries; None: it is unreadable.

    >>> inner_count([], 10), inner_count([("popstream-batch-count", b"3"), ("popstream-batch-bytes", b"10")], 10)
    (1, 3)
    >>> inner_count([("popstream-batch-count", b"3"), ("popstream-batch-bytes", b"10")], 11) is None
    True
    """
    found = dict(headers)
    if COUNT_HEADER not in found:
        return 1
    count, length = _number(found[COUNT_HEADER]), _number(found.get(BYTES_HEADER))
    keys = found.get(KEYS_HEADER) or b""
    is_true = length == value_bytes and not len(keys) % KEY_HASH_BYTES and len(keys) <= KEYS_BYTES_MAX
    return count if count is not None and 1 <= count <= COUNT_MAX and is_true else None


def _number(text: bytes | None) -> int | None:
    return int(text) if text is not None and text.isdigit() and len(text) <= DIGITS_MAX else None
