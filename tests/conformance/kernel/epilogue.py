"""What is left at the end of a vector or history is followed to its end: nothing that was not acked may be lost.

The kernel and its model get the same records, so that a lease that never ends, a waiting pop that nobody serves or an
old handle that is still good is seen also where the recording stops before it would matter.
"""

from functools import partial

from popstream.wire.command import Ack, AckEntry, ChangeEntry, ChangeInvisible, HandleRef
from tests.conformance.conformance_verdict import Comparison
from tests.conformance.kernel.kernel_broker import KernelBroker, Lane, offsets_of

__all__ = ["follow_to_the_end"]

_MESSAGES_MAX = 10_000
_HALF_DAY_MS = 12 * 3_600_000
_DAY_MS = 2 * _HALF_DAY_MS


def follow_to_the_end(broker: KernelBroker, comparison: Comparison) -> None:
    """Let waiting pops, expiries, old handles and late acks come to every lane."""
    for (topic, queue_id), queue in list(broker.pair.queues().items()):
        for group in list(queue["lanes"]):
            _follow((topic, group, queue_id), broker)
    comparison.agree("the end, where what is left is followed up", broker.pair.disagreement)


def _follow(lane: Lane, broker: KernelBroker) -> None:
    state = broker.lane(lane)
    is_orderly = state is not None and bool(state["orderly"])
    pop = partial(broker.pop, lane, invisible_time_ms=2_000, order=is_orderly)
    pop(count=2, poll_time_ms=_HALF_DAY_MS)
    pop(count=1)
    for deadline_ms in broker.deadlines(lane):
        broker.now_ms = max(broker.now_ms, deadline_ms - 1)
        broker.tick(lane[0], lane[2])
        broker.now_ms = max(broker.now_ms, deadline_ms)
        broker.tick(lane[0], lane[2])
    broker.send(lane[0], lane[2], [None, None, None])
    broker.now_ms += 2_000
    first = pop(count=_MESSAGES_MAX)
    if first is None or first.handle is None:
        return
    offsets = [offset for offset, _ in offsets_of(first)]
    for invisible_time_ms, suspend in ((1_000, True), (3_000, False)):  # the second one with a handle that is old now
        _change(lane, broker, first.handle, offsets[-1], invisible_time_ms, suspend=suspend)
    _ack(lane, broker, first.handle, offsets[len(offsets) // 2])
    broker.now_ms += 3_000
    second = pop(count=_MESSAGES_MAX)
    _ack(lane, broker, first.handle, offsets[0])
    _change(lane, broker, first.handle, offsets[0], 1_000, suspend=False)
    if second is not None and second.handle is not None:
        for offset, _ in offsets_of(second):
            _ack(lane, broker, second.handle, offset)
    broker.now_ms += _DAY_MS
    pop(count=1)


def _ack(lane: Lane, broker: KernelBroker, handle: str, offset: int) -> None:
    entries = [AckEntry(0, [(offset, offset)])]
    broker.pair.decide(Ack(topic=lane[0], queue_id=lane[2], v=1, handles=[HandleRef(lane[1], handle)], entries=entries))


def _change(
    lane: Lane, broker: KernelBroker, handle: str, offset: int, invisible_time_ms: int, *, suspend: bool
) -> None:
    broker.pair.decide(
        ChangeInvisible(
            topic=lane[0],
            queue_id=lane[2],
            v=1,
            handles=[HandleRef(lane[1], handle)],
            entries=[ChangeEntry(0, [(offset, offset)], invisible_time_ms, suspend)],
        )
    )
