"""Kafka's share groups (KIP-932) by the share consumer of confluent-kafka, in Python."""

from __future__ import annotations

from pathlib import Path

from tests.benchmarks.peers.contender import Contender, PeerOptions, Result, load_arguments, python_load, run_load
from tests.benchmarks.peers.share_groups import peer_kafka

__all__ = ["SHARE_CONSUMER"]

MESSAGES = 2_000_000


def _measure(options: PeerOptions, folder: Path, results: dict[str, Result]) -> None:
    with peer_kafka(options, folder) as servers:
        load = [*python_load("share_consumer_load"), "--bootstrap", servers]
        run_load([*load, *load_arguments(options, MESSAGES)], folder, options.limit_s, results)


SHARE_CONSUMER = Contender(name="share_consumer", label="Kafka 4.2 share group, confluent-kafka", measure=_measure)
