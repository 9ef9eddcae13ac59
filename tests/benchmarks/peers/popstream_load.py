"""popstream itself: a `popstream up` beside the same broker as share groups have, with loads by `popstream perf`.

A load has a fixed number of messages, and its rate is that from the first delivery to the last outcome of an ack. It
syncs every micro-batch of decisions to disk. Latencies are of messages that are sent at a low rate, not one after the
other: a message may be sent before the one before it is acked.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.benchmarks.peers.contender import (
    MESSAGE_BYTES,
    QUEUES,
    Contender,
    PeerError,
    PeerOptions,
    Result,
)
from tests.benchmarks.peers.share_groups import peer_kafka
from tests.support.processes.up_process import Up, run

__all__ = ["POPSTREAM_ITSELF"]

MESSAGES = 200_000
LATENCY_RATE = 20
LATENCY_WINDOWS = 4
"""At this rate a window has few messages; latencies are those of four."""
PREFETCH = 4_000
LOADS = {
    "each": ("--ack", "message", "--prefetch", str(PREFETCH)),
    "together": ("--ack", "set", "--pop-size", "1000", "--prefetch", str(PREFETCH)),
    "latency": ("--ack", "message", "--rate", str(LATENCY_RATE)),
}
WARM_UP_SHARE = 10


def _measure(options: PeerOptions, folder: Path, results: dict[str, Result]) -> None:
    messages = options.messages or MESSAGES
    paced = max(20, round(LATENCY_RATE * options.window_s * LATENCY_WINDOWS))
    with peer_kafka(options, folder) as servers:
        up = Up(folder / "job", "--bootstrap-servers", servers)
        try:
            up.wait_for("ready after")
            _perf(up, LOADS["each"], max(1, messages // WARM_UP_SHARE))
            for workload, arguments in LOADS.items():
                report = _perf(up, arguments, paced if workload == "latency" else messages)
                results[workload] = _result(workload, report)
            up.stop(signal.SIGTERM)
        finally:
            up.end()


def _perf(up: Up, arguments: Sequence[str], messages: int) -> dict[str, Any]:
    sizes = ("--messages", str(messages), "--size", str(MESSAGE_BYTES), "--queues", str(QUEUES))
    done = run(up, "perf", *sizes, *arguments, "--json")
    if done.returncode:
        raise PeerError(f"popstream perf ended with {done.returncode}: {done.stderr[-1000:]}")
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def _result(workload: str, report: dict[str, Any]) -> Result:
    ack, delivery = report["ack_ms"], report["delivery_ms"]
    result = {
        "messages": report["messages"],
        "seconds": report["consume_s"],
        "ack_p50_ms": ack["p50"],
        "ack_p99_ms": ack["p99"],
    }
    if workload == "latency":
        return {**result, "delivery_p50_ms": delivery["p50"], "delivery_p99_ms": delivery["p99"]}
    return {**result, "messages_per_s": report["consumed_per_s"]}


POPSTREAM_ITSELF = Contender(name="popstream", label="popstream", measure=_measure)
