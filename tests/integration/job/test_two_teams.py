"""Claim: jobs of two prefixes on one Kafka share nothing: a queue has leases and positions of its own in each, and
one goes on while the other is killed and starts again.

Method: docs/scale.md, "Several teams, several jobs", as written there: two `popstream up` on one broker.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from tests.support.processes.up_process import Up, run

if TYPE_CHECKING:
    from pathlib import Path

    from connectors.kafka.embedded import EmbeddedKafka

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

QUEUE = {"topic": "orders", "queue_id": 0}
WRITTEN = [
    {"type": "declare", **QUEUE, "topic_id": "T"},
    {"type": "dispatch", **QUEUE, "ranges": [{"first": 0, "last": 9}]},
]
POP = {"type": "pop", **QUEUE, "group": "billing", "max_messages": 10, "invisible_time_ms": 600_000}


def ops(up: Up, *operations: dict[str, Any]) -> list[dict[str, Any]]:
    """Answers to operations, as `popstream ops` prints them."""
    done = run(up, "ops", "--json", text="\n".join(msgspec.json.encode(each).decode() for each in operations))
    return [msgspec.json.decode(line) for line in done.stdout.splitlines()]


def ack(handle: str) -> dict[str, Any]:
    entries = [{"handle": 0, "offsets": [[0, 9]]}]
    return {"type": "ack", **QUEUE, "handles": [{"group": "billing", "handle": handle}], "entries": entries}


def count_of_operations(up: Up) -> int:
    """Of this test: clients send others when they start."""
    counted = "SELECT count(DISTINCT op_id) FROM operations WHERE kind IN ('declare', 'dispatch', 'pop', 'ack')"
    done = run(up, "query", "--csv", counted)
    return int(done.stdout.splitlines()[-1])


def test_two_jobs_by_prefix_share_nothing(tmp_path: Path, kafka: EmbeddedKafka, topic_prefix: str) -> None:
    def start(team: str) -> Up:
        prefix, folder = f"{topic_prefix}-{team}", tmp_path / team
        options = ("--bootstrap-servers", kafka.bootstrap_servers, "--prefix", prefix, "--flush-interval", "500ms")
        return Up(folder, *options, "--driver-memory", "512m")

    red, blue = start("red"), start("blue")
    try:
        for up in (red, blue):
            up.wait_for("ready after")
        (*_, of_red), (*_, of_blue) = (ops(up, *WRITTEN, POP) for up in (red, blue))
        assert of_red["messages"] == of_blue["messages"] == [[0, 9, 1]]
        (acked,) = ops(red, ack(of_red["handle"]))
        assert acked["commit_offsets"] == {"billing": 10}
        red.end()
        assert ops(blue, POP)[0].get("messages", []) == []
        (settled,) = ops(blue, ack(of_blue["handle"]))
        assert settled["commit_offsets"] == {"billing": 10}
        red = start("red")
        red.wait_for("ready after")
        assert ops(red, POP)[0].get("messages", []) == []
        assert red.stop(signal.SIGTERM) == (0, [])
        assert blue.stop(signal.SIGTERM) == (0, [])
        # Each: declare, dispatch, pop, ack, pop.
        assert (count_of_operations(red), count_of_operations(blue)) == (5, 5)
    finally:
        red.end()
        blue.end()
