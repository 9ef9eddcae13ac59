"""The rate at which audit rows become Delta rows, and the time of a validation of them.

    python -m tests.benchmarks.delta_speed [rows of deliveries] [folder]

The rows are generated, without the state machine: 8 lanes; each pop leases 10 messages, 7 are acked in one range, 3
expire, are leased again by the next pop and then acked. So 5 rows of deliveries, 4 of operations and 2 of
commit_positions for 10 messages.
"""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path

import psutil

from broker_state.audit import CommitPositionRow, DeliveryRow, OperationRow
from connectors.delta.flusher import AuditFlusher
from connectors.delta.rows import encode_rows
from connectors.delta.session import build_session
from connectors.jars.resolve import spark_jars
from expectations.opened_tables import OpenedTables
from expectations.validate import validate

ROOT = Path(__file__).parents[2]
LANES = 8
ROWS_PER_BATCH = 20_000
NOW_MS = 1_795_262_400_000


Tables = dict[str, list[DeliveryRow] | list[OperationRow] | list[CommitPositionRow]]


class Turn:
    """Ten messages of a lane: popped by one record, and acked by the next; three expire and need two records more."""

    def __init__(self, number: int) -> None:
        self.lane = number % LANES
        round_number = number // LANES
        self.first_offset = round_number * 10
        self.first_epoch = round_number * 2 + 1
        self.first_record = number * 4
        self.client_id = f"client-{number % 50}"

    def deliveries(self) -> list[DeliveryRow]:
        """Return the steps of the leases."""
        # (record, ordinal, step, offsets, epoch and attempt, after how many ms the lease ends, cause)
        steps = (
            (0, 0, "leased", (0, 9), 0, 2, "pop"),
            (1, 0, "acked", (0, 6), 0, 2, "ack"),
            (2, 0, "expired", (7, 9), 0, 2, "deadline"),
            (2, 1, "leased", (7, 9), 1, 60_002, "pop"),
            (3, 0, "acked", (7, 9), 1, 60_002, "ack"),
        )
        return [
            DeliveryRow(
                partition=self.lane % 2,
                kafka_offset=self.first_record + record,
                ordinal=ordinal,
                now_ms=self._at_ms(record),
                topic="orders",
                queue_id=self.lane,
                group="billing",
                step=step,
                first_offset=self.first_offset + low,
                last_offset=self.first_offset + high,
                epoch=self.first_epoch + redelivered,
                revision=0,
                attempt=1 + redelivered,
                at_ms=self._at_ms(record),
                deadline_ms=self._at_ms(0) + lease_ms,
                cause=cause,
                client_id=self.client_id,
            )
            for record, ordinal, step, (low, high), redelivered, lease_ms, cause in steps
        ]

    def operations(self) -> list[OperationRow]:
        """Return two pops and two acks."""
        kinds = (("pop", 0, 9), ("ack", 0, 6), ("pop", 7, 9), ("ack", 7, 9))
        return [
            OperationRow(
                partition=self.lane % 2,
                kafka_offset=self.first_record + record,
                ordinal=0,
                now_ms=self._at_ms(record),
                kind=kind,
                topic="orders",
                queue_id=self.lane,
                group="billing",
                op_id=f"op-{self.first_record + record}",
                client_id=self.client_id,
                entry=None if kind == "pop" else 0,
                first_offset=self.first_offset + low,
                last_offset=self.first_offset + high,
                handle_before=None if kind == "pop" else f"1.{self.first_epoch:060d}",
                handle_after=f"1.{self.first_epoch:060d}" if kind == "pop" else None,
                code=0,
                reason="OK",
                applied=True,
                repeated=False,
                deadline_before_ms=None,
                deadline_after_ms=self._at_ms(record) + 60_000 if kind == "pop" else None,
                attempt=1,
                detail=None,
            )
            for record, (kind, low, high) in enumerate(kinds)
        ]

    def commit_positions(self) -> list[CommitPositionRow]:
        """Return the two moves of the commit offset."""
        return [
            CommitPositionRow(
                partition=self.lane % 2,
                kafka_offset=self.first_record + record,
                ordinal=0,
                now_ms=self._at_ms(record),
                topic="orders",
                queue_id=self.lane,
                group="billing",
                from_offset=self.first_offset + before,
                to_offset=self.first_offset + after,
                start_offset=0,
                next_offset=self.first_offset + 10,
                holes=0,
                acked=self.first_offset + after,
                leased=10 - after,
                available=0,
                parked=0,
                dead_lettered=0,
                expired_from_log=0,
                passed_over=0,
                skipped_by_reset=0,
            )
            for record, before, after in ((1, 0, 7), (3, 7, 10))
        ]

    def _at_ms(self, record: int) -> int:
        return NOW_MS + self.first_record + record


