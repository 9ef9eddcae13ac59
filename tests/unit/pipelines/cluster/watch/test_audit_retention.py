"""Claim: the driver says, before Kafka deletes them, that decided rows wait for the tables for too long."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from kafka import TopicPartition
from kafka.structs import OffsetAndTimestamp

from checkpoints.prefix_owner import Owner
from connectors.kafka.topic_admin import TopicFacts
from pipelines.cluster.committed import Committed
from pipelines.cluster.watch import audit_retention
from pipelines.cluster.watch.audit_retention import AuditRetention
from pipelines.cluster.watch.driver_watch import DriverWatch
from pipelines.job_settings import JobSettings
from popstream.kafka_connection import KafkaConnection

if TYPE_CHECKING:
    from collections.abc import Mapping

DAY_MS = 86_400_000
CONNECTION = KafkaConnection("kafka:9092")
AUDIT = TopicFacts("shop.cluster_audit", "topic-id", 3)
OVERDUE = (
    "17 entries of shop.cluster_audit are older than half of its retention and not written to the tables or the"
    " dead-letter topic: raise its retention.ms until they are"
)


class Log:
    """A topic of three partitions, each with 100 entries: those below 20 are older than half of its retention."""

    asked_ms: list[int]

    def __init__(self, **_: object) -> None:
        self.is_closed = False

    def end_offsets(self, partitions: list[TopicPartition], **_: object) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 100)

    def offsets_for_times(
        self, asked: Mapping[TopicPartition, int], **_: object
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        Log.asked_ms = list(asked.values())
        return {at: OffsetAndTimestamp(20, 0, -1) if at.partition < 2 else None for at in asked}

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def keeps(monkeypatch: pytest.MonkeyPatch) -> dict[str, int | None]:
    """The retention of the topic, in ms."""
    keeps: dict[str, int | None] = {AUDIT.name: 7 * DAY_MS}
    monkeypatch.setattr(audit_retention, "KafkaConsumer", Log)
    monkeypatch.setattr(audit_retention, "retention_ms", lambda _, name: keeps[name])
    monkeypatch.setattr(audit_retention, "time", SimpleNamespace(time=lambda: 10 * DAY_MS / 1000))
    return keeps


def looked(retention: AuditRetention) -> tuple[int, str | None]:
    retention.look()
    return retention.overdue, retention.problem


def test_what_is_not_written_and_older_than_half_of_the_retention_counts(keeps: dict[str, int | None]) -> None:
    written = {0: 3, 1: 50, 2: 100}
    retention = AuditRetention(CONNECTION, AUDIT, lambda: written)
    assert (retention.overdue, retention.problem) == (0, None)
    assert looked(retention) == (17, OVERDUE)
    assert Log.asked_ms == [round(6.5 * DAY_MS)] * 3
    written[0] = 20
    assert looked(retention) == (0, None)
    # Nothing of the last partition is younger than half of the retention.
    written[2] = 90
    assert looked(retention)[0] == 10
    keeps[AUDIT.name] = None
    assert looked(retention) == (0, None), "for ever"


@pytest.mark.usefixtures("keeps")
def test_a_job_of_which_rows_are_at_risk_is_not_ready_and_reports_them() -> None:
    retention = AuditRetention(CONNECTION, AUDIT, lambda: {0: 3, 1: 50, 2: 100})
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(master="spark://a:7077"))
    audit: Any = SimpleNamespace(problem=None, failures=0)
    watch = DriverWatch(
        spark,
        CONNECTION,
        JobSettings(topic_prefix="shop"),
        checkpoint="/state",
        tables="/state/tables",
        ops=TopicFacts("shop.ops", "ops-id", 1),
        committed=Committed(-1, {0: 0}),
        owner=lambda: Owner(session="s", term=1, state_epoch="e", has_decided=True, ops_topic_id="o", place="p"),
        audit=audit,
        retention=retention,
        failure=lambda: None,
        on_failure=lambda _: None,
    )
    assert watch.not_ready_reasons() == []
    retention.look()
    report = watch.report()
    assert report.not_ready_reasons == [OVERDUE]
    assert report.cluster is not None
    assert report.cluster.audit_overdue == 17
