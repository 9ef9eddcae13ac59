"""Decides slices of the ops log over a store, in any runner: decode, order, prefetch, decide, encode what leaves.

A runner reads the records, stores `overlay` where its state lies, and lets the entries leave: `pipelines/apply_ops`
with RocksDB on one machine, `pipelines/cluster` with the state of a Spark cluster. Where slices end, and which runner
decides them, has no effect on decisions.
"""

from collections.abc import Callable, Iterable

from broker_state.kernel.context.decision import Decision, OpRecord
from broker_state.kernel.context.queue_state import QueueState
from broker_state.kernel.fold import fold
from broker_state.store.overlay import CACHE_BYTES, Kv, Overlay
from pipelines.decide_ops.decode import KafkaRecord, Rejected
from pipelines.decide_ops.entries import entries_of, placed_entries, rows_by_table
from pipelines.decide_ops.entry import Entry, PlacedEntry
from pipelines.decide_ops.order import Ordered, Turn
from pipelines.decide_ops.prefetch import op_keys_of
from popstream.wire.handle import Signer
from popstream.wire.reason import CODE_OF_REASON, Reason

__all__ = ["Decided", "OpsDecider"]

_LISTS = ("operations", "deliveries", "commit_positions", "order_info", "answers", "notifications", "dead_letters")
"""What a decision has, each in the order of the records."""


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
    def refused(self) -> int:
        """Operations with an error code. A pop that found no message has a code, but was not refused."""
        expected = {0, CODE_OF_REASON[Reason.NO_MESSAGE]}
        return sum(1 for row in self.decision.operations if row.code not in expected)

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

    def decode(self, records: Iterable[KafkaRecord]) -> list[OpRecord | Rejected]:
        """Step 1: return the commands of records; values that are not commands are rejected."""
        return [self._decode(record) for record in records]

    def prefetch(self, ordered: Ordered) -> None:
        """Step 3, after `order`: read the op_ids of the operations at once."""
        self.overlay.prefetch_ops(op_keys_of(ordered.operations))

    def decide(self, turn: Turn) -> None:
        """Step 4: fold the operations of a turn over the overlay."""
        decided = self.decided
        decided.touched |= fold(self.overlay, turn.operations, decided.decision)
        decided.rejected += turn.rejected
        decided.ends.update(turn.ends)
        decided.records += len(turn.operations) + len(turn.rejected)

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
