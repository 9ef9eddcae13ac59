"""Compares the keys of two states, byte for byte, by kind of key.

What a state has from an older version may be stored otherwise and mean the same:

* A queue that no record has touched since there are counts of its holes and parked pops is compared without them.
* A segment may be in another of its forms.
* A full segment may have a key of its own, where it is now a bit of a map, whose key follows those of its segments.
* The ids of clients that hold leases may be missing.
* The index of tags may begin where units were written since there is one.
"""

from collections import Counter
from collections.abc import Callable, Iterator

import msgspec

from broker_state.store.key_kinds import KeyKind, kind_of_key
from broker_state.store.keys import queue_of_key, read_queue_prefix
from broker_state.store.marks import MAPS
from broker_state.store.overlay import DEADLINES, OPS, STATE
from broker_state.store.rocks_store import RocksStore
from broker_state.store.segment import FULL, SEGMENT_BITS, SEGMENT_SHIFT, decode_segment
from broker_state.store.state_records import QueueRecord
from broker_state.store.value_format import CorruptValueError
from popstream.wire.limits import INT64_MAX

__all__ = ["KERNEL_FAMILIES", "KeyComparison", "compare_states"]

KERNEL_FAMILIES = (STATE, OPS, DEADLINES)
EXAMPLES_MAX = 3
_MARKS = (KeyKind.WRITTEN_OFFSETS, KeyKind.HOLES, KeyKind.ACKED_OFFSETS)
_BYTES_SHOWN = 32


class KeyComparison(msgspec.Struct, kw_only=True):
    """Keys by kind; comparisons of different queues add up.

    Attributes:
        compared: Keys that one of the states has, or both.
        different: Of these, keys with different values, or of one state only.
        examples: Some of the different ones, in words.
    """

    compared: dict[str, int] = {}
    different: dict[str, int] = {}
    examples: list[str] = []

    @property
    def equal(self) -> int:
        """Keys with equal values."""
        return sum(self.compared.values()) - sum(self.different.values())

    def add(self, other: "KeyComparison") -> None:
        """Add the comparison of other queues."""
        self.compared = dict(Counter(self.compared) + Counter(other.compared))
        self.different = dict(Counter(self.different) + Counter(other.different))
        self.examples = [*self.examples, *other.examples][:EXAMPLES_MAX]

    def lines(self) -> list[str]:
        """Return what differs, in words; nothing if everything is equal.

        >>> KeyComparison(compared={"lanes": 40}, different={"lanes": 2}, examples=["state 0174"]).lines()
        ['2 of 40 lanes of the state differ', 'state 0174']
        """
        counts = [f"{n:,} of {self.compared[kind]:,} {kind} of the state differ" for kind, n in self.different.items()]
        return [*counts, *self.examples]


def compare_states(state: RocksStore, again: RocksStore, is_ours: Callable[[bytes], bool]) -> KeyComparison:
    """Compare a state with the recomputed one.

    Args:
        state: The state.
        again: The recomputed one.
        is_ours: Whether a queue, given by its prefix, is compared.
    """
    compared: Counter[str] = Counter()
    different: Counter[str] = Counter()
    examples: list[str] = []
    ours: dict[bytes, bool] = {}
    older = _OlderQueues()
    full = _FullSegments()
    for family in KERNEL_FAMILIES:
        for key, value, wanted in _merged(state.scan(family, b""), again.scan(family, b"")):
            queue = queue_of_key(key)
            if queue not in ours:
                ours[queue] = is_ours(queue)
            if not ours[queue]:
                continue
            kind = kind_of_key(family, key)
            if older.lacks(queue, kind, key):  # their keys follow that of the queue
                continue
            compared[kind] += 1
            if value == wanted:
                continue
            if kind is KeyKind.QUEUES and older.explain(queue, value, wanted):
                continue
            if kind is KeyKind.CLIENT_IDS and value is None:
                continue
            if kind in _MARKS and full.explain(key, value, wanted):
                continue
            different[kind] += 1
            if len(examples) < EXAMPLES_MAX:
                examples.append(_described(family, key, value, wanted))
    different.update(full.unexplained)
    return KeyComparison(compared=dict(compared), different=dict(different), examples=examples)


