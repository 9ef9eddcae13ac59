"""Claim: the driver says, before Kafka deletes them, that decided rows wait for the tables for too long."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

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
HELD_BACK = OVERDUE.replace(": raise", "; some are older than three quarters of it, and nothing is decided: raise")


class Log:
    """A topic of three partitions, each with 100 entries: 20 are older than half of its retention, 5 than 3/4 of it."""

    asked_ms: ClassVar[list[int]] = []

    def __init__(self, **_: object) -> None:
        self.is_closed = False

    def end_offsets(self, partitions: list[TopicPartition], **_: object) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 100)

    def offsets_for_times(
        self, asked: Mapping[TopicPartition, int], **_: object
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        Log.asked_ms += asked.values()
        return {at: self._first_since(at, since_ms) for at, since_ms in asked.items()}

    @staticmethod
    def _first_since(at: TopicPartition, since_ms: int) -> OffsetAndTimestamp | None:
        if at.partition == 2 and since_ms > 5 * DAY_MS:
            return None
        return OffsetAndTimestamp(20 if since_ms > 5 * DAY_MS else 5, 0, -1)

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def keeps(monkeypatch: pytest.MonkeyPatch) -> dict[str, int | None]:
    """The retention of the topic, in ms."""
    keeps: dict[str, int | None] = {AUDIT.name: 7 * DAY_MS}
    monkeypatch.setattr(audit_retention, "KafkaConsumer", Log)
    monkeypatch.setattr(Log, "asked_ms", [])
    monkeypatch.setattr(audit_retention, "retention_ms", lambda _, name: keeps[name])
    monkeypatch.setattr(audit_retention, "time", SimpleNamespace(time=lambda: 10 * DAY_MS / 1000))
    return keeps


def looked(retention: AuditRetention) -> tuple[int, str | None, bool]:
    retention.look()
    return retention.overdue, retention.problem, retention.holds_back


def test_what_is_not_written_and_older_than_half_of_the_retention_counts(keeps: dict[str, int | None]) -> None:
    written = {0: 7, 1: 50, 2: 100}
    retention = AuditRetention(CONNECTION, AUDIT, lambda: written)
    assert (retention.overdue, retention.problem) == (0, None)
    assert looked(retention) == (13, OVERDUE.replace("17", "13"), False)
    assert Log.asked_ms == [round(6.5 * DAY_MS)] * 3 + [round(4.75 * DAY_MS)] * 3
    written[0] = 20
    assert looked(retention) == (0, None, False)
    # Nothing of the last partition is younger than half of the retention.
    written[2] = 90
    assert looked(retention)[0] == 10
    keeps[AUDIT.name] = None
    assert looked(retention) == (0, None, False), "for ever"


def test_what_is_older_than_three_quarters_of_the_retention_holds_back_what_decides(
    keeps: dict[str, int | None],
) -> None:
    written = {0: 3, 1: 50, 2: 100}
    retention = AuditRetention(CONNECTION, AUDIT, lambda: written)
    assert looked(retention) == (17, HELD_BACK, True)
    written[0] = 5
    assert looked(retention) == (15, OVERDUE.replace("17", "15"), False)
    written[0] = 3
    assert looked(retention) == (17, HELD_BACK, True)
    keeps[AUDIT.name] = None
    assert looked(retention) == (0, None, False)


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
        ops=TopicFacts("shop.ops", "ops-id", 2),
        committed=Committed(-1, {0: 0}),
        owner=lambda: Owner(session="s", term=1, state_epoch="e", has_decided=True, ops_topic_id="o", place="p"),
        audit=audit,
        retention=retention,
        failure=lambda: None,
        on_failure=lambda _: None,
    )
    assert (watch.not_ready_reasons(), watch.shards_behind()) == ([], set())
    retention.look()
    assert watch.shards_behind() == {0, 1}, "their ticks would wait as well"
    report = watch.report()
    assert report.not_ready_reasons == [HELD_BACK]
    assert report.cluster is not None
    assert report.cluster.audit_overdue == 17
