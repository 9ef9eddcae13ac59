"""The hash of a message's key, or of its id, by which consume queues find it: `xxhash64` of Spark SQL."""

import xxhash

__all__ = ["key_hash"]

SEED = 42
"""That of `xxhash64` in Spark SQL."""


def key_hash(key: bytes | None) -> int:
    """The hash of a key: XXH64, 1 where that gives 0; 0 of no key.

    >>> key_hash(None), key_hash(b"order-1")
    (0, 9589506066719254019)
    """
    return 0 if key is None else xxhash.xxh64_intdigest(key, SEED) or 1
