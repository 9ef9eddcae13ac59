"""The deduplication ids of queues that a Python worker keeps from one micro-batch to the next.

Without them a queue's ids are read from its units. They count while the stored meta is that which they belong to.
"""

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from pipelines.build_units.accepted_ids import MemoryIds
from pipelines.cluster.queues.queue_shard import QueueMeta

__all__ = ["KeptIds"]

IDS_MAX = 2_000_000
"""Of all queues, some 250 bytes each; those of the queue that came last are kept in any case."""

IDLE_S_MAX = 600.0
"""A queue whose tasks run elsewhere is not met again here."""


class _Kept(NamedTuple):
    meta: QueueMeta
    ids: MemoryIds
    used_s: float


class KeptIds:
    """Ids by the name of their queue; those that were used least lately are dropped.

    Args:
        clock: Returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._run_id = ""
        self._kept: OrderedDict[str, _Kept] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of ids."""
        return sum(len(each.ids) for each in self._kept.values())

    def take(self, run_id: str, queue: str, meta: QueueMeta) -> MemoryIds | None:
        """Return the ids of a queue, which are no longer kept; None: they are not here, or of another meta.

        Args:
            run_id: Identity of the running query: those of another one are dropped.
            queue: Name of the queue.
            meta: What is stored of it.
        """
        if run_id != self._run_id:
            self._run_id = run_id
            self._kept.clear()
        found = self._kept.pop(queue, None)
        return found.ids if found is not None and found.meta == meta else None

    def keep(self, queue: str, meta: QueueMeta, ids: MemoryIds | None) -> None:
        """Keep the ids of a queue, if it has any."""
        if ids is not None:
            self._kept[queue] = _Kept(meta, ids, self._clock())
        while self._kept and (self._is_idle() or (len(self._kept) > 1 and len(self) > IDS_MAX)):
            self._kept.popitem(last=False)

    def _is_idle(self) -> bool:
        return self._clock() - next(iter(self._kept.values())).used_s > IDLE_S_MAX
