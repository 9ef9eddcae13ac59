"""`make bench PART=drain` waits until the answers are in Kafka: here for an outbox that is told what is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker_state.store.rocks_store import RocksStore
from pipelines.decide_ops.entry import EntryKind
from tests.benchmarks.drain import is_answered
from tests.support.in_process.small_job import DECLARE, POP, SmallJob, written_to

if TYPE_CHECKING:
    from pathlib import Path


def test_what_is_decided_is_answered_once_kafka_has_all_answers(tmp_path: Path) -> None:
    with RocksStore(tmp_path / "state") as store:
        job = SmallJob(tmp_path, store)
        job.run(DECLARE, written_to(0, 1), POP)
        job.run(POP)
        entries = [entry for entry in job.published if entry.kind == EntryKind.ANSWERS]
        assert len(entries) == 2
        assert not is_answered(job.outbox)
        job.outbox.delivered([entries[1].key])
        assert not is_answered(job.outbox)
        job.outbox.delivered([entries[0].key])
        assert is_answered(job.outbox)
        assert len(job.outbox) > 0, "rows wait for Delta"
