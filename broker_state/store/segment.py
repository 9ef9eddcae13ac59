"""A segment: the 4096 bits that say which offsets of [n * 4096, (n + 1) * 4096) are in a set, and its bytes.

In memory a segment is one int, bit i for offset n * 4096 + i. Stored it is one tag byte and the smallest of

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

from collections.abc import Iterable
from math import gcd

from broker_state.store.value_format import CorruptValueError

__all__ = ["FULL", "SEGMENT_BITS", "SEGMENT_SHIFT", "bit_runs", "decode_segment", "encode_segment", "mask", "ones_from"]

SEGMENT_SHIFT = 12
SEGMENT_BITS = 1 << SEGMENT_SHIFT
FULL = (1 << SEGMENT_BITS) - 1

_PENDING, _RUNS, _DENSE, _FULL, _GRID = range(5)
_DENSE_BYTES = SEGMENT_BITS // 8
_GRID_HEAD_BYTES = 3


def mask(first: int, end: int) -> int:
    """Return a mask of the bits first..end-1 of a segment (0 <= first < end <= 4096)."""
    return ((1 << (end - first)) - 1) << first


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
    runs = []
    edges = bits ^ (bits << 1)
    while edges:  # from the highest bit down: bit_length() takes constant time
        end = edges.bit_length() - 1
        edges ^= 1 << end
        first = edges.bit_length() - 1
        edges ^= 1 << first
        runs.append((first, end))
    runs.reverse()
    return runs


def encode_segment(bits: int) -> bytes:
    """Encode a segment in its smallest form; of equally small ones, in the first in the order below.

    >>> [encode_segment(b)[0] for b in (FULL ^ (1 << 9), 0b1110, FULL // 3, FULL, FULL // 0xFFFFFFFF * 0xFFFF)]
    [0, 1, 2, 3, 4]
    """
    if bits == FULL:
        return bytes((_FULL,))
    forms = [bytes((_DENSE,)) + bits.to_bytes(_DENSE_BYTES, "little")]
    if SEGMENT_BITS - bits.bit_count() < _DENSE_BYTES:  # each entry takes at least a byte
        forms.append(bytes((_PENDING,)) + _pending(bits))
    if (bits ^ (bits << 1)).bit_count() < _DENSE_BYTES:
        forms.append(bytes((_RUNS,)) + _run_lengths(bits))
    step, shift = _fitting_grid(bits)
    if step > 1:
        forms.append(bytes((_GRID,)) + _grid(bits, step, shift))
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
    lengths = _read_varints(data)
    if sum(lengths) <= SEGMENT_BITS and tag == _PENDING:
        return _read_pending(lengths)
    if sum(lengths) <= SEGMENT_BITS and tag == _RUNS:
        return _read_run_lengths(lengths)
    return None


def _pending(bits: int) -> bytes:
    out = bytearray()
    before = -1
    for first, end in bit_runs(bits ^ FULL):
        for at in range(first, end):
            _append_varint(out, at - before - 1)
            before = at
    return bytes(out)


def _read_pending(distances: Iterable[int]) -> int:
    bits, at = FULL, -1
    for distance in distances:
        at += distance + 1
        bits ^= 1 << at
    return bits


def _run_lengths(bits: int) -> bytes:
    out = bytearray()
    at = 0
    for first, end in bit_runs(bits):
        _append_varint(out, first - at)
        _append_varint(out, end - first)
        at = end
    return bytes(out)


def _read_run_lengths(lengths: Iterable[int]) -> int:
    bits, at = 0, 0
    for index, length in enumerate(lengths):
        if index & 1:
            bits |= mask(at, at + length)
        at += length
    return bits


def _fitting_grid(bits: int) -> tuple[int, int]:
    """Return (step, shift) of the widest cells within which no run begins or ends; a step of 0 or 1: not a grid."""
    cuts = (bits ^ (bits << 1)) & (FULL - 1)
    last = at = cuts.bit_length() - 1
    step = 0
    while at > 0 and step != 1:  # it is soon 1, unless the bits are a grid
        step = gcd(step, last - at)
        cuts ^= 1 << at
        at = cuts.bit_length() - 1
    return step, -last % step if step else 0


def _grid(bits: int, step: int, shift: int) -> bytes:
    """Encode a grid: cell n begins at bit n * step - shift; the first and the last cell may lie partly outside."""
    cells = 0
    for first, end in bit_runs(bits):
        cells |= mask((first + shift) // step, -(-(end + shift) // step))
    head = (step * SEGMENT_BITS + shift).to_bytes(_GRID_HEAD_BYTES, "big")
    return head + cells.to_bytes((cells.bit_length() + 7) // 8, "little")


def _read_grid(data: bytes) -> int | None:
    step, shift = divmod(int.from_bytes(data[:_GRID_HEAD_BYTES], "big"), SEGMENT_BITS)
    cells = int.from_bytes(data[_GRID_HEAD_BYTES:], "little")
    if not step or cells.bit_length() * step >= SEGMENT_BITS + shift + step:
        return None  # it reaches beyond the segment
    bits = 0
    for first, end in bit_runs(cells):
        bits |= mask(first * step, end * step)
    return bits >> shift & FULL


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
