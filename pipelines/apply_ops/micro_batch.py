"""apply_ops: one micro-batch in six steps - decode, order, prefetch, decide, write, publish.

The WriteBatch of step 5 is the moment of truth: before it nothing has happened, after it everything will. Whatever
leaves the job (answers, notifications, dead letters, audit rows) leaves from the outbox, so a micro-batch that Spark
runs again is never decided again.
"""

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol

from broker_state.kernel.fold import fold
from broker_state.kernel.op_context import Decision, OpRecord
from broker_state.kernel.queue_state import QueueState
from broker_state.kernel.validation import is_op_id, is_queue_name
from broker_state.store.keys import op_key, queue_prefix
from broker_state.store.overlay import Overlay
from broker_state.store.rocks_store import META, RocksStore
from checkpoints.applied import APPLIED_KEY, NOTED_KEY, Applied, encode_noted
from checkpoints.attempts import Attempts
from pipelines.apply_ops.crash_loop import Breaker, UndecidableError
from pipelines.apply_ops.decode import Decoder, KafkaRecord, Rejected
from pipelines.apply_ops.outbox import Entry, Outbox
from pipelines.apply_ops.outbox_entries import entries_of
from pipelines.apply_ops.quarantine import Quarantine
from pipelines.apply_ops.source import MicroBatch
from pipelines.failpoints import failpoint
from popstream.wire.failures import PopstreamError, Unavailable
from popstream.wire.handle import Signer
from popstream.wire.reason import CODE_OF_REASON, Reason

__all__ = ["PIPELINE", "ApplyOps", "BatchReport", "Plans", "Records"]

PIPELINE = "apply_ops"
"""Its name for Spark and Delta."""


class Plans(Protocol):
    """What says how far micro-batches reach: Spark's checkpoint (`SparkPlans`)."""

    @property
    def query_id(self) -> str:
        """Of the query whose micro-batches these are."""

    def end_of(self, batch_id: int) -> dict[int, int]:
        """The offset after the last of a micro-batch, by partition; raises Unavailable when it is not known."""


class Records(Protocol):
    """What has the records of a micro-batch: Spark's frame (`Intake`)."""

    def records(self, micro_batch: MicroBatch) -> Iterator[list[KafkaRecord]]:
        """Its records by (partition, kafka offset), in slices that fit in memory."""


class BatchReport:
    """What one micro-batch did and how long each step took; `seconds` is by step name."""

    __slots__ = (
        "apply_seq",
        "newest_ms",
        "operations",
        "records",
        "refused",
        "rejected",
        "seconds",
        "touched",
        "write_batch_bytes",
    )

    def __init__(self) -> None:
        self.newest_ms = 0
        self.touched: set[QueueState] = set()
        self.apply_seq = 0
        self.records = 0
        self.operations = 0
        self.refused = 0
        self.rejected = 0
        self.write_batch_bytes = 0
        self.seconds: dict[str, float] = {}

    def count(self, outcome: "_Outcome") -> None:
        """Add what was written."""
        self.touched |= outcome.touched
        self.records += outcome.records
        self.operations += outcome.operations
        self.rejected += len(outcome.rejected)
        # A pop that found nothing has a code, and was not refused.
        expected = {0, CODE_OF_REASON[Reason.NO_MESSAGE]}
        self.refused += sum(1 for row in outcome.decision.operations if row.code not in expected)


