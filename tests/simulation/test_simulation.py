"""Claim: any seed gives what an undisturbed job gives, and a protocol with a hole in it does not.

The bounded part of `make simulate`; a failing seed prints the command that runs it alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from broker_state.store.rocks_store import FAMILIES, RocksStore
from checkpoints.applied import Applied
from connectors.delta.tables import AUDIT_TABLES
from pipelines.apply_ops import micro_batch
from pipelines.apply_ops.delta_flush import DeltaFlush
from pipelines.apply_ops.outbox import Outbox
from pipelines.decide_ops import ops_decider
from popstream.wire.base_errors import PopstreamError
from tests.simulation.check_seeds import check_seed
from tests.simulation.disk import SimulatedTables
from tests.simulation.world import disturbed, undisturbed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from pipelines.decide_ops.entry import Entry

SEEDS = 30
RECORDS = 60


@pytest.mark.parametrize("first", range(0, SEEDS, 10))
def test_seeds_are_clean(first: int) -> None:
    crashes = 0
    for seed in range(first, first + 10):
        # As long a log as the command's: a shorter one is cut elsewhere.
        _, differences, places, _ = check_seed(seed)
        assert not differences, f"seed {seed}: make simulate SEEDS=={seed}"
        crashes += len(places)
    assert crashes > 10, "nothing was disturbed"


def test_a_seed_does_again_what_it_did() -> None:
    one, other = (disturbed(7, RECORDS) for _ in range(2))
    assert one[0].crashes == other[0].crashes
    assert not one[1].differences(other[1])


def test_the_workload_reaches_every_output() -> None:
    outcomes = [undisturbed(seed, RECORDS) for seed in range(20)]
    for table in AUDIT_TABLES:
        # Records that cannot be read are no matter of the model that makes these.
        assert table == "rejected" or any(outcome.rows[table] for outcome in outcomes), table
    assert all(outcome.answers for outcome in outcomes)
    assert any(outcome.notifications for outcome in outcomes)
    assert any(outcome.dead_letters for outcome in outcomes)


@pytest.mark.parametrize("seed", [3, 11])
def test_the_real_store_does_as_the_one_in_memory(seed: int, tmp_path: Path) -> None:
    """RocksDB in its place, never closed by those who die."""

    class Hooked(RocksStore):
        hook: Callable[[str], None] = staticmethod(lambda _: None)

        def write(self, *args: Any, **kwargs: Any) -> int:
            self.hook("store_write")
            written = super().write(*args, **kwargs)
            self.hook("store_written")
            return written

    with Hooked(tmp_path / "state", FAMILIES) as store:
        world, outcome = disturbed(seed, RECORDS, store)
        assert world.crashes
        assert not outcome.differences(undisturbed(seed, RECORDS))


def finds_it(seeds: int = 40) -> bool:
    """Whether some seed fails, in whatever way."""
    for seed in range(seeds):
        try:
            if check_seed(seed, RECORDS)[1]:
                return True
        except (AssertionError, KeyError, PopstreamError):
            return True
    return False


def forget_what_was_written(patch: pytest.MonkeyPatch) -> None:
    """The outbox lets entries go that nobody has delivered."""
    patch.setattr(Outbox, "undelivered", lambda *_args, **_kwargs: iter(()))


def deliver_before_the_commit_lasts(patch: pytest.MonkeyPatch) -> None:
    """A flush counts as delivered before anybody has synced it."""
    flush = SimulatedTables.flush

    def unsynced(self: SimulatedTables, table: str, slices: Iterable[tuple[int, bytes]], upto: int) -> int:
        before = self._disk.synced.get(table, 0)
        rows = flush(self, table, slices, upto)
        self._disk.synced[table] = before
        return rows

    patch.setattr(SimulatedTables, "flush", unsynced)


def decide_twice(patch: pytest.MonkeyPatch) -> None:
    """What is applied does not say how far."""
    after = Applied.after

    def forgetful(self: Applied, end_offset: dict[int, int], query_id: str, spark_batch_id: int) -> Applied:
        behind = {partition: max(0, end - 1) for partition, end in end_offset.items()}
        return after(self, behind, query_id, spark_batch_id)

    patch.setattr(Applied, "after", forgetful)


def publish_before_the_write(patch: pytest.MonkeyPatch) -> None:
    """What is to be published is not part of the WriteBatch: who dies after it has published nothing."""

    def without_outbox(self: Outbox, entries: Iterable[Entry]) -> Any:
        del self, entries
        return iter(())

    patch.setattr(Outbox, "changes", without_outbox)


def flush_what_a_predecessor_had_committed(patch: pytest.MonkeyPatch) -> None:
    """v is not read from the table."""
    patch.setattr(SimulatedTables, "_version", lambda *_: -1)


def order_by_arrival_alone(patch: pytest.MonkeyPatch) -> None:
    """A micro-batch is folded backwards: the cut decides."""
    fold = ops_decider.fold  # type: ignore[attr-defined]
    patch.setattr(ops_decider, "fold", lambda overlay, records, decision: fold(overlay, reversed(records), decision))


def let_a_zombie_write(patch: pytest.MonkeyPatch) -> None:
    """Nobody asks whether the process still owns the job."""
    init = micro_batch.MicroBatchApplier.__init__

    def careless(self: micro_batch.MicroBatchApplier, **parts: Any) -> None:
        init(self, **{**parts, "require_ownership": lambda: None})

    patch.setattr(micro_batch.MicroBatchApplier, "__init__", careless)


def note_the_flush_too_early(patch: pytest.MonkeyPatch) -> None:
    """Entries leave the outbox as soon as a flush begins."""
    flush = DeltaFlush.flush

    def early(self: DeltaFlush) -> None:
        self._outbox.delivered([entry.key for entry in self._outbox.undelivered(4)])
        flush(self)

    patch.setattr(DeltaFlush, "flush", early)


HOLES = [
    forget_what_was_written,
    deliver_before_the_commit_lasts,
    decide_twice,
    publish_before_the_write,
    flush_what_a_predecessor_had_committed,
    order_by_arrival_alone,
    let_a_zombie_write,
    note_the_flush_too_early,
]


@pytest.mark.parametrize("hole", HOLES, ids=lambda hole: hole.__name__)
def test_a_hole_in_the_protocol_is_found(hole: Callable[[pytest.MonkeyPatch], None], monkeypatch: Any) -> None:
    hole(monkeypatch)
    assert finds_it()
