"""Kafka's share groups (KIP-932), by the Java client and by confluent-kafka; the broker is that of popstream, too."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

from connectors.jars.resolve import kafka_jars
from connectors.kafka.embedded import EmbeddedKafka
from tests.benchmarks.peers.contender import Contender, PeerOptions
from tests.benchmarks.peers.java_load import compile_java, java_command

__all__ = ["SHARE_GROUPS_JAVA", "SHARE_GROUPS_PYTHON", "peer_kafka"]

HEAP_MB = 1024
POLL_MAX = 4_000
_DURABILITY = (
    "a killed broker: nothing; a power failure: acks and messages of the last seconds, for both are records in the page"
    " cache, which Kafka does not sync by default"
)


@contextlib.contextmanager
def peer_kafka(options: PeerOptions, folder: Path) -> Iterator[str]:
    """Run a broker with data in the folder; yield its bootstrap servers."""
    with EmbeddedKafka(folder / "kafka", jars=kafka_jars(options.var), heap_mb=HEAP_MB) as kafka:
        yield kafka.bootstrap_servers


def _classes(options: PeerOptions) -> Path:
    return options.work / "share-classes"


def _compile(options: PeerOptions) -> None:
    compile_java(["Load", "ShareLoad"], kafka_jars(options.var), _classes(options))


@contextlib.contextmanager
def _serve_java(options: PeerOptions, folder: Path) -> Iterator[list[str]]:
    with peer_kafka(options, folder) as servers:
        flags = ["-Xmx2g", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
        load = java_command("ShareLoad", flags, [_classes(options), *kafka_jars(options.var)], folder)
        yield [*load, "--bootstrap", servers, "--poll-max", str(POLL_MAX)]


@contextlib.contextmanager
def _serve_python(options: PeerOptions, folder: Path) -> Iterator[list[str]]:
    with peer_kafka(options, folder) as servers:
        load = [sys.executable, "-m", "tests.benchmarks.peers.share_groups_load"]
        yield [*load, "--bootstrap", servers, "--poll-max", str(POLL_MAX)]


def _forms(limit: str) -> dict[str, str]:
    return {
        "loop": f"poll of max.poll.records=32 {limit}, acknowledge each record, commitSync",
        "bulk": f"poll of max.poll.records={POLL_MAX:,} (whole producer batches), implicit acknowledgement, commitSync",
        "each": "poll of max.poll.records=500 (the default), acknowledge each record, commitSync",
        "paced": "the same",
    }


SHARE_GROUPS_JAVA = Contender(
    name="share_groups_java",
    label="Kafka share group, Java",
    forms=_forms("and share.acquire.mode=record_limit"),
    durability=_DURABILITY,
    messages=5_000_000,
    prepare=_compile,
    serve=_serve_java,
)
SHARE_GROUPS_PYTHON = Contender(
    name="share_groups_python",
    label="Kafka share group, Python",
    forms=_forms("(no limit in confluent-kafka: it brings whole producer batches)"),
    durability=_DURABILITY,
    messages=2_000_000,
    prepare=lambda _: None,
    serve=_serve_python,
)
