"""A segment: the 4096 bits that say which offsets of [n * 4096, (n + 1) * 4096) are in a set, and its bytes.

In memory a segment is one int, bit i for offset n * 4096 + i. Stored it is one tag byte and the smallest of

    0  pending list   varints: the zero bits, each as its distance from the one before
    1  run lengths    varints: lengths of the runs, zeros first
    2  dense          512 bytes, little-endian
    3  full           nothing more

so that no pattern costs more than 513 bytes (peers.md, C3: the same choice per segment that Parallel Consumer makes
once for everything, and without its cliff).
"""

from broker_state.errors import CorruptValueError

__all__ = ["FULL", "SEGMENT_BITS", "SEGMENT_SHIFT", "bit_runs", "decode_segment", "encode_segment", "mask", "ones_from"]

SEGMENT_SHIFT = 12
SEGMENT_BITS = 1 << SEGMENT_SHIFT
FULL = (1 << SEGMENT_BITS) - 1

_PENDING, _RUNS, _DENSE, _FULL = range(4)
_DENSE_BYTES = SEGMENT_BITS // 8


def mask(first: int, end: int) -> int:
    """The bits first..end-1 of a segment (0 <= first < end <= 4096)."""
    return ((1 << (end - first)) - 1) << first


def ones_from(bits: int, start: int) -> int:
    """How many one bits follow each other from bit `start` on.

    >>> ones_from(0b10111, 0), ones_from(0b10111, 3), ones_from(FULL, 4000)
    (3, 0, 96)
    """
    rest = bits >> start
    return (~rest & (rest + 1)).bit_length() - 1


def bit_runs(bits: int) -> list[tuple[int, int]]:
    """The runs of one bits as half-open (first, end).

    >>> bit_runs(0b1100110)
    [(1, 3), (5, 7)]
    """
    runs = []
    at = 0
    while bits:
        zeros = (bits & -bits).bit_length() - 1
        bits >>= zeros
        at += zeros
        ones = (~bits & (bits + 1)).bit_length() - 1
        bits >>= ones
        runs.append((at, at + ones))
        at += ones
    return runs


def encode_segment(bits: int) -> bytes:
    """Smallest stored form of `bits`.

    >>> [encode_segment(b)[0] for b in (FULL ^ (1 << 9), 0b1110, FULL // 3, FULL)]
    [0, 1, 2, 3]
    """
    if bits == FULL:
        return bytes((_FULL,))
    pending_count = SEGMENT_BITS - bits.bit_count()
    run_count = ((bits ^ (bits << 1)) & FULL).bit_count()
    forms = [bytes((_DENSE,)) + bits.to_bytes(_DENSE_BYTES, "little")]
    if pending_count < _DENSE_BYTES:  # each entry takes at least a byte
        forms.append(bytes((_PENDING,)) + _pending(bits))
    if run_count < _DENSE_BYTES:
        forms.append(bytes((_RUNS,)) + _runs(bits))
    return min(forms, key=len)


def decode_segment(value: bytes) -> int:
    """The bits in a stored segment.

    >>> decode_segment(encode_segment(FULL // 5)) == FULL // 5
    True

    Raises:
        CorruptValueError: the value is none of the four forms.
    """
    tag = value[0]
    if tag == _FULL:
        return FULL
    if tag == _DENSE:
        return int.from_bytes(value[1:], "little")
    numbers = _read_varints(value[1:])
    if tag == _PENDING:
        bits, at = FULL, -1
        for step in numbers:
            at += step + 1
            bits ^= 1 << at
        return bits
    if tag == _RUNS:
        bits, at = 0, 0
        for index, length in enumerate(numbers):
            if index & 1:
                bits |= mask(at, at + length)
            at += length
        return bits
    raise CorruptValueError("segment", value)


def _pending(bits: int) -> bytes:
    out = bytearray()
    before = -1
    for first, end in bit_runs(bits ^ FULL):
        for at in range(first, end):
            _append_varint(out, at - before - 1)
            before = at
    return bytes(out)


def _runs(bits: int) -> bytes:
    out = bytearray()
    at = 0
    for first, end in bit_runs(bits):
        _append_varint(out, first - at)
        _append_varint(out, end - first)
        at = end
    return bytes(out)


def _append_varint(out: bytearray, number: int) -> None:
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)


def _read_varints(data: bytes) -> list[int]:
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
