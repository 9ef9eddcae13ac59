"""The `batch` blocks of vectors: what the changes of a vector must give when they come in one request."""

from typing import Any

from popstream.wire.reason import Reason
from tests.conformance.conformance_verdict import Comparison
from tests.conformance.rocketmq.pop_record_store import PopRecord
from tests.conformance.rules import RESULTS_PER_ENTRY
from tests.conformance.vectors.broker_steps import BrokerSteps

__all__ = ["check_batch"]

_RECORD = tuple[int, int]
"""(visibility timeout, offset)."""


def check_batch(vector: dict[str, Any], singles: BrokerSteps, together: BrokerSteps, comparison: Comparison) -> None:
    """Compare both runs of a vector with each other and with its block.

    popstream has neither put nor delete batches, it writes once a micro-batch; those are held against RocketMQ's store.
    """
    block = vector.get("batch") or {}
    outcomes = zip(singles.change_outcomes, together.change_outcomes, strict=True)
    for number, (single, entry) in enumerate(outcomes):
        is_again = entry is not None and entry.reason is Reason.DUPLICATE_ENTRY
        comparison.compare(
            f"change {number} in one record with the others",
            rocketmq=_plain(single),
            ours=_plain(entry),
            rules=[RESULTS_PER_ENTRY] if is_again else [],
        )
    steps = vector["steps"]
    changes = [step for step in steps if step["op"] == "change"]
    known: dict[str, object] = {
        "entries": list(range(len(changes))),
        "same_result_and_state_as_steps": singles.leases_at_the_end == together.leases_at_the_end,
        "required_state_offsets": [offset for *_, offset in together.leases_at_the_end],
        "snapshot_state_offsets": [record.message[3] for record in singles.both.rocketmq.store.everything()],
        **_writes(changes, is_buffered=singles.both.rocketmq.store.is_buffered),
        **_orders(singles.records_before_changes, changes, singles.changed_at_ms),
    }
    for key, recorded in block.items():
        is_sorted = key.endswith("_offsets")
        ours = sorted(known[key]) if is_sorted else known[key]  # type: ignore[call-overload]
        expected = sorted(recorded) if is_sorted else recorded
        comparison.compare(f"batch, {key}", recorded=expected, rocketmq=ours, ours=ours, rules=[])


def _plain(outcome: Any) -> object:
    return None if outcome is None else (outcome.code, outcome.reason, outcome.applied, *outcome[3:6])


def _writes(changes: list[dict[str, Any]], *, is_buffered: bool) -> dict[str, object]:
    """How many write calls RocketMQ's store needs."""
    return {
        "store_put_batches": 1,
        "store_delete_batches": 0 if is_buffered else 1,
        "single_requests_cost": {"put": len(changes), "delete": 0 if is_buffered else len(changes)},
    }


def _orders(before: list[PopRecord], changes: list[dict[str, Any]], now_ms: int) -> dict[str, object]:
    """The offsets that are left when all records are put before all are deleted, and the other way round."""
    live = {(record.visible_ms, record.message[3]) for record in before}
    puts: set[_RECORD] = {(now_ms + step["invisible_time"], step["offset"]) for step in changes}
    deletes: set[_RECORD] = set()
    for step in changes:
        _, pop_time, invisible_time, *_ = step["extra_info"].split(" ")
        deletes.add((int(pop_time) + int(invisible_time), step["offset"]))
    return {
        "put_all_then_delete_all_offsets": [offset for _, offset in (live | puts) - deletes],
        "delete_all_then_put_all_offsets": [offset for _, offset in (live - deletes) | puts],
    }
