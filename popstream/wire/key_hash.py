"""The hash by which consume queues find a message by its key or its id: `xxhash64` of Spark SQL."""

from typing import Final

import xxhash

__all__ = ["KEY_HASH_BYTES", "key_hash"]

KEY_HASH_BYTES: Final = 8
SEED: Final = 42
"""The seed of `xxhash64` in Spark SQL."""


def key_hash(key: bytes | None) -> int:
    """Return the hash of a key: its XXH64, or 1 if that is 0; 0 without a key.

    >>> key_hash(None), key_hash(b"order-1")
    (0, 9589506066719254019)
    """
    return 0 if key is None else xxhash.xxh64_intdigest(key, SEED) or 1
