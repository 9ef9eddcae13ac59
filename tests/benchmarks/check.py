"""How long `popstream check` takes: on all rows, and on a day's increment.

    python -m tests.benchmarks.check [rows] [rows of the increment]

The rows are those of delta_speed.py: of 11 rows 5 are of deliveries, 4 of operations and 2 of commit_positions; with a
unit for each message. The increment is of the next day. Each check is a process of its own, as an operator runs it.
"""

from __future__ import annotations

import datetime as dt
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa

from connectors.delta.exactly_once import ExactlyOnceTable
from connectors.delta.flusher import AuditFlusher
from connectors.delta.rows import encode_rows
from connectors.delta.schemas import arrow_schema
from connectors.delta.tables import AUDIT_TABLES, CONSUME_QUEUE
from tests.benchmarks.delta_speed import LANES, NOW_MS, history
from tests.support.delta_files import NO_SPARK, create_table
from tests.support.unit_rows import unit_row

ROWS_OF_TEN_MESSAGES = 11
ROWS_PER_BATCH = 20_000
DAY_MS = 86_400_000


def main(rows: int, increment: int) -> None:
    """Write the tables, check them, write the increment, and check that."""
    with tempfile.TemporaryDirectory(prefix="popstream-bench-") as work:
        delta = Path(work, "job/delta")
        for table in (*AUDIT_TABLES, CONSUME_QUEUE.name):
            create_table(delta, table)
        turns = (rows + increment) // ROWS_OF_TEN_MESSAGES
        all_rows = history(turns * 5)
        first = rows // ROWS_OF_TEN_MESSAGES
        write(delta, {name: found[: first * len(found) // turns] for name, found in all_rows.items()}, 1, shift_ms=0)
        write_units(delta, 0, first, 1, shift_ms=0)
        report("all rows", check(Path(work), "--since", "last"))
        later = {name: found[first * len(found) // turns :] for name, found in all_rows.items()}
        write(delta, later, 1_000_000, shift_ms=DAY_MS)
        write_units(delta, first, turns, 1_000_000, shift_ms=DAY_MS)
        report("increment", check(Path(work), "--since", "last"))
        report("all rows again", check(Path(work)))


def write(delta: Path, tables: dict[str, list], first_seq: int, *, shift_ms: int) -> None:  # type: ignore[type-arg]
    """Commit rows as the job does, some in each WriteBatch."""
    flusher = AuditFlusher(NO_SPARK, delta, "bench", "epoch", ops_topic_id="topic", durable=False)
    for name, found in tables.items():
        moved = [
            row._replace(**{field: getattr(row, field) + shift_ms for field in row._fields if is_time(row, field)})
            for row in found
        ]
        slices = [
            (first_seq + begin // ROWS_PER_BATCH, part)
            for begin in range(0, len(moved), ROWS_PER_BATCH)
            for part in encode_rows(name, moved[begin : begin + ROWS_PER_BATCH])
        ]
        flusher.flush(name, slices, slices[-1][0] if slices else first_seq)


def is_time(row: object, field: str) -> bool:
    """Return whether a column is a time that is known."""
    return field.endswith("_ms") and getattr(row, field) is not None


def write_units(delta: Path, first_turn: int, end_turn: int, seq: int, *, shift_ms: int) -> None:
    """Commit a unit for each message of some turns."""
    rows = [
        unit_row(
            "orders",
            turn // LANES * 10 + offset,
            queue_id=turn % LANES,
            store_time_ms=NOW_MS + shift_ms,
            store_date=dt.date(1970, 1, 1) + dt.timedelta(milliseconds=NOW_MS + shift_ms),
            build_seq=seq,
        )
        for turn in range(first_turn, end_turn)
        for offset in range(10)
    ]
    writer = ExactlyOnceTable(NO_SPARK, delta, CONSUME_QUEUE, "bench", "epoch", durable=False)
    writer.append([pa.Table.from_pylist(rows, arrow_schema(CONSUME_QUEUE))], seq)


def check(work: Path, *options: str) -> dict[str, object]:
    """Run the command; return its report, with the seconds that it took and those of processors."""
    command = [sys.executable, "-m", "popstream", "check", "--json", "--folder", str(work / "job")]
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [*command, "--data-docs", str(work / "docs"), *options], capture_output=True, text=True, check=False
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode in {0, 1}, done.stderr
    seconds = time.perf_counter() - began
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {**json.loads(done.stdout), "seconds": seconds, "cpu_s": cpu, "peak_mib": after.ru_maxrss // 1024}


def report(what: str, found: dict[str, object]) -> None:
    """Print a line about one check."""
    judged = found["judged"]
    assert isinstance(judged, dict)
    print(
        f"{what}: {sum(judged.values()):,} rows in {found['seconds']:.1f} s, {found['cpu_s']:.1f} s of CPU, at most"
        f" {found['peak_mib']:,} MiB; {found['expectations_failed']} failed",
        flush=True,
    )
    outcomes = found["outcomes"]
    assert isinstance(outcomes, list)
    for outcome in outcomes:
        if not outcome["success"]:
            print("  ", {name: outcome[name] for name in ("suite", "expectation", "error", "unexpected_count")})


if __name__ == "__main__":
    numbers = [int(number) for number in sys.argv[1:]]
    main(*(numbers or [1_000_000, 100_000]))
