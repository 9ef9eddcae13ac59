"""One micro-batch of operations, applied in six steps: order, decode, prefetch, decide, write, publish.

A micro-batch is one WriteBatch, unless it takes longer than WRITE_AFTER_S to decide, because its operations are many or
large: then what is decided is written and answered, and the rest follows in the next WriteBatch.

The WriteBatch of step 5 is the commit. A crash before it leaves the state as it was, and the next start decides the
same records again. After it nothing is decided again: answers, notifications, dead letters and audit rows leave the job
from the outbox, which is part of the WriteBatch.
"""

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Protocol

from broker_state.kernel.context.decision import Decision
from broker_state.kernel.context.queue_state import QueueState
from broker_state.store.rocks_store import META, RocksStore
from checkpoints.applied import APPLIED_KEY, NOTED_KEY, Applied, encode_noted
from checkpoints.micro_batch_attempts import Attempts
from pipelines.apply_ops.crash_loop import CrashLoopBreaker, UndecidableError
from pipelines.apply_ops.outbox import Outbox
from pipelines.apply_ops.plans import Plans, end_of_micro_batch
from pipelines.apply_ops.quarantine import Quarantine
from pipelines.apply_ops.source import MicroBatch
from pipelines.decide_ops.decode import KafkaRecord
from pipelines.decide_ops.entry import Entry
from pipelines.decide_ops.ops_decider import Decided, OpsDecider
from pipelines.decide_ops.order import TurnLength, in_turns, order
from pipelines.failpoints import failpoint
from pipelines.laps import Lap, seconds_of
from popstream.wire.base_errors import PopstreamError
from popstream.wire.queue_name import QueueName

__all__ = ["STEPS", "MicroBatchApplier", "MicroBatchReport", "RecordSource"]

STEPS = ("order", "decode", "prefetch", "decide", "write", "publish")
"""The steps of a micro-batch: names of its fail-points, laps and metrics, in order (docs/design.md)."""


WRITE_AFTER_S = 0.5
"""A WriteBatch ends when its records have taken this long to decide. Where it ends has no effect on decisions."""


class RecordSource(Protocol):
    """Provides the records of a micro-batch (`OpsSource`)."""

    def records(self, micro_batch: MicroBatch) -> Iterator[list[KafkaRecord]]:
        """Yield the records in slices that fit in memory, in any order within a slice.

        Slices are in log order.
        """


class MicroBatchReport:
    """What one micro-batch did.

    Attributes:
        apply_seq: Number of its last WriteBatch; 0 if it wrote nothing.
        records: Records applied.
        operations: Records that were decided.
        refused: By reason, rows of `operations` with an error code.
        rejected: By reason, records that could not be read, lack a valid signature, or are quarantined.
        newest_ms: Timestamp of the newest record.
        touched: Queues whose state was read or changed.
        write_batch_bytes: Size of the last WriteBatch.
        before: How far the log was applied before it.
        after: How far the log is applied now.
        lap: It as a whole, from `fetch`, in which the records are taken over from Spark, to its last step or an error.
            These are its parts; between `fetch` and the first step it waits for the micro-batch before.
    """

    __slots__ = (
        "after",
        "apply_seq",
        "before",
        "lap",
        "newest_ms",
        "operations",
        "records",
        "refused",
        "rejected",
        "touched",
        "write_batch_bytes",
    )

    def __init__(self, fetch: Lap, applied: Applied) -> None:
        self.before = self.after = applied
        self.lap = Lap("micro_batch")
        self.lap.began_s = fetch.began_s
        self.lap.parts.append(fetch)
        self.apply_seq = 0
        self.records = 0
        self.operations = 0
        self.refused: Counter[str] = Counter()
        self.rejected: Counter[str] = Counter()
        self.newest_ms = 0
        self.touched: set[QueueState] = set()
        self.write_batch_bytes = 0

    @property
    def seconds(self) -> dict[str, float]:
        """The seconds of `fetch` and of each step."""
        return seconds_of(self.lap)

    def deadlines(self) -> dict[QueueName, int]:
        """Return the earliest deadline of each queue that it touched, in ms."""
        return {(queue.topic, queue.queue_id): queue.deadlines.earliest_ms for queue in self.touched}

    def step(self, name: str) -> Lap:
        """Pass the fail-point of a step, and return its lap, to be entered."""
        failpoint(name)
        return self.lap.part(name)

    def add(self, decided: Decided, apply_seq: int, write_batch_bytes: int) -> None:
        """Add a WriteBatch that is durable."""
        self.apply_seq = apply_seq
        self.write_batch_bytes = write_batch_bytes
        self.touched |= decided.touched
        self.records += decided.records
        self.operations += decided.records - len(decided.rejected)
        self.rejected.update(each.row.reason for each in decided.rejected)
        self.refused.update(decided.refused)


