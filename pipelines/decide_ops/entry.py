"""What leaves a runner after a decision: frames of answers, notifications, dead letters, slices of audit rows.

kind           value
ANSWERS        results partition u32, the value of the record
NOTIFICATIONS  MessagePack list of (key, value)
DEAD_LETTER    MessagePack of DeadLetter
AUDIT          table number u8, Arrow slice
DISPATCH       of the builder: the operation as encoded for the ops topic
UNIT_SPANS     of the builder: MessagePack of the spans whose units are to be written to Delta
UNITS          of the builder on a cluster: units (pipelines/cluster/audit/unit_entries.py)
"""

import struct
from typing import NamedTuple

__all__ = ["ENTRY_BYTES_MAX", "ENTRY_KEY", "Entry", "EntryKind", "LogPlace", "PlacedEntry"]

ENTRY_BYTES_MAX = 256 * 1024

ENTRY_KEY = struct.Struct(">BQI")
"""The key of an entry in a store: kind, apply_seq, number."""


class EntryKind:
    """What an entry is: the first byte of its key."""

    ANSWERS = 1
    NOTIFICATIONS = 2
    DEAD_LETTER = 3
    AUDIT = 4
    DISPATCH = 5
    UNIT_SPANS = 6
    UNITS = 7


class Entry(NamedTuple):
    """One entry of the outbox; `number` counts those of a kind in one WriteBatch."""

    kind: int
    apply_seq: int
    number: int
    value: bytes

    @property
    def key(self) -> bytes:
        """Its key in the store."""
        return ENTRY_KEY.pack(self.kind, self.apply_seq, self.number)


class LogPlace(NamedTuple):
    """Where a row is in the order of its table, or a dead letter among all: by the log, whatever decided it and when.

    Attributes:
        kafka_offset: Offset of the record that caused it.
        ordinal: Its number among those that the record caused.
    """

    kafka_offset: int
    ordinal: int


class PlacedEntry(NamedTuple):
    """What an `Entry` has but for its number, with the place that follows its last row or letter; None: it has none."""

    kind: int
    value: bytes
    end: LogPlace | None = None
