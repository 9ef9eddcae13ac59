"""Which of Spark's checkpoints the job goes on with."""

from pathlib import Path

import pytest

from broker_state.errors import Corrupt
from checkpoints.spark_progress import planned_end, usable_checkpoint

TOPIC = "popstream.ops"


def plan(checkpoint: Path, batch_id: int, end: int, *, committed: bool) -> None:
    """What Spark writes before a micro-batch, and (committed) after it."""
    for name in ("offsets", "commits"):
        (checkpoint / name).mkdir(parents=True, exist_ok=True)
    (checkpoint / "offsets" / str(batch_id)).write_text(f'v1\n{{}}\n{{"{TOPIC}":{{"0":{end}}}}}')
    if committed:
        (checkpoint / "commits" / str(batch_id)).write_text("v1\n{}")


def test_the_first_start_has_none_and_gets_one(tmp_path: Path) -> None:
    assert usable_checkpoint(tmp_path / "spark", {}, TOPIC) == tmp_path / "spark" / "1"


@pytest.mark.parametrize("decided", [10, 15, 20], ids=["at its last commit", "within its plan", "at its plan's end"])
def test_one_that_the_state_has_reached_is_used(tmp_path: Path, decided: int) -> None:
    plan(tmp_path / "3", 0, 10, committed=True)
    plan(tmp_path / "3", 1, 20, committed=False)
    assert usable_checkpoint(tmp_path, {0: decided}, TOPIC) == tmp_path / "3"


def test_one_that_is_ahead_is_passed_over_and_the_older_ones_go(tmp_path: Path) -> None:
    """As after a kill between Spark's commit and the write of the micro-batch that it had read ahead."""
    plan(tmp_path / "1", 0, 5, committed=True)
    plan(tmp_path / "2", 0, 10, committed=True)
    plan(tmp_path / "2", 1, 20, committed=True)
    assert usable_checkpoint(tmp_path, {0: 10}, TOPIC) == tmp_path / "3"
    assert [path.name for path in tmp_path.iterdir()] == []


def test_a_damaged_one_is_passed_over(tmp_path: Path) -> None:
    plan(tmp_path / "1", 0, 10, committed=True)
    (tmp_path / "1" / "offsets" / "0").write_text("v1\n")
    assert usable_checkpoint(tmp_path, {0: 10}, TOPIC) == tmp_path / "2"


def test_a_plan_that_cannot_be_read_says_which(tmp_path: Path) -> None:
    with pytest.raises(Corrupt, match="micro-batch 7"):
        planned_end(tmp_path, 7, TOPIC)
