"""A shadow of RocketMQ's ConsumerOrderInfoManager (5.5.0: QueueLevelConsumerManager), written from its description.

One entry for each topic@group and queue: the latest pop of an orderly lane. Nothing of popstream is used here.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

__all__ = ["OrderEntry", "RocketOrders", "counts_others", "shown_counts"]

_BITS = 64
_IDLE_MS = 24 * 60 * 60 * 1000

Lane = tuple[str, str, int]
"""(topic, group, queue id)."""


@dataclass
class OrderEntry:
    """RocketMQ's OrderInfo. `bits`: acked members by index modulo 64, for it keeps them in a Java long."""

    pop_time_ms: int
    invisible_time_ms: int | None
    offsets: list[int]
    attempt_id: str | None
    consumed_ms: int
    counts: dict[int, int]
    visible_ms: dict[int, int] = field(default_factory=dict)
    bits: int = 0

    def is_acked(self, index: int) -> bool:
        """Whether RocketMQ takes the member with this index for acked."""
        return bool(self.bits >> index % _BITS & 1)

    @property
    def is_over_64(self) -> bool:
        """Whether two members share a bit."""
        return len(self.offsets) > _BITS

    def next_visible_ms(self, offset: int) -> int:
        """When a member is visible again."""
        return self.visible_ms.get(offset, self.pop_time_ms + (self.invisible_time_ms or 0))

    def unacked(self) -> Iterable[int]:
        """The members that count as unacked, in order."""
        return (offset for index, offset in enumerate(self.offsets) if not self.is_acked(index))

    def blocks(self, attempt_id: str | None, invisible_time_ms: int, now_ms: int) -> bool:
        """Whether a pop must wait; an entry without an invisible time takes over the caller's."""
        if not self.offsets or (self.attempt_id is not None and self.attempt_id == attempt_id):
            return False
        if (self.invisible_time_ms or 0) <= 0:
            self.invisible_time_ms = invisible_time_ms
        return any(now_ms < self.next_visible_ms(offset) for offset in self.unacked())

    def ack(self, offset: int, pop_time_ms: int) -> int:
        """The new consumer offset, -2 for another pop time, -1 for an offset that is no member."""
        if not self.offsets:
            return -1
        if pop_time_ms != self.pop_time_ms:
            return -2
        if offset not in self.offsets:
            return -1
        self.bits |= 1 << self.offsets.index(offset) % _BITS
        return next(iter(self.unacked()), self.offsets[-1] + 1)

    def lock_free_ms(self, now_ms: int) -> int | None:
        """The end of the first member that is still invisible, `now_ms` when there is none; others may block on."""
        for offset in self.unacked() if self.offsets else ():
            if (self.invisible_time_ms or 0) <= 0:
                return None
            if now_ms < self.next_visible_ms(offset):
                return self.next_visible_ms(offset)
        return now_ms if self.offsets else None

    def header(self, queue_id: int) -> dict[str, int]:
        """The order count header: the queue's minimum when every member is counted, and each counted offset."""
        least = min(self.counts.values(), default=0) if len(self.counts) == len(self.offsets) else 0
        each = {f"0@qo{queue_id}%{offset}": count for offset, count in self.counts.items()}
        return {f"0@{queue_id}": least, **each}

    def stored(self) -> dict[str, Any]:
        """The entry under the names of consumerOrderInfo.json."""
        first = self.offsets[0]
        return {
            "popTime": self.pop_time_ms,
            "i": self.invisible_time_ms,
            "o": [offset - first if index else offset for index, offset in enumerate(self.offsets)],
            "cm": self.bits - (1 << _BITS) if self.bits >> (_BITS - 1) else self.bits,
            "l": self.consumed_ms,
            "ot": {str(offset): ms for offset, ms in self.visible_ms.items()} or None,
            "oc": {str(offset): count for offset, count in self.counts.items()} or None,
            "a": self.attempt_id,
        }


