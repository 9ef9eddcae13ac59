"""What a job leaves behind, made without Spark and Kafka: a log, a state with an outbox, and Delta tables."""

from __future__ import annotations

import itertools
import shutil
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from broker_state.kernel.context.decision import Decision, OpRecord
from broker_state.kernel.fold import fold
from broker_state.store.overlay import Overlay
from broker_state.store.rocks_store import META, RocksStore
from checkpoints.applied import APPLIED_KEY, Applied
from checkpoints.reconcile import LogFound
from checkpoints.snapshot_store import SnapshotStore
from connectors.delta.all_columns import with_all_columns
from connectors.delta.rows import plain_rows
from connectors.delta.spark_schemas import spark_schema
from connectors.delta.tables import AUDIT_TABLES, TABLES, table_path
from pipelines.apply_ops.outbox import Outbox
from pipelines.decide_ops.decode import Decoder, KafkaRecord, Rejected
from pipelines.decide_ops.entries import entries_of, rows_by_table
from pipelines.decide_ops.entry import EntryKind
from pipelines.recovery.take_snapshot import take_snapshot
from pipelines.recovery.verify import Inputs, WorkFolder, run, verify
from pipelines.recovery.verify.decide_again import run_share
from pipelines.recovery.verify.plan import read_plan
from pipelines.recovery.verify.units import compare_units
from pipelines.recovery.verify.worker import UNITS
from popstream.exchange.partitioner import ops_key, partition_of
from popstream.kafka_connection import KafkaConnection
from popstream.wire.command import Command, encode_command
from tests.benchmarks.measured_operations import declare_queue, single_entry_ops

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    import pytest

    from pipelines.recovery.progress import Progress
    from pipelines.recovery.verify import ProgressReport, Verified
    from pipelines.recovery.verify.worker import VerifyTask

PARTITIONS = 3
TOPIC_ID = "ops-topic"
PARTITION_COLUMNS = {name: table.partitioned_by for name, table in TABLES.items()}


class WrittenTable:
    """A Delta table written by hand: a data file and a commit at a time."""

    def __init__(self, root: Path, name: str) -> None:
        self.path = table_path(root, name)
        self.name = name
        self.version = -1
        column = PARTITION_COLUMNS[name]
        metadata = {
            "id": name,
            "format": {"provider": "parquet", "options": {}},
            "schemaString": spark_schema(TABLES[name]).json(),
            "partitionColumns": [column] if column else [],
            "configuration": {},
        }
        protocol = {"minReaderVersion": 1, "minWriterVersion": 2}
        self.commit("CREATE TABLE", [{"protocol": protocol}, {"metaData": metadata}])

    def commit(self, operation: str, actions: Sequence[Mapping[str, Any]]) -> None:
        self.version += 1
        log = self.path / "_delta_log"
        log.mkdir(parents=True, exist_ok=True)
        lines = [{"commitInfo": {"operation": operation}}, *actions]
        (log / f"{self.version:020d}.json").write_bytes(b"\n".join(msgspec.json.encode(line) for line in lines) + b"\n")

    def append(self, rows: pa.Table, app_id: str | None = None, removed: Sequence[str] = ()) -> Path:
        """Write a file with these rows, and return it."""
        column = PARTITION_COLUMNS[self.name]
        file = self.path / f"part-{self.version + 1:05d}.parquet"
        pq.write_table(rows.drop_columns([column] if column else []), file, write_page_checksum=True)
        stats = msgspec.json.encode({"numRecords": rows.num_rows}).decode()
        added = {
            "path": file.name,
            "partitionValues": {column: "1970-01-01"} if column else {},
            "size": file.stat().st_size,
            "modificationTime": self.version,
            "dataChange": True,
            "stats": stats,
        }
        txn = [] if app_id is None else [{"txn": {"appId": app_id, "version": self.version}}]
        self.commit("WRITE", [*txn, *({"remove": {"path": path}} for path in removed), {"add": added}])
        return file


