"""Keys of the state families: big-endian, length-prefixed text, the queue first.

family     key
state      <queue> 'Q'                               the queue            Queue
           <queue> 'N' group                         a lane by its group  Lane
           <queue> 'L' lane no u32                   the group of a lane number
           <queue> 'W' segment no u64                written offsets beyond the commit position
           <queue> 'H' segment no u64                holes
           <queue> 'K' number u64                    a skip of offsets that had been written
           <queue> 'T' page no u64                   tags and inner counts of 64 offsets
           <queue> 'S' depth u8, node u64            lanes that wait for the commit position
           <queue> 'F' page no u64                   op_ids in the order they came
           <lane>  'a' segment no u64                acked offsets beyond the commit offset
           <lane>  'd' page no u64                   deliveries of 64 offsets
           <lane>  'v' depth u8, node u64            pages with something available
           <lane>  'w' number u64                    a parked pop
           <lane>  'c' client u64, depth u8, node u64   pages in which a client may hold leases
           <lane>  'o'                              the batch of an orderly lane      OrderInfo
           <lane>  'm' page no u64                  members of the batch among 64 offsets
ops        <queue> op_id length u8, op_id, page u16  the first answer to an op_id
deadlines  <queue> ms u64, lane no u32, kind u8, number u64   (no value)

<queue> = topic length u8, topic, queue id u32       <lane> = <queue> 'P' lane no u32
"""

import struct
from functools import lru_cache
from typing import NamedTuple

__all__ = [
    "DEADLINE_BATCH",
    "DEADLINE_PAGE",
    "DEADLINE_PARKED",
    "NEVER_MS",
    "DeadlineRef",
    "deadline_key",
    "end_of_prefix",
    "lane_prefix",
    "op_key",
    "queue_prefix",
    "read_deadline_key",
]

DEADLINE_PAGE = 0
DEADLINE_PARKED = 1
DEADLINE_BATCH = 2

NEVER_MS = (1 << 63) - 1
"""Later than every deadline."""

_DEADLINE = struct.Struct(">QIBQ")


class DeadlineRef(NamedTuple):
    """What falls due at `deadline_ms`: a page of deliveries, a parked pop or the batch of a lane."""

    deadline_ms: int
    lane_no: int
    kind: int
    number: int


@lru_cache(maxsize=65_536)
def queue_prefix(topic: str, queue_id: int) -> bytes:
    """Common prefix of every key of one queue.

    >>> queue_prefix("t", 1).hex()
    '017400000001'
    """
    name = topic.encode()
    return bytes((len(name),)) + name + queue_id.to_bytes(4, "big")


def lane_prefix(queue: bytes, lane_no: int) -> bytes:
    """Common prefix of the paged keys of one lane."""
    return queue + b"P" + lane_no.to_bytes(4, "big")


def op_key(queue: bytes, op_id: str, page: int = 0) -> bytes:
    """Key of the remembered answer of an op_id, or of a further page of it."""
    name = op_id.encode()
    return queue + bytes((len(name),)) + name + page.to_bytes(2, "big")


def deadline_key(queue: bytes, ref: DeadlineRef) -> bytes:
    """Key in the ordered index of deadlines."""
    return queue + _DEADLINE.pack(*ref)


def read_deadline_key(queue: bytes, key: bytes) -> DeadlineRef:
    """The reference in a key of the index, the queue's prefix being known."""
    return DeadlineRef._make(_DEADLINE.unpack_from(key, len(queue)))


def end_of_prefix(prefix: bytes) -> bytes:
    """The first key after every key that starts with `prefix`.

    >>> end_of_prefix(b"ab"), end_of_prefix(b"a" + bytes([255]))
    (b'ac', b'b')
    """
    trimmed = prefix.rstrip(b"\xff")
    return trimmed[:-1] + bytes((trimmed[-1] + 1,))
