"""Claim: after a restore that took no candidate, what is possible is said with its command."""

from __future__ import annotations

from typing import TYPE_CHECKING

from checkpoints.applied import Applied
from checkpoints.snapshot_store import SnapshotStore
from pipelines.recovery.candidates import PassedOver
from pipelines.recovery.restore import _others

if TYPE_CHECKING:
    from pathlib import Path


def test_what_is_possible_after_no_candidate_was_taken_is_said_with_its_command(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    store = SnapshotStore(str(tmp_path / "kept"))
    older, newer = (
        store.put(tmp_path / "state", Applied(state_epoch="e", ops_topic="o", ops_topic_id="i", apply_seq=seq), seq).id
        for seq in (1, 2)
    )
    lossy = "the least of these losses is accepted by `popstream restore --lossy`"
    an_older = "an older state is restored by `popstream restore --snapshot"
    damaged, losses = PassedOver(["it is damaged"]), PassedOver(["rows are missing"], are_losses=True)
    assert list(_others({"it": damaged}, store, None)) == []
    assert list(_others({"it": damaged, "another": losses}, store, None)) == [lossy]
    assert list(_others({"it": damaged}, store, newer)) == [f"{an_older} {older}`"]
    assert list(_others({"it": losses}, store, older)) == [lossy, f"{an_older} none`"]
    assert list(_others({"it": losses}, store, "none")) == [lossy]
