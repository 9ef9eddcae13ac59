"""Decides the ops log over a store, in any runner: decode, prefetch, decide, encode what leaves.

A runner reads the records, stores `overlay` where its state lies, and lets the entries leave: `pipelines/apply_ops`
with RocksDB on one machine, `pipelines/cluster` with the state of a Spark cluster. Where the log is cut, and which
runner decides it, has no effect on decisions.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from broker_state.kernel.context.decision import Decision, OpRecord
from broker_state.kernel.context.queue_state import QueueState
from broker_state.kernel.fold import fold
from broker_state.store.overlay import CACHE_BYTES, Kv, Overlay
from pipelines.decide_ops.decode import KafkaRecord, Rejected
from pipelines.decide_ops.entries import entries_of, placed_entries, rows_by_table
from pipelines.decide_ops.entry import Entry, PlacedEntry
from pipelines.decide_ops.prefetch import op_keys_of
from popstream.wire.handle import Signer
from popstream.wire.reason import CODE_OF_REASON, Reason

__all__ = ["Decided", "Decoded", "OpsDecider"]

_LISTS = ("operations", "deliveries", "commit_positions", "order_info", "answers", "notifications", "dead_letters")
"""What a decision has, each in the order of the records."""


class Decoded(NamedTuple):
    """The commands of some records.

    Attributes:
        operations: In the order of the records.
        rejected: Records that are not commands, in their order.
        ends: The Kafka offset after the last record, by partition.
    """

    operations: list[OpRecord]
    rejected: list[Rejected]
    ends: dict[int, int]


class Decided:
    """What was decided since the last write.

    Attributes:
        decision: Answers, rows, notifications and dead letters.
        rejected: Records that could not be read, or are quarantined.
        touched: Queues whose state was read or changed.
        records: Records decided or rejected.
        ends: The offset after the last record, by partition.
    """

    __slots__ = ("decision", "ends", "records", "rejected", "touched")

    def __init__(self) -> None:
        self.decision = Decision()
        self.rejected: list[Rejected] = []
        self.touched: set[QueueState] = set()
        self.records = 0
        self.ends: dict[int, int] = {}

    def extend(self, later: "Decided") -> None:
        """Add what was decided of later records, before the same write."""
        for name in _LISTS:
            getattr(self.decision, name).extend(getattr(later.decision, name))
        self.rejected += later.rejected
        self.touched |= later.touched
        self.records += later.records
        self.ends.update(later.ends)

    @property
    def refused(self) -> Counter[str]:
        """Runs with an error code, by reason. A pop that found no message has a code, but was not refused."""
        expected = {0, CODE_OF_REASON[Reason.NO_MESSAGE]}
        refused: Counter[str] = Counter()
        for row, count in self.decision.operations.blocks():
            if row.code not in expected:
                refused[str(row.reason)] += count
        return refused

    @property
    def rows(self) -> int:
        """Rows for the audit tables."""
        return sum(map(len, rows_by_table(self.decision, self.rejected).values()))


class OpsDecider:
    """Decides records over one store; the methods are called in their order here.

    Args:
        kv: Reads the state as the last write left it.
        decode: Returns the command of a record, or why it has none.
        results_partitions: Partition count of the results topic; answers to other partitions are dropped.
        signer: Signs the handles in answers; None leaves them unsigned.
        cache_bytes: Bytes of keys and values, as stored, that are kept decoded.
    """

    def __init__(
        self,
        kv: Kv,
        decode: Callable[[KafkaRecord], OpRecord | Rejected],
        *,
        results_partitions: int = 0,
        signer: Signer | None = None,
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        self._kv = kv
        self._cache_bytes = cache_bytes
        self._decode = decode
        self._results_partitions = results_partitions
        self._signer = signer
        self.overlay = Overlay(kv, cache_bytes)
        """The changes that are to be written with the entries."""
        self.decided = Decided()

    def decode(self, records: Sequence[KafkaRecord]) -> Decoded:
        """Step 2: return the commands of records, which are in the order of each partition, and follow those before."""
        operations: list[OpRecord] = []
        rejected: list[Rejected] = []
        for record in records:
            decoded = self._decode(record)
            if isinstance(decoded, Rejected):
                rejected.append(decoded)
            else:
                operations.append(decoded)
        return Decoded(operations, rejected, {record.partition: record.kafka_offset + 1 for record in records})

    def prefetch(self, decoded: Decoded) -> None:
        """Step 3: read the op_ids of the operations at once."""
        self.overlay.prefetch_ops(op_keys_of(decoded.operations))

    def decide(self, decoded: Decoded) -> None:
        """Step 4: fold the operations over the overlay."""
        decided = self.decided
        decided.touched |= fold(self.overlay, decoded.operations, decided.decision)
        decided.rejected += decoded.rejected
        decided.ends.update(decoded.ends)
        decided.records += len(decoded.operations) + len(decoded.rejected)

    def decide_at_once(self, records: Sequence[KafkaRecord]) -> None:
        """Do the steps 2 to 4."""
        decoded = self.decode(records)
        self.prefetch(decoded)
        self.decide(decoded)

    def entries(self, apply_seq: int) -> list[Entry]:
        """Before step 5: return what leaves, numbered by the write that it belongs to."""
        return entries_of(
            self.decided.decision,
            self.decided.rejected,
            apply_seq,
            results_partitions=self._results_partitions,
            signer=self._signer,
        )

    def placed_entries(self) -> list[PlacedEntry]:
        """Before step 5, in place of `entries`: return what leaves by its place in the log."""
        return [
            *placed_entries(
                self.decided.decision,
                self.decided.rejected,
                results_partitions=self._results_partitions,
                signer=self._signer,
            )
        ]

    def written(self) -> Decided:
        """After step 5: begin the next write, and return what was decided for this one."""
        decided, self.decided = self.decided, Decided()
        return decided

    def give_up(self) -> None:
        """Forget what was decided and not written."""
        self.overlay = Overlay(self._kv, self._cache_bytes)
        self.decided = Decided()
