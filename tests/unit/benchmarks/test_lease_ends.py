"""`make bench PART=lease_ends` says what happened: all leases end, however many records that takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from broker_state.store.rocks_store import RocksStore
from tests.benchmarks.lease_ends import end_leases, leased_in
from tests.support.in_process.small_job import DECLARE, POP, SmallJob, written_to

if TYPE_CHECKING:
    from pathlib import Path

LEASES = 16_000
"""A record ends fewer that were popped one by one."""


def test_all_leases_end_by_as_many_records_as_that_takes(tmp_path: Path) -> None:
    with RocksStore(tmp_path / "state") as store:
        job = SmallJob(tmp_path, store)
        job.run(DECLARE, written_to(0, LEASES - 1), *[POP] * LEASES)
        assert leased_in(store, "t") == LEASES
        assert leased_in(store, "another") == 0
        left: list[int] = []

        def tick() -> None:
            job.run({"type": "tick"})
            left.append(leased_in(store, "t"))

        with pytest.raises(AssertionError, match=f"^{LEASES:,} leases did not end$"):
            end_leases(tick, lambda: leased_in(store, "t"))
        job.now_ms += 10_000
        left.clear()
        assert end_leases(tick, lambda: leased_in(store, "t")) == len(left)
        assert len(left) > 1, "one record ends a part of them"
        assert left[-1] == 0
