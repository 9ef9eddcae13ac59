"""A consume queue in a dict, and the list of units that it must agree with."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from broker_state.consume_queue import (
    ConsumeQueue,
    Place,
    Revision,
    Scan,
    Unit,
    Units,
    append,
    move_start,
    number_messages,
    truncate,
)
from popstream.wire.command import QueueType


def unit(queue_offset: int, **fields: object) -> Unit:
    """A unit of 100 bytes; its message base is its queue offset where none is given."""
    known = {"size_bytes": 100, "store_time_ms": 1_000, "message_base": queue_offset, **fields}
    return msgspec.convert({"queue_offset": queue_offset, **known}, Unit)


class QueueLab:
    """One queue; each operation is written at once."""

    def __init__(self, queue_type: QueueType = "simple", start_offset: int = 0, anchor: int | None = None) -> None:
        self.values: dict[Place, bytes] = {}
        self.queue = ConsumeQueue.new("id", queue_type, start_offset, anchor)
        self.gets = 0

    def get(self, place: Place) -> bytes | None:
        self.gets += 1
        return self.values.get(place)

    def write(self, revision: Revision) -> None:
        # As the store does in a WriteBatch.
        for kind, numbers in revision.deletes:
            for place in [place for place in self.values if place.kind == kind and place.number in numbers]:
                del self.values[place]
        for place, value in revision.writes.items():
            if value is None:
                self.values.pop(place, None)
            else:
                self.values[place] = value
        self.queue = ConsumeQueue.decode(revision.queue.encode())

    def append(
        self, units: Sequence[Unit] | Units, end_offset: int | None = None, first_offset: int | None = None
    ) -> None:
        """Units with the message bases that they name."""
        columns = units if isinstance(units, Units) else Units.of(units)
        first = self.queue.end_offset if first_offset is None else first_offset
        end = (
            max(int(columns.queue_offset[-1]) + 1 if len(columns) else first, first)
            if end_offset is None
            else end_offset
        )
        self.write(append(self.queue, self.get, Scan(first, end, columns)))

    def scan(self, units: Sequence[Unit], end_offset: int, first_offset: int | None = None) -> None:
        """Units as a builder finds them, their messages numbered by the queue."""
        first = self.queue.end_offset if first_offset is None else first_offset
        found = number_messages(self.queue, self.get, Scan(first, end_offset, Units.of(units)))
        self.write(append(self.queue, self.get, found))

    def truncate(self, end_offset: int) -> None:
        self.write(truncate(self.queue, self.get, end_offset))

    def move_start(self, start_offset: int) -> None:
        self.write(move_start(self.queue, self.get, start_offset))
