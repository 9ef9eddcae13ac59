"""A share of a verification: decides the log of some partitions again, and compares rows and state.

The state of a queue follows from the records of the queue alone, which are in one partition: shares know nothing of
each other, and each has a store of its own. What was decided, how far, and what differed is one WriteBatch per slice,
so a share that was killed anywhere goes on after its last slice.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec
import pyarrow as pa

from broker_state.store.keys import read_queue_prefix
from broker_state.store.rocks_store import META, RocksStore
from connectors.delta.pieces import Span, rows_between, rows_since
from connectors.delta.row_comparison import ROW_KEY, Comparison, comparable_schema, compare_rows, described_row
from connectors.delta.rows import plain_rows
from connectors.delta.tables import AUDIT_TABLES
from pipelines.apply_ops.quarantine import Quarantine
from pipelines.decide_ops.decode import Decoder, KafkaRecord
from pipelines.decide_ops.entries import rows_by_table
from pipelines.decide_ops.ops_decider import OpsDecider
from pipelines.decide_ops.order import TURN_RECORDS_MAX, TurnLength, in_turns, order
from pipelines.recovery.replay_source import Records
from pipelines.recovery.verify.plan import VerifyPlan
from pipelines.recovery.verify.state_comparison import KeyComparison, compare_states
from pipelines.recovery.verify.table_rows import PieceReader, audit_readers
from popstream.exchange.partitioner import ops_key, partition_of
from popstream.wire.base_errors import Corrupt, PopstreamError, without_restore

__all__ = ["RowResult", "ShareResult", "run_share"]

_PROGRESS_KEY = b"verify"


class RowResult(msgspec.Struct, kw_only=True):
    """The rows of one table. `in_outbox`: of the rows that are there, those that are not in Delta yet."""

    compared: Comparison
    in_outbox: int = 0


class ShareResult(msgspec.Struct, kw_only=True):
    """What a share has found so far.

    Attributes:
        slices: Slices of the plan that are done.
        records: Records decided again.
        rows: By audit table.
        keys: The keys of the state; empty until everything is decided.
        cpu_s: Seconds of CPU by step: read, decide, rows, compare, write.
    """

    slices: int = 0
    records: int = 0
    rows: dict[str, RowResult] = {}
    keys: KeyComparison = msgspec.field(default_factory=KeyComparison)
    cpu_s: dict[str, float] = {}


def run_share(
    plan: VerifyPlan,
    share: int,
    folder: Path,
    decoder: Decoder,
    records: Records,
    on_progress: Callable[[str, int, int], None],
) -> ShareResult:
    """Decide the partitions of a share again, from where an earlier process stopped, and compare.

    Args:
        plan: The verification.
        share: The number of the share.
        folder: Folder of its store; it may be a copy of the base.
        decoder: Decodes records as the job's does, with its keys.
        records: Reads the log.
        on_progress: Called with what is being done, and offsets done and in all.

    Raises:
        Corrupt: A file is damaged, or the log has lost records.
        Unavailable: Kafka does not answer, or the disk is full.
    """
    with RocksStore(Path(plan.state), read_only=True) as state, _recomputed(folder) as again:
        verifier = _Share(plan, plan.shares[share], state, again, decoder, records)
        total = plan.total(share)
        while verifier.decide_slice():
            on_progress("deciding the log again", verifier.offsets_done, total)
        on_progress("comparing the state", total, total)
        count = len(plan.first)
        ours = set(plan.shares[share]) or {0}

        def is_ours(queue: bytes) -> bool:
            partition = partition_of(ops_key(*read_queue_prefix(queue)), count)
            # Partitions without records belong to the first share.
            return partition in ours or (share == 0 and not any(partition in other for other in plan.shares))

        verifier.result.keys = compare_states(state, again, is_ours)
        return verifier.result


def _recomputed(folder: Path) -> RocksStore:
    """Open the store of a share: it belongs to the verification, and no restore mends it."""
    try:
        return RocksStore(folder)
    except Corrupt as error:
        message = f"{without_restore(error.message)}: begin the verification anew, `popstream verify --fresh`"
        raise Corrupt(message, subject=error.subject) from error


class _Share:
    def __init__(
        self,
        plan: VerifyPlan,
        partitions: list[int],
        state: RocksStore,
        again: RocksStore,
        decoder: Decoder,
        records: Records,
    ) -> None:
        self._plan = plan
        self._partitions = partitions
        self._store = again
        quarantine = Quarantine(state)
        self._decider = OpsDecider(again, partial(quarantine.decode, decoder=decoder))
        self._in_delta, self._waiting = audit_readers(plan, partitions, state)
        self._records = records
        stored = again.get(META, _PROGRESS_KEY)
        self.result = ShareResult() if stored is None else msgspec.msgpack.decode(stored, type=ShareResult)
        for name in AUDIT_TABLES:
            self.result.rows.setdefault(name, RowResult(compared=Comparison()))
        self._ends = [plan.first, *plan.slices]

    @property
    def offsets_done(self) -> int:
        """Offsets of the partitions in the slices that are done."""
        at = self._ends[self.result.slices]
        return sum(at[str(p)] - self._plan.first[str(p)] for p in self._partitions)

    def decide_slice(self) -> bool:
        """Decide and compare the next slice; return False if there is none."""
        number = self.result.slices
        if number == len(self._plan.slices):
            return False
        first, end = self._ends[number], self._ends[number + 1]
        slice_ = {str(p): (first[str(p)], end[str(p)]) for p in self._partitions}
        steps = _Steps(self.result.cpu_s)
        records = [
            record for partition in self._partitions for record in self._records(partition, *slice_[str(partition)])
        ]
        self.result.records += len(records)
        steps.lap("read")
        self._decide(records, slice_)
        decided = self._decider.written()
        steps.lap("decide")
        for name, rows in rows_by_table(decided.decision, decided.rejected).items():
            schema = comparable_schema(AUDIT_TABLES[name])
            recomputed = plain_rows(name, rows).select(schema.names).cast(schema)
            steps.lap("rows")
            self._compare(name, recomputed, slice_)
            steps.lap("compare")
        self.result.slices = number + 1
        self._store.write(self._decider.overlay, [(META, _PROGRESS_KEY, msgspec.msgpack.encode(self.result))])
        steps.lap("write")
        return True

    def _decide(self, records: Sequence[KafkaRecord], slice_: Mapping[str, Span]) -> None:
        try:
            for turn in in_turns(order(records, {}), TurnLength(TURN_RECORDS_MAX)):
                self._decider.decide_at_once(turn)
        except PopstreamError:
            raise
        except Exception as error:
            where = ", ".join(f"{first} to {end - 1} of partition {p}" for p, (first, end) in slice_.items())
            message = f"the records {where} cannot be decided again: {type(error).__name__}: {error}"
            raise PopstreamError(message, subject=self._plan.topic) from error

    def _compare(self, name: str, recomputed: pa.Table, slice_: Mapping[str, Span]) -> None:
        table = self._plan.tables[name]
        compared = {p: (max(first, table.compared_from.get(p, 0)), end) for p, (first, end) in slice_.items()}
        in_outbox = _rows(self._waiting[name], compared, recomputed.schema)
        found = pa.concat_tables([_rows(self._in_delta[name], compared, recomputed.schema), in_outbox])
        if compared != slice_:
            spans = {int(p): span for p, span in compared.items()}
            recomputed = rows_between(recomputed, "partition", "kafka_offset", spans)
        recomputed, found, in_outbox = (
            rows_since(rows, "now_ms", table.first_ms) for rows in (recomputed, found, in_outbox)
        )
        result = self.result.rows[name]
        result.compared.add(compare_rows(recomputed, found, ROW_KEY, described_row))
        result.in_outbox += in_outbox.num_rows


def _rows(reader: PieceReader, spans: Mapping[str, Span], schema: pa.Schema) -> pa.Table:
    return pa.concat_tables([schema.empty_table(), *reader.between(spans)])


class _Steps:
    """Adds the CPU time of this thread to steps, one after the other."""

    def __init__(self, cpu_s: dict[str, float]) -> None:
        self._cpu_s = cpu_s
        self._at = time.thread_time()

    def lap(self, step: str) -> None:
        now = time.thread_time()
        self._cpu_s[step] = self._cpu_s.get(step, 0.0) + now - self._at
        self._at = now
