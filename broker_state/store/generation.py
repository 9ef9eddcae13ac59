"""A new generation of every lane: what was handed out in a time that is lost must never be taken for something else.

A state that lost the end of its log gives out epochs that it had given out before. So the epoch of each lane leaves the
old numbers: its upper half counts generations, its lower half deliveries. Leases that the state knows keep their
handles; a handle of the lost time belongs to no lease, and is answered STALE_HANDLE.
"""

from collections.abc import Iterable, Iterator

import msgspec

from broker_state.store.keys import QueueTag
from broker_state.store.overlay import STATE, Change
from broker_state.store.records import LaneRecord, QueueRecord

__all__ = ["generation_of", "next_generation", "raise_generation"]

_SHIFT = 32


def generation_of(epoch: int) -> int:
    """How often the generation was raised before this epoch was given out.

    >>> generation_of(7), generation_of((3 << 32) + 7)
    (0, 3)
    """
    return epoch >> _SHIFT


def next_generation(epoch: int, used: int = 0) -> int:
    """The first epoch of the generation after that of `epoch`, and after `used`.

    >>> next_generation(7) == 1 << 32, next_generation((3 << 32) + 7) == 4 << 32, next_generation(7, used=8) == 9 << 32
    (True, True, True)
    """
    return (max(generation_of(epoch), used) + 1) << _SHIFT


def raise_generation(state: Iterable[tuple[bytes, bytes]], used: int = 0) -> Iterator[Change]:
    """What changes of the `state` family.

    Args:
        state: Keys and values in their order.
        used: The highest generation that was ever given out; the state may be older.

    Raises:
        CorruptValueError: A record cannot be read.
    """
    prefix = b""
    for key, value in state:
        if not prefix or not key.startswith(prefix):
            prefix = key[: 1 + key[0] + 4]
        kind = key[len(prefix) : len(prefix) + 1]
        if kind == QueueTag.RECORD:
            queue = QueueRecord.decode(value)
            raised = msgspec.structs.replace(queue, epoch_base=next_generation(queue.epoch_base, used))
            yield STATE, key, raised.encode()
        elif kind == QueueTag.LANE:
            lane = LaneRecord.decode(value)
            epoch = next_generation(lane.epoch, used)
            yield STATE, key, msgspec.structs.replace(lane, epoch=epoch, reset_epoch=epoch).encode()
