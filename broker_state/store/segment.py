"""A segment: the 4096 bits that say which offsets of [n * 4096, (n + 1) * 4096) are in a set, and its bytes.

In memory a segment is one int, bit i for offset n * 4096 + i. Stored it is one tag byte and the smallest of those of
these forms that list at most 256 bits or edges of runs, so that no pattern takes long to encode or to decode:

    0  pending list   varints: the zero bits, each as its distance from the one before
    1  run lengths    varints: lengths of the runs, zeros first
    2  dense          512 bytes, little-endian
    3  full           nothing more
    4  grid           u24: step u12, shift u12; then a bit for each cell of `step` bits, little-endian. The first cell
                      begins `shift` bits before the segment, for pops of one size need not divide 4096

so that no pattern takes more than 513 bytes. (Confluent's Parallel Consumer chooses one form for all offsets, and its
size jumps where the choice changes.) Equal bits have equal bytes. A new form takes a new tag, and the decoders of these
stay.
"""

from collections.abc import Iterable, Iterator, Sequence
from math import gcd
from typing import Final

from broker_state.store.value_format import CorruptValueError

__all__ = [
    "FULL",
    "SEGMENT_BITS",
    "SEGMENT_SHIFT",
    "bit_runs",
    "decode_segment",
    "encode_segment",
    "mask",
    "ones_from",
    "segment_windows",
]

SEGMENT_SHIFT: Final = 12
SEGMENT_BITS: Final = 1 << SEGMENT_SHIFT
FULL: Final = (1 << SEGMENT_BITS) - 1

_PENDING: Final = 0
_RUNS: Final = 1
_DENSE: Final = 2
_FULL: Final = 3
_GRID: Final = 4
_DENSE_BYTES: Final = SEGMENT_BITS // 8
_LISTED_MAX: Final = 256
_GRID_HEAD_BYTES: Final = 3


def mask(first: int, end: int) -> int:
    """Return a mask of the bits first..end-1 of a segment (0 <= first < end <= 4096)."""
    return ((1 << (end - first)) - 1) << first


