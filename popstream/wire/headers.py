"""Tags: a short text on a message that a pop can choose by. The job knows them as 64-bit hashes.

The text travels with the message, in UTF-8, as the value of header `popstream-tag` (the last one, should there be
several). Its hash is the first 8 bytes of the SHA-256 of that value, big-endian, and 1 where that gives 0; 0 means no
tag, and so does an empty value. Any language has SHA-256, and so has Spark SQL.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["NO_TAG", "TAG_HEADER", "tag_hash", "tag_value"]

TAG_HEADER = "popstream-tag"
NO_TAG = 0
HASH_BYTES = 8


@lru_cache(maxsize=4096)
def tag_hash(tag: str | bytes) -> int:
    """Hash of a tag, in 1..2^64 - 1; of the empty tag, which is none, 0.

    >>> tag_hash("paid"), tag_hash(b"paid"), tag_hash("")
    (2777268578405861175, 2777268578405861175, 0)
    """
    value = tag.encode() if isinstance(tag, str) else tag
    if not value:
        return NO_TAG
    return int.from_bytes(hashlib.sha256(value).digest()[:HASH_BYTES], "big") or 1


def tag_value(headers: Iterable[tuple[str, bytes | None]]) -> bytes:
    """Tag that the headers of a record carry, as it was sent; empty when there is none.

    >>> tag_value([("trace", b"1"), ("popstream-tag", b"paid")]), tag_value([])
    (b'paid', b'')
    """
    value = b""
    for name, found in headers:
        if name == TAG_HEADER:
            value = found or b""
    return value
