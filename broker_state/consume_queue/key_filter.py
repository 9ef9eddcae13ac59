"""A Bloom filter of the key hashes of a block, which rules out most blocks without a key.

    0       format u8 (1)
    1       bits, 10 for each key hash, in bytes; bit i is bit i & 7 of byte i >> 3
    -8      XXH3 of all that comes before

The hashes are XXH64 of keys and are not hashed again. Each sets six bits; the filter errs for about 1 block in 100.
"""

import numpy as np

from broker_state.consume_queue.columns import seal, unseal
from broker_state.consume_queue.unit import Hashes
from broker_state.store.value_format import CorruptValueError

__all__ = ["encode_key_filter", "may_contain"]

_FORM = 1
_BITS_A_KEY = 10
_PROBES = 6
_U32_MASK = (1 << 32) - 1


def encode_key_filter(key_hashes: Hashes) -> bytes:
    """Encode the filter of at least one hash.

    >>> value = encode_key_filter(np.array([0x1234_5678_9ABC_DEF0, 77], np.uint64))
    >>> may_contain(value, 0x1234_5678_9ABC_DEF0), may_contain(value, 77), may_contain(value, 2**63 + 1)
    (True, True, False)
    """
    bit_count = -(-len(key_hashes) * _BITS_A_KEY // 8) * 8
    bits = np.zeros(bit_count, np.bool_)
    at = key_hashes & np.uint64(_U32_MASK)
    step = (key_hashes >> np.uint64(32)) | np.uint64(1)
    for _ in range(_PROBES):
        bits[(at * np.uint64(bit_count)) >> np.uint64(32)] = True
        at = (at + step) & np.uint64(_U32_MASK)
    return seal(bytes((_FORM,)) + np.packbits(bits, bitorder="little").tobytes())


def may_contain(value: bytes, key_hash: int) -> bool:
    """Return False if the filter does not have this hash; True if it may have it.

    Raises:
        CorruptValueError: The value is not a whole filter.
    """
    body = unseal("consume queue key filter", value)
    if body[:1] != bytes((_FORM,)) or len(body) == 1:
        raise CorruptValueError("consume queue key filter", value)
    bit_count = 8 * (len(body) - 1)
    at, step = key_hash & _U32_MASK, key_hash >> 32 | 1
    for _ in range(_PROBES):
        bit = at * bit_count >> 32
        if not body[1 + (bit >> 3)] >> (bit & 7) & 1:
            return False
        at = (at + step) & _U32_MASK
    return True
