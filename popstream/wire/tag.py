"""Tags: a short text on a message that a pop can choose by. The job knows them as 64-bit hashes.

The text is the value of the header `popstream-tag`, in UTF-8; of several such headers the last one counts. Its hash is
the first 8 bytes of the SHA-256 of that value, big-endian, or 1 if they are all zero. 0 means no tag, and so does an
empty value. SHA-256 is available in every language, and in Spark SQL.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from popstream.wire.headers import TAG_HEADER, header_value

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["HASH_BYTES", "NO_TAG", "tag_hash", "tag_text", "tag_value"]

NO_TAG: Final = 0
"""Hash of a message without a tag."""
HASH_BYTES: Final = 8
"""Length of a hash."""


@lru_cache(maxsize=4096)
def tag_hash(tag: str | bytes) -> int:
    """Return the hash of a tag, in 1..2^64 - 1; 0 for the empty tag, which means no tag.

    >>> tag_hash("paid"), tag_hash(b"paid"), tag_hash("")
    (2777268578405861175, 2777268578405861175, 0)
    """
    value = tag.encode() if isinstance(tag, str) else tag
    if not value:
        return NO_TAG
    return int.from_bytes(hashlib.sha256(value).digest()[:HASH_BYTES], "big") or 1


def tag_value(headers: Iterable[tuple[str, bytes | None]]) -> bytes:
    """Return the tag in the headers of a record, as it was sent; empty when there is none.

    >>> tag_value([("trace", b"1"), ("popstream-tag", b"paid")]), tag_value([])
    (b'paid', b'')
    """
    return header_value(headers, TAG_HEADER)


def tag_text(headers: Iterable[tuple[str, bytes | None]]) -> str:
    """Return the tag in the headers of a record as text; empty when there is none."""
    return tag_value(headers).decode(errors="replace")
