"""Deduplication ids: the header `popstream-dedup-id`, 1 to 128 bytes of UTF-8, names a message to recognise repeats by.

The builder knows an id as its hash, the first 16 bytes of its SHA-256. An empty or longer value counts as none, and of
several such headers the last one counts.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from popstream.wire.headers import DEDUP_ID_HEADER, header_value

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "DEDUP_HASH_BYTES",
    "DEDUP_IDS_MAX_DEFAULT",
    "DEDUP_ID_BYTES_MAX",
    "DEDUP_WINDOW_MS_DEFAULT",
    "dedup_hash_of",
    "dedup_id_of",
]

DEDUP_ID_BYTES_MAX = 128
DEDUP_HASH_BYTES = 16
DEDUP_WINDOW_MS_DEFAULT = 300_000
"""How long after a message its repeats are dropped, unless the job says otherwise; as in Amazon SQS."""
DEDUP_IDS_MAX_DEFAULT = 1_000_000
"""Of how many messages of a queue repeats are recognised, unless the job says otherwise."""


def dedup_id_of(headers: Iterable[tuple[str, bytes | None]]) -> bytes:
    """Return the id in the headers of a record; empty when there is none.

    >>> name = "popstream-dedup-id"
    >>> dedup_id_of([(name, b"order-17")]), dedup_id_of([(name, b"x" * 129)]), dedup_id_of([])
    (b'order-17', b'', b'')
    """
    value = header_value(headers, DEDUP_ID_HEADER)
    return value if len(value) <= DEDUP_ID_BYTES_MAX else b""


def dedup_hash_of(headers: Iterable[tuple[str, bytes | None]]) -> bytes:
    """Return the hash of the id in the headers of a record; empty when there is none.

    >>> dedup_hash_of([("popstream-dedup-id", b"order-17")]).hex(), dedup_hash_of([])
    ('72a90ea3da8b5dd01bde2f27314e02e2', b'')
    """
    value = dedup_id_of(headers)
    return hashlib.sha256(value).digest()[:DEDUP_HASH_BYTES] if value else b""