class MicroBatchApplier:
    """Applies the micro-batches of the ops topic, one after the other.

    Args:
        store: The state; this object is its only writer.
        require_ownership: Raises Fenced once another process owns the state; called before each write.
        outbox: The outbox in `store`.
        attempts: Counts the attempts at a micro-batch, across processes.
        quarantine: Records that are rejected undecided.
        applied: The offsets up to which the log is applied.
        decider: Decides over `store`, and decodes with `quarantine`.
        source: Provides the records of a micro-batch.
        plans: The planned range of each micro-batch.
        delivered: Returns, by table, the last apply_seq whose rows are durable in Delta.
        publish: Called with the new outbox entries after each write; must not block.
        trace: Called with the report of each micro-batch, also of one that has failed; must neither block nor raise.
        observe: Called with each decision once it is written and published, and with the queues that it touched; must
            neither block nor raise.
        after_micro_batch: Called at the end of a micro-batch with its report.
    """

    def __init__(
        self,
        *,
        store: RocksStore,
        require_ownership: Callable[[], None],
        outbox: Outbox,
        attempts: Attempts,
        quarantine: Quarantine,
        applied: Applied,
        decider: OpsDecider,
        source: RecordSource,
        plans: Plans,
        delivered: Callable[[], Mapping[str, int]],
        publish: Callable[[list[Entry]], None],
        after_micro_batch: Callable[[MicroBatchReport], None],
        observe: Callable[[Decision, Collection[QueueState]], None] = lambda _decision, _touched: None,
        trace: Callable[[MicroBatchReport], None] = lambda _: None,
    ) -> None:
        self._store = store
        self._require_ownership = require_ownership
        self._outbox = outbox
        self._attempts = attempts
        self._quarantine = quarantine
        self.applied = applied
        self._source = source
        self._plans = plans
        self._delivered = delivered
        self._publish = publish
        self._after_micro_batch = after_micro_batch
        self._observe = observe
        self._trace = trace
        self._decider = decider
        self._turn_length = TurnLength()

    def __call__(self, micro_batch: MicroBatch) -> None:
        """Apply one micro-batch; any exception ends the job."""
        report = MicroBatchReport(micro_batch.fetch, self.applied)
        spark_batch_id = micro_batch.spark_batch_id
        breaker = CrashLoopBreaker(
            self._attempts,
            self._quarantine,
            lambda slices, end_offset: self._try_to_apply(slices, end_offset, spark_batch_id, report),
            lambda: self.applied.next_offset,
        )
        try:
            with report.lap:
                end_offset = end_of_micro_batch(self._plans, spark_batch_id, self.applied)
                breaker.run(lambda: self._source.records(micro_batch), end_offset)
        finally:
            report.after = self.applied
            self._trace(report)
            report.lap.forget_errors()
        self._after_micro_batch(report)

    def _try_to_apply(
        self,
        slices: Iterable[list[KafkaRecord]],
        end_offset: dict[int, int],
        spark_batch_id: int,
        report: MicroBatchReport,
    ) -> None:
        try:
            self._apply(slices, end_offset, spark_batch_id, report)
        except BaseException:
            self._decider.give_up()
            raise

    def _apply(
        self,
        slices: Iterable[list[KafkaRecord]],
        end_offset: dict[int, int],
        spark_batch_id: int,
        report: MicroBatchReport,
    ) -> None:
        """Apply records, and the holes among them, up to `end_offset`: as one WriteBatch, or more if it takes long.

        1. order: by (partition, Kafka offset), without records that are already applied
        2. decode: bytes to commands; values that are not commands are rejected
        3. prefetch: one multi-get for the op_ids of the operations
        4. decide: fold the operations over the overlay
        5. write: state, outbox entries and offsets, as one synced WriteBatch
        6. publish: send the new outbox entries to Kafka

        Step 1 runs once for each slice, steps 2 to 4 for each turn of the partitions. Nothing is written if there is
        nothing to apply.

        Raises:
            UndecidableError: Steps 1 to 5 raised something unforeseen; nothing was written since the last WriteBatch.
        """
        decider, began_s = self._decider, time.perf_counter()
        for records in _fetched(slices, report):
            # Step 1: order
            with _pure(), report.step("order") as lap:
                lap.facts["records"] = len(records)
                report.newest_ms = max(report.newest_ms, *(record.timestamp_ms for record in records), 0)
                ordered = order(records, self.applied.next_offset)
            for turn in in_turns(ordered, self._turn_length):
                turn_began_s = time.perf_counter()
                if decider.decided.records and turn_began_s - began_s > WRITE_AFTER_S:
                    self._finish({**self.applied.next_offset, **decider.decided.ends}, spark_batch_id, report)
                    began_s = turn_began_s = time.perf_counter()
                with _pure():
                    # Step 2: decode
                    with report.step("decode"):
                        decoded = decider.decode(turn)
                    # Step 3: prefetch
                    with report.step("prefetch"):
                        decider.prefetch(decoded)
                    # Step 4: decide
                    with report.step("decide"):
                        decider.decide(decoded)
                self._turn_length.took(time.perf_counter() - turn_began_s)
        if decider.decided.records or end_offset != self.applied.next_offset:
            self._finish(end_offset, spark_batch_id, report)

    def _finish(self, end_offset: dict[int, int], spark_batch_id: int, report: MicroBatchReport) -> None:
        # Step 5: write
        with report.step("write") as lap:
            applied = self.applied.after(end_offset, self._plans.query_id, spark_batch_id)
            entries = self._write(applied, report, lap)
            decided = self._decider.written()
        # Step 6: publish
        with report.step("publish") as lap:
            lap.facts["entries"] = len(entries)
            self._publish(entries)
        self._observe(decided.decision, decided.touched)

    def _write(self, applied: Applied, report: MicroBatchReport, lap: Lap) -> list[Entry]:
        """Write the WriteBatch, and return its outbox entries."""
        self._require_ownership()
        decided = self._decider.decided
        lap.facts |= {"apply_seq": applied.apply_seq, "records": decided.records, "rows": decided.rows}
        with _pure():
            with lap.part("encode"):
                entries = self._decider.entries(applied.apply_seq)
            own = [(META, APPLIED_KEY, applied.encode()), *self._outbox.changes(entries)]
            # Audit entries leave the outbox only if this note says so: a table that loses commits later is noticed. It
            # is read after the changes, for a flush may end in between.
            own.append((META, NOTED_KEY, encode_noted(self._delivered())))
            with lap.part("write_batch") as writing:
                write_batch_bytes = self._store.write(self._decider.overlay, own)
            writing.facts["bytes"] = write_batch_bytes
        self._outbox.written(entries)
        self.applied = applied
        report.add(decided, applied.apply_seq, write_batch_bytes)
        return entries


def _fetched(slices: Iterable[list[KafkaRecord]], report: MicroBatchReport) -> Iterator[list[KafkaRecord]]:
    """Yield the slices, and add the time to read them to the lap `fetch`."""
    iterator = iter(slices)
    while True:
        with report.lap.part("fetch"):
            records = next(iterator, None)
        if records is None:
            return
        yield records


@contextlib.contextmanager
def _pure() -> Iterator[None]:
    """Attribute anything unforeseen in the block to the records; failures of the disk are PopstreamErrors."""
    try:
        yield
    except PopstreamError:
        raise
    except Exception as error:
        message = f"{type(error).__name__}: {error}"
        raise UndecidableError(message) from error
