"""Consume queues: an index of the records of a message partition, without the records. Pure, like the kernel.

A builder scans the log in stretches and appends them; the result does not depend on where they were cut.

>>> import numpy as np
>>> values: dict[Place, bytes | None] = {}
>>> queue = ConsumeQueue.new("topic id", "simple", start_offset=40)
>>> found = Units.simple(np.array([40, 41, 44]), np.array([120, 80, 95]), np.array([1_000, 1_000, 1_007]))
>>> revision = append(queue, values.get, number_messages(queue, values.get, Scan(40, 46, found)))
>>> values.update(revision.writes)
>>> queue = revision.queue
>>> list(holes(queue, values.get, 40, 46))
[(42, 44), (45, 46)]
>>> found = first_unit_since(queue, values.get, 1_001)
>>> found and found.queue_offset
44
"""

from broker_state.consume_queue.block import BLOCK_OFFSETS, Block, encode_block
from broker_state.consume_queue.building import (
    Revision,
    append,
    move_start,
    number_messages,
    truncate,
)
from broker_state.consume_queue.deduplication import Accepted, accepted_units, mark_duplicates
from broker_state.consume_queue.dispatches import dispatches_of, skips_of
from broker_state.consume_queue.lookup import (
    Absence,
    first_unit_since,
    holes,
    last_unit_until,
    latest_time_ms,
    message_base_at,
    message_count,
    unit_at_or_after,
    unit_of_message,
    units_between,
    units_from,
    units_with_key,
)
from broker_state.consume_queue.queue_record import BLOCK, FILTER, ConsumeQueue, Get, Place, place_key
from broker_state.consume_queue.scan import ContradictionError, Scan, merge
from broker_state.consume_queue.unit import NO_DUPLICATE, Unit, Units

__all__ = [
    "BLOCK",
    "BLOCK_OFFSETS",
    "FILTER",
    "NO_DUPLICATE",
    "Absence",
    "Accepted",
    "Block",
    "ConsumeQueue",
    "ContradictionError",
    "Get",
    "Place",
    "Revision",
    "Scan",
    "Unit",
    "Units",
    "accepted_units",
    "append",
    "dispatches_of",
    "encode_block",
    "first_unit_since",
    "holes",
    "last_unit_until",
    "latest_time_ms",
    "mark_duplicates",
    "merge",
    "message_base_at",
    "message_count",
    "move_start",
    "number_messages",
    "place_key",
    "skips_of",
    "truncate",
    "unit_at_or_after",
    "unit_of_message",
    "units_between",
    "units_from",
    "units_with_key",
]
