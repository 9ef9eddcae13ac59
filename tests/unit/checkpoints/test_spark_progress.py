"""Claim: a file of Spark's offset log is read as a whole, or refused. Method: files of other forms, by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from checkpoints.spark_progress import planned_ends, planned_offsets
from popstream.wire.base_errors import Unavailable

PLAN = 'v1\n{"batchWatermarkMs":0}\n{"orders":{"0":7,"1":3},"returns":{"0":0}}'


def test_a_plan_has_the_ends_of_each_topic(tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "4").write_text(PLAN)
    assert planned_ends(tmp_path, 4) == {"orders": {0: 7, 1: 3}, "returns": {0: 0}}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "v9\ngarbage",
        "v1\n{}",
        "v1\n{}\n-",
        "v1\n{}\n[]",
        'v1\n{}\n{"orders":7}',
        'v1\n{}\n{"orders":{"a":7}}',
        'v1\n{}\n{"orders":{"0":7}',
    ],
)
def test_another_text_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ValueError, match="no offsets of Kafka"):
        planned_offsets(text)
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "4").write_text(text)
    with pytest.raises(Unavailable, match="micro-batch 4"):
        planned_ends(tmp_path, 4)
