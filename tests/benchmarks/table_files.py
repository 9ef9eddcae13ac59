"""What the audit rows of a drain take as files of the tables: bytes a million operations, and CPU time.

    python -m tests.benchmarks.table_files [operations]

The operations are those of `make bench PART=drain` (a pop and an ack for each message, 4 queues), decided by the kernel
in micro-batches of 20,000 and flushed 10 at a time. Each flush is written twice: with the timestamps beside times in
milliseconds, as the job writes them, and without.
"""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from broker_state.kernel.context.decision import Decision
from broker_state.kernel.fold import fold
from broker_state.store.memory_kv import MemoryKv
from broker_state.store.overlay import Overlay
from connectors.delta.all_columns import with_all_columns
from connectors.delta.data_files import write_data_files
from connectors.delta.row_digest import row_digests
from connectors.delta.rows import plain_rows
from connectors.delta.tables import AUDIT_TABLES, Table
from tests.benchmarks.measured_operations import declare_queue, op_records, single_entry_ops

if TYPE_CHECKING:
    from collections.abc import Iterator

QUEUES = 4
BATCH = 20_000
BATCHES_A_FLUSH = 10


def flushes(operations: int) -> Iterator[dict[str, pa.Table]]:
    """Yield the rows of each flush by table, with all columns but the timestamps."""
    messages = operations // (2 * QUEUES)
    streams = [single_entry_ops("orders", queue, "billing", messages) for queue in range(QUEUES)]
    begin = itertools.chain.from_iterable(declare_queue("orders", queue, messages) for queue in range(QUEUES))
    turns = itertools.chain.from_iterable(itertools.zip_longest(*streams))
    commands = (command for command in itertools.chain(begin, turns) if command is not None)
    overlay, waiting, first = Overlay(MemoryKv()), defaultdict[str, list[Any]](list), 0
    for number in itertools.count(1):
        records = op_records(itertools.islice(commands, BATCH), first)
        first += len(records)
        decision = Decision()
        fold(overlay, records, decision)
        for name in AUDIT_TABLES:
            waiting[name] += getattr(decision, name, [])
        if number % BATCHES_A_FLUSH == 0 or not records:
            yield {name: plain_rows(name, rows) for name, rows in waiting.items() if rows}
            waiting.clear()
        if not records:
            return


def completed(table: Table, rows: pa.Table) -> pa.Table:
    """Return rows with all columns of their table."""
    count = rows.num_rows
    added = {
        "apply_seq": pa.repeat(pa.scalar(1, pa.int64()), count),
        "state_epoch": pa.repeat("epoch", count),
        "ops_topic_id": pa.repeat("topic", count),
        "op_date": pc.divide(rows["now_ms"], 86_400_000).cast(pa.int32()).cast(pa.date32()),
    }
    return with_all_columns(table, rows, added)


def written(table: Table, rows: pa.Table, folder: Path) -> tuple[int, float]:
    """Write rows as a flush does; return the bytes and the CPU seconds."""
    began = time.process_time()
    whole = completed(table, rows)
    row_digests(whole)
    files = write_data_files(folder, table, [whole], durable=False)
    used = time.process_time() - began
    return sum(file.size for file in files), used


def main(operations: int) -> None:
    """Measure and print."""
    found: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    with tempfile.TemporaryDirectory() as folder:
        for rows in flushes(operations):
            for name, made in rows.items():
                table = AUDIT_TABLES[name]
                bare = replace(table, columns=tuple(each for each in table.columns if each.of_ms is None))
                for key, form in (("with", table), ("without", bare)):
                    size, cpu_s = written(form, made, Path(folder))
                    found[name][f"bytes_{key}_timestamps"] += size
                    found[name][f"cpu_s_{key}_timestamps"] += cpu_s
                found[name]["rows"] += made.num_rows
    per_million = {
        name: {key: round(value * 1_000_000 / operations, 2) for key, value in values.items()}
        for name, values in found.items()
    }
    print(json.dumps({"operations": operations, "per_million_operations": per_million}, indent=1))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)
