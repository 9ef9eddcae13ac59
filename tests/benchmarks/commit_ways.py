"""What a commit of rows to Delta costs as the job makes it, and by delta-rs (docs/adr/0011).

    python -m tests.benchmarks.commit_ways [commits, at most 48]

Rows of `operations`, by turns in commits of 20,000 and of 100 rows, in tables of their own. The job's commits are
synced, count their rows and have digests of them; delta-rs syncs nothing.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from connectors.delta.exactly_once import ExactlyOnceTable
from connectors.delta.log.table_log import read_data_files
from connectors.delta.store import TABLE_CHECKPOINT_INTERVAL
from connectors.delta.tables import AUDIT_TABLES
from tests.benchmarks.table_files import completed, flushes
from tests.support.delta_files import NO_SPARK, create_table

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    Append = Callable[[pa.Table, int], object]
    Way = Callable[[Path], tuple[Path, Append]]

NAME = "operations"
SIZES = (20_000, 100)
"""Rows of a commit."""
ROUNDS = 2
COMMITS = TABLE_CHECKPOINT_INTERVAL - 2
"""At most: the next one brings a checkpoint of the log, which is written by Spark."""


def by_job(root: Path) -> tuple[Path, Append]:
    """Make a table; return it, and what appends rows to it with a version of its writer."""
    path = create_table(root, NAME)
    table = ExactlyOnceTable(NO_SPARK, root, AUDIT_TABLES[NAME], "bench", "epoch")
    return path, lambda rows, version: table.append([rows], version)


def by_delta_rs(root: Path) -> tuple[Path, Append]:
    """Do so with an application transaction of delta-rs."""
    path = create_table(root, NAME)
    table = DeltaTable(path)

    def append(rows: pa.Table, version: int) -> None:
        properties = CommitProperties(app_transactions=[Transaction("bench", version)])
        write_deltalake(table, rows, mode="append", commit_properties=properties)

    return path, append


class Cost(NamedTuple):
    """What commits have taken.

    Attributes:
        rows: Rows in the table.
        bytes_a_row: Of its files.
        cpu_us_a_row: CPU of this process, microseconds.
        cpu_ms: The same of a commit.
        took_ms: From the beginning of a commit to its end.
    """

    rows: int
    bytes_a_row: float
    cpu_us_a_row: float
    cpu_ms: float
    took_ms: float


def main(commits: int) -> None:
    """Measure and print."""
    rows = completed(AUDIT_TABLES[NAME], next(flushes(2 * SIZES[0]))[NAME])
    for size in SIZES:
        for number in range(ROUNDS):
            for name, way in (("job", by_job), ("delta-rs", by_delta_rs)):
                with tempfile.TemporaryDirectory() as folder:
                    cost = measured(way, rows.slice(0, size), commits, Path(folder))
                print(
                    f"round {number + 1}, {size:,} rows a commit, {name}: {cost.cpu_us_a_row:.1f} us of CPU and"
                    f" {cost.bytes_a_row:.0f} bytes a row, {cost.took_ms:.1f} ms a commit, {cost.cpu_ms:.1f} of CPU"
                )


def measured(way: Way, rows: pa.Table, commits: int, root: Path) -> Cost:
    """Make a commit, which fills caches, and then as many as are measured."""
    path, append = way(root)
    append(rows, 1)
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    for version in range(2, commits + 2):
        append(rows, version)
    took_s, cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
    found = read_data_files(path)
    assert found is not None
    stored = sum(file.rows for file in found.files)
    return Cost(
        rows=stored,
        bytes_a_row=sum(file.size for file in found.files) / stored,
        cpu_us_a_row=cpu_s / commits / rows.num_rows * 1e6,
        cpu_ms=cpu_s / commits * 1e3,
        took_ms=took_s / commits * 1e3,
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else COMMITS)