class RocketOrders:
    """The manager: entries, the timers that wake waiting pops, and the topics and groups that there are."""

    def __init__(self) -> None:
        self.entries: dict[tuple[str, str], dict[int, OrderEntry]] = {}
        self.armed: dict[Lane, int] = {}
        """For when the timer of a lane was last armed."""
        self.topics: dict[str, int] = {"T": 1}
        """Numbers of read queues."""
        self.groups = {"G"}

    def entry(self, lane: Lane) -> OrderEntry | None:
        """The entry of a lane."""
        return self.entries.get(lane[:2], {}).get(lane[2])

    def update(
        self,
        lane: Lane,
        *,
        now_ms: int,
        pop_time_ms: int,
        invisible_time_ms: int | None,
        offsets: list[int],
        attempt_id: str | None,
    ) -> OrderEntry:
        """A pop got `offsets`: a new entry; of the old one the counts go on."""
        old = self.entry(lane)
        counts: dict[int, int] = {}
        if old is not None and old.attempt_id is not None and old.attempt_id == attempt_id:
            counts = dict(old.counts)
        elif old is not None:
            counts = {offset: old.counts.get(offset, 0) + 1 for offset in offsets if offset in old.offsets}
        entry = OrderEntry(pop_time_ms, invisible_time_ms, list(offsets), attempt_id, now_ms, counts)
        self.entries.setdefault(lane[:2], {})[lane[2]] = entry
        self._arm(lane, now_ms)
        return entry

    def blocks(self, lane: Lane, attempt_id: str | None, invisible_time_ms: int, now_ms: int) -> bool:
        """See `OrderEntry.blocks`."""
        queues = self.entries.setdefault(lane[:2], {})
        return lane[2] in queues and queues[lane[2]].blocks(attempt_id, invisible_time_ms, now_ms)

    def ack(self, lane: Lane, offset: int, pop_time_ms: int, now_ms: int) -> int:
        """See `OrderEntry.ack`; where an entry is lost, what follows `offset`."""
        entry = self.entry(lane)
        if entry is None:
            return offset + 1
        next_offset = entry.ack(offset, pop_time_ms)
        if next_offset >= 0:
            self._arm(lane, now_ms)
        return next_offset

    def change(self, lane: Lane, offset: int, pop_time_ms: int, next_visible_ms: int, now_ms: int) -> None:
        """Store a next visible time for any offset whatever; nothing for another pop time."""
        entry = self.entry(lane)
        if entry is not None and entry.pop_time_ms == pop_time_ms:
            entry.visible_ms[offset] = next_visible_ms
            self._arm(lane, now_ms)

    def clear(self, lane: Lane) -> None:
        """Forget a lane's entry."""
        self.entries.get(lane[:2], {}).pop(lane[2], None)

    def clean(self, now_ms: int) -> int:
        """One pass of autoClean; how many topic@group are left. One that a pass empties goes with the next one."""
        for (topic, group), queues in list(self.entries.items()):
            if "@" in topic or "@" in group:
                continue  # RocketMQ cannot take the key apart, and leaves it
            if topic not in self.topics or group not in self.groups or not queues:
                del self.entries[topic, group]
                continue
            for queue_id, entry in list(queues.items()):
                if queue_id >= self.topics[topic] or now_ms - entry.consumed_ms > _IDLE_MS:
                    del queues[queue_id]
        return len(self.entries)

    def _arm(self, lane: Lane, now_ms: int) -> None:
        entry = self.entry(lane)
        at_ms = entry.lock_free_ms(now_ms) if entry is not None else None
        if at_ms is not None:
            self.armed[lane] = at_ms


def shown_counts(header: dict[str, int], queue_id: int, offsets: Iterable[int]) -> dict[int, int]:
    """What RocketMQ's client shows for each offset: its own count, or the queue's minimum."""
    least = header.get(f"0@{queue_id}", 0)
    return {offset: header.get(f"0@qo{queue_id}%{offset}", least) for offset in offsets}


def counts_others(header: dict[str, int], queue_id: int, offsets: Iterable[int]) -> bool:
    """Whether the header counts offsets that were not handed out, of an earlier pop with the same attempt id."""
    counted = {key for key in header if key.startswith(f"0@qo{queue_id}%")}
    return not counted <= {f"0@qo{queue_id}%{offset}" for offset in offsets}