def history(deliveries: int) -> Tables:
    """Return the rows of a history without a fault."""
    turns = [Turn(number) for number in range(deliveries // 5)]
    return {
        "deliveries": [row for turn in turns for row in turn.deliveries()],
        "operations": [row for turn in turns for row in turn.operations()],
        "commit_positions": [row for turn in turns for row in turn.commit_positions()],
    }


def resident_mib() -> int:
    """Return the resident memory of the JVM."""
    java = [child for child in psutil.Process().children(recursive=True) if child.name() == "java"]
    return sum(child.memory_info().rss for child in java) >> 20


def cpu_seconds() -> float:
    """Return the CPU time of this process and of the JVM, which a busy machine does not change."""
    times = [process.cpu_times() for process in (psutil.Process(), *psutil.Process().children(recursive=True))]
    return sum(time.user + time.system for time in times)


def main(rows: int, root: Path) -> None:
    """Measure and print."""
    tables = history(rows)
    slices: dict[str, list[tuple[int, bytes]]] = {}
    for table, made in tables.items():
        # As in the job: a micro-batch at a time. Several tables cut at the same record have the same apply_seq.
        started = time.process_time()
        step = ROWS_PER_BATCH * len(made) // rows
        slices[table] = [
            (start // step, data)
            for start in range(0, len(made), step)
            for data in encode_rows(table, made[start : start + step])
        ]
        seconds = time.process_time() - started
        size = sum(len(data) for _, data in slices[table])
        print(f"encode {table}: {len(made) / seconds:,.0f} rows/s of CPU, {size / len(made):.1f} bytes a row")
    shutil.rmtree(root, ignore_errors=True)
    spark = build_session("benchmark", spark_jars(ROOT / "var"))
    flusher = AuditFlusher(spark, root, "bench", "epoch-1", ops_topic_id="topic-1")
    last = max(seq for seq, _ in slices["deliveries"])
    # Three flushes: the first one pays for the JVM's warming up.
    for begin, end in ((-1, last // 4), (last // 4, last // 2), (last // 2, last)):
        for table, parts in slices.items():
            chosen = [part for part in parts if begin < part[0] <= end]
            started, cpu = time.perf_counter(), cpu_seconds()
            count = flusher.flush(table, chosen, end)
            seconds = time.perf_counter() - started
            print(
                f"flush {table}: {count} rows in {seconds:.1f} s, {count / seconds:,.0f} rows/s,"
                f" CPU {cpu_seconds() - cpu:.1f} s; JVM {resident_mib()} MiB"
            )
    for _ in range(2):
        started, cpu = time.perf_counter(), cpu_seconds()
        with OpenedTables(root) as opened:
            report = validate(opened, data_docs=root / "data_docs")
        seconds = time.perf_counter() - started
        print(
            f"validate: {seconds:.1f} s, CPU {cpu_seconds() - cpu:.1f} s,"
            f" {report.expectations_failed} failed; JVM {resident_mib()} MiB"
        )
        for failure in report.failures:
            print(f"  {failure}")


if __name__ == "__main__":
    main(
        int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000,
        Path(sys.argv[2]) if len(sys.argv) > 2 else ROOT / "var" / "bench-delta",
    )
