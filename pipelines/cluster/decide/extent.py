"""Which part of an order an entry of the audit topic has, and how far each order is written.

An order is that of the rows of a table that a shard decides, of its dead letters, or of the units of a queue. Places in
it follow from the log, so an entry is known again however a task has cut what it repeats. Tasks of one micro-batch may
send some of their entries and fail; the last one sends all of them. So what begins above the end of what is written
waits for those that repeat, unless an earlier micro-batch has sent what is missing: then it is lost.
"""

import struct
from collections.abc import Mapping
from typing import NamedTuple, Protocol, Self

from pipelines.decide_ops.entry import LogPlace
from popstream.wire.base_errors import Corrupt

__all__ = ["EXTENT_BYTES", "KEY_FORMAT", "START", "Cursors", "Extent", "HasExtent"]

START = LogPlace(0, 0)

KEY_FORMAT = b"\x02"
"""The first byte of a key; keys of the version before begin with a zero byte or with a letter, digit, dot or dash."""

_EXTENT = struct.Struct(">QIQIQI")
EXTENT_BYTES = _EXTENT.size


class Extent(NamedTuple):
    """The places [begin, end) of an order.

    >>> Extent.decode(Extent(START, LogPlace(7, 1), LogPlace(9, 3)).encode()).begin
    LogPlace(kafka_offset=7, ordinal=1)

    Attributes:
        committed: All before this place was sent by earlier micro-batches, which are committed.
        begin: Where the entry before ends.
        end: The place after the last row, letter or unit.
    """

    committed: LogPlace
    begin: LogPlace
    end: LogPlace

    def encode(self) -> bytes:
        """Three places, each of two big-endian numbers."""
        return _EXTENT.pack(*self.committed, *self.begin, *self.end)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Decode it. Raises struct.error for other lengths."""
        numbers = _EXTENT.unpack(data)
        return cls(LogPlace(*numbers[0:2]), LogPlace(*numbers[2:4]), LogPlace(*numbers[4:6]))


class HasExtent(Protocol):
    """The key of an entry."""

    @property
    def source(self) -> str:
        """Names the order."""

    @property
    def extent(self) -> Extent:
        """Its part of the order."""


class Cursors:
    """How far each order is written: the place after its last row, letter or unit.

    Args:
        ends: By the name of the order; those that are missing begin.

    >>> from pipelines.cluster.decide.outgoing import EntryKey
    >>> cursors = Cursors({})
    >>> first = EntryKey("e", 3, 0, Extent(START, START, LogPlace(7, 1)), 4)
    >>> cursors.take(first), cursors.take(first)
    (LogPlace(kafka_offset=0, ordinal=0), None)
    """

    def __init__(self, ends: Mapping[str, LogPlace]) -> None:
        self.ends = dict(ends)

    def take(self, key: HasExtent) -> LogPlace | None:
        """Return the place from which on an entry is new, and note its end; None: it has nothing new, or comes again.

        Raises:
            Corrupt: Entries before it are lost.
        """
        committed, begin, end = key.extent
        written = self.ends.get(key.source, START)
        if written < committed:
            message = (
                f"the audit topic has lost entries of {key.source!r} for the offsets from {written.kafka_offset} to"
                f" {committed.kafka_offset}: their rows are in no table. Begin a new checkpoint with tables of its own,"
                " which decides the log again"
            )
            raise Corrupt(message, subject=key.source)
        if not begin <= written < end:
            return None
        self.ends[key.source] = end
        return written
