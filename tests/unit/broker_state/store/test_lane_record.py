"""A lane's record is stored without its last fields while they say nothing, and read back whole."""

import msgspec
import pytest

from broker_state.store.state_records import DeclaredRetries, LaneRecord
from broker_state.store.value_format import FORMAT_1

LANE = LaneRecord(
    lane_no=7, group="billing", start_offset=0, next_offset=70_000, commit_offset=128, acked_above=3, epoch=1 << 33,
    reset_epoch=0, min_seen=0, late_skips_seen=0,
)  # fmt: skip


@pytest.mark.parametrize("declared", [None, DeclaredRetries(16, (1_000,))])
@pytest.mark.parametrize("paused_until_ms", [0, 127, 1_795_262_400_000])
@pytest.mark.parametrize("era_no", [0, 1, 300])
def test_the_stored_fields_are_those_up_to_the_last_that_says_something(
    era_no: int, paused_until_ms: int, declared: DeclaredRetries | None
) -> None:
    lane = msgspec.structs.replace(LANE, era_no=era_no, paused_until_ms=paused_until_ms, declared=declared)
    left_out = 3 if not (era_no or paused_until_ms or declared) else 2 if not (paused_until_ms or declared) else 1
    fields = msgspec.structs.astuple(lane)
    stored = fields if declared else fields[:-left_out]
    assert lane.encode() == FORMAT_1 + msgspec.msgpack.encode(stored)
    assert LaneRecord.decode(lane.encode()) == lane
