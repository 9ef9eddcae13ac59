"""What is brought of message topics, and the bookkeeping of bringing it, without Kafka.

`Wanted` is one call: which of its offsets are there, gone, late, or left. A `Block` is what was read of a queue in one
go, and tells of every offset in it whether it exists. `Kept` holds blocks that were read for one call and serve the
next ones. `Demand` is all calls that wait, and chooses what to read for them. None of them is safe for use by several
threads at once.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from popstream.outcome import QueueKey

__all__ = ["Block", "Demand", "FetchCounts", "Fetched", "Kept", "Payload", "Payloads", "Wanted", "merge_ranges"]

# What CPython needs for a record beyond the bytes of key, value and headers: 400 to 600.
RECORD_BYTES = 500
# Blocks that touch are made one up to here, so that reading record by record does not make many.
JOINED_BYTES_MAX = 256 * 1024
# An offset that does not come for so long lets the other needs of its queue go first; so does a queue that is read
# alone.
STALL_S = 0.5


class Payload(msgspec.Struct, frozen=True):
    """What a record of a message topic holds."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    timestamp_ms: int

    @property
    def size_bytes(self) -> int:
        """Bytes of key, value and headers.

        >>> Payload(b"k", b"four", [("n", b"22"), ("é", None)], 0).size_bytes
        10
        """
        headers_bytes = sum(len(name.encode()) + len(value or b"") for name, value in self.headers)
        return len(self.key or b"") + len(self.value or b"") + headers_bytes


class Fetched(msgspec.Struct, frozen=True):
    """Every offset asked for is in exactly one of these; `left` is what did not fit."""

    payloads: dict[int, Payload]
    gone: list[tuple[int, int]]
    late: list[tuple[int, int]]
    left: list[tuple[int, int]] = []


class FetchCounts(msgspec.Struct, frozen=True, kw_only=True):
    """What was read, against what was handed out; two calls that get the same record count it twice.

    Attributes:
        bytes_read: What came over the connections that payloads are read from, everything included: what was passed
            over, or transferred again. It is kafka-python's sensor `bytes-received`; without it (`metrics_enabled`
            false, or another kafka-python) sizes of the records read, as in `bytes_delivered`.
        bytes_delivered: Keys, values and headers handed out.
        records_read: Records read, also those that were passed over.
        records_delivered: Records handed out.
    """

    bytes_read: int = 0
    bytes_delivered: int = 0
    records_read: int = 0
    records_delivered: int = 0


class Payloads(Protocol):
    """Where a consumer gets its payloads from: Kafka, or memory in tests. Safe for use by many threads."""

    def fetch(
        self,
        topic: str,
        queue_id: int,
        ranges: Sequence[tuple[int, int]],
        timeout_s: float,
        bytes_max: int | None = None,
    ) -> Fetched:
        """Records of inclusive ranges of queue offsets.

        Args:
            topic: Message topic.
            queue_id: Its partition.
            ranges: In any order.
            timeout_s: What has not come by then is late.
            bytes_max: Bring so many bytes of keys, values and headers, in ascending order, but always one record; the
                rest is left.

        Raises:
            Unavailable: Kafka does not answer, or refuses.
            Corrupt: A record cannot be read: damaged, or compressed with a codec that is not installed here.
            Invalid: The topic may not be read.
            ClientClosed: This was closed.
        """

    def read(
        self, topic: str, queue_id: int, queue_offset: int, count: int, timeout_s: float
    ) -> list[tuple[int, Payload]]:
        """Up to `count` records from the first one at or after `queue_offset` on, with their queue offsets.

        Fewer at the end of what is committed, without waiting for more, or when the time is over.

        Raises:
            Invalid: The topic or the partition does not exist, or may not be read.
            Unavailable: Kafka does not answer, or refuses.
            Corrupt: A record cannot be read.
            ClientClosed: This was closed.
        """

    def queue_ids(self, topic: str) -> Sequence[int]:
        """The partitions of a topic.

        Raises:
            Invalid: It does not exist, or may not be read.
            Unavailable: Kafka does not answer.
            ClientClosed: This was closed.
        """

    def counts(self) -> FetchCounts:
        """What was read and handed out so far; of a fetcher that is shared, for all that share it."""

    def close(self) -> None:
        """Disconnect; a fetch that is under way ends first."""


