"""`popstream why` and `popstream query` on large tables.

    python -m tests.benchmarks.why [audit rows] [folder]

The tables are generated as a job and its compaction leave them: 8 queues with 3 groups each, in compacted files and the
small files of the last flushes. A message has a row of `deliveries` and `operations` for its lease and for
its ack, in ranges of 4, and every 16 messages a row of `commit_positions`.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from connectors.delta.data_files import write_data_files
from connectors.delta.log.write_commit import add_action, commit_info, write_commit
from connectors.delta.schemas import arrow_schema
from connectors.delta.tables import TABLES
from tests.support.delta_files import create_table
from tests.support.processes.job_process import POPSTREAM

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

QUEUES = 8
GROUPS = 3
RANGE = 4
RANGES_PER_MOVE = 4
ROWS_PER_FILE = 3_000_000
SMALL_FILES = 200
ROWS_PER_SMALL_FILE = 400
BEGAN_MS = 1_795_262_400_000
RUNS = 5
"""Runs of each command, of which the median counts."""


def rows(name: str, first: int, count: int) -> pa.Table:
    """Return `count` rows of a table from number `first` on: its lanes take turns."""
    number = np.arange(first, first + count, dtype=np.int64)
    lane = number % (QUEUES * GROUPS)
    turn = number // (QUEUES * GROUPS)
    per_range = 1 if name == "commit_positions" else 2
    span = RANGE * RANGES_PER_MOVE if name == "commit_positions" else RANGE
    is_ack = turn % per_range == 1
    first_offset = turn // per_range * span
    now_ms = BEGAN_MS + number // 5
    known: dict[str, Any] = {
        "partition": lane % 4,
        "kafka_offset": number,
        "now_ms": now_ms,
        "topic": pa.repeat("orders", count),
        "queue_id": lane // GROUPS,
        "group": pc.take(pa.array(["billing", "search", "shipping"]), pa.array(lane % GROUPS)),
        "first_offset": first_offset,
        "last_offset": first_offset + span - 1,
        "from_offset": first_offset,
        "to_offset": first_offset + span,
        "step": pc.take(pa.array(["leased", "acked"]), pa.array(is_ack.astype(np.int64))),
        "kind": pc.take(pa.array(["pop", "ack"]), pa.array(is_ack.astype(np.int64))),
        "cause": pc.take(pa.array(["pop", "ack"]), pa.array(is_ack.astype(np.int64))),
        "reason": pa.repeat("OK", count),
        "applied": pa.repeat(pa.scalar(True), count),
        "repeated": pa.repeat(pa.scalar(False), count),
        "epoch": turn // per_range + 1,
        "attempt": np.ones(count, np.int64),
        "at_ms": now_ms,
        "deadline_ms": now_ms + 30_000,
        "client_id": pc.take(pa.array([f"worker-{n}" for n in range(16)]), pa.array(number % 16)),
        "op_id": pc.binary_join_element_wise("op", pa.array(number * 2_654_435_761 % (1 << 40)).cast(pa.string()), "-"),
        "apply_seq": number // 400,
        "state_epoch": pa.repeat("epoch-1", count),
        "ops_topic_id": pa.repeat("topic-1", count),
        "op_date": pa.array(now_ms // 86_400_000, pa.int32()).cast(pa.date32()),
    }
    schema = arrow_schema(TABLES[name])
    zeros, nulls = pa.array(np.zeros(count, np.int64)), pa.nulls(count)
    columns = [known.get(each.name, zeros if pa.types.is_integer(each.type) else nulls) for each in schema]
    return pa.table([pa.array(column).cast(each.type) for column, each in zip(columns, schema, strict=True)], schema)


def pieces(total: int) -> Iterator[tuple[int, int]]:
    """Yield first row and number of rows of each file."""
    small = min(SMALL_FILES, total // (2 * ROWS_PER_SMALL_FILE))
    compacted = total - small * ROWS_PER_SMALL_FILE
    for first in range(0, compacted, ROWS_PER_FILE):
        yield first, min(ROWS_PER_FILE, compacted - first)
    for number in range(small):
        yield compacted + number * ROWS_PER_SMALL_FILE, ROWS_PER_SMALL_FILE


def generate(root: Path, total: int, rows_of: Callable[[str, int, int], pa.Table] = rows) -> None:
    """Write the tables: 4 of 9 rows each in `operations` and `deliveries`, the rest in `commit_positions`."""
    for name, parts in (("operations", 4), ("deliveries", 4), ("commit_positions", 1)):
        path = create_table(root, name)
        for version, (first, count) in enumerate(pieces(total * parts // 9)):
            groups = (
                rows_of(name, at, min(131_072, first + count - at)) for at in range(first, first + count, 131_072)
            )
            files = write_data_files(path, TABLES[name], groups, durable=False)
            added = [add_action(file, data_change=True) for file in files]
            write_commit(path, version, [commit_info(version, "WRITE"), *added], lambda _: None, durable=False)


def measure(folder: Path, *arguments: str) -> dict[str, float]:
    """Return seconds from the start of a command to its first line and to its end, and its CPU time."""
    whole, first, cpu = [], [], []
    for _ in range(RUNS):
        began, used = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [str(POPSTREAM), *arguments, "--folder", str(folder)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline(), command
            first.append(time.perf_counter() - began)
            process.stdout.read()
        assert process.returncode == 0, command
        whole.append(time.perf_counter() - began)
        now = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu.append(now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime)
    found = {"first_line_s": first, "whole_s": whole, "cpu_s": cpu}
    return {name: round(statistics.median(seconds), 2) for name, seconds in found.items()}


def main(total: int, folder: Path) -> None:
    """Generate the tables where they are missing, measure, and print."""
    if not folder.is_dir():
        generate(folder / "delta", total)
    offsets = total * 4 // 9 // (QUEUES * GROUPS * 2) * RANGE
    found: dict[str, Any] = {
        f"why_{name}": measure(folder, "why", f"orders/5/{offset}")
        for name, offset in (("old", offsets // 7), ("middle", offsets // 2), ("new", offsets - RANGE))
    }
    found["why_group"] = measure(folder, "why", f"orders/5/{offsets // 3}", "--group", "search")
    found["query_first_row"] = measure(folder, "query", "FROM deliveries LIMIT 1")
    found["query_one_message"] = measure(
        folder,
        "query",
        "FROM deliveries WHERE topic = 'orders' AND queue_id = 5 AND first_offset <= 1000 AND last_offset >= 1000",
    )
    found["query_count_by_step"] = measure(folder, "query", "SELECT step, count(*) FROM deliveries GROUP BY step")
    print(json.dumps({"rows": total, **found}, indent=1))


if __name__ == "__main__":
    main(
        int(sys.argv[1]) if len(sys.argv) > 1 else 5_000_000,
        Path(sys.argv[2]) if len(sys.argv) > 2 else Path("var/bench-why"),
    )
