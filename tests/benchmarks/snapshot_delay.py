"""How long snapshots of a state with many leases delay the WriteBatches of the job that takes them."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

from broker_state.kernel.context.decision import Decision, OpRecord
from broker_state.kernel.fold import fold
from broker_state.store.overlay import Overlay
from broker_state.store.rocks_store import META, RocksStore
from checkpoints.applied import APPLIED_KEY, Applied
from checkpoints.snapshot_store import Snapshot, SnapshotStore
from pipelines.recovery.take_snapshot import take_snapshot
from popstream.wire.command import Command
from tests.benchmarks.benchmark_options import BenchOptions
from tests.benchmarks.kernel import LEASES
from tests.benchmarks.measured_operations import declare_queue, single_pops

__all__ = ["measure_snapshot"]

_TOPIC = "bench"
_NOW_MS = 1_000_000
_SECONDS_WITHOUT = 5.0
_POPS_A_WRITE = 200
_WRITES_MAX = 20_000
_LEASES_A_WRITE = 100_000


def measure_snapshot(options: BenchOptions, leases: int = LEASES, snapshots: int = 3) -> dict[str, object]:
    """Return the milliseconds of the longest synced write, without a snapshot and beside each of some."""
    folder = options.work / "snapshot"
    kept = SnapshotStore(str(folder / "kept"))
    taken: list[Snapshot] = []
    beside: list[float] = []
    with RocksStore(folder / "state") as store, ThreadPoolExecutor(1) as beside_it:
        store.write_changes(
            [(META, APPLIED_KEY, Applied(state_epoch="bench", ops_topic="bench", ops_topic_id="bench").encode())]
        )
        writes = _Writes(store, leases)
        ends_at = time.monotonic() + _SECONDS_WITHOUT
        without = writes.longest_ms(lambda: time.monotonic() > ends_at)
        for _ in range(snapshots):
            taking = beside_it.submit(take_snapshot, store, None, folder / "scratch", kept)
            beside.append(writes.longest_ms(taking.done))
            taken.append(taking.result())
    sizes = [snapshot.size for snapshot in taken]
    return {"leases": leases, "bytes": sizes, "longest_write_ms": beside, "longest_write_ms_without": without}


class _Writes:
    """A queue with many leases; small micro-batches add more."""

    def __init__(self, store: RocksStore, leases: int) -> None:
        self._store = store
        self._overlay = Overlay(store)
        messages = leases + _WRITES_MAX * _POPS_A_WRITE
        self._pops = single_pops(_TOPIC, 0, "group", messages)
        self._offset = 0
        self._fold(list(declare_queue(_TOPIC, 0, messages)))
        for first in range(0, leases, _LEASES_A_WRITE):
            self._fold(list(islice(self._pops, min(_LEASES_A_WRITE, leases - first))))
            store.write(self._overlay)

    def longest_ms(self, is_enough: Callable[[], bool]) -> float:
        """Write, at least once, until `is_enough`; return the longest write."""
        longest = 0.0
        while True:
            self._fold(list(islice(self._pops, _POPS_A_WRITE)))
            started = time.perf_counter()
            self._store.write(self._overlay)
            longest = max(longest, time.perf_counter() - started)
            if is_enough():
                return round(longest * 1000, 1)

    def _fold(self, commands: list[Command]) -> None:
        assert commands, "the queue is used up"
        records = [
            OpRecord(0, self._offset + number, _NOW_MS, command, (self._offset + number).to_bytes(8, "big"))
            for number, command in enumerate(commands)
        ]
        self._offset += len(commands)
        fold(self._overlay, records, Decision())
