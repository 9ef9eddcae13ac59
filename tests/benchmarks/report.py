"""`popstream report` on large tables.

    python -m tests.benchmarks.report [audit rows] [folder]

The audit tables are those of `tests.benchmarks.why`, but that every fiftieth lease expires and its messages are
delivered again; and each message has a row of `consume_queue`, which are not among the rows counted.
"""

from __future__ import annotations

import json
import resource
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
from tests.benchmarks import why
from tests.support.delta_files import create_table
from tests.support.processes.job_process import POPSTREAM

if TYPE_CHECKING:
    from collections.abc import Iterator

EXPIRED_EVERY = 50
ROWS_AT_ONCE = 131_072


def audit_rows(name: str, first: int, count: int) -> pa.Table:
    """Return rows of an audit table: of each fiftieth range the lease expires, and the next lease is its second."""
    rows = why.rows(name, first, count)
    if name != "deliveries":
        return rows
    turn = np.arange(first, first + count, dtype=np.int64) // (why.QUEUES * why.GROUPS)
    is_end, number = turn % 2 == 1, turn // 2 % EXPIRED_EVERY
    again = number == 1
    changed = {
        "step": pc.if_else(pa.array(is_end & (number == 0)), "expired", rows["step"]),
        "cause": pc.if_else(pa.array(is_end & (number == 0)), "deadline", rows["cause"]),
        "attempt": pa.array(np.where(again, 2, 1), pa.int32()),
        "first_offset": pc.subtract(rows["first_offset"], pa.array(np.where(again, why.RANGE, 0))),
        "last_offset": pc.subtract(rows["last_offset"], pa.array(np.where(again, why.RANGE, 0))),
    }
    for column, values in changed.items():
        place = rows.schema.get_field_index(column)
        rows = rows.set_column(place, rows.schema.field(place), values)
    return rows


def units(first: int, count: int) -> pa.Table:
    """Return rows of `consume_queue` from number `first` on: its queues take turns."""
    number = np.arange(first, first + count, dtype=np.int64)
    queue_offset = number // why.QUEUES
    # A range of a lane is leased every `QUEUES * GROUPS * 2` rows, of which there are five each millisecond.
    store_time_ms = why.BEGAN_MS + queue_offset // why.RANGE * (why.QUEUES * why.GROUPS * 2) // 5 - 250
    known: dict[str, Any] = {
        "topic": pa.repeat("orders", count),
        "queue_id": number % why.QUEUES,
        "topic_id": pa.repeat("topic-2", count),
        "queue_type": pa.repeat("simple", count),
        "queue_offset": queue_offset,
        "store_time_ms": store_time_ms,
        "store_date": pa.array(store_time_ms // 86_400_000, pa.int32()).cast(pa.date32()),
    }
    schema = arrow_schema(TABLES["consume_queue"])
    zeros, nulls = pa.array(np.zeros(count, np.int64)), pa.nulls(count)
    columns = [known.get(each.name, zeros if pa.types.is_integer(each.type) else nulls) for each in schema]
    return pa.table([pa.array(column).cast(each.type) for column, each in zip(columns, schema, strict=True)], schema)


def generate(root: Path, total: int) -> None:
    """Write the tables."""
    why.generate(root, total, audit_rows)
    path = create_table(root, "consume_queue")
    count = total * 4 // 9 // (why.GROUPS * 2) * why.RANGE
    files = write_data_files(path, TABLES["consume_queue"], _pieces(count), durable=False)
    actions = [commit_info(0, "WRITE"), *(add_action(file, data_change=True) for file in files)]
    write_commit(path, 0, actions, lambda _: None, durable=False)


def _pieces(count: int) -> Iterator[pa.Table]:
    for first in range(0, count, ROWS_AT_ONCE):
        yield units(first, min(ROWS_AT_ONCE, count - first))


def main(total: int, folder: Path) -> None:
    """Generate the tables where they are missing, make the report, and print what it took."""
    if not folder.is_dir():
        generate(folder / "delta", total)
    found = {}
    for name, options in (("report", []), ("report_with_lane", ["--lane", "search", "orders/5"])):
        made = folder / f"{name}.html"
        began, used = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [str(POPSTREAM), "report", "--out", str(made), "--folder", str(folder), *options]
        subprocess.run(command, check=True)
        took_s = time.perf_counter() - began
        now = resource.getrusage(resource.RUSAGE_CHILDREN)
        found[name] = {
            "whole_s": round(took_s, 1),
            "cpu_s": round(now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime, 1),
            "memory_mib_max": now.ru_maxrss // 1024,
            "file_kib": made.stat().st_size // 1024,
        }
    print(json.dumps({"rows": total, **found}, indent=1))


if __name__ == "__main__":
    main(
        int(sys.argv[1]) if len(sys.argv) > 1 else 10_000_000,
        Path(sys.argv[2]) if len(sys.argv) > 2 else Path("var/bench-report"),
    )
