"""apply_ops: one micro-batch in six steps - decode, order, prefetch, decide, write, publish.

The WriteBatch of step 5 is the moment of truth: before it nothing has happened, after it everything will. Whatever
leaves the job (answers, notifications, dead letters, audit rows) leaves from the outbox, so a micro-batch that Spark
runs again is never decided again.
"""

import time
from collections.abc import Callable, Mapping
from pathlib import Path

import structlog

from broker_state.batch import fold
from broker_state.errors import Corrupt
from broker_state.handle import Signer
from broker_state.kernel.limits import is_op_id, is_queue_name
from broker_state.kernel.queue_state import QueueState
from broker_state.kernel.turn import Decision, OpRecord
from broker_state.keys import op_key, queue_prefix
from broker_state.overlay import Overlay
from broker_state.reason import CODE_OF_REASON, Reason
from broker_state.rocks_store import META, RocksStore
from checkpoints.applied import APPLIED_KEY, Applied
from checkpoints.spark_progress import planned_end, query_id
from pipelines.decode import Decoder, Rejected
from pipelines.failpoints import failpoint
from pipelines.frames import entries_of
from pipelines.intake import Intake, MicroBatch
from pipelines.outbox import Entry, Outbox

__all__ = ["ApplyOps", "BatchReport"]

_log = structlog.get_logger(__name__)


class BatchReport:
    """What one micro-batch did and how long each step took; `seconds` is by step name."""

    __slots__ = ("apply_seq", "operations", "records", "refused", "rejected", "seconds", "write_batch_bytes")

    def __init__(self) -> None:
        self.apply_seq = 0
        self.records = 0
        self.operations = 0
        self.refused = 0
        self.rejected = 0
        self.write_batch_bytes = 0
        self.seconds: dict[str, float] = {}


class ApplyOps:
    """What becomes of the micro-batches of the ops topic, in their order.

    Args:
        store: The state; this object is its only writer.
        outbox: The outbox in it.
        applied: How far the log is decided.
        decoder: Step 1.
        intake: Has the records of a micro-batch.
        checkpoint: Spark's checkpoint, which has the planned ranges.
        results_partitions: Partitions of the results topic; answers for others go nowhere.
        signer: Signs handles on their way out, if handles are signed.
        publish: Called with the new entries after each write; it must not block for long.
        after_batch: Called last, with the report and the earliest deadline of each queue touched.
    """

    def __init__(
        self,
        *,
        store: RocksStore,
        outbox: Outbox,
        applied: Applied,
        decoder: Decoder,
        intake: Intake,
        checkpoint: Path,
        results_partitions: int,
        signer: Signer | None,
        publish: Callable[[list[Entry]], None],
        after_batch: Callable[[BatchReport, Mapping[tuple[str, int], int], int], None],
    ) -> None:
        self._store = store
        self._outbox = outbox
        self.applied = applied
        self._decoder = decoder
        self._intake = intake
        self._checkpoint = checkpoint
        self._results_partitions = results_partitions
        self._signer = signer
        self._publish = publish
        self._after_batch = after_batch
        self._overlay = Overlay(store)
        self._query_id = ""
        """Spark's id of the query, known once the query has written it."""

    def __call__(self, micro_batch: MicroBatch) -> None:
        """Apply one micro-batch; any exception ends the job."""
        report = BatchReport()
        report.seconds["fetch"] = micro_batch.fetch_seconds
        batch_id = micro_batch.spark_batch_id
        end_offset = self._planned(batch_id)
        decision = Decision()
        rejected: list[Rejected] = []
        touched: set[QueueState] = set()
        newest_ms = 0
        failpoint("decode")
        started = time.perf_counter()
        for records in self._intake.records(micro_batch):
            _lap(report, "fetch", started)
            started = time.perf_counter()
            operations: list[OpRecord] = []
            for record in records:
                newest_ms = max(newest_ms, record.timestamp_ms)
                if record.kafka_offset < self.applied.next_offset.get(record.partition, 0):
                    continue
                report.records += 1
                command = self._decoder.decode(record)
                if isinstance(command, Rejected):
                    rejected.append(command)
                else:
                    operations.append(command)
            started = _lap(report, "decode", started)
            failpoint("order")
            failpoint("prefetch")
            self._prefetch(operations)
            started = _lap(report, "prefetch", started)
            failpoint("decide")
            touched |= fold(self._overlay, operations, decision)
            report.operations += len(operations)
            started = _lap(report, "decide", started)
        report.rejected = len(rejected)
        # A pop that found nothing has a code, and was not refused.
        report.refused = sum(1 for row in decision.operations if row.code not in {0, CODE_OF_REASON[Reason.NO_MESSAGE]})
        if report.records or end_offset != self.applied.next_offset:
            self._write(report, decision, rejected, end_offset, batch_id)
        deadlines = {(queue.topic, queue.queue_id): queue.deadlines.earliest_ms for queue in touched}
        self._after_batch(report, deadlines, newest_ms)

    def _planned(self, batch_id: int) -> dict[int, int]:
        """The range of this micro-batch ends here; it must start where the log is decided, or before."""
        topic = self.applied.ops_topic
        ends = planned_end(self._checkpoint, batch_id, topic)
        if batch_id:
            starts = planned_end(self._checkpoint, batch_id - 1, topic)
            for partition, start in starts.items():
                decided = self.applied.next_offset.get(partition, 0)
                if start > decided:
                    message = f"{topic} partition {partition} is decided up to {decided}, but Spark goes on at {start}"
                    raise Corrupt(message, subject=topic)
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

    def _write(
        self,
        report: BatchReport,
        decision: Decision,
        rejected: list[Rejected],
        end_offset: dict[int, int],
        batch_id: int,
    ) -> None:
        started = time.perf_counter()
        self._query_id = self._query_id or query_id(self._checkpoint)
        applied = self.applied.after(end_offset, self._query_id, batch_id)
        entries = entries_of(
            decision,
            rejected,
            applied.apply_seq,
            results_partitions=self._results_partitions,
            signer=self._signer,
        )
        failpoint("write")
        changes = [(META, APPLIED_KEY, applied.encode()), *self._outbox.changes(entries)]
        report.write_batch_bytes = self._store.write(self._overlay, changes)
        self._outbox.written(entries)
        self.applied = applied
        report.apply_seq = applied.apply_seq
        started = _lap(report, "write", started)
        failpoint("publish")
        self._publish(entries)
        _lap(report, "publish", started)


def _lap(report: BatchReport, step: str, started: float) -> float:
    now = time.perf_counter()
    report.seconds[step] = report.seconds.get(step, 0.0) + now - started
    return now