class VerifyScene:
    """A log of three partitions, decided by micro-batches; every second of them is in Delta, the last ones are not."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, *, messages: int = 40) -> None:
        self.root = root
        self.state, self.delta = root / "state", root / "delta"
        self.snapshots = SnapshotStore(str(root / "snapshots"))
        self.records: dict[int, list[KafkaRecord]] = {p: [] for p in range(PARTITIONS)}
        self.first_offset = dict.fromkeys(range(PARTITIONS), 0)
        self.tables = {name: WrittenTable(self.delta, name) for name in AUDIT_TABLES}
        self.files: dict[str, list[Path]] = {name: [] for name in AUDIT_TABLES}
        self.reports: list[ProgressReport] = []
        self.decided: list[tuple[int, int]] = []
        """(partition, offset) of each record that a verification has read."""
        self.decoder = Decoder(PARTITIONS)
        """Of the job and of the verification."""
        self.on_read: Callable[[int], None] = lambda _: None
        for command in commands(messages):
            self.send(command)
        self.send_raw(0, b"not an operation")
        monkeypatch.setattr(run, "_run", self._run_here)

    def send(self, command: Command) -> None:
        key = ops_key(command.topic, command.queue_id)
        self.send_raw(partition_of(key, PARTITIONS), encode_command(command), key)

    def send_raw(self, partition: int, value: bytes, key: bytes | None = None) -> None:
        log = self.records[partition]
        log.append(KafkaRecord(partition, len(log), 1_000 + len(log), key, value, len(value)))

    def decide(self, *, micro_batches: int = 6, in_delta: int = 4, snapshot_after: int | None = None) -> None:
        """Decide the log as a job does; the rows of the first `in_delta` micro-batches are flushed, two at a time."""
        decoder = self.decoder
        applied = Applied(state_epoch="epoch", ops_topic="ops", ops_topic_id=TOPIC_ID)
        with RocksStore(self.state) as store:
            outbox, overlay = Outbox(store), Overlay(store)
            waiting: dict[str, list[pa.Table]] = {name: [] for name in AUDIT_TABLES}
            for number in range(1, micro_batches + 1):
                decision, rejected, operations = Decision(), list[Rejected](), list[OpRecord]()
                end = {p: len(log) * number // micro_batches for p, log in self.records.items()}
                for partition, log in self.records.items():
                    for record in log[applied.next_offset.get(partition, 0) : end[partition]]:
                        found = decoder.decode(record)
                        rejected.append(found) if isinstance(found, Rejected) else operations.append(found)
                fold(overlay, operations, decision)
                applied = applied.after(end, "query", number)
                entries = entries_of(decision, rejected, number, results_partitions=1, signer=None)
                store.write(overlay, [(META, APPLIED_KEY, applied.encode()), *outbox.changes(entries)])
                outbox.written(entries)
                for name, rows in rows_by_table(decision, rejected).items():
                    waiting[name].append(self.completed(name, plain_rows(name, rows), number))
                if number <= in_delta and number % 2 == 0:
                    for name, pieces in waiting.items():
                        rows = pa.concat_tables(pieces)
                        if rows.num_rows:
                            self.files[name].append(self.tables[name].append(rows, f"apply_ops/{name}/epoch"))
                        pieces.clear()
                    outbox.delivered([each.key for each in outbox.undelivered(EntryKind.AUDIT)])
                if number == snapshot_after:
                    take_snapshot(store, None, self.root / "scratch", self.snapshots)
            self.applied = applied

    def completed(self, name: str, rows: pa.Table, seq: int) -> pa.Table:
        count = rows.num_rows
        added = {
            "apply_seq": pa.array([seq] * count, pa.int64()),
            "state_epoch": pa.repeat("epoch", count),
            "ops_topic_id": pa.repeat(TOPIC_ID, count),
            "op_date": pa.array([0] * count, pa.int32()).cast(pa.date32()),
        }
        return with_all_columns(AUDIT_TABLES[name], rows, added)

    @property
    def log(self) -> LogFound:
        end = {p: len(log) for p, log in self.records.items()}
        return LogFound(topic="ops", topic_id=TOPIC_ID, first_offset=self.first_offset, end_offset=end)

    @property
    def total(self) -> int:
        return sum(map(len, self.records.values()))

    def work(self) -> WorkFolder:
        return WorkFolder(self.root / "verify")

    def verify(self, *, is_copy: bool = False, **options: Any) -> Verified:
        """Verify the state; `is_copy`: a copy of it, as beside a running job."""
        incoming = self.work().incoming
        if is_copy:
            shutil.copytree(self.state, incoming / "state")
        inputs = Inputs(
            state=incoming / "state" if is_copy else self.state,
            queues=None,
            is_copy=is_copy,
            delta=self.delta,
            log=self.log,
            connection=KafkaConnection(""),
            snapshots=self.snapshots,
        )
        self.decided.clear()
        self.reports.clear()
        with self.work() as work:
            return verify(inputs, work, processes=2, on_report=self.reports.append, **options)

    def change_rows(self, name: str, change: Callable[[pa.Table], pa.Table]) -> None:
        """Replace the last data file of a table by one with other rows."""
        file = self.files[name].pop()
        with pq.ParquetFile(file) as found:
            rows = found.read()
        column = PARTITION_COLUMNS[name]
        assert column is not None
        rows = rows.append_column(column, pa.array([0] * rows.num_rows, pa.int32()).cast(pa.date32()))
        self.files[name].append(self.tables[name].append(change(rows), removed=[file.name]))

    def read(self, partition: int, first: int, end: int) -> Iterator[KafkaRecord]:
        for record in self.records[partition][first:end]:
            self.on_read(len(self.decided))
            self.decided.append((partition, record.kafka_offset))
            yield record

    def _run_here(self, tasks: Sequence[VerifyTask], progress: Progress, _: str | None) -> dict[int, msgspec.Raw]:
        results = {}
        for task in tasks:
            plan = read_plan(self.work().plan)
            assert plan is not None

            def note(doing: str, done: int, total: int, number: int = task.number) -> None:
                progress.note(str(number), doing, done, total)

            found: object
            if task.number == UNITS:
                found = compare_units(plan, self.work().units, {}, note)
            else:
                found = run_share(plan, task.number, self.work().share(task.number), self.decoder, self.read, note)
            results[task.number] = msgspec.Raw(msgspec.json.encode(found))
        return results


def commands(messages: int) -> Iterator[Command]:
    """Pops and acks on two queues of two partitions."""
    for queue_id in (0, 1, 2, 3):
        yield from declare_queue("orders", queue_id, messages)
    streams = [single_entry_ops("orders", queue_id, "billing", messages, held=5) for queue_id in (0, 1, 2, 3)]
    yield from itertools.chain.from_iterable(zip(*streams, strict=True))
