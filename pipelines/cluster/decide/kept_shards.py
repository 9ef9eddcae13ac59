"""The shards that a Python worker keeps in memory between micro-batches.

Spark gives a partition of the state to another worker when executors come and go, or are busy. What a worker has left
of it would stay there for ever; so a shard that had no records for some minutes is dropped, and if it has any again it
is loaded. The number is bounded besides, well above what a worker has while half of the executors are away.
"""

import time
from collections import OrderedDict
from collections.abc import Callable

from pipelines.cluster.decide.shard import Shard, ShardMeta

__all__ = ["KeptShards"]

Place = tuple[str, int]
"""(run of the query, partition of the ops topic)."""


IDLE_S_MAX = 300.0


class KeptShards:
    """Shards by their place; those that were used least lately are dropped.

    >>> KeptShards().limit_for(shards_per_task=8)
    32

    Args:
        clock: Returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._shards: OrderedDict[Place, tuple[Shard, float]] = OrderedDict()
        """Each with the time of its last use."""

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._shards)

    @staticmethod
    def limit_for(shards_per_task: int) -> int:
        """Return how many shards are kept at most where a task has as many, about."""
        return 4 * shards_per_task

    def get(self, place: Place, meta: ShardMeta) -> Shard | None:
        """Return a shard whose memory agrees with the stored `meta`; None: load it. One that does not is dropped."""
        self._drop_idle()
        found = self._shards.get(place)
        if found is None:
            return None
        shard, _ = found
        if shard.meta != meta:
            self.drop(place)
            return None
        self._shards[place] = shard, self._clock()
        self._shards.move_to_end(place)
        return shard

    def load(self, place: Place, shards_max: int, load: Callable[[], Shard]) -> Shard:
        """Load a shard, once there is room for it, and keep it.

        Args:
            place: Its place.
            shards_max: How many may be kept with it.
            load: Loads it.
        """
        for other in [other for other in self._shards if other[0] != place[0]]:  # of a query that has ended
            self.drop(other)
        while len(self._shards) >= max(1, shards_max):
            self.drop(next(iter(self._shards)))
        shard = load()
        self._shards[place] = shard, self._clock()
        return shard

    def drop(self, place: Place) -> None:
        """Forget a shard: its memory may be ahead of the state."""
        shard, _ = self._shards.pop(place, (None, 0.0))
        if shard is not None:
            shard.close()

    def _drop_idle(self) -> None:
        while self._shards:
            place, (_, used_s) = next(iter(self._shards.items()))
            if self._clock() - used_s <= IDLE_S_MAX:
                return
            self.drop(place)
