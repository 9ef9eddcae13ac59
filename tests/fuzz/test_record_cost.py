"""No record that a short search finds costs more CPU than is allowed; and the search finds what is costly."""

from __future__ import annotations

import os

import pytest

from broker_state.kernel import expiry
from tests.fuzz import record_cost
from tests.fuzz.large_states import SHAPES
from tests.fuzz.record_cost import CPU_MS_MAX, costs_of, search

INPUTS = int(os.environ.get("TEST_COST_INPUTS", len(SHAPES)))
"""The first ones take each shape of a state once."""


@pytest.mark.timeout(60 + 2 * INPUTS)
def test_no_record_of_a_search_costs_too_much() -> None:
    found = search(INPUTS, seed=1)
    assert len(found) > 6
    worst, data = max(found.values(), key=lambda one: one[0].cpu_ms)
    assert worst.cpu_ms <= CPU_MS_MAX, f"python -m tests.fuzz.record_cost --replay {data.hex()}: {worst}"


def test_a_record_without_a_bound_is_seen_and_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiry, "DUE_COST_MAX", 10**9)
    monkeypatch.setattr(record_cost, "GIVE_UP_S", 2)
    state = list(SHAPES).index("16,000 pages of 64 leases")
    ticks_when_all_is_due = bytes((state, 2, 1, 6))
    (cost,) = costs_of(ticks_when_all_is_due)
    assert cost.kind == "tick"
    assert cost.cpu_ms > CPU_MS_MAX


def test_an_input_of_any_length_gives_records_and_their_costs() -> None:
    for data in (b"", b"\x00", bytes(range(24))):
        costs = costs_of(data)
        assert 1 <= len(costs) <= 3
        assert all(cost.cpu_ms >= 0 for cost in costs)