class ApplyOps:
    """What becomes of the micro-batches of the ops topic, in their order.

    Args:
        store: The state; this object is its only writer.
        require_ownership: Raises Fenced when that is over; asked before each write.
        outbox: The outbox in it.
        attempts: Counts how often a micro-batch was tried.
        quarantine: Records of which nothing is decided.
        applied: How far the log is decided.
        decoder: Step 1.
        intake: Has the records of a micro-batch.
        plans: Which range each micro-batch was planned to have.
        results_partitions: Partitions of the results topic; answers for others go nowhere.
        signer: Signs handles on their way out, if handles are signed.
        delivered: By table, the last apply_seq that is in Delta for good.
        publish: Called with the new entries after each write; it must not block for long.
        after_batch: Called last, with the report and the earliest deadline of each queue touched.
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
        decoder: Decoder,
        intake: Records,
        plans: Plans,
        results_partitions: int,
        signer: Signer | None,
        delivered: Callable[[], Mapping[str, int]],
        publish: Callable[[list[Entry]], None],
        after_batch: Callable[[BatchReport, Mapping[tuple[str, int], int], int], None],
    ) -> None:
        self._store = store
        self._require_ownership = require_ownership
        self._outbox = outbox
        self._attempts = attempts
        self._quarantine = quarantine
        self.applied = applied
        self._decoder = decoder
        self._intake = intake
        self._plans = plans
        self._results_partitions = results_partitions
        self._signer = signer
        self._delivered = delivered
        self._publish = publish
        self._after_batch = after_batch
        self._overlay = Overlay(store)

    def __call__(self, micro_batch: MicroBatch) -> None:
        """Apply one micro-batch; any exception ends the job."""
        report = BatchReport()
        report.seconds["fetch"] = micro_batch.fetch_seconds
        batch_id = micro_batch.spark_batch_id
        breaker = Breaker(
            self._attempts,
            self._quarantine,
            lambda slices, end_offset: self._try_to_apply(slices, end_offset, batch_id, report),
            lambda: self.applied.next_offset,
        )
        breaker.run(lambda: self._intake.records(micro_batch), self._planned(batch_id))
        deadlines = {(queue.topic, queue.queue_id): queue.deadlines.earliest_ms for queue in report.touched}
        self._after_batch(report, deadlines, report.newest_ms)

    def _try_to_apply(
        self, slices: Iterable[list[KafkaRecord]], end_offset: dict[int, int], batch_id: int, report: BatchReport
    ) -> None:
        try:
            self._apply(slices, end_offset, batch_id, report)
        except BaseException:
            # What was decided in memory and not written is of no state that ever was.
            self._overlay = Overlay(self._store)
            raise

    def _apply(
        self, slices: Iterable[list[KafkaRecord]], end_offset: dict[int, int], batch_id: int, report: BatchReport
    ) -> None:
        """Decide records and write what came of them as one WriteBatch, unless there is nothing to write.

        Raises:
            UndecidableError: Something unforeseen was raised by what is pure; nothing was written.
        """
        outcome = _Outcome()
        failpoint("decode")
        started = time.perf_counter()
        for records in slices:
            _lap(report, "fetch", started)
            with self._pure():
                self._decide(records, outcome, report)
            started = time.perf_counter()
        if not outcome.records and end_offset == self.applied.next_offset:
            return
        applied = self.applied.after(end_offset, self._plans.query_id, batch_id)
        entries = self._write(applied, outcome, report)
        report.count(outcome)
        started = time.perf_counter()
        failpoint("publish")
        self._publish(entries)
        _lap(report, "publish", started)

    @contextlib.contextmanager
    def _pure(self) -> Iterator[None]:
        """What is unforeseen in here is about the records: nothing that is not goes in."""
        try:
            yield
        except PopstreamError:
            raise
        except Exception as error:
            message = f"{type(error).__name__}: {error}"
            raise UndecidableError(message) from error

    def _decide(self, records: list[KafkaRecord], outcome: "_Outcome", report: BatchReport) -> None:
        """Steps 1 to 4 for one slice; what was decided before is left out."""
        started = time.perf_counter()
        operations: list[OpRecord] = []
        for record in records:
            report.newest_ms = max(report.newest_ms, record.timestamp_ms)
            if record.kafka_offset < self.applied.next_offset.get(record.partition, 0):
                continue
            outcome.records += 1
            command = self._quarantine.decode(record, self._decoder)
            if isinstance(command, Rejected):
                outcome.rejected.append(command)
            else:
                operations.append(command)
        started = _lap(report, "decode", started)
        failpoint("order")
        failpoint("prefetch")
        self._prefetch(operations)
        started = _lap(report, "prefetch", started)
        failpoint("decide")
        outcome.touched |= fold(self._overlay, operations, outcome.decision)
        outcome.operations += len(operations)
        _lap(report, "decide", started)

    def _planned(self, batch_id: int) -> dict[int, int]:
        """The range of this micro-batch ends here; it must start where the log is decided, or before."""
        topic = self.applied.ops_topic
        ends = self._plans.end_of(batch_id)
        if batch_id:
            starts = self._plans.end_of(batch_id - 1)
            for partition, start in starts.items():
                decided = self.applied.next_offset.get(partition, 0)
                if start > decided:
                    message = f"{topic} partition {partition} is decided up to {decided}, but Spark goes on at {start}"
                    raise Unavailable(message, subject=topic)  # the next start plans from the state's offsets
        return {p: max(end, self.applied.next_offset.get(p, 0)) for p, end in ends.items()}

    def _prefetch(self, operations: list[OpRecord]) -> None:
        """One multi-get for the op_ids: nearly all are new, and to know that takes a read each."""
        keys = []
        for operation in operations:
            command = operation.command
            if command.op_id is None or operation.misrouted or not is_op_id(command.op_id):
                continue
            if is_queue_name(command.topic, command.queue_id):
                keys.append(op_key(queue_prefix(command.topic, command.queue_id), command.op_id))
        self._overlay.prefetch_ops(keys)

    def _write(self, applied: Applied, outcome: "_Outcome", report: BatchReport) -> list[Entry]:
        """Step 5; what is to be published then."""
        started = time.perf_counter()
        failpoint("write")
        self._require_ownership()
        with self._pure():
            entries = entries_of(
                outcome.decision,
                outcome.rejected,
                applied.apply_seq,
                results_partitions=self._results_partitions,
                signer=self._signer,
            )
            # Entries leave only for what is noted here, so that tables that lose commits later on are found out.
            noted = (META, NOTED_KEY, encode_noted(self._delivered()))
            own = [(META, APPLIED_KEY, applied.encode()), noted, *self._outbox.changes(entries)]
            report.write_batch_bytes = self._store.write(self._overlay, own)
        self._outbox.written(entries)
        self.applied = applied
        report.apply_seq = applied.apply_seq
        _lap(report, "write", started)
        return entries


class _Outcome:
    """What is known of one WriteBatch before it is written."""

    def __init__(self) -> None:
        self.decision = Decision()
        self.rejected: list[Rejected] = []
        self.touched: set[QueueState] = set()
        self.records = 0
        self.operations = 0


def _lap(report: BatchReport, step: str, started: float) -> float:
    now = time.perf_counter()
    report.seconds[step] = report.seconds.get(step, 0.0) + now - started
    return now
