"""What a shard has in memory, and what a part of its decisions, a packed environment and a row of a table take."""

import gc
import time
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Self, TypeVar

import psutil
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from broker_state.kernel.context.decision import Decision
from broker_state.kernel.fold import fold
from broker_state.store.overlay import Overlay
from connectors.delta.erased_values import RejectedHeads
from connectors.delta.rows import encode_slices
from connectors.spark_cluster.packed_environment import pack as pack_environment
from pipelines.cluster.audit.entry_rows import EntryRows
from pipelines.cluster.audit.table_locations import TableLocations
from pipelines.cluster.audit.written_tables import WrittenTables
from pipelines.cluster.checkpoint_layout import AUDIT
from pipelines.cluster.decide.deadline_index import DeadlineIndex
from pipelines.cluster.decide.extent import START, Extent
from pipelines.cluster.decide.key_directory import KeyDirectory
from pipelines.cluster.decide.outgoing import EntryKey
from pipelines.cluster.decide.packed_records import Payload, bounded_slices, pack
from pipelines.cluster.decide.shard import Shard, ShardMeta, ShardSettings
from pipelines.cluster.decide.window_chunks import WindowChunks, WindowIndex
from pipelines.decide_ops.decode import KafkaRecord
from pipelines.decide_ops.entries import TABLE_NUMBERS
from pipelines.decide_ops.entry import Entry, EntryKind
from popstream.exchange.partitioner import ops_key
from popstream.wire.command import Command, encode_command
from tests.benchmarks.benchmark_options import QUEUES, BenchOptions
from tests.benchmarks.cpu_use import cpu_s
from tests.benchmarks.measured_operations import (
    MS_BASE,
    declare_queue,
    op_records,
    single_entry_ops,
    single_pops,
    whole_pop_ops,
)
from tests.benchmarks.part_process import run_apart
from tests.cluster.local_spark import local_session
from tests.support.audit_tables import delivery
from tests.support.cluster_log import left_by
from tests.support.in_process.memory_maps import SEED, ShardStore, memory_maps

__all__ = ["measure_cluster_sizes"]

Made = TypeVar("Made")

ROOT = Path(__file__).parents[2]
_TOPIC, _GROUP = "bench", "group"
_LEASES = 500_000
_RECORDS_A_WRITE = 20_000
_ENTRIES = 1_000
_LIMIT_S = 600.0
_MB = 1_000_000
_ROWS_AN_ENTRY = 2_000
_ENTRIES_FEW, _ENTRIES_MANY = 100, 1_100
"""Of two commits: what a commit costs, whatever is in it, is not in the difference."""
_VALUES = 20
_PLAIN = (pa.int32(), pa.int64(), pa.int64(), pa.binary(), pa.binary(), pa.int32(), pa.string())

LEASES_TOLD, OP_IDS_TOLD = 10_000_000, 15_000 * 600
"""Of which docs/scale.md says what they take."""


def measure_cluster_sizes(options: BenchOptions) -> dict[str, Any]:
    """Measure each in a process of its own, so that nothing is put where something else has been."""
    measures: dict[str, Callable[[], Any]] = {
        "shard": _shard,
        "part_single": partial(_part, *_log(1)),
        "part_entries": partial(_part, *_log(_ENTRIES)),
        "environment": partial(_environment, options.work, options.var),
        "row": partial(_rows, options.work, options.var),
    }
    report = {}
    for name, measure in measures.items():
        options.on_progress(f"measuring {name}")
        report[name] = run_apart(measure, _LIMIT_S)
    return report


