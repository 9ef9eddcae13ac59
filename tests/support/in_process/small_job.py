"""MicroBatchApplier with its store and outbox, and lists of records in place of Spark's part."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

from broker_state.store.rocks_store import META, RocksStore
from checkpoints.applied import APPLIED_KEY, Applied
from checkpoints.micro_batch_attempts import Attempts
from checkpoints.spark_progress import SparkPlans
from pipelines.apply_ops.micro_batch import MicroBatchApplier, MicroBatchReport
from pipelines.apply_ops.outbox import Outbox
from pipelines.apply_ops.quarantine import Quarantine
from pipelines.apply_ops.source import MicroBatch
from pipelines.decide_ops.decode import Decoder, KafkaRecord
from pipelines.decide_ops.entry import Entry
from pipelines.decide_ops.ops_decider import OpsDecider
from pipelines.laps import Lap
from popstream.exchange.partitioner import ops_key

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from pathlib import Path

    from broker_state.kernel.context.decision import Decision
    from broker_state.kernel.context.queue_state import QueueState

__all__ = ["DECLARE", "POP", "SmallJob", "written_to"]

TOPIC = "popstream.ops"

DECLARE = {"type": "declare", "topic_id": "t"}
POP = {"type": "pop", "group": "g", "max_messages": 1, "invisible_time_ms": 1000, "poll_time_ms": 9000}


def written_to(first: int, last: int) -> dict[str, Any]:
    return {"type": "dispatch", "ranges": [{"first": first, "last": last}]}


class Records:
    """In place of `OpsSource`: what Spark would have handed over, in two slices."""

    def __init__(self) -> None:
        self.batch: list[KafkaRecord] = []

    def records(self, _: object) -> Iterator[list[KafkaRecord]]:
        half = len(self.batch) // 2
        yield self.batch[:half]
        yield self.batch[half:]


class SmallJob:
    """MicroBatchApplier with its store and outbox; `run` is a micro-batch, at `now_ms`."""

    def __init__(
        self,
        root: Path,
        store: RocksStore,
        trace: Callable[[MicroBatchReport], None] = lambda _: None,
        observe: Callable[[Decision, Collection[QueueState]], None] = lambda _decision, _touched: None,
    ) -> None:
        self.now_ms = 1_000
        self.checkpoint = root / "spark"
        (self.checkpoint / "offsets").mkdir(parents=True, exist_ok=True)
        (self.checkpoint / "metadata").write_text('{"id":"query"}')
        stored = store.get(META, APPLIED_KEY)
        applied = Applied.decode(stored) if stored else Applied(state_epoch="e", ops_topic=TOPIC, ops_topic_id="t")
        self.outbox = Outbox(store)
        self.quarantine = Quarantine(store)
        self.delivered: dict[str, int] = {}
        self.published: list[Entry] = []
        self.reports: list[MicroBatchReport] = []
        self.records = Records()
        self._next = applied.next_offset.get(0, 0)
        self._spark_batch_id = 0
        self.apply_ops = MicroBatchApplier(
            store=store,
            require_ownership=lambda: None,
            outbox=self.outbox,
            attempts=Attempts(root / "attempts"),
            quarantine=self.quarantine,
            applied=applied,
            decider=OpsDecider(store, partial(self.quarantine.decode, decoder=Decoder(1)), results_partitions=1),
            source=self.records,
            plans=SparkPlans(self.checkpoint, TOPIC),
            delivered=lambda: self.delivered,
            publish=self.published.extend,
            after_micro_batch=self.reports.append,
            observe=observe,
            trace=trace,
        )

    def run(self, *operations: dict[str, Any], planned_end: int | None = None) -> None:
        batch = []
        for number, operation in enumerate(operations):
            full = {"v": 1, "topic": "t", "queue_id": 0, "reply_to": 0, "op_id": f"{self._next + number}", **operation}
            value = json.dumps(full).encode()
            batch.append(KafkaRecord(0, self._next + number, self.now_ms, ops_key("t", 0), value, len(value)))
        self.run_records(batch, planned_end if planned_end is not None else self._next + len(batch))

    def run_from_start(self, *operations: dict[str, Any]) -> None:
        """Read the whole log, as if it began at offset 0; what is decided falls out."""
        self._next = 0
        self.run(*operations)

    def run_records(self, batch: list[KafkaRecord], planned_end: int) -> None:
        plan = f'v1\n{{}}\n{{"{TOPIC}":{{"0":{planned_end}}}}}'
        (self.checkpoint / "offsets" / str(self._spark_batch_id)).write_text(plan)
        self.records.batch = batch
        with Lap("fetch") as fetch:
            fetch.facts["records"] = len(batch)
        self.apply_ops(MicroBatch(self._spark_batch_id, None, fetch))
        self._next = planned_end
        self._spark_batch_id += 1
