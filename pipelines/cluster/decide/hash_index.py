"""An index from hashed keys to the numbers of chunks: 20 bytes an entry, in sorted arrays that are merged as they grow.

The hash has 128 bits and a seed that clients do not know, so two keys never share one.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import xxhash

__all__ = ["HASH_BYTES", "NONE", "HashIndex", "Hashes", "hashes_of"]

HASH_BYTES = 16
NONE = 0
"""Stands for no chunk: chunks are numbered from 1."""

Hashes = npt.NDArray[np.bytes_]
"""Hashes of 16 bytes each."""
ChunkNumbers = npt.NDArray[np.uint32]

_MERGE_RATIO = 3
_EMPTY: Hashes = np.empty(0, f"S{HASH_BYTES}")


def hashes_of(keys: Sequence[bytes], seed: int) -> Hashes:
    """Return the hash of each key.

    >>> len(hashes_of([b"a", b"b"], seed=7))
    2
    """
    digest = xxhash.xxh3_128_digest
    return np.frombuffer(b"".join([digest(key, seed) for key in keys]), _EMPTY.dtype)


class HashIndex:
    """Finds the chunk that was last set for a hash.

    >>> index = HashIndex()
    >>> a, b = hashes_of([b"a"], 7), hashes_of([b"b"], 7)
    >>> index.set(a, 1); index.set(b, 1); index.set(a, 2)
    >>> index.find(a)[0], index.find(b)[0], index.find(hashes_of([b"c"], 7))[0]
    (np.uint32(2), np.uint32(1), np.uint32(0))
    """

    __slots__ = ("_runs",)

    def __init__(self) -> None:
        self._runs: list[tuple[Hashes, ChunkNumbers]] = []
        """Sorted hashes with their chunks, each hash once; the newest run is last, and short."""

    def __len__(self) -> int:
        """Return the number of entries, with those that a newer one hides."""
        return sum(len(hashes) for hashes, _ in self._runs)

    def find(self, hashes: Hashes) -> ChunkNumbers:
        """Return the chunk of each hash, NONE if it has none."""
        found = np.zeros(len(hashes), np.uint32)
        order = np.argsort(hashes)  # neighbours are found near each other, in memory that is cached
        wanted = hashes[order]
        for run, chunks in self._runs:  # the newest run has the last word
            at = np.searchsorted(run, wanted)
            at[at == len(run)] = 0
            is_here = run[at] == wanted
            found[order[is_here]] = chunks[at[is_here]]
        return found

    def set(self, hashes: Hashes, chunk: int) -> None:
        """Set the chunk of hashes; NONE removes them."""
        if not len(hashes):
            return
        run = np.unique(hashes)
        self._runs.append((run, np.full(len(run), chunk, np.uint32)))
        while len(self._runs) > 1 and len(self._runs[-2][0]) < _MERGE_RATIO * len(self._runs[-1][0]):
            self._merge()

    def _merge(self) -> None:
        """Merge the two newest runs."""
        newer, older = self._runs.pop(), self._runs.pop()
        hashes = np.concatenate([newer[0], older[0]])
        chunks = np.concatenate([newer[1], older[1]])
        kept, first = np.unique(hashes, return_index=True)  # of equal hashes the first one, which is the newer
        chunks = chunks[first]
        if not self._runs:  # nothing older is left to hide
            is_set = chunks != NONE
            kept, chunks = kept[is_set], chunks[is_set]
        if len(kept):
            self._runs.append((kept, chunks))
