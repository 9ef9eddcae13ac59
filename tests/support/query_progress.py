"""What Spark tells of a query's last micro-batch."""

from __future__ import annotations

from typing import Any

__all__ = ["PROGRESS"]

PROGRESS: dict[str, Any] = {
    "batchId": 7,
    "timestamp": "2030-01-31T12:00:00.000Z",
    "numInputRows": 120,
    "durationMs": {"triggerExecution": 250},
    "sources": [{"endOffset": '{"p.ops":{"0":10,"1":5}}', "latestOffset": '{"p.ops":{"0":12,"1":5}}'}],
    "stateOperators": [{"numRowsTotal": 300, "memoryUsedBytes": 4096}],
}
"""Two records of partition 0 are left."""