def _shard() -> dict[str, float]:
    """Lease single messages, each by an op_id, and load what a shard has in memory from what it has stored of it."""
    store = ShardStore(MS_BASE)
    for queue_id in range(QUEUES):
        messages = _LEASES // QUEUES
        first = queue_id * (messages + 1)
        pops = single_pops(_TOPIC, queue_id, f"{_GROUP}-{queue_id}", messages)
        for number, records in enumerate(_cut(chain(declare_queue(_TOPIC, queue_id, messages), pops))):
            overlay = Overlay(store)
            fold(overlay, op_records(records, first + number * _RECORDS_A_WRITE), Decision())
            store.write(overlay)
    maps = store.maps
    chunks = {int.from_bytes(key, "big"): WindowIndex.decode(value) for key, value in maps.chunk_index.items()}
    keys = list(maps.state.keys())
    _, keys_bytes = _held(lambda: KeyDirectory(map(_copied, keys)))
    deadlines, deadlines_bytes = _held(
        lambda: _loaded((_copied(key), _copied(value)) for key, value in maps.deadlines.items())
    )
    _, window_bytes = _held(
        lambda: WindowChunks(maps.chunk_index, maps.chunk_values, SEED, *store.state.chunks, chunks)
    )
    deadline_count = sum(len(deadlines.of(queue)) for queue in deadlines.queues())
    lease_bytes = (keys_bytes + deadlines_bytes) / _LEASES
    return {
        "leases": _LEASES,
        "keys": len(keys),
        "deadlines": deadline_count,
        "bytes_a_key": round(keys_bytes / len(keys), 1),
        "bytes_a_deadline": round(deadlines_bytes / deadline_count, 1),
        "bytes_an_op_id": round(window_bytes / _LEASES, 1),
        f"mb_of_{LEASES_TOLD}_leases": round(lease_bytes * LEASES_TOLD / _MB),
        f"mb_of_{OP_IDS_TOLD}_op_ids": round(window_bytes / _LEASES * OP_IDS_TOLD / _MB),
    }


def _cut(commands: Iterable[Command]) -> Iterator[list[Command]]:
    every = list(commands)
    return (every[at : at + _RECORDS_A_WRITE] for at in range(0, len(every), _RECORDS_A_WRITE))


def _copied(value: bytes) -> bytes:
    """Return it as Spark does: each time as another object, which the maps of the tests do not."""
    return bytes(bytearray(value))


def _loaded(buckets: Iterable[tuple[bytes, bytes]]) -> DeadlineIndex:
    index = DeadlineIndex()
    index.load(buckets)
    return index


def _held(make: Callable[[], Made]) -> tuple[Made, int]:
    """Return what `make` makes, and the bytes that it holds."""
    gc.collect()
    tracemalloc.start()
    made = make()
    gc.collect()
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return made, held


