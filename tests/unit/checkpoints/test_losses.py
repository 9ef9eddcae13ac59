"""The losses of continuing from a state."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from checkpoints.applied import Applied
from checkpoints.losses import Continuable, Losses, losses_of
from checkpoints.reconcile import LogFound
from checkpoints.replay import Replay
from popstream.wire.base_errors import Corrupt

STATE = Applied(state_epoch="b", ops_topic="ops", ops_topic_id="id-1", apply_seq=30, next_offset={0: 500, 1: 700})
LOG = LogFound(topic="ops", topic_id="id-1", first_offset={0: 0, 1: 0}, end_offset={0: 600, 1: 700})
WHOLE = {"operations": {"a": 9, "b": 30}, "rejected": {}}


def losses(noted: dict[str, int] | None = None, *, was_more: bool = False, **log: Any) -> Losses:
    state = Continuable(applied=STATE, noted=noted or {})
    return losses_of(state, msgspec.structs.replace(LOG, **log), WHOLE, was_more=was_more)


def of_nothing(*, was_more: bool = False, **log: Any) -> list[str]:
    return losses_of(Continuable(), msgspec.structs.replace(LOG, **log), WHOLE, was_more=was_more).lines


def test_a_state_that_the_log_continues_has_no_losses() -> None:
    assert losses({"operations": 30}) == Losses()
    assert losses(was_more=True) == Losses()
    assert losses(first_offset={0: 500, 1: 700}) == Losses()


def test_records_deleted_by_retention_are_lost() -> None:
    found = losses(first_offset={0: 501, 1: 0})
    assert found.records == ["partition 0 starts at 501, but is decided only up to 500"]
    assert found.rows == []
    assert found.offsets == 1
    assert losses(first_offset={0: 510, 1: 720}).offsets == 30
    assert losses(topic_id="id-2", first_offset={0: 510, 1: 0}).offsets == 0


def test_a_recreated_topic_is_a_loss_whatever_its_offsets_and_partitions() -> None:
    found = losses(topic_id="id-2", first_offset={0: 0, 1: 0, 2: 0}, end_offset={0: 5, 1: 9000, 2: 0})
    assert found.records == ["ops was deleted and made again: what had been in it is gone"]


def test_missing_rows_are_listed_by_table() -> None:
    found = losses({"operations": 31, "rejected": 4})
    assert found.records == []
    assert found.rows == [
        "operations has lost rows that it counts on: they end at apply_seq 30, not 31, of epoch b",
        "rejected has lost rows that it counts on: they end at apply_seq -1, not 4, of epoch b",
    ]


def test_missing_rows_of_earlier_epochs_are_losses() -> None:
    """One line per table, however many epochs it has lost rows of."""
    replay = Replay(restored_from="", whole={"operations": {"a": 9}, "rejected": {"a": 2, "z": 5}})
    found = losses_of(Continuable(applied=STATE, replay=replay), LOG, WHOLE)
    (line,) = found.rows
    assert line.startswith("rejected has lost rows that it counts on: ")
    assert line.endswith(": they end at apply_seq -1, not 2, of epoch a; at -1, not 5, of epoch z")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"end_offset": {0: 499, 1: 700}}, "has lost its end"),
        ({"first_offset": {0: 0, 1: 0, 2: 0}, "end_offset": {0: 600, 1: 700, 2: 0}}, "has 3 partitions and had 2"),
    ],
)
def test_some_logs_cannot_be_continued_at_all(changed: dict[str, Any], said: str) -> None:
    """Otherwise an older or an empty state would seem to fit this log."""
    with pytest.raises(Corrupt, match=said):
        losses(**changed)


def test_an_empty_state_has_no_losses_only_if_the_log_is_complete() -> None:
    assert of_nothing() == []
    assert of_nothing(first_offset={0: 3, 1: 0}) == ["partition 0 starts at 3, but is decided only up to 0"]
    assert of_nothing(was_more=True) == [
        "ops does not lead to what was decided before: its leases and positions are gone"
    ]
