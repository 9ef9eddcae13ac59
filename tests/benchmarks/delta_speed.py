"""The rate at which audit rows become Delta rows, and the time of a validation of them.

    python tests/benchmarks/delta_speed.py [rows of deliveries] [folder]

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
from expectations.validate import validate

ROOT = Path(__file__).parents[2]
LANES = 8
ROWS_PER_BATCH = 20_000
NOW_MS = 1_795_262_400_000


def history(deliveries: int) -> dict[str, list[DeliveryRow] | list[OperationRow] | list[CommitPositionRow]]:
    """Return the rows of a history without a fault."""
    leases: list[DeliveryRow] = []
    operations: list[OperationRow] = []
    positions: list[CommitPositionRow] = []
    for turn in range(deliveries // 5):
        lane = turn % LANES
        round_no = turn // LANES
        first, epoch, record, now = round_no * 10, round_no * 2 + 1, turn * 4, NOW_MS + turn * 4
        end, client = now + 2, f"client-{turn % 50}"

        def lease(
            record: int,
            step: str,
            low: int,
            high: int,
            epoch: int,
            attempt: int,
            end: int,
            cause: str,
            ordinal: int = 0,
            *,
            lane: int = lane,
            client: str = client,
        ) -> DeliveryRow:
            at = NOW_MS + record
            return DeliveryRow(
                lane % 2,
                record,
                ordinal,
                at,
                "orders",
                lane,
                "billing",
                step,
                low,
                high,
                epoch,
                0,
                attempt,
                at,
                end,
                cause,
                client,
            )

        again = now + 60_002
        leases += (
            lease(record, "leased", first, first + 9, epoch, 1, end, "pop"),
            lease(record + 1, "acked", first, first + 6, epoch, 1, end, "ack"),
            lease(record + 2, "expired", first + 7, first + 9, epoch, 1, end, "deadline"),
            lease(record + 2, "leased", first + 7, first + 9, epoch + 1, 2, again, "pop", 1),
            lease(record + 3, "acked", first + 7, first + 9, epoch + 1, 2, again, "ack"),
        )
        for number, kind, low, high in (
            (0, "pop", 0, 9),
            (1, "ack", 0, 6),
            (2, "pop", 7, 9),
            (3, "ack", 7, 9),
        ):
            at = NOW_MS + record + number
            is_pop = kind == "pop"
            operations.append(
                OperationRow(
                    lane % 2,
                    record + number,
                    0,
                    at,
                    kind,
                    "orders",
                    lane,
                    "billing",
                    f"op-{record + number}",
                    client,
                    None if is_pop else 0,
                    first + low,
                    first + high,
                    None if is_pop else f"1.{epoch:060d}",
                    f"1.{epoch:060d}" if is_pop else None,
                    0,
                    "OK",
                    True,
                    False,
                    None,
                    at + 60_000 if is_pop else None,
                    1,
                    None,
                )
            )
        for number, before, after in ((1, 0, 7), (3, 7, 10)):
            acked, leased = first + after, 10 - after
            positions.append(
                CommitPositionRow(
                    lane % 2,
                    record + number,
                    0,
                    NOW_MS + record + number,
                    "orders",
                    lane,
                    "billing",
                    first + before,
                    first + after,
                    0,
                    first + 10,
                    0,
                    acked,
                    leased,
                    0,
                    0,
                    0,
                    0,
                    0,
                    0,
                )
            )
    return {"deliveries": leases, "operations": operations, "commit_positions": positions}


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
        report = validate(spark, root, data_docs=root / "data_docs")
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