def merge_ranges(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ranges in ascending order, those that touch or overlap made one.

    >>> merge_ranges([(5, 9), (0, 4), (12, 12), (8, 10)])
    [(0, 10), (12, 12)]
    """
    merged: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return merged


class Block:
    """All records of offsets `first..end - 1`: what is not among them does not exist."""

    def __init__(self, first: int, end: int, records: Sequence[tuple[int, Payload]] = ()) -> None:
        """Take records in ascending order."""
        self.first = first
        self.end = end
        self.payloads = dict(records)
        self.offsets = [offset for offset, _ in records]
        self.payload_bytes = sum(payload.size_bytes for _, payload in records)
        self.read_s = 0.0

    @property
    def size_bytes(self) -> int:
        """About what it takes in memory."""
        return self.payload_bytes + RECORD_BYTES * (1 + len(self.offsets))

    def between(self, first: int, end: int) -> list[int]:
        """Offsets that exist in `first..end - 1`.

        >>> Block(0, 9, [(n, Payload(None, None, [], 0)) for n in (2, 5, 7)]).between(3, 7)
        [5]
        """
        return self.offsets[bisect_left(self.offsets, first) : bisect_left(self.offsets, end)]

    def extend(self, following: Block) -> None:
        """Take over the block that starts where this one ends."""
        assert following.first == self.end
        self.end = following.end
        self.payloads |= following.payloads
        self.offsets += following.offsets
        self.payload_bytes += following.payload_bytes


class Wanted:
    """What one call wants of one partition, decided in ascending order.

    >>> wanted = Wanted([(0, 1), (4, 9)], bytes_max=3)
    >>> record = Payload(None, b"22", [], 0)
    >>> wanted.take(Block(0, 3, [(1, record), (2, record)]))
    >>> wanted.next_offset, wanted.result().late
    (4, [(4, 9)])
    >>> wanted.take(Block(4, 9, [(6, record)]))
    >>> found = wanted.result()
    >>> [*found.payloads], found.gone, found.late, found.left
    ([1], [(0, 0), (4, 5)], [], [(6, 9)])
    """

    def __init__(
        self, ranges: Sequence[tuple[int, int]], *, bytes_max: int | None = None, count_max: int | None = None
    ) -> None:
        """Bring at most so many bytes, but always one payload; and at most so many payloads."""
        self._undecided = deque(merge_ranges(ranges))
        self._bytes_max = bytes_max
        self._count_max = count_max
        self._is_full = False
        self._payloads: dict[int, Payload] = {}
        self._gone: list[tuple[int, int]] = []
        self.payload_bytes = 0

    @property
    def next_offset(self) -> int | None:
        """The first offset that is not decided; None when nothing more is wanted."""
        return None if self._is_full or not self._undecided else self._undecided[0][0]

    def take(self, block: Block) -> None:
        """Decide all that the block tells, beginning with the next offset."""
        while (at := self.next_offset) is not None and block.first <= at < block.end:
            first, last = self._undecided.popleft()
            at = self._take_range(block, first, min(last + 1, block.end))
            if at <= last:
                self._undecided.appendleft((at, last))

    def result(self) -> Fetched:
        """What became of each offset, if time is over now."""
        undecided = [*self._undecided]
        late, left = ([], undecided) if self._is_full else (undecided, [])
        return Fetched(self._payloads, self._gone, late, left)

    def _take_range(self, block: Block, first: int, end: int) -> int:
        at = first
        for offset in block.between(first, end):
            self._pass_over(at, offset)
            payload = block.payloads[offset]
            size_bytes = payload.size_bytes
            if self._payloads and self._bytes_max is not None and self.payload_bytes + size_bytes > self._bytes_max:
                self._is_full = True
                return offset
            self._payloads[offset] = payload
            self.payload_bytes += size_bytes
            at = offset + 1
            if len(self._payloads) == self._count_max or (
                self._bytes_max is not None and self.payload_bytes >= self._bytes_max
            ):
                self._is_full = True
                return at
        self._pass_over(at, end)
        return end

    def _pass_over(self, first: int, end: int) -> None:
        if first == end:
            return
        if self._gone and self._gone[-1][1] + 1 == first:
            first = self._gone.pop()[0]
        self._gone.append((first, end - 1))


class Kept:
    """Blocks that were read lately, of many queues; what was not used for longest is forgotten first.

    Args:
        bytes_max: About so much memory.
        age_s_max: Do not use what was read longer ago: a topic may have been deleted and made again.
    """

    def __init__(self, bytes_max: int, age_s_max: float) -> None:
        """Begin with nothing."""
        self._bytes_max = bytes_max
        self._age_s_max = age_s_max
        self._blocks: dict[QueueKey, list[Block]] = {}
        # In the order of their last use.
        self._queues: dict[Block, QueueKey] = {}
        self.size_bytes = 0

    def add(self, queue: QueueKey, block: Block, now_s: float) -> None:
        """Keep a block; `trim` follows when it has served those who wait for it."""
        blocks = self._blocks.setdefault(queue, [])
        before = next((known for known in blocks if known.end == block.first and self._is_fresh(known, now_s)), None)
        if before is not None and before.size_bytes + block.size_bytes <= JOINED_BYTES_MAX:
            # It stays as old as its first part.
            self.size_bytes -= before.size_bytes
            before.extend(block)
            self._use(before)
            self.size_bytes += before.size_bytes
        else:
            block.read_s = now_s
            blocks.append(block)
            self._queues[block] = queue
            self.size_bytes += block.size_bytes

    def serve(self, queue: QueueKey, wanted: Wanted, now_s: float) -> None:
        """Decide as much as can be decided from here."""
        while (at := wanted.next_offset) is not None:
            block = self._find(queue, at, now_s)
            if block is None:
                return
            self._use(block)
            wanted.take(block)

    def trim(self) -> None:
        """Forget until the rest fits."""
        while self.size_bytes > self._bytes_max:
            block, queue = next(iter(self._queues.items()))
            del self._queues[block]
            self._blocks[queue].remove(block)
            if not self._blocks[queue]:
                del self._blocks[queue]
            self.size_bytes -= block.size_bytes

    def clear(self) -> None:
        """Forget everything."""
        self._blocks.clear()
        self._queues.clear()
        self.size_bytes = 0

    def _find(self, queue: QueueKey, offset: int, now_s: float) -> Block | None:
        for block in reversed(self._blocks.get(queue, ())):
            if block.first <= offset < block.end and self._is_fresh(block, now_s):
                return block
        return None

    def _is_fresh(self, block: Block, now_s: float) -> bool:
        return now_s - block.read_s <= self._age_s_max

    def _use(self, block: Block) -> None:
        self._queues[block] = self._queues.pop(block)


class _Turn:
    """Which of the needed offsets of a queue is read: upwards, and past one that does not come.

    >>> turn = _Turn(now_s=0.0)
    >>> [turn.choose({3, 8}, now_s) for now_s in (0.0, 0.1, 0.6, 0.7, 1.2)]
    [3, 3, 8, 8, 3]
    """

    def __init__(self, now_s: float) -> None:
        self._floor = 0
        self.moved_s = now_s

    def choose(self, needs: set[int], now_s: float) -> int:
        if now_s - self.moved_s > STALL_S:
            self._floor += 1
            self.moved_s = now_s
        self._floor = min((need for need in needs if need >= self._floor), default=min(needs))
        return self._floor


Call = TypeVar("Call", bound=Wanted)


class Demand(Generic[Call]):
    """The calls that wait, and what serves them.

    Args:
        kept: What was read before.
    """

    def __init__(self, kept: Kept) -> None:
        """Begin with nobody."""
        self._kept = kept
        self._waiting: dict[QueueKey, list[Call]] = {}
        self._turns: dict[QueueKey, _Turn] = {}
        self._suspects: list[QueueKey] = []
        self._alone_until_s = 0.0

    def __bool__(self) -> bool:
        """Whether anybody waits."""
        return bool(self._waiting)

    def ask(self, queue: QueueKey, call: Call, now_s: float) -> bool:
        """Serve a call from what is kept; True when that is all of it. Otherwise it waits from now on."""
        self._kept.serve(queue, call, now_s)
        if call.next_offset is None:
            return True
        self._waiting.setdefault(queue, []).append(call)
        return False

    def withdraw(self, queue: QueueKey, call: Call) -> None:
        """Let a call wait no longer; one that does not wait is no error."""
        calls = self._waiting.get(queue, [])
        if call in calls:
            calls.remove(call)
            if not calls:
                del self._waiting[queue]
                self._turns.pop(queue, None)

    def targets(self, now_s: float) -> dict[QueueKey, int]:
        """The offset to read next in each queue that somebody waits for."""
        while self._suspects and (self._suspects[0] not in self._waiting or now_s > self._alone_until_s):
            self._clear(self._suspects[0], now_s)
        targets = {}
        for queue in self._suspects[:1] or self._waiting:
            needs = {offset for call in self._waiting[queue] if (offset := call.next_offset) is not None}
            targets[queue] = self._turns.setdefault(queue, _Turn(now_s)).choose(needs, now_s)
        return targets

    def bring(self, blocks: Mapping[QueueKey, Block], now_s: float) -> list[Call]:
        """Serve those who wait with what was read; the calls that are done with it wait no longer."""
        done: list[Call] = []
        for queue, block in blocks.items():
            self._kept.add(queue, block, now_s)
            if queue in self._turns:
                self._turns[queue].moved_s = now_s
            self._clear(queue, now_s)
            calls = self._waiting.get(queue, [])
            for call in calls:
                self._kept.serve(queue, call, now_s)
            done += self._end(queue, [call for call in calls if call.next_offset is None])
        self._kept.trim()
        return done

    def fail(self, targets: Mapping[QueueKey, int], now_s: float) -> list[Call]:
        """After an error in reading the targets: the calls that end with it, and wait no longer.

        Of several queues nobody knows which one it is about: none ends yet, they are read one by one now. Of a single
        one it is about the target, so that calls which want something else of the queue go on.
        """
        self._kept.clear()
        if len(targets) > 1:
            self._suspects, self._alone_until_s = [*targets], now_s + STALL_S
            return []
        ((queue, target),) = targets.items()
        self._clear(queue, now_s)
        return self._end(queue, [call for call in self._waiting.get(queue, ()) if call.next_offset == target])

    def fail_all(self) -> list[Call]:
        """After an error that is about everything: all calls, none of which waits any longer."""
        return [call for queue, calls in [*self._waiting.items()] for call in self._end(queue, [*calls])]

    def _end(self, queue: QueueKey, calls: list[Call]) -> list[Call]:
        for call in calls:
            self.withdraw(queue, call)
        return calls

    def _clear(self, queue: QueueKey, now_s: float) -> None:
        if queue in self._suspects:
            self._suspects.remove(queue)
            self._alone_until_s = now_s + STALL_S
