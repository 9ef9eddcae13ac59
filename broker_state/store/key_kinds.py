"""What a key of the state is about, in words, and whose it is. keys.py has the layout."""

from typing import Final

from broker_state.store.keys import LaneTag, QueueTag
from broker_state.store.overlay import DEADLINES, OPS, Family

__all__ = ["kind_of_key", "queue_of_key"]

_OF_QUEUE: Final = {
    QueueTag.RECORD: "queues",
    QueueTag.LANE: "lanes",
    QueueTag.GROUP: "lane numbers",
    QueueTag.WRITTEN: "segments of written offsets",
    QueueTag.HOLES: "segments of holes",
    QueueTag.HOLE_COUNTS: "counts of holes",
    QueueTag.LATE_SKIP: "late skips",
    QueueTag.UNIT_FACTS: "tag pages",
    QueueTag.TAG_INDEX: "nodes of the index of tags",
    QueueTag.WATCHING: "directories of lanes",
    QueueTag.OP_LOG: "pages of op_ids",
    QueueTag.USAGE: "quotas of queues",
}
_OF_LANE: Final = {
    LaneTag.ACKED: "segments of acked offsets",
    LaneTag.DELIVERIES: "delivery pages",
    LaneTag.AVAILABLE: "segments of available pages",
    LaneTag.PARKED: "parked pops",
    LaneTag.CLIENT: "segments of clients",
    LaneTag.BATCH: "batches of orderly lanes",
    LaneTag.MEMBERS: "member pages",
    LaneTag.RETURNING: "clients that return their leases",
    LaneTag.CLIENT_ID: "ids of clients",
    LaneTag.USAGE: "quotas of lanes",
}
_LANE_NO_BYTES: Final = 4


def queue_of_key(key: bytes) -> bytes:
    """Return the prefix of the queue that a key of any family of the kernel belongs to."""
    return key[: 1 + key[0] + 4]


def kind_of_key(family: Family, key: bytes) -> str:
    """Return what a key is about, in the plural.

    >>> kind_of_key("state", bytes.fromhex("01740000000151"))
    'queues'
    """
    if family == OPS:
        return "answers of op_ids"
    if family == DEADLINES:
        return "deadlines"
    at = 1 + key[0] + 4
    tag = key[at : at + 1]
    if tag != QueueTag.LANE_DATA:
        return _OF_QUEUE.get(tag, "unknown keys")
    at += 1 + _LANE_NO_BYTES
    return _OF_LANE.get(key[at : at + 1], "unknown keys")
