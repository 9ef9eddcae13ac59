"""What it costs to follow the lanes for the metrics by topic and group: CPU of an operation, and of a pass.

    python -m tests.benchmarks.lane_watch [operations]

The operations are a pop and an ack for each message, by turns in all lanes, decided by the kernel in micro-batches of
20,000. They are counted in the same thread, so that the CPU of both is known.
"""

from __future__ import annotations

import gc
import itertools
import sys
import tempfile
import time
from pathlib import Path

from broker_state import KERNEL_FORM
from broker_state.kernel.context.decision import Decision
from broker_state.kernel.fold import fold
from broker_state.store.overlay import Overlay
from broker_state.store.rocks_store import RocksStore
from pipelines.apply_ops.outbox import Outbox
from pipelines.control.lane_metrics import LaneMetrics
from pipelines.control.lane_watch import LaneWatch
from pipelines.decide_ops.entries import entries_of
from tests.benchmarks.measured_operations import declare_queue, op_records, single_entry_ops

TOPIC = "orders"
RECORDS_A_WRITE = 20_000
GROUPS_MAX = 1_000
LANES = ((8, 10), (100, 1_000))
"""(queues, groups), each of which has a lane in each queue."""


def main(operations: int) -> None:
    """Measure and print."""
    gc.disable()  # as the job does while it decides
    for queues, groups in LANES:
        decided_us, counted_us, pass_ms = measured(queues, groups, operations)
        share = counted_us / decided_us
        print(
            f"{queues * groups:,} lanes, {KERNEL_FORM} kernel: {decided_us:.1f} us of CPU to decide, encode and write"
            f" an operation, {counted_us:.2f} to count it ({share:.1%}); a pass over the lanes takes {pass_ms:.1f} ms"
        )


def measured(queues: int, groups: int, operations: int) -> tuple[float, float, float]:
    """Return microseconds to decide, encode and write an operation, and to count it; milliseconds of a pass after all.

    There are at least two operations in each lane.
    """
    messages = max(1, operations // 2 // (queues * groups))
    streams = [
        single_entry_ops(TOPIC, queue_id, f"group-{number}", messages, held=1, reply_to=0)
        for queue_id in range(queues)
        for number in range(groups)
    ]
    in_turn = itertools.chain.from_iterable(zip(*streams, strict=True))
    decided_s = counted_s = 0.0
    with tempfile.TemporaryDirectory() as folder, RocksStore(Path(folder)) as store:
        overlay, outbox, watch = Overlay(store), Outbox(store), LaneWatch(store, LaneMetrics(), GROUPS_MAX)
        for queue_id in range(queues):
            fold(overlay, op_records(declare_queue(TOPIC, queue_id, messages)), Decision())
        store.write(overlay)
        count = 0
        for apply_seq in itertools.count(1):
            records = op_records(itertools.islice(in_turn, RECORDS_A_WRITE), count)
            if not records:
                break
            count += len(records)
            began_s, decision = time.thread_time(), Decision()
            touched = fold(overlay, records, decision)
            entries = entries_of(decision, (), apply_seq, results_partitions=1, signer=None)
            store.write(overlay, outbox.changes(entries))
            at_s = time.thread_time()
            watch.observe(decision, touched)
            watch._count_pending()
            decided_s, counted_s = decided_s + at_s - began_s, counted_s + time.thread_time() - at_s
            if count - len(records) < messages * len(streams) <= count:  # half of them
                watch.refresh()  # the last pass meets lanes that are known, as most of a job are
            assert all(row.applied for row in decision.operations), "an operation of the workload was refused"
        began_s = time.thread_time()
        watch.refresh()
        pass_s = time.thread_time() - began_s
    return decided_s * 1e6 / count, counted_s * 1e6 / count, pass_s * 1e3


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 400_000)
