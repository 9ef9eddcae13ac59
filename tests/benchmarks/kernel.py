"""The kernel alone, in memory and over RocksDB, without Kafka and Spark."""

import cProfile
import gc
import pstats
import statistics
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from broker_state.kernel.context.decision import Decision, OpRecord
from broker_state.kernel.fold import fold
from broker_state.store.memory_kv import MemoryKv
from broker_state.store.overlay import Overlay
from broker_state.store.rocks_store import RocksStore
from pipelines.apply_ops.outbox import Outbox
from pipelines.decide_ops.entries import entries_of
from popstream.wire.command import Ack, Command, Pop, Tick
from tests.benchmarks.benchmark_options import BenchOptions
from tests.benchmarks.measured_operations import (
    MS_BASE,
    declare_queue,
    op_records,
    single_entry_ops,
    single_pops,
    single_pops_one_batch,
    whole_pop_ops,
)

__all__ = ["LEASES", "Rate", "measure_expiry", "measure_kernel", "measure_orderly", "measure_profile"]

LEASES = 1_000_000

_TOPIC = "bench"


class Rate(msgspec.Struct, frozen=True):
    """Rate per second over several runs; `unit` names what is counted."""

    unit: str
    median: float
    least: float
    greatest: float
    runs: int

    @classmethod
    def of(cls, unit: str, rates: Sequence[float]) -> "Rate":
        """Return the median and the spread of `rates`."""
        return cls(unit, round(statistics.median(rates)), round(min(rates)), round(max(rates)), len(rates))


