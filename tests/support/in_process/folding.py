"""A log of the ops topic, decided with the kernel alone, cut into micro-batches at will."""

from __future__ import annotations

import hashlib
import random
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol

from broker_state.kernel.context.decision import Decision, OpRecord
from broker_state.kernel.context.queue_state import QueueState
from broker_state.kernel.fold import fold
from broker_state.store.overlay import CACHE_BYTES, DEADLINES, OPS, STATE, Kv, Overlay
from pipelines.decide_ops.decode import Decoder, KafkaRecord, Rejected
from pipelines.decide_ops.entries import entries_of
from tests.model.generator import PARTITIONS, iterate

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tests.model.reference_model import Record

__all__ = [
    "KERNEL_FAMILIES",
    "RESULTS_PARTITIONS",
    "Folded",
    "Folding",
    "decoded",
    "one_batch",
    "random_cuts",
    "records_of",
]

KERNEL_FAMILIES = (STATE, OPS, DEADLINES)
RESULTS_PARTITIONS = 3


class Store(Kv, Protocol):
    """A `Kv` that can be written: `MemoryKv` and `RocksStore`."""

    def write(self, overlay: Overlay) -> object:
        """Take what the overlay changed."""


class Folded:
    """All that came out of a log, in the order of its records, however it was cut."""

    def __init__(self) -> None:
        self.answers: list[tuple[int | None, bytes]] = []
        self.rows: dict[str, list[Any]] = {"operations": [], "deliveries": [], "commit_positions": [], "rejected": []}
        self.notifications: list[Any] = []
        self.dead_letters: list[Any] = []
        self.largest_entry = 0

    def add(self, decision: Decision, rejected: Sequence[Rejected]) -> None:
        """What one micro-batch led to."""
        entries = entries_of(decision, rejected, 1, results_partitions=RESULTS_PARTITIONS, signer=None)
        self.largest_entry = max(self.largest_entry, *(len(entry.value) for entry in entries), 0)
        self.answers += decision.answers
        self.notifications += decision.notifications
        self.dead_letters += decision.dead_letters
        self.rows["operations"] += decision.operations
        self.rows["deliveries"] += decision.deliveries
        self.rows["commit_positions"] += decision.commit_positions
        self.rows["rejected"] += [each.row for each in rejected]

    def digest(self) -> str:
        """One text for all of it; the size of outbox entries depends on the cut and is left out."""
        everything = (self.answers, self.rows, self.notifications, self.dead_letters)
        return hashlib.sha256(repr(everything).encode()).hexdigest()


class Folding:
    """Decides micro-batches over `store`, as MicroBatchApplier does, without Spark, Kafka and Delta."""

    def __init__(self, store: Store, *, partitions: int = PARTITIONS, cache_bytes: int = CACHE_BYTES) -> None:
        self.store = store
        self.folded = Folded()
        self.touched: set[QueueState] = set()
        """By the last micro-batch."""
        self._decoder = Decoder(partitions)
        self._overlay = Overlay(store, cache_bytes)

    def decide(self, records: Iterable[Record | KafkaRecord]) -> Decision:
        """One micro-batch."""
        decision = Decision()
        rejected: list[Rejected] = []
        operations: list[OpRecord] = []
        for command in decoded(records, self._decoder):
            if isinstance(command, Rejected):
                rejected.append(command)
            else:
                operations.append(command)
        self.touched = fold(self._overlay, operations, decision)
        self.store.write(self._overlay)
        self.folded.add(decision, rejected)
        return decision

    def decide_all(self, records: Sequence[Record | KafkaRecord], cuts: Sequence[int]) -> Folded:
        """The whole log, a micro-batch from each of `cuts` to the next."""
        for first, end in pairwise((0, *cuts, len(records))):
            self.decide(records[first:end])
        return self.folded


def decoded(records: Iterable[Record | KafkaRecord], decoder: Decoder) -> Iterator[OpRecord | Rejected]:
    """Step 1."""
    for record in records:
        if isinstance(record, KafkaRecord):
            yield decoder.decode(record)
        else:
            yield decoder.decode(KafkaRecord(*record, value_bytes=len(record.value)))


def records_of(seed: int, count: int) -> list[Record]:
    """A generated log with handles that the kernel gave out at that place."""
    return list(iterate(seed, count))


def one_batch(_: Sequence[Record]) -> list[int]:
    """No cut at all."""
    return []


def random_cuts(records: Sequence[Record | KafkaRecord], seed: int) -> list[int]:
    """A few cuts, now close together and now far apart."""
    chance = random.Random(seed)
    return sorted(chance.sample(range(1, len(records)), chance.choice([1, 5, len(records) // 10])))
