"""Where a micro-batch ends in the log (plans.py)."""

import pytest

from checkpoints.applied import Applied
from pipelines.apply_ops.plans import end_of_micro_batch
from popstream.wire.base_errors import Unavailable

NEXT_OFFSET = {0: 3, 1: 0}


class FixedPlans:
    """Plans of given ends."""

    query_id = "query"

    def __init__(self, *ends: dict[int, int]) -> None:
        self._ends = ends

    def end_of(self, spark_batch_id: int) -> dict[int, int]:
        return self._ends[spark_batch_id]


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        pytest.param({0: 7, 1: 2}, {0: 7, 1: 2}, id="records and holes up to the planned end"),
        pytest.param({0: 3, 1: 0}, {0: 3, 1: 0}, id="nothing new"),
        pytest.param({0: 1, 1: 5}, {0: 3, 1: 5}, id="planned again, and applied before"),
    ],
)
def test_a_micro_batch_ends_where_it_was_planned_to_end(end: dict[int, int], expected: dict[int, int]) -> None:
    applied = Applied(state_epoch="e", ops_topic="ops", ops_topic_id="t", next_offset=NEXT_OFFSET)
    assert end_of_micro_batch(FixedPlans({0: 1, 1: 0}, end), 1, applied) == expected


def test_a_plan_that_starts_after_the_applied_offsets_is_refused() -> None:
    applied = Applied(state_epoch="e", ops_topic="ops", ops_topic_id="t", next_offset=NEXT_OFFSET)
    with pytest.raises(Unavailable, match="applied up to offset 3, but Spark continues at 4"):
        end_of_micro_batch(FixedPlans({0: 4, 1: 0}, {0: 9, 1: 0}), 1, applied)
