"""An op_id is known for the length of the window, and as long as an older one is deleted."""

from __future__ import annotations

from broker_state.kernel.op_window import WINDOW_MINUTES
from popstream.wire.command import Pop, Tick
from tests.support.in_process.lane_lab import GROUP, QUEUE, LaneLab

MINUTE_MS = 60_000


def test_an_op_id_of_the_next_minute_is_still_known_when_the_oldest_is_forgotten() -> None:
    lab = LaneLab(written=10)
    lab.do(Tick(**QUEUE, op_id="oldest"), after_ms=MINUTE_MS)
    second = Pop(**QUEUE, group=GROUP, max_messages=1, invisible_time_ms=3_600_000, op_id="second")
    first = lab.do(second, after_ms=MINUTE_MS, digest=b"of second")
    lab.do(Tick(**QUEUE), after_ms=(WINDOW_MINUTES - 1) * MINUTE_MS)  # which forgets what is older
    lab.do(Tick(**QUEUE))
    assert lab.do(second, digest=b"of second") == first
    assert lab.lane().record.leased == 1
    lab.do(second, after_ms=MINUTE_MS, digest=b"of second")
    assert lab.lane().record.leased == 2
