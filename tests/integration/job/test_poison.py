"""Claim: a record that cannot be decided costs itself and nothing else: it is found, quarantined, and said loudly.

Method: a host on a real Kafka with Spark and Delta, whose kernel fails for one op_id, among many that are as good as
ever. How the culprit is found, in this process and across its deaths:
tests/unit/pipelines/apply_ops/test_crash_loop.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from broker_state.kernel.fold import fold
from pipelines.control.client import ask
from pipelines.control.messages import Status, StatusRequest
from pipelines.decide_ops import ops_decider
from pipelines.job_settings import JobSettings
from pipelines.process.host import Host
from tests.support.left_behind import table_rows
from tests.support.wire import Wire, wait_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from broker_state.kernel.context.decision import Decision, OpRecord
    from broker_state.kernel.context.queue_state import QueueState
    from broker_state.store.overlay import Overlay
    from connectors.kafka.embedded import EmbeddedKafka

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[3]


def test_a_record_that_cannot_be_decided_costs_itself(
    spark: SparkSession, kafka: EmbeddedKafka, tmp_path: Path, topic_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert spark.sparkContext._jsc is not None, "a host that finds no Spark starts and ends one of its own"

    def fails_for_poison(overlay: Overlay, records: Sequence[OpRecord], decision: Decision) -> set[QueueState]:
        if any(record.command.op_id == "poison" for record in records):
            message = "no branch for this"
            raise KeyError(message)
        return fold(overlay, records, decision)

    monkeypatch.setattr(ops_decider, "fold", fails_for_poison)
    settings = JobSettings(
        folder=tmp_path / "job",
        bootstrap_servers=kafka.bootstrap_servers,
        topic_prefix=topic_prefix,
        ops_partitions=1,
        flush_interval_s=0.3,
    )
    with Host(settings, var=ROOT / "var") as host, Wire(host.job) as wire:
        wire.ask("declare", topic_id="id")
        before = [wire.operation("policy", group=f"before-{number}") for number in range(20)]
        after = [wire.operation("policy", group=f"after-{number}") for number in range(20)]
        poison = {**wire.operation("policy", group="poison"), "op_id": "poison"}
        for operation in (*before, poison, *after):
            wire.send_later(operation)
        for operation in (*before, *after):
            assert wire.answer(operation["op_id"])["reason"] == "OK"
        assert wire.answer("poison")["reason"] == "INVALID_PARAMETER", "its sender gets an answer"
        job = host.job
        wait_for(lambda: job.flush.delivered_seq == job.apply_ops.applied.apply_seq, job)
        (row,) = table_rows(job.folder.delta, "rejected")
        assert row["reason"] == "QUARANTINED"
        assert "KeyError: 'no branch for this'" in row["detail"]
        assert host.job_file is not None
        status = ask(host.job_file, StatusRequest(), Status)
        assert (status.quarantined, status.not_ready_reasons) == (1, [])
        assert host.metrics.registry.get_sample_value("popstream_quarantined_records") == 1
        assert job.failure is None
