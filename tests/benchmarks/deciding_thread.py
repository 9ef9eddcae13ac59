"""What would be gained if another thread or process encoded and wrote what the deciding thread decides (docs/adr/0019).

    python -m tests.benchmarks.deciding_thread [writes]

The rate of a thread that counts, beside synced WriteBatches of 10 MB, of its rate alone: what a thread gets while
RocksDB writes. CPU of an operation with one entry, of 20,000 in a WriteBatch: to encode and write what was decided,
against pickling and unpickling it for a process; and to make the key of its op_id once more.
"""

from __future__ import annotations

import gc
import pickle
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Self

from broker_state import KERNEL_FORM
from broker_state.kernel.context.decision import Decision
from broker_state.kernel.fold import fold
from broker_state.store.keys import op_key, queue_prefix
from broker_state.store.overlay import Overlay
from broker_state.store.rocks_store import OUTBOX, RocksStore
from pipelines.apply_ops.outbox import Outbox
from pipelines.decide_ops.entries import entries_of, rows_by_table
from tests.benchmarks.measured_operations import declare_queue, op_records, single_entry_ops

OPERATIONS = 20_000
ROUNDS = 5
ALONE_S = 2.0
WRITE_BYTES = 10_000_000
VALUES_A_WRITE = 1_000


class Counter:
    """A thread that does nothing but count, as long as the block is entered."""

    def __init__(self) -> None:
        self.count = 0
        self._is_over = False
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over = True
        self._thread.join()

    def _run(self) -> None:
        while not self._is_over:
            self.count += 1

    def rate(self, since: tuple[int, float]) -> float:
        """Return the counts a second since a mark."""
        return (self.count - since[0]) / (time.perf_counter() - since[1])

    def mark(self) -> tuple[int, float]:
        """Return the count, and the time."""
        return self.count, time.perf_counter()


def share_beside_writes(writes: int) -> tuple[float, float]:
    """Return the rate of a counting thread beside WriteBatches as a share of its rate alone, and ms of one of them."""
    value = bytes(WRITE_BYTES // VALUES_A_WRITE)
    changes = [(OUTBOX, number.to_bytes(8, "big"), value) for number in range(VALUES_A_WRITE)]
    with tempfile.TemporaryDirectory() as folder, RocksStore(Path(folder)) as store, Counter() as counter:
        mark = counter.mark()
        time.sleep(ALONE_S)
        alone = counter.rate(mark)
        mark = counter.mark()
        for _ in range(writes):
            store.write_changes(changes)
        beside = counter.rate(mark)
        return beside / alone, (time.perf_counter() - mark[1]) * 1e3 / writes


def cpu_us() -> dict[str, float]:
    """Return microseconds of CPU an operation, medians."""
    found: dict[str, list[float]] = {}
    for _ in range(ROUNDS):
        with tempfile.TemporaryDirectory() as folder, RocksStore(Path(folder)) as store:
            _round(store, found)
    return {name: statistics.median(each) for name, each in found.items()}


def _round(store: RocksStore, found: dict[str, list[float]]) -> None:
    overlay, outbox = Overlay(store), Outbox(store)
    fold(overlay, op_records(declare_queue("orders", 0, OPERATIONS // 2)), Decision())
    store.write(overlay)
    commands = list(single_entry_ops("orders", 0, "billing", OPERATIONS // 2, reply_to=0))
    records = op_records(commands)
    decision = Decision()
    fold(overlay, records, decision)
    changes = list(overlay.changes())
    handed = rows_by_table(decision, ()), decision.answers, changes

    def note(name: str, began_s: float) -> None:
        found.setdefault(name, []).append((time.thread_time() - began_s) * 1e6 / len(records))

    began_s = time.thread_time()
    entries = entries_of(decision, (), 1, results_partitions=1, signer=None)
    store.write(overlay, outbox.changes(entries))
    note("to encode and write it", began_s)
    began_s = time.thread_time()
    data = pickle.dumps(handed, pickle.HIGHEST_PROTOCOL)
    note("to pickle it", began_s)
    began_s = time.thread_time()
    pickle.loads(data)  # noqa: S301 - made here
    note("to unpickle it", began_s)
    began_s = time.thread_time()
    for command in commands:
        op_key(queue_prefix(command.topic, command.queue_id), command.op_id or "")
    note("for the key of its op_id", began_s)


def main(writes: int) -> None:
    """Measure and print."""
    gc.disable()  # as the job does while it decides
    share, write_ms = share_beside_writes(writes)
    print(
        f"beside {writes} synced writes of 10 MB, {write_ms:.0f} ms each, a thread that counts has {share:.0%} of its"
        " rate alone"
    )
    for name, us in cpu_us().items():
        print(f"{us:.2f} us of CPU an operation {name} ({KERNEL_FORM} kernel)")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
