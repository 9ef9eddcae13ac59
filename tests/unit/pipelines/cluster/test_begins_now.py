"""What a state that begins keeps of its topics (audit_query.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from checkpoints.reconcile import LogFound
from connectors.kafka.topic_admin import TopicFacts
from pipelines.cluster.audit import audit_query
from pipelines.cluster.audit.audit_query import begins_now
from pipelines.cluster.checkpoint_identity import CheckpointIdentity
from popstream.kafka_connection import KafkaConnection

if TYPE_CHECKING:
    import pytest

KAFKA = KafkaConnection("kafka:9092")


def test_a_state_keeps_the_ends_and_the_partitions_with_which_it_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    topics = {"p.cluster_audit": TopicFacts("p.cluster_audit", "A", 2)}
    ends = LogFound(topic="p.cluster_audit", topic_id="A", first_offset={0: 1, 1: 1}, end_offset={0: 9, 1: 7})
    monkeypatch.setattr(audit_query, "describe", lambda *_: topics)
    monkeypatch.setattr(audit_query, "read_log_bounds", lambda *_: ends)
    found = begins_now(KAFKA, "p")
    assert found == {"audit_from": {0: 9, 1: 7}, "audit_partitions": 2}
    identity = CheckpointIdentity.new("p", TopicFacts("p.ops", "T", 4), **found)
    assert (identity.audit_from, identity.audit_partitions) == ({0: 9, 1: 7}, 2)
    assert (identity.queue_log_from, identity.queue_log_partitions) == ({}, 0), "there was no such topic"
