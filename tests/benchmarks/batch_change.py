"""1,000 changes of invisible time made durable: one by one, in one record with two writes, and as we do it.

Each way goes through a `RocksStore` with synced writes, in turn in every round, the kernel's time included:

one_by_one    a record and two synced writes a message: the new is put, then the old is deleted (RocketMQ's order)
two_writes    one record; all that is new is put, then all that is old deleted
one_write     one record, one fold, one synced WriteBatch (ours)

What a sync costs decides, so the time of one on the same folder stands beside the rates.
"""

import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from broker_state.kernel.decision import Decision, OpRecord
from broker_state.kernel.fold import fold
from broker_state.store.overlay import Change, Overlay
from broker_state.store.rocks_store import OUTBOX, RocksStore
from popstream.wire.command import Command, Pop
from tests.benchmarks.kernel import Rate
from tests.benchmarks.workload import batch, declare_queue

__all__ = ["batch_change_through_the_store"]

_TOPIC = "bench"
_NOW_MS = 1_000_000
_OLD_KEY_BYTES = 40


def batch_change_through_the_store(folder: Path, *, rounds: int = 7, entries: int = 1_000) -> dict[str, object]:
    """Entries a second of each way, median and spread, and how many times ours is faster; `folder` must be empty."""
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
    """A queue in a store, and a group for each way."""

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
        """`entries` messages, and for each of them what is to be deleted."""
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
        """One record changes messages first..end-1 of a pop, each in an entry of its own."""
        base = number * self.entries
        ranges = [(0, base + at, base + at) for at in range(first, end)]
        op_id = f"{group}.C{number}.{first}"
        self.decide(batch(_TOPIC, 0, group, op_id, [(number + 1, base)], ranges, times_ms=[60_000]))
        self.store.write(self.overlay)

    def old(self, first: int, end: int) -> list[Change]:
        """Deletes, one for each message."""
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
    """How long it takes to append 4 KiB to a file and sync it, the median."""
    spent: list[float] = []
    with (folder / "sync").open("wb", buffering=0) as file:
        for _ in range(times):
            started = time.perf_counter()
            file.write(bytes(4096))
            os.fdatasync(file.fileno())
            spent.append((time.perf_counter() - started) * 1000)
    return statistics.median(spent)


def _file_system(folder: Path) -> str:
    """The type of the file system that `folder` is on, as `df -T` names it."""
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    inside = [(len(point), kind) for point, kind in mounts if folder.resolve().is_relative_to(point)]
    return max(inside)[1]
