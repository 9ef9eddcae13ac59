"""A new generation of every lane: handles from records that are lost must never match a later delivery.

A restored state whose log has lost its end would use epochs a second time. So the upper half of an epoch counts
generations, and the lower half deliveries; after such a restore the generation of every lane is raised. Leases that the
state knows keep their handles. A handle from the lost records belongs to no lease, and is answered STALE_HANDLE.
"""

from collections.abc import Iterable, Iterator

import msgspec

from broker_state.store.keys import QueueTag, queue_of_key
from broker_state.store.overlay import STATE, Change
from broker_state.store.state_records import LaneRecord, QueueRecord

__all__ = ["generation_of", "next_generation", "raise_generation"]

_SHIFT = 32


def generation_of(epoch: int) -> int:
    """Return the generation of an epoch.

    >>> generation_of(7), generation_of((3 << 32) + 7)
    (0, 3)
    """
    return epoch >> _SHIFT


def next_generation(epoch: int, used: int = 0) -> int:
    """Return the first epoch of the next generation, after that of `epoch` and after `used`.

    >>> next_generation(7) == 1 << 32, next_generation((3 << 32) + 7) == 4 << 32, next_generation(7, used=8) == 9 << 32
    (True, True, True)
    """
    return (max(generation_of(epoch), used) + 1) << _SHIFT


def raise_generation(state: Iterable[tuple[bytes, bytes]], used: int = 0) -> Iterator[Change]:
    """Yield the changes of the `state` family that raise the generation of every lane.

    Args:
        state: Keys and values in their order.
        used: The highest generation ever used; the state may be older.

    Raises:
        CorruptValueError: A record cannot be read.
    """
    prefix = b""
    for key, value in state:
        if not prefix or not key.startswith(prefix):
            prefix = queue_of_key(key)
        kind = key[len(prefix) : len(prefix) + 1]
        if kind == QueueTag.RECORD:
            queue = QueueRecord.decode(value)
            raised = msgspec.structs.replace(queue, epoch_base=next_generation(queue.epoch_base, used))
            yield STATE, key, raised.encode()
        elif kind == QueueTag.LANE:
            lane = LaneRecord.decode(value)
            epoch = next_generation(lane.epoch, used)
            yield STATE, key, msgspec.structs.replace(lane, epoch=epoch, reset_epoch=epoch).encode()
