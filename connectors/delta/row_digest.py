"""A number for the content of each row: equal rows have equal ones, and the sum of many shows that one was changed.

```
row     mix(sum over the columns of value * column), where a null counts as nothing
value   of a number, date, time or flag itself, moved so that 0 is not nothing; of a text or bytes the hash
column  an odd number made of its name
```

Nulls count as nothing, so that a row has the same digest before and after its table got a further column. It is not
proof against somebody who makes other rows with the same sum on purpose.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

__all__ = ["row_digests"]

_MULTIPLIERS: Final = (np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53))
_SHIFT: Final = np.uint64(33)
_MOVED: Final = np.uint64(0x9E3779B97F4A7C15)
_LOOKED_AT: Final = 256
"""Texts that are looked at, to see whether few are repeated or each is another one."""

_Numbers = npt.NDArray[np.uint64]


def row_digests(rows: pa.Table) -> npt.NDArray[np.uint64]:
    """Return the digest of each row, 64 bits each; the order of the columns does not matter.

    >>> rows = pa.table({"number": [1, 1, None], "text": ["a", "b", "a"]})
    >>> digests = row_digests(rows)
    >>> len(set(digests.tolist())), (digests == row_digests(rows.select(["text", "number"]))).all()
    (3, np.True_)
    >>> more = rows.append_column("later", pa.nulls(3, pa.int64()))
    >>> (digests == row_digests(more)).all()
    np.True_
    """
    sums = np.zeros(rows.num_rows, np.uint64)
    for name in rows.column_names:
        column = rows[name]
        if column.null_count < len(column):
            sums += np.concatenate([_values(chunk) for chunk in column.chunks]) * _weight(name)
    return _mixed(sums)


def _values(column: pa.Array) -> _Numbers:
    """Return a number for each value, 0 for null."""
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        values = _hashes(column)
    else:
        if pa.types.is_date32(kind):
            column = column.cast(pa.int32())
        values = column.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False).view(np.uint64) + _MOVED
    if column.null_count:
        values[column.is_null().to_numpy(zero_copy_only=False).astype(np.bool_)] = 0
    return values


def _hashes(column: pa.Array) -> _Numbers:
    texts = column.cast(pa.binary()).fill_null(b"")
    if len(texts.slice(0, _LOOKED_AT).unique()) > _LOOKED_AT // 2:
        return _hash_each(texts)
    known = texts.dictionary_encode()
    hashes: _Numbers = _hash_each(known.dictionary)[known.indices.to_numpy()]
    return hashes


def _hash_each(texts: pa.Array) -> _Numbers:
    return np.fromiter(map(xxhash.xxh3_64_intdigest, texts.to_pylist()), np.uint64, len(texts))


@lru_cache(maxsize=1024)
def _weight(column: str) -> np.uint64:
    return np.uint64(xxhash.xxh3_64_intdigest(column.encode()) | 1)


def _mixed(numbers: _Numbers) -> _Numbers:
    """Spread every bit over all others (the finalizer of MurmurHash3), so that sums of rows tell columns apart."""
    for multiplier in _MULTIPLIERS:
        numbers = (numbers ^ (numbers >> _SHIFT)) * multiplier
    return numbers ^ (numbers >> _SHIFT)
