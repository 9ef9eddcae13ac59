"""The record of a consume queue, and the places of its other values.

    BLOCK   block no               the units at 1024 queue offsets                      block.py
    FILTER  block no               a Bloom filter of their key hashes, if any           key_filter.py
    1, 2 …  page no                summaries of 64 blocks, of 64 pages of level 1 …     summary.py

The pages are a tree over the blocks of [start, end): its top is the lowest page that spans all of them.
"""

from collections.abc import Callable
from typing import ClassVar, NamedTuple, Self

import msgspec

from broker_state.consume_queue.block import BLOCK_SHIFT
from broker_state.store.value_format import StoredRecord
from popstream.wire.command import QueueType

__all__ = ["BLOCK", "FILTER", "PAGE_SHIFT", "ConsumeQueue", "Get", "Place", "place_key"]

PAGE_SHIFT = 6
BLOCK = 0
FILTER = 255


class Place(NamedTuple):
    """The place of a value of a queue; `kind` is BLOCK, FILTER or the level of a page."""

    kind: int
    number: int


Get = Callable[[Place], bytes | None]
"""Reads one value of a queue."""


def place_key(prefix: bytes, place: Place) -> bytes:
    """Return the key of a value; keys of a kind are in the order of their numbers.

    >>> place_key(b"q", Place(BLOCK, 258)).hex()
    '71000000000000000102'
    """
    return prefix + bytes((place.kind,)) + place.number.to_bytes(8, "big")


class ConsumeQueue(StoredRecord, msgspec.Struct, array_like=True, frozen=True):
    """The record of a consume queue; the builder writes it with each stretch that it appends, truncates or expires."""

    STORED_AS: ClassVar[str] = "ConsumeQueue"

    topic_id: str
    """Kafka's id of the message topic."""
    queue_type: QueueType
    """Type of the queue."""
    start_offset: int
    """First queue offset that was scanned and is still in the log; retention moves it forward."""
    end_offset: int
    """Queue offset after the last one that was scanned."""
    start_message_base: int
    """Message offset at `start_offset`. On a batch queue this is the *anchor*: message offsets count from it, so it is
    kept when the units before it are deleted. On other queues it equals `start_offset`."""
    end_message_base: int
    """Message offset at `end_offset`: that of the next message."""
    unit_count: int = 0
    """Units in [start_offset, end_offset)."""
    message_count: int = 0
    """Messages in them."""

    @classmethod
    def new(cls, topic_id: str, queue_type: QueueType, start_offset: int = 0, message_base: int | None = None) -> Self:
        """Make a queue that was not scanned yet; `message_base` is the anchor of a batch queue, by default 0."""
        base = (message_base or 0) if queue_type == "batch" else start_offset
        return cls(topic_id, queue_type, start_offset, start_offset, base, base)

    def numbers(self, level: int) -> range:
        """Return the numbers of the blocks (level 0) or pages that [start, end) touches.

        >>> queue = ConsumeQueue("id", "simple", 1_000, 70_000, 1_000, 70_000)
        >>> queue.numbers(0), queue.numbers(1), queue.numbers(2), queue.top_level
        (range(0, 69), range(0, 2), range(0, 1), 2)
        """
        if self.start_offset == self.end_offset:
            return range(0)
        shift = BLOCK_SHIFT + PAGE_SHIFT * level
        return range(self.start_offset >> shift, (self.end_offset - 1 >> shift) + 1)

    @property
    def top_level(self) -> int:
        """The level at which one page spans all blocks; 0 while nothing was scanned."""
        if self.start_offset == self.end_offset:
            return 0
        level = 1
        while len(self.numbers(level)) > 1:
            level += 1
        return level