class _OlderQueues:
    """Queues whose records an older version wrote, or that go on from such a record, and what they lack therefore."""

    def __init__(self) -> None:
        self._without_counts: set[bytes] = set()
        self._indexed_from: dict[bytes, int] = {}
        """First page from which on both states have the index of tags; below they may differ."""

    def lacks(self, queue: bytes, kind: KeyKind, key: bytes) -> bool:
        """Return whether one of the states may be without a key of this kind, or with another value."""
        if kind is KeyKind.HOLE_COUNTS:
            return queue in self._without_counts
        if kind is not KeyKind.TAG_INDEX or queue not in self._indexed_from:
            return False
        level, node = key[-9], int.from_bytes(key[-8:], "big")
        return level > 0 or node <= self._indexed_from[queue] >> SEGMENT_SHIFT

    def explain(self, queue: bytes, value: bytes | None, wanted: bytes | None) -> bool:
        """Return whether two records mean the same, and note of what else only one state has all."""
        if value is None or wanted is None:
            return False
        record, other = QueueRecord.decode(value), QueueRecord.decode(wanted)
        if record.tags_indexed_from != other.tags_indexed_from:
            both = record.tags_indexed_from, other.tags_indexed_from
            self._indexed_from[queue] = INT64_MAX if -1 in both else max(both)
            other.tags_indexed_from = record.tags_indexed_from
        if not record.has_counts:
            self._without_counts.add(queue)
            other = other.without_counts()
        return record == other


class _FullSegments:
    r"""Full segments that an older version has stored under keys of their own, until the map comes that has them now.

    Either state may have some: a restored one is as new or as old as the snapshot that it comes from.

    >>> full, prefix = _FullSegments(), b"\x01t\0\0\0\0W"
    >>> segment, of_map = prefix + bytes(8), prefix + b"\x01" + bytes(7)
    >>> full.explain(segment, b"\x03", None), full.unexplained
    (True, Counter({<KeyKind.WRITTEN_OFFSETS: 'segments of written offsets'>: 1}))
    >>> full.explain(of_map, b"\x01\x01\x01", b"\x01\x00\x02"), full.unexplained
    (True, Counter())
    """

    def __init__(self) -> None:
        self._bits: tuple[dict[bytes, int], dict[bytes, int]] = {}, {}

    @property
    def unexplained(self) -> Counter[str]:
        """Number of full segments that are in no map of the other state, by kind."""
        one, other = self._bits
        found: Counter[str] = Counter()
        for key in one.keys() | other.keys():
            found[kind_of_key(STATE, key)] += (one.get(key, 0) ^ other.get(key, 0)).bit_count()
        return +found

    def explain(self, key: bytes, value: bytes | None, wanted: bytes | None) -> bool:
        """Return whether the values of a segment, or of a map, mean the same in both states, or may do so."""
        try:
            both = [0 if stored is None else decode_segment(stored) for stored in (value, wanted)]
        except CorruptValueError:
            return False
        number = int.from_bytes(key[-8:], "big")
        if number >= MAPS:
            one, other = (bits | full.pop(key, 0) for bits, full in zip(both, self._bits, strict=True))
            return one == other
        if both not in ([FULL, 0], [0, FULL]):
            return both[0] == both[1]
        map_key = key[:-8] + (MAPS | number >> SEGMENT_SHIFT).to_bytes(8, "big")
        full = self._bits[both.index(FULL)]
        full[map_key] = full.get(map_key, 0) | 1 << number % SEGMENT_BITS
        return True


def _described(family: str, key: bytes, value: bytes | None, wanted: bytes | None) -> str:
    topic, queue_id = read_queue_prefix(queue_of_key(key), errors="replace")
    return f"{topic}/{queue_id}, {family} {key.hex()}: {_shown(value)} instead of {_shown(wanted)}"


def _shown(value: bytes | None) -> str:
    return "missing" if value is None else value[:_BYTES_SHOWN].hex() or "empty"


def _merged(
    one: Iterator[tuple[bytes, bytes]], other: Iterator[tuple[bytes, bytes]]
) -> Iterator[tuple[bytes, bytes | None, bytes | None]]:
    """Merge two ascending scans to (key, value in the first, value in the second)."""
    first, second = next(one, None), next(other, None)
    while first is not None or second is not None:
        if second is None or (first is not None and first[0] < second[0]):
            assert first is not None
            yield first[0], first[1], None
            first = next(one, None)
        elif first is None or second[0] < first[0]:
            yield second[0], None, second[1]
            second = next(other, None)
        else:
            yield first[0], first[1], second[1]
            first, second = next(one, None), next(other, None)
