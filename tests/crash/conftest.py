"""What the tests of this folder share."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pytest
from kafka import KafkaProducer

from connectors.jars.resolve import kafka_jars
from connectors.kafka.embedded import SHORT_LIVED_JVM, EmbeddedKafka
from connectors.kafka.topic_admin import create_message_topic
from popstream.kafka_connection import KafkaConnection
from tests.crash.job_site import Site, send, work
from tests.support.processes.job_process import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    """A broker that outlives the jobs that are killed, with messages for their dead letters."""
    with EmbeddedKafka(
        tmp_path_factory.mktemp("kafka"), jars=kafka_jars(ROOT / "var"), java_options=SHORT_LIVED_JVM
    ) as running:
        # The other queues that clients use have no Kafka topic: their dead letters can only be coordinates.
        create_message_topic(running.connection, "orders", 2)
        producer = KafkaProducer(bootstrap_servers=str(running.connection))
        for number in range(400):
            producer.send("orders", b"message %d" % number, b"key", partition=number % 2, headers=[("h", b"v")])
        producer.close()
        yield running


@pytest.fixture(scope="session")
def played(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """What a healthy job left; beside it, in `half`, a backup of what it had left half-way."""
    site = Site(tmp_path_factory.mktemp("played") / "job")
    with site.up() as servers:
        create_message_topic(KafkaConnection(servers), "orders", 2)
        send(servers, 200)
        work(servers, 100)
        snapshot = site.popstream("snapshot", "--json").stdout
        send(servers, 50)
        work(servers, 50)
        assert "are equal" in site.popstream("verify").stdout, "beside the running job"
    listed = site.popstream("snapshot", "--list", "--json").stdout
    assert [one["id"] for one in json.loads(listed)] == [json.loads(snapshot)["id"]]
    for store in (site.folder.state, site.folder.queues):
        shutil.copytree(store, site.root / "half" / store.name)
    with site.up() as servers:
        send(servers, 200)
        work(servers, 150)
    return site


@pytest.fixture
def site(played: Site, tmp_path: Path) -> Site:
    shutil.copytree(played.root, tmp_path / "job", ignore=shutil.ignore_patterns("*.sock"))
    return Site(tmp_path / "job")
