"""What a key of the state is about. keys.py has the layout."""

import enum
from typing import Final

from broker_state.store.keys import LANE_NO_BYTES, LaneTag, QueueTag, queue_of_key
from broker_state.store.overlay import DEADLINES, OPS, Family

__all__ = ["KeyKind", "kind_of_key"]


class KeyKind(enum.StrEnum):
    """The kinds of keys, in words, in the plural."""

    QUEUES = "queues"
    LANES = "lanes"
    LANE_NUMBERS = "lane numbers"
    WRITTEN_OFFSETS = "segments of written offsets"
    HOLES = "segments of holes"
    HOLE_COUNTS = "counts of holes"
    LATE_SKIPS = "late skips"
    UNIT_FACTS = "pages of unit facts"
    TAG_INDEX = "nodes of the index of tags"
    WATCHING_LANES = "nodes of the tree of waiting lanes"
    OP_LOG = "pages of op_ids"
    QUEUE_QUOTAS = "quotas of queues"
    ACKED_OFFSETS = "segments of acked offsets"
    DELIVERIES = "delivery pages"
    AVAILABLE_PAGES = "nodes of the tree of available pages"
    PARKED_POPS = "parked pops"
    CLIENT_PAGES = "nodes of the tree of a client's pages"
    BATCHES = "batches of orderly lanes"
    MEMBERS = "member pages"
    RETURNING_CLIENTS = "clients that return their leases"
    CLIENT_IDS = "ids of clients"
    LANE_QUOTAS = "quotas of lanes"
    OP_ANSWERS = "answers of op_ids"
    DEADLINES = "deadlines"
    UNKNOWN = "unknown keys"


_OF_QUEUE: Final = {
    QueueTag.RECORD: KeyKind.QUEUES,
    QueueTag.LANE: KeyKind.LANES,
    QueueTag.GROUP: KeyKind.LANE_NUMBERS,
    QueueTag.WRITTEN: KeyKind.WRITTEN_OFFSETS,
    QueueTag.HOLES: KeyKind.HOLES,
    QueueTag.HOLE_COUNTS: KeyKind.HOLE_COUNTS,
    QueueTag.LATE_SKIP: KeyKind.LATE_SKIPS,
    QueueTag.UNIT_FACTS: KeyKind.UNIT_FACTS,
    QueueTag.TAG_INDEX: KeyKind.TAG_INDEX,
    QueueTag.WATCHING: KeyKind.WATCHING_LANES,
    QueueTag.OP_LOG: KeyKind.OP_LOG,
    QueueTag.USAGE: KeyKind.QUEUE_QUOTAS,
}
_OF_LANE: Final = {
    LaneTag.ACKED: KeyKind.ACKED_OFFSETS,
    LaneTag.DELIVERIES: KeyKind.DELIVERIES,
    LaneTag.AVAILABLE: KeyKind.AVAILABLE_PAGES,
    LaneTag.PARKED: KeyKind.PARKED_POPS,
    LaneTag.CLIENT: KeyKind.CLIENT_PAGES,
    LaneTag.BATCH: KeyKind.BATCHES,
    LaneTag.MEMBERS: KeyKind.MEMBERS,
    LaneTag.RETURNING: KeyKind.RETURNING_CLIENTS,
    LaneTag.CLIENT_ID: KeyKind.CLIENT_IDS,
    LaneTag.USAGE: KeyKind.LANE_QUOTAS,
}


def kind_of_key(family: Family, key: bytes) -> KeyKind:
    """Return what a key of a family of the kernel is about.

    >>> str(kind_of_key("state", bytes.fromhex("01740000000151")))
    'queues'
    """
    if family == OPS:
        return KeyKind.OP_ANSWERS
    if family == DEADLINES:
        return KeyKind.DEADLINES
    at = len(queue_of_key(key))
    tag = key[at : at + 1]
    if tag != QueueTag.LANE_DATA:
        return _OF_QUEUE.get(tag, KeyKind.UNKNOWN)
    at += 1 + LANE_NO_BYTES
    return _OF_LANE.get(key[at : at + 1], KeyKind.UNKNOWN)