def segment_windows(first: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield (segment no, mask) for each segment that [first, end), not empty, touches.

    >>> [(number, bits.bit_count()) for number, bits in segment_windows(4_000, 8_200)]
    [(0, 96), (1, 4096), (2, 8)]
    """
    for segment_no in range(first >> SEGMENT_SHIFT, ((end - 1) >> SEGMENT_SHIFT) + 1):
        base = segment_no << SEGMENT_SHIFT
        low = max(first - base, 0)
        high = min(end - base, SEGMENT_BITS)
        yield segment_no, FULL if high - low == SEGMENT_BITS else mask(low, high)


def ones_from(bits: int, start: int) -> int:
    """Return how many one bits follow each other from bit `start` on.

    >>> ones_from(0b10111, 0), ones_from(0b10111, 3), ones_from(FULL, 4000)
    (3, 0, 96)
    """
    rest = bits >> start
    return (rest ^ (rest + 1)).bit_length() - 1


def bit_runs(bits: int) -> list[tuple[int, int]]:
    """Return the runs of one bits as half-open (first, end).

    >>> bit_runs(0b1100110)
    [(1, 3), (5, 7)]
    """
    edges = _ones(bits ^ (bits << 1))
    return list(zip(edges[::2], edges[1::2], strict=True))


def encode_segment(bits: int) -> bytes:
    """Encode a segment in its smallest form; of equally small ones, in the first in the order below.

    >>> [encode_segment(b)[0] for b in (FULL ^ (1 << 9), 0b1110, FULL // 3, FULL, FULL // 0xFFFFFFFF * 0xFFFF)]
    [0, 1, 2, 3, 4]
    """
    if bits == FULL:
        return bytes((_FULL,))
    zero_count = SEGMENT_BITS - bits.bit_count()
    edge_bits = bits ^ (bits << 1)
    edge_count = edge_bits.bit_count()
    forms = [bytes((_DENSE,)) + bits.to_bytes(_DENSE_BYTES, "little")]
    # An entry of a list takes one byte or two: a list that cannot be the shorter one is not made.
    if zero_count <= min(_LISTED_MAX, 2 * edge_count):
        forms.append(bytes((_PENDING,)) + _distances(_ones(bits ^ FULL), 1))
    if edge_count <= _LISTED_MAX:
        if edge_count + 1 < len(forms[-1]):
            forms.append(bytes((_RUNS,)) + _distances(_ones(edge_bits), 0))
        step, shift = _fitting_grid(edge_bits)
        if step > 1:
            forms.append(bytes((_GRID,)) + _grid(_ones(edge_bits), step, shift))
    return min(forms, key=len)


def decode_segment(value: bytes) -> int:
    """Decode a stored segment.

    >>> decode_segment(encode_segment(FULL // 5)) == FULL // 5
    True

    Raises:
        CorruptValueError: The value is in none of the five forms.
    """
    bits = _read(value[0], value[1:]) if value else None
    if bits is None or bits > FULL:
        raise CorruptValueError("segment", value)
    return bits


def _read(tag: int, data: bytes) -> int | None:
    if tag == _FULL:
        return FULL
    if tag == _DENSE and len(data) == _DENSE_BYTES:
        return int.from_bytes(data, "little")
    if tag == _GRID:
        return _read_grid(data)
    distances = _read_varints(data)
    if sum(distances) > SEGMENT_BITS:
        return None
    if tag == _PENDING:
        return _read_pending(distances)
    return _read_run_lengths(distances) if tag == _RUNS else None


def _ones(bits: int) -> list[int]:
    """Return the places of the one bits, in order."""
    places = []
    while bits:  # from the highest one down: bit_length() takes constant time
        at = bits.bit_length() - 1
        bits ^= 1 << at
        places.append(at)
    places.reverse()
    return places


def _distances(places: Iterable[int], gap: int) -> bytes:
    """Encode each place as its distance from `gap` after the one before."""
    out = bytearray()
    base = 0
    for at in places:
        _append_varint(out, at - base)
        base = at + gap
    return bytes(out)


def _read_pending(distances: Iterable[int]) -> int | None:
    zeros = bytearray(_DENSE_BYTES)
    at = -1
    for distance in distances:
        at += distance + 1
        if at >= SEGMENT_BITS:
            return None
        zeros[at >> 3] |= 1 << (at & 7)
    return FULL ^ int.from_bytes(zeros, "little")


def _read_run_lengths(lengths: Iterable[int]) -> int:
    starts, ends = bytearray(_DENSE_BYTES + 1), bytearray(_DENSE_BYTES + 1)
    at, is_run = 0, False
    for length in lengths:
        end = at + length
        if is_run and length:
            starts[at >> 3] |= 1 << (at & 7)
            ends[end >> 3] |= 1 << (end & 7)
        at, is_run = end, not is_run
    return _between(int.from_bytes(starts, "little"), int.from_bytes(ends, "little"))


def _between(starts: int, ends: int) -> int:
    """Return the bits of the runs that begin and end at these bits: a run from i to j is 2 ** j - 2 ** i."""
    return ends - starts


def _fitting_grid(edges: int) -> tuple[int, int]:
    """Return (step, shift) of the widest cells within which no run begins or ends; a step of 0 or 1: not a grid."""
    cuts = edges & (FULL - 1)
    last = at = cuts.bit_length() - 1
    step = 0
    while at > 0 and step != 1:  # it is soon 1, unless the bits are a grid
        step = gcd(step, last - at)
        cuts ^= 1 << at
        at = cuts.bit_length() - 1
    return step, -last % step if step else 0


def _grid(edges: Sequence[int], step: int, shift: int) -> bytes:
    """Encode a grid: cell n begins at bit n * step - shift; the first and the last cell may lie partly outside."""
    starts = sum([1 << (at + shift) // step for at in edges[::2]])
    ends = sum([1 << -(-(at + shift) // step) for at in edges[1::2]])
    cells = _between(starts, ends)
    head = (step * SEGMENT_BITS + shift).to_bytes(_GRID_HEAD_BYTES, "big")
    return head + cells.to_bytes((cells.bit_length() + 7) // 8, "little")


def _read_grid(data: bytes) -> int | None:
    step, shift = divmod(int.from_bytes(data[:_GRID_HEAD_BYTES], "big"), SEGMENT_BITS)
    cells = int.from_bytes(data[_GRID_HEAD_BYTES:], "little")
    if not step or cells.bit_length() * step >= SEGMENT_BITS + shift + step:
        return None  # it reaches beyond the segment
    edges = _ones(cells ^ (cells << 1))
    starts = sum([1 << at * step for at in edges[::2]])
    ends = sum([1 << at * step for at in edges[1::2]])
    return _between(starts, ends) >> shift & FULL


def _append_varint(out: bytearray, number: int) -> None:
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)


def _read_varints(data: bytes) -> Iterable[int]:
    if data.isascii():
        return data
    numbers = []
    number = shift = 0
    for byte in data:
        number |= (byte & 0x7F) << shift
        if byte & 0x80:
            shift += 7
        else:
            numbers.append(number)
            number = shift = 0
    return numbers
