"""What protects a job from its clients and from its disk, and what that costs: quotas, and the scrub of its stores."""

import gc
import random
import statistics
import time
from pathlib import Path
from typing import Any

from broker_state.kernel.context.decision import Decision
from broker_state.kernel.fold import fold
from broker_state.store.memory_kv import MemoryKv
from broker_state.store.overlay import STATE, Overlay
from broker_state.store.rocks_store import RocksStore
from checkpoints.layout import JobFolder
from pipelines.recovery.scrub import BYTES_PER_S_MIN, Scrub
from popstream.wire.command import Policy
from tests.benchmarks.benchmark_options import BenchOptions
from tests.benchmarks.measured_operations import declare_queue, op_records, single_entry_ops
from tests.support.flipped_byte import flip_byte

__all__ = ["measure_protection"]

_TOPIC = "bench"
_MESSAGES = 50_000
_NEVER_REACHED = 1_000_000
_ALL_QUOTAS = Policy(
    topic=_TOPIC,
    queue_id=0,
    v=1,
    pops_per_s_max=_NEVER_REACHED,
    client_pops_per_s_max=_NEVER_REACHED,
    client_parked_max=8_192,
    queue_pops_per_s_max=_NEVER_REACHED,
    queue_parked_max=_NEVER_REACHED,
    new_lanes_per_min_max=_NEVER_REACHED,
    resets_per_min_max=_NEVER_REACHED,
)
_STORE_BYTES = 1 << 30
_SETTLED_S = 30.0
_VALUE_BYTES, _VALUES_A_WRITE = 4_096, 4_096


def measure_protection(options: BenchOptions) -> dict[str, Any]:
    """Measure the CPU of an operation with and without quotas by turns, and that of the scrub a second."""
    return {"quotas": _quotas(options.runs), "scrub": _scrub(options.work / "scrub")}


def _quotas(runs: int) -> dict[str, float]:
    """Decide pops and acks of one message each; return medians, and that of the differences within a turn."""
    spent = [(_cpu_us_of_one(None), _cpu_us_of_one(_ALL_QUOTAS)) for _ in range(runs)]
    return {
        "without_cpu_us": round(statistics.median(without for without, _ in spent), 2),
        "with_cpu_us": round(statistics.median(limited for _, limited in spent), 2),
        "more_cpu_us": round(statistics.median(limited - without for without, limited in spent), 2),
    }


def _cpu_us_of_one(policy: Policy | None) -> float:
    store = MemoryKv()
    overlay = Overlay(store)
    fold(overlay, op_records([*declare_queue(_TOPIC, 0, _MESSAGES), *([policy] if policy else [])]), Decision())
    store.write(overlay)
    records = op_records(single_entry_ops(_TOPIC, 0, "group", _MESSAGES), first=10)
    decision = Decision()
    gc.collect()
    gc.disable()  # as the job does while it decides
    started_s = time.thread_time()
    fold(overlay, records, decision)
    cpu_s = time.thread_time() - started_s
    gc.enable()
    refused = sum(1 for row in decision.operations if row.code)
    assert not refused, f"{refused} operations of the workload were refused"
    return cpu_s * 1e6 / len(records)


def _scrub(folder: Path) -> dict[str, float]:
    """Flip a byte at the end of what a pass over a cold store of 1 GiB reads; wait at the scrub's own pace."""
    chance = random.Random(1)
    with RocksStore(folder / "state") as store:
        for first in range(0, _STORE_BYTES // _VALUE_BYTES, _VALUES_A_WRITE):
            numbers = range(first, first + _VALUES_A_WRITE)
            store.write_changes([(STATE, b"%012d" % number, chance.randbytes(_VALUE_BYTES)) for number in numbers])
        store.copy_to(folder / "flushed")
        sizes = _settled_sizes(store)
        last = [name for name, size in sizes.items() if size > 1 << 20][-1]
        flip_byte(store.path / last, sizes[last] - (1 << 20))
        scrub = Scrub([store], 24 * 3600, JobFolder(folder))
        started_s, cpu_s = time.perf_counter(), time.thread_time()
        scrub.read_stores()
        took_s, cpu_s = time.perf_counter() - started_s, time.thread_time() - cpu_s
        assert list(sizes) == store.table_files(), "no file was replaced meanwhile"
        assert len(scrub.damage) == 1, f"one flipped byte was reported as {scrub.damage}"
    return {
        "bytes": sum(sizes.values()),
        "bytes_per_s_min": BYTES_PER_S_MIN,
        "report_after_s": round(took_s, 1),
        "share_of_a_core": round(cpu_s / took_s, 5),
    }


def _settled_sizes(store: RocksStore) -> dict[str, int]:
    """Return the bytes of each table file, in the order in which they are read, once compactions have ended."""
    while True:
        names = store.table_files()
        time.sleep(_SETTLED_S)
        if names == store.table_files():
            return {name: (store.path / name).stat().st_size for name in names}
