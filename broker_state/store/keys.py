"""Keys of the state families: big-endian, length-prefixed text, the queue first.

family     key                                       value
state      <queue> 'Q'                               the queue                                      QueueRecord
           <queue> 'N' group                         a lane, by its group                           LaneRecord
           <queue> 'L' lane no u32                   the group of the number of a lane or an era    Text
           <queue> 'W' segment no u64                written offsets beyond the commit position     segment
           <queue> 'H' segment no u64                holes                                          segment
           <queue> 'h' level u8, block u64           number of holes in a block                     segment
           <queue> 'K' number u64                    a skip of offsets that had been written        LateSkip
           <queue> 'T' page no u64                   facts about the units of 64 offsets            UnitFactsPage
           <queue> 'g' class u16, depth u8, node u64 pages of units whose tags are of a class       tree node
           <queue> 'S' depth u8, node u64            lanes that wait for the commit position        tree node
           <queue> 'F' page no u64                   op_ids in the order of their records           OpLog
           <queue> 'R'                               quotas of the queue, and what they count       QueueUsage
           <lane>  'a' segment no u64                acked offsets beyond the commit offset         segment
           <lane>  'd' page no u64                   deliveries of 64 offsets                       DeliveryPage
           <lane>  'v' depth u8, node u64            pages with available messages                  tree node
           <lane>  'w' number u64                    a parked pop                                   ParkedPop
           <lane>  'c' client u64                    size of the next tree: count << 8 | depth      segment
           <lane>  'c' client u64, depth u8, node u64   pages in which a client may hold leases    tree node
           <lane>  'o'                               the batch of an orderly lane                   OrderInfo
           <lane>  'n' client u64                    the id of a client that may hold leases        Text
           <lane>  't'                               clients whose leases are still to be released  segment
           <lane>  'q'                               quotas of the lane, and what they count        LaneUsage
           <lane>  'm' page no u64                   members of the batch among 64 offsets          MemberPage
ops        <queue> op_id length u8, op_id, page u16  the first answer to an op_id                   OpWindowEntry, bytes
deadlines  <queue> ms u64, lane no u32, kind u8, number u64                                         (empty)

<queue> = topic length u8, topic, queue id u32
<lane>  = <queue> 'P' u32: the number of the lane's era, until the first reset that of the lane; for 'w' and 'q' the
lane's

What a reset forgets is not looked at: the lane gets another number, the keys of the old one are deleted as a range,
and the deadlines of its pages leave the index when they are due.
"""

import struct
from functools import lru_cache
from typing import Final, NamedTuple

from popstream.wire.limits import INT64_MAX

__all__ = [
    "DEADLINE_BATCH",
    "DEADLINE_PAGE",
    "DEADLINE_PARKED",
    "DEADLINE_PAUSE",
    "DEADLINE_QUEUE",
    "LANE_NO_BYTES",
    "NEVER_MS",
    "QUEUE_ID_BYTES",
    "DeadlineRef",
    "LaneTag",
    "QueueTag",
    "deadline_key",
    "end_of_prefix",
    "lane_prefix",
    "op_key",
    "op_page_key",
    "queue_of_key",
    "queue_prefix",
    "read_deadline_key",
    "read_queue_prefix",
    "topic_prefix",
]

DEADLINE_PAGE: Final = 0
"""Kind of a deadline: the earliest of a page of deliveries; its number is the page's."""
DEADLINE_PARKED: Final = 1
"""Kind of a deadline: of a parked pop; its number is the pop's."""
DEADLINE_BATCH: Final = 2
"""Kind of a deadline: of the batch of an orderly lane; its number is 0."""
DEADLINE_PAUSE: Final = 3
"""Kind of a deadline: when a lane goes on with what was too much for one record; its number is 0."""
DEADLINE_QUEUE: Final = 4
"""Kind of a deadline: when the queue goes on with what was too much for one record; its lane and its number are 0."""

NEVER_MS: Final = INT64_MAX
"""Later than every deadline."""

QUEUE_ID_BYTES: Final = 4
LANE_NO_BYTES: Final = 4

_DEADLINE: Final = struct.Struct(">QIBQ")
_FIRST_PAGE: Final = bytes(2)


