"""Claim: a client that was without Kafka for longer than a record has time sends operations again afterwards.

Method: a broker that is halted while an operation is on its way, until kafka-python has given that one up; then it goes
on. The idempotent producer of kafka-python 3.0.12 alone would send nothing more.
"""

from __future__ import annotations

import os
import queue
import signal
from pathlib import Path

import pytest

from connectors.kafka.embedded import EmbeddedKafka
from connectors.kafka.own_topics import Topics, ensure_topics
from popstream.exchange.kafka_link import KafkaLink
from popstream.exchange.partitioner import ops_key
from popstream.settings import ClientSettings
from popstream.wire.base_errors import Unavailable
from tests.support.wire import wait_for

pytestmark = pytest.mark.integration

KEY = ops_key("orders", 0)


def halt(pid: int) -> None:
    """Stop every thread of a process: on a busy machine some still run after the signal was sent."""
    os.kill(pid, signal.SIGSTOP)
    tasks = Path(f"/proc/{pid}/task")
    wait_for(lambda: all("\nState:\tT" in (task / "status").read_text() for task in tasks.iterdir()))


def test_operations_go_on_after_an_outage(own_kafka: EmbeddedKafka) -> None:
    ensure_topics(own_kafka.connection, Topics.of("popstream"))
    settings = ClientSettings(
        bootstrap_servers=own_kafka.bootstrap_servers,
        client_id="test",
        delivery_timeout_ms=4_000,
        resend_after_ms=4_000,
    )
    link = KafkaLink(settings)
    link.open()
    told: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()
    link.send(KEY, b"{}", told.put)
    assert told.get(timeout=30) is None
    halt(own_kafka.pid)
    try:
        link.send(KEY, b"{}", told.put)
        assert isinstance(told.get(timeout=60), Exception)
    finally:
        os.kill(own_kafka.pid, signal.SIGCONT)

    def is_sent() -> bool:
        try:
            link.send(KEY, b"{}", told.put)
            return told.get(timeout=10) is None
        except (Unavailable, queue.Empty):
            return False

    wait_for(is_sent, patience_s=60)
    link.close()
