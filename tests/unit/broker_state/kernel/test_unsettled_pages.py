"""After an ack a page may wait before its earliest deadline is looked for; what is stored does not show that it did."""

import pytest

from broker_state.kernel.context.decision import Decision
from broker_state.kernel.fold import fold
from broker_state.store.keys import queue_prefix, read_deadline_key
from broker_state.store.memory_kv import MemoryKv
from broker_state.store.overlay import DEADLINES, Family, Overlay
from popstream.wire.command import Cancel, Command, Declare, ForgetLane, Pop, ResetOffset, ReturnClient, Tick
from tests.support.in_process.lane_lab import GROUP, QUEUE, TOPIC, LaneLab


def stored(kv: MemoryKv) -> dict[Family, dict[bytes, bytes]]:
    return {family: values for family, values in kv.families.items() if values}


POP = Pop(**QUEUE, group=GROUP, max_messages=5, invisible_time_ms=7_000, client_id="c")


@pytest.mark.parametrize("after_ms", [10, 1_000, 2_000, 60_000])
@pytest.mark.parametrize(
    "command",
    [
        Tick(**QUEUE),
        POP,
        ForgetLane(**QUEUE, group=GROUP),
        ResetOffset(**QUEUE, group=GROUP, queue_offset=0),
        ReturnClient(**QUEUE, group=GROUP, client_id="c"),
        Cancel(**QUEUE, target_op_id="op-4"),
        Declare(**QUEUE, topic_id="another"),
    ],
    ids=lambda command: type(command).__name__,
)
def test_decided_together_and_one_by_one_leave_the_same_bytes(command: Command, after_ms: int) -> None:
    lab = LaneLab(written=4)
    first = lab.pop(1, 1_000)
    lab.pop(1, 50_000, client_id="c")
    lab.ack(first.handle, (0, 0))
    lab.do(command, after_ms=after_ms)
    lab.do(POP, after_ms=50_000)

    together = MemoryKv()
    overlay, decision = Overlay(together), Decision()
    fold(overlay, lab.records, decision)
    together.write(overlay)
    assert stored(together) == stored(lab.kv)
    assert len(decision.operations) >= len(lab.records)


def test_after_a_micro_batch_no_page_waits() -> None:
    lab = LaneLab(written=4)
    first = lab.pop(1, 1_000)
    lab.pop(1, 50_000)
    lab.ack(first.handle, (0, 0))
    page = lab.lane().page(0)
    assert page is not None
    assert page.due_ms == lab.now_ms + 50_000
    (key,) = lab.kv.families[DEADLINES]
    assert read_deadline_key(queue_prefix(TOPIC, 0), key).deadline_ms == page.due_ms