class QueueTag:
    """The byte that follows `<queue>` in a state key."""

    RECORD: Final = b"Q"
    LANE: Final = b"N"
    GROUP: Final = b"L"
    WRITTEN: Final = b"W"
    HOLES: Final = b"H"
    HOLE_COUNTS: Final = b"h"
    LATE_SKIP: Final = b"K"
    UNIT_FACTS: Final = b"T"
    TAG_INDEX: Final = b"g"
    WATCHING: Final = b"S"
    OP_LOG: Final = b"F"
    USAGE: Final = b"R"
    LANE_DATA: Final = b"P"


class LaneTag:
    """The byte that follows `<lane>` in a state key."""

    ACKED: Final = b"a"
    DELIVERIES: Final = b"d"
    AVAILABLE: Final = b"v"
    PARKED: Final = b"w"
    CLIENT: Final = b"c"
    BATCH: Final = b"o"
    MEMBERS: Final = b"m"
    RETURNING: Final = b"t"
    CLIENT_ID: Final = b"n"
    USAGE: Final = b"q"


class DeadlineRef(NamedTuple):
    """What is due at `deadline_ms`: a page, a parked pop, a lane's batch or pause, or its queue; in key order."""

    deadline_ms: int
    lane_no: int
    kind: int
    number: int


def topic_prefix(topic: str) -> bytes:
    """Return the common prefix of every key of the queues of one topic."""
    name = topic.encode()
    return bytes((len(name),)) + name


@lru_cache(maxsize=65_536)
def queue_prefix(topic: str, queue_id: int) -> bytes:
    """Return the common prefix of every key of one queue.

    >>> queue_prefix("t", 1).hex()
    '017400000001'
    """
    return topic_prefix(topic) + queue_id.to_bytes(QUEUE_ID_BYTES, "big")


def queue_of_key(key: bytes) -> bytes:
    """Return the `queue_prefix` of a key of any family of the kernel.

    >>> queue_of_key(queue_prefix("t", 1) + QueueTag.RECORD) == queue_prefix("t", 1)
    True
    """
    return key[: 1 + key[0] + QUEUE_ID_BYTES]


def read_queue_prefix(prefix: bytes, errors: str = "strict") -> tuple[str, int]:
    """Return (topic, queue id) of a `queue_prefix`; `errors` as of `bytes.decode`.

    >>> read_queue_prefix(queue_prefix("orders", 12))
    ('orders', 12)
    """
    name, queue_id = prefix[1:-QUEUE_ID_BYTES], prefix[-QUEUE_ID_BYTES:]
    return name.decode(errors=errors), int.from_bytes(queue_id, "big")


def lane_prefix(queue: bytes, lane_no: int) -> bytes:
    """Return the common prefix of the keys under the number of a lane or of its era."""
    return queue + QueueTag.LANE_DATA + lane_no.to_bytes(LANE_NO_BYTES, "big")


def op_key(queue: bytes, op_id: str) -> bytes:
    """Return the key of the answer of an op_id: of its first page."""
    name = op_id.encode()
    return queue + bytes((len(name),)) + name + _FIRST_PAGE


def op_page_key(first: bytes, page: int) -> bytes:
    """Return the key of a page of an answer; `first` is that of the first one, `op_key`."""
    return first[: -len(_FIRST_PAGE)] + page.to_bytes(len(_FIRST_PAGE), "big")


def deadline_key(queue: bytes, ref: DeadlineRef) -> bytes:
    """Return the key in the ordered index of deadlines."""
    return queue + _DEADLINE.pack(*ref)


def read_deadline_key(queue: bytes, key: bytes) -> DeadlineRef:
    """Decode a key of the index of deadlines, which begins with the prefix `queue`."""
    return DeadlineRef._make(_DEADLINE.unpack_from(key, len(queue)))


def end_of_prefix(prefix: bytes) -> bytes:
    """Return the first key after every key that starts with `prefix`.

    >>> end_of_prefix(b"ab"), end_of_prefix(b"a" + bytes([255]))
    (b'ac', b'b')
    """
    trimmed = prefix.rstrip(b"\xff")
    return trimmed[:-1] + bytes((trimmed[-1] + 1,))
