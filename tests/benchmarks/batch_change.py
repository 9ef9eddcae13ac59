"""1,000 changes of invisible time made durable in three ways.

Every round goes through each way in turn, with synced writes of a `RocksStore`. The time includes the kernel's.

one_by_one    a record and two synced writes for each message: put the new, then delete the old (RocketMQ's order)
two_writes    one record; put everything new, then delete everything old
one_write     one record, one fold, one synced WriteBatch (popstream)

The cost of a sync decides the result, so the report includes the time of one on the same folder.
"""

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from broker_state.kernel.context.decision import Decision, OpRecord
from broker_state.kernel.fold import fold
from broker_state.store.overlay import Change, Overlay
from broker_state.store.rocks_store import OUTBOX, RocksStore
from popstream.wire.command import Command, Pop
from tests.benchmarks.benchmark_options import BenchOptions
from tests.benchmarks.kernel import Rate
from tests.benchmarks.measured_operations import batch, declare_queue

__all__ = ["measure_batch_change"]

_TOPIC = "bench"
_NOW_MS = 1_000_000
_OLD_KEY_BYTES = 40


def measure_batch_change(options: BenchOptions) -> list[dict[str, object]]:
    """Measure beside the report, and in the temporary folder: they may be on different file systems."""
    with tempfile.TemporaryDirectory(dir=options.work) as beside, tempfile.TemporaryDirectory() as temporary:
        return [_measure_in(Path(folder)) for folder in (beside, temporary)]


def _measure_in(folder: Path, *, rounds: int = 7, entries: int = 1_000) -> dict[str, object]:
    """Return the entries a second of each way, with median and spread, and the ratios; `folder` must be empty."""
    with RocksStore(folder / "state") as store:
        bench = _Bench(store, entries, rounds)
        ways: dict[str, Callable[[int], None]] = {
            "one_by_one": bench.one_by_one,
            "two_writes": bench.two_writes,
            "one_write": bench.one_write,
        }
        rates: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(rounds):
            for name, change_all in ways.items():
                bench.pop(name, number)
                started = time.perf_counter()
                change_all(number)
                rates[name].append(entries / (time.perf_counter() - started))
    ours = statistics.median(rates["one_write"])
    return {
        "folder": str(folder),
        "file_system": _file_system(folder),
        "sync_ms": round(_sync_ms(folder), 3),
        "entries_a_record": entries,
        "rates": {name: msgspec.to_builtins(Rate.of("entries", values)) for name, values in rates.items()},
        "one_write_to_one_by_one": round(ours / statistics.median(rates["one_by_one"]), 1),
        "one_write_to_two_writes": round(ours / statistics.median(rates["two_writes"]), 2),
    }


class _Bench:
    """A queue in a store, with a group for each way."""

    def __init__(self, store: RocksStore, entries: int, rounds: int) -> None:
        self.store = store
        self.overlay = Overlay(store)
        self.entries = entries
        self.records = 0
        for command in declare_queue(_TOPIC, 0, entries * rounds):
            self.decide(command)
        store.write(self.overlay)

    def decide(self, command: Command) -> None:
        decision = Decision()
        record = OpRecord(0, self.records, _NOW_MS, command, self.records.to_bytes(8, "big"))
        self.records += 1
        fold(self.overlay, [record], decision)
        assert not any(row.code for row in decision.operations), "an operation of the workload was refused"

    def pop(self, group: str, number: int) -> None:
        """Pop `entries` messages, and store a value for each of them that is deleted later."""
        self.decide(
            Pop(
                topic=_TOPIC,
                queue_id=0,
                v=1,
                op_id=f"{group}.P{number}",
                group=group,
                max_messages=self.entries,
                invisible_time_ms=3_600_000,
            )
        )
        self.store.write(self.overlay, [(OUTBOX, key, b"old") for _, key, _ in self.old(0, self.entries)])

    def change(self, group: str, number: int, first: int, end: int) -> None:
        """Change messages first..end-1 of a pop by one record, each in an entry of its own."""
        base = number * self.entries
        ranges = [(0, base + at, base + at) for at in range(first, end)]
        op_id = f"{group}.C{number}.{first}"
        self.decide(batch(_TOPIC, 0, group, op_id, [(number + 1, base)], ranges, times_ms=[60_000]))
        self.store.write(self.overlay)

    def old(self, first: int, end: int) -> list[Change]:
        """Return the deletes, one for each message."""
        return [(OUTBOX, at.to_bytes(_OLD_KEY_BYTES, "big"), None) for at in range(first, end)]

    def one_by_one(self, number: int) -> None:
        for at in range(self.entries):
            self.change("one_by_one", number, at, at + 1)
            self.store.write(self.overlay, self.old(at, at + 1))

    def two_writes(self, number: int) -> None:
        self.change("two_writes", number, 0, self.entries)
        self.store.write(self.overlay, self.old(0, self.entries))

    def one_write(self, number: int) -> None:
        self.change("one_write", number, 0, self.entries)


def _sync_ms(folder: Path, times: int = 200) -> float:
    """Return the median time to append 4 KiB to a file and sync it."""
    spent: list[float] = []
    with (folder / "sync").open("wb", buffering=0) as file:
        for _ in range(times):
            started = time.perf_counter()
            file.write(bytes(4096))
            os.fdatasync(file.fileno())
            spent.append((time.perf_counter() - started) * 1000)
    return statistics.median(spent)


def _file_system(folder: Path) -> str:
    """Return the type of the file system of `folder`, as `df -T` names it."""
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    inside = [(len(point), kind) for point, kind in mounts if folder.resolve().is_relative_to(point)]
    return max(inside)[1]
