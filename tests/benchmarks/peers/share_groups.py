"""Kafka's share groups (KIP-932) by the consumer of the Java client.

The broker is the embedded one, so popstream and both clients of share groups have the same. The state of a share group
is records of an internal topic, and is not synced to disk. A group starts at the earliest record. What a poll brought
is whole producer batches, so a backlog that was produced in bulk with one answer for all is its best case.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from connectors.jars.resolve import kafka_jars
from connectors.kafka.embedded import EmbeddedKafka
from tests.benchmarks.peers.contender import Contender, PeerOptions, Result, load_arguments, run_load
from tests.benchmarks.peers.java_load import compiled_load

__all__ = ["SHARE_GROUPS", "peer_kafka"]

MESSAGES = 4_000_000
HEAP_MB = 1024


@contextlib.contextmanager
def peer_kafka(options: PeerOptions, folder: Path) -> Iterator[str]:
    """Run a broker with data in the folder; yield its bootstrap servers."""
    with EmbeddedKafka(folder / "kafka", jars=kafka_jars(options.var), heap_mb=HEAP_MB) as kafka:
        yield kafka.bootstrap_servers


def _measure(options: PeerOptions, folder: Path, results: dict[str, Result]) -> None:
    load = compiled_load("ShareLoad", kafka_jars(options.var), options.work / "share-classes", folder)
    with peer_kafka(options, folder) as servers:
        arguments = ["--bootstrap", servers, *load_arguments(options, MESSAGES)]
        run_load([*load, *arguments], folder, options.limit_s, results)


SHARE_GROUPS = Contender(
    name="share_groups", label="Kafka 4.2 share group, Java client", measure=_measure, needs_jdk=True
)