def measure_kernel(options: BenchOptions) -> dict[str, Rate]:
    """Return rates of the kernel in CPU time of one core, and of kernel and store with one synced WriteBatch."""
    messages, runs = min(options.operations // 4, 100_000), options.runs
    rates: dict[str, list[float]] = {}
    for _ in range(runs):
        _single(rates, "memory", MemoryKv(), messages)
        with tempfile.TemporaryDirectory() as folder, RocksStore(Path(folder)) as store:
            _single(rates, "store", store, messages)
        _batches(rates)
        _whole(rates, "orderly_pops_of_32", messages_a_pop=32, entry_offsets=32, pops=1_000, order=True)
        _whole(rates, "orderly_pops_of_32_each_its_own_entry", messages_a_pop=32, entry_offsets=1, pops=300, order=True)
    return {name: Rate.of(name.rsplit(".", 1)[-1], values) for name, values in rates.items()}


def _single(rates: dict[str, list[float]], where: str, store: MemoryKv | RocksStore, messages: int) -> None:
    overlay = Overlay(store)
    fold(overlay, op_records(declare_queue(_TOPIC, 0, messages)), Decision())
    store.write(overlay)
    records = op_records(single_entry_ops(_TOPIC, 0, "group", messages))
    gc.collect()
    gc.disable()
    started, wall = time.process_time(), time.perf_counter()
    decision = Decision()
    fold(overlay, records, decision)
    decided = time.process_time() - started
    store.write(overlay)
    total = time.perf_counter() - wall
    gc.enable()
    refused = sum(1 for row in decision.operations if row.code)
    assert not refused, f"{refused} operations of the workload were refused"
    if where == "memory":
        rates.setdefault("kernel.memory.ops", []).append(len(records) / decided)
    else:
        rates.setdefault("kernel.store_one_sync.entries", []).append(len(records) / total)


def _batches(rates: dict[str, list[float]]) -> None:
    """Time records of 10,000 entries, and entries of 10,000 messages: acked, then changed."""
    for verb, times_ms in (("", ()), ("change_", (60_000,))):
        _whole(rates, f"{verb}entries_each_its_own_range", pops=2, times_ms=times_ms)
        _whole(rates, f"{verb}entries_every_second_offset", pops=4, every=2, times_ms=times_ms)
        _whole(rates, f"{verb}entries_whole_pops", entry_offsets=10_000, pops=30, times_ms=times_ms)
        commands = single_pops_one_batch(_TOPIC, 0, "group", 10_000, times_ms=times_ms)
        _time(rates, f"{verb}entries_each_its_own_handle", commands, 10_000, 10_000)
    _whole(rates, "change_entries_each_its_own_time", pops=2, times_ms=range(60_000, 60_007))


def _whole(
    rates: dict[str, list[float]],
    name: str,
    *,
    messages_a_pop: int = 10_000,
    entry_offsets: int = 1,
    pops: int,
    order: bool = False,
    every: int = 1,
    times_ms: Sequence[int] = (),
) -> None:
    commands = whole_pop_ops(
        _TOPIC,
        0,
        "group",
        pops,
        messages_a_pop,
        entry_offsets=entry_offsets,
        order=order,
        every=every,
        times_ms=times_ms,
    )
    _time(rates, name, commands, messages_a_pop * pops, messages_a_pop * pops // every)


def _time(rates: dict[str, list[float]], name: str, commands: Iterable[Command], popped: int, named: int) -> None:
    """Add the rate of messages popped and named in entries, and that of the named ones in the time of their records."""
    store = MemoryKv()
    overlay = Overlay(store)
    fold(overlay, op_records(declare_queue(_TOPIC, 0, popped)), Decision())
    store.write(overlay)
    records = op_records(commands)
    decision = Decision()
    spent = {True: 0.0, False: 0.0}
    gc.collect()
    gc.disable()  # as the job does while it decides
    for record in records:
        started = time.process_time()
        fold(overlay, [record], decision)
        spent[isinstance(record.command, Pop)] += time.process_time() - started
    gc.enable()
    refused = sum(1 for row in decision.operations if row.code)
    assert not refused, f"{refused} operations of the workload were refused"
    rates.setdefault(f"kernel.{name}.messages", []).append((popped + named) / sum(spent.values()))
    rates.setdefault(f"kernel.{name}_records_alone.messages", []).append(named / spent[False])


def measure_orderly(_: BenchOptions, messages: int = 1_000_000, messages_a_pop: int = 10_000) -> dict[str, object]:
    """Move messages through one orderly lane, each pop acked back to front in ten parts; return the longest value."""
    with tempfile.TemporaryDirectory() as folder, RocksStore(Path(folder)) as store:
        overlay = Overlay(store)
        fold(overlay, op_records(declare_queue(_TOPIC, 0, messages)), Decision())
        commands = whole_pop_ops(
            _TOPIC,
            0,
            "group",
            messages // messages_a_pop,
            messages_a_pop,
            entry_offsets=messages_a_pop // 10,
            order=True,
        )
        longest = largest = 0
        started = time.perf_counter()
        for number, command in enumerate(commands):
            backwards = command
            if isinstance(command, Ack):
                backwards = msgspec.structs.replace(command, entries=command.entries[::-1])
            decision = Decision()
            fold(overlay, op_records([backwards], number), decision)
            assert not any(row.code for row in decision.operations), "an operation of the workload was refused"
            state = [len(value or b"") for family, _, value in overlay.changes() if family in {"state", "ops"}]
            longest = max(longest, *state)
            largest = max(largest, store.write(overlay))
        return {
            "messages": messages,
            "messages_a_pop": messages_a_pop,
            "seconds": round(time.perf_counter() - started, 2),
            "write_batch_bytes_max": largest,
            "longest_value_bytes": longest,
        }


def measure_profile(_: BenchOptions, messages: int = 20_000, count: int = 10) -> list[dict[str, object]]:
    """Return the functions in which the kernel spends most of its own time, for single-entry operations."""
    overlay = Overlay(MemoryKv())
    fold(overlay, op_records(declare_queue(_TOPIC, 0, messages)), Decision())
    records = op_records(single_entry_ops(_TOPIC, 0, "group", messages))
    profile = cProfile.Profile()
    profile.enable()
    fold(overlay, records, Decision())
    profile.disable()
    stats = pstats.Stats(profile)
    total = sum(own for _, _, own, _, _ in stats.stats.values())  # type: ignore[attr-defined]
    rows = sorted(stats.stats.items(), key=lambda item: -item[1][2])[:count]  # type: ignore[attr-defined]
    return [
        {"function": f"{Path(file).name}:{name}", "own_share": round(own / total, 3), "calls": calls}
        for (file, _, name), (calls, _, own, _, _) in rows
    ]


def measure_expiry(_: BenchOptions) -> list[dict[str, object]]:
    """Let many leases end at once, granted by pops of three sizes."""
    return [_expire_at_once(LEASES, messages_a_pop=size) for size in (10_000, 100, 1)]


def _expire_at_once(leases: int, *, messages_a_pop: int) -> dict[str, object]:
    """Let `leases` leases of one queue end together; return the records that it takes, and the largest of them."""
    with tempfile.TemporaryDirectory() as folder, RocksStore(Path(folder)) as store:
        overlay = Overlay(store)
        fold(overlay, op_records(declare_queue(_TOPIC, 0, leases)), Decision())
        if messages_a_pop == 1:
            pops = list(single_pops(_TOPIC, 0, "group", leases))
        else:
            count = leases // messages_a_pop
            commands = whole_pop_ops(_TOPIC, 0, "group", count, messages_a_pop, entry_offsets=messages_a_pop)
            pops = [command for command in commands if isinstance(command, Pop)]
        for first in range(0, len(pops), 100_000):
            fold(overlay, op_records(pops[first : first + 100_000], first), Decision())
            store.write(overlay)
        expired = rows = ticks = 0
        decide_seconds, write_seconds, write_batch_bytes, outbox_bytes, longest_value = [], [], [], [], 0
        while expired < leases:
            ticks += 1
            decision = Decision()
            tick = Tick(topic=_TOPIC, queue_id=0, v=1)
            started = time.perf_counter()
            fold(overlay, [OpRecord(0, len(pops) + ticks, MS_BASE + 10_000_000, tick, b"tick")], decision)
            decide_seconds.append(time.perf_counter() - started)
            lengths = (len(value or b"") for family, _, value in overlay.changes() if family in {"state", "ops"})
            longest_value = max(longest_value, *lengths)
            entries = entries_of(decision, [], 1, results_partitions=1, signer=None)
            started = time.perf_counter()
            write_batch_bytes.append(store.write(overlay, Outbox(store).changes(entries)))
            write_seconds.append(time.perf_counter() - started)
            outbox_bytes.append(sum(len(entry.value) for entry in entries))
            rows += len(decision.deliveries)
            expired += sum(row.last_offset - row.first_offset + 1 for row in decision.deliveries)
        return {
            "leases": leases,
            "messages_a_pop": messages_a_pop,
            "ticks": ticks,
            "rows": rows,
            "longest_decide_seconds": round(max(decide_seconds), 3),
            "decide_seconds": round(sum(decide_seconds), 2),
            "longest_write_seconds": round(max(write_seconds), 3),
            "write_seconds": round(sum(write_seconds), 2),
            "largest_write_batch_bytes": max(write_batch_bytes),
            "largest_outbox_bytes": max(outbox_bytes),
            "longest_value_bytes": longest_value,
        }
