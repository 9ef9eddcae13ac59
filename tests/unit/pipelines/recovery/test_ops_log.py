"""Claim: a Kafka that goes away while a client of it is made is told as such."""

from __future__ import annotations

from typing import Any, Never

import pytest
from kafka.errors import KafkaTimeoutError

from checkpoints.reconcile import LogFound
from connectors.kafka.topic_admin import TopicFacts
from pipelines.recovery import ops_log
from popstream.kafka_connection import KafkaConnection
from popstream.wire.base_errors import Unavailable


def test_offsets(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: Any) -> Never:
        message = "no bootstrap"
        raise KafkaTimeoutError(message)

    monkeypatch.setattr(ops_log, "KafkaConsumer", refuse)
    connection = KafkaConnection("localhost:1")
    with pytest.raises(Unavailable, match=r"Kafka does not return the offsets of ops: .*no bootstrap"):
        ops_log.read_log_bounds(connection, TopicFacts(name="ops", topic_id="t", partition_count=1))
    log = LogFound(topic="ops", topic_id="t", first_offset={0: 0}, end_offset={0: 1})
    with pytest.raises(Unavailable, match=r"Kafka does not return the offsets of ops: .*no bootstrap"):
        ops_log.offsets_at(connection, log, 1)