def _log(entries: int) -> tuple[list[Payload], int]:
    """Return packed records of pops and acks of as many entries, and how many come before them."""
    messages = 20_000 if entries == 1 else 100 * entries
    before = list(declare_queue(_TOPIC, 0, messages))
    single = single_entry_ops(_TOPIC, 0, _GROUP, messages, reply_to=0)
    whole = whole_pop_ops(_TOPIC, 0, _GROUP, messages // entries, entries, entry_offsets=1, reply_to=0)
    return _packed([*before, *(single if entries == 1 else whole)]), len(before)


def _part(payloads: list[Payload], before: int) -> dict[str, float]:
    """Let a shard decide one part, and return by how much the process has grown at most meanwhile."""
    shard = Shard(ShardSettings("bench", 1, 1, None, SEED, 1 << 26), memory_maps(), ShardMeta())
    records = next(bounded_slices(0, payloads))
    shard.apply(records[:before])
    gc.collect()
    began = _resident_bytes("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # or the most before would count
    made = next(shard.parts(records))
    most = _resident_bytes("VmHWM")
    left = left_by([Entry(entry.kind, 0, number, entry.value) for number, entry in enumerate(made)])
    return {
        "records": shard.meta.next_offset - before,
        "rows_and_answers": sum(counts.total() for counts in left.values()),
        "grown_mb": round((most - began) / _MB, 1),
    }


def _packed(commands: list[Command]) -> list[Payload]:
    key = ops_key(_TOPIC, 0)
    values = [encode_command(command) for command in commands]
    rows = [
        KafkaRecord(0, number, MS_BASE + number // 20, key, value, len(value)) for number, value in enumerate(values)
    ]
    columns = [pa.array(values, kind) for values, kind in zip(zip(*rows, strict=True), _PLAIN, strict=True)]
    (packed,) = pack([pa.RecordBatch.from_arrays(columns, names=KafkaRecord._fields)])
    return [Payload(row["first_offset"], row["payload"]) for row in packed.to_pylist()]


def _resident_bytes(name: str) -> int:
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines[name].split()[0]) * 1024


def _environment(work: Path, var: Path) -> dict[str, float]:
    """Pack an environment, and unpack it as each executor does."""
    file = work / "environment.zip"
    pack_environment(file, wheels=var / "wheels", own=ROOT)
    with _Site(work, var) as site:
        jvm: Any = site.spark._jvm
        began_s, cpu_began_s = time.perf_counter(), site.cpu_s()
        jvm.org.apache.spark.util.Utils.unpack(jvm.java.io.File(str(file)), jvm.java.io.File(str(work / "unpacked")))
        took_s, cpu = time.perf_counter() - began_s, site.cpu_s() - cpu_began_s
    return {
        "mb": round(file.stat().st_size / _MB, 1),
        "files": sum(1 for path in (work / "unpacked").rglob("*") if path.is_file()),
        "unpack_s": round(took_s, 1),
        "unpack_cpu_s": round(cpu, 1),
    }


def _rows(work: Path, var: Path) -> dict[str, float]:
    """Append rows of `deliveries` in both ways, and return the microseconds of CPU of each."""
    with _Site(work, var) as site:
        return {
            "by_tasks_us": site.us_a_row(TableLocations(str(work / "by_tasks"))),
            "by_spark_us": site.us_a_row(_Elsewhere(str(work / "by_spark"))),
        }


class _Elsewhere(TableLocations):
    """Tables that no node has in a folder."""

    def folder(self, spark: SparkSession) -> None:  # noqa: ARG002 - as in its base
        return None


class _Site:
    """A Spark on threads of this machine."""

    def __init__(self, work: Path, var: Path) -> None:
        self.spark = local_session("popstream-bench", work / "jvm_crash.log", var)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.spark.stop()

    def cpu_s(self) -> float:
        """Return the seconds of CPU of Spark and of all Python here."""
        own = psutil.Process()
        return sum(cpu_s(process) for process in [own, *own.children(recursive=True)])

    def us_a_row(self, locations: TableLocations) -> float:
        locations.ensure(self.spark)
        tables = WrittenTables(self.spark, locations, EntryRows("epoch", "T", RejectedHeads.WHOLE), AUDIT)
        used_s = []
        # The first one compiles.
        for version, entries in enumerate((_ENTRIES_FEW, _ENTRIES_FEW, _ENTRIES_MANY)):
            began_s = self.cpu_s()
            tables.append(self._entries(entries), [TABLE_NUMBERS["deliveries"]], {}, version)
            used_s.append(self.cpu_s() - began_s)
        _, few_s, many_s = used_s
        return round((many_s - few_s) * 1e6 / ((_ENTRIES_MANY - _ENTRIES_FEW) * _ROWS_AN_ENTRY), 2)

    def _entries(self, count: int) -> DataFrame:
        number = TABLE_NUMBERS["deliveries"]
        key = EntryKey("epoch", 0, number, Extent(START, START, START), EntryKind.AUDIT).encode()
        values = []
        for at in range(_VALUES):
            rows = [delivery(at, at * _ROWS_AN_ENTRY + row) for row in range(_ROWS_AN_ENTRY)]
            ((_, data),) = encode_slices("deliveries", rows)
            values.append(bytes((number,)) + data)
        few = self.spark.createDataFrame(pa.table({"key": pa.array([key] * _VALUES), "value": pa.array(values)}))
        repeats = self.spark.range(0, count // _VALUES, 1, 2).withColumnRenamed("id", "offset")
        return repeats.crossJoin(f.broadcast(few)).select(f.lit(0).alias("partition"), "offset", "key", "value")
