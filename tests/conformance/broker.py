"""The kernel behind RocketMQ's requests: its offsets and handles, one record a request, a clock that is set."""

import zlib
from typing import Any, NamedTuple

import msgspec

from broker_state.kernel.decision import Decision, OpRecord
from broker_state.kernel.fold import fold
from broker_state.kernel.order_info import OrderInfo
from broker_state.kernel.queue_state import LaneState, QueueState, load_queue
from broker_state.store.memory_kv import MemoryKv
from broker_state.store.overlay import Overlay
from broker_state.store.pages import DeliveryState
from popstream.wire.answer import Answer, Run
from popstream.wire.command import (
    Ack,
    AckEntry,
    ChangeEntry,
    ChangeInvisible,
    Command,
    Declare,
    Dispatch,
    HandleRef,
    Pop,
    ResetOffset,
    WrittenRange,
)
from popstream.wire.handle import REVIVE_QUEUE_ID_ORDERLY, Handle, encode_handle, lane_check
from tests.conformance.rules import Request

__all__ = ["Broker", "RocketHandle"]


class RocketHandle(NamedTuple):
    """RocketMQ's extraInfo: eight words, of which these count here."""

    start_offset: int
    pop_time_ms: int
    invisible_time_ms: int
    revive_queue_id: int

    @classmethod
    def parse(cls, text: str) -> "RocketHandle":
        """The handle in `text`."""
        start, pop_time, invisible_time, revive, *_ = text.split(" ")
        return cls(int(start), int(pop_time), int(invisible_time), int(revive))


class Broker:
    """One kernel in memory.

    Messages are written by `send`; every queue that is named is declared then, or by `declare`.
    """

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self._kv = MemoryKv()
        self._overlay = Overlay(self._kv)
        self._records = 0
        self._handles: dict[tuple[str, str, int, int], str] = {}
        self._written: dict[tuple[str, int], int] = {}
        self.notified: list[str] = []
        """Lanes that became poppable, as topic@group@queue id."""

    def declare(self, topic: str, queue_id: int, first: int = 0, end: int | None = None) -> None:
        """A queue exists; with `end` it holds [first, end)."""
        if (topic, queue_id) in self._written:
            return
        self._written[topic, queue_id] = first
        self._do(Declare(topic=topic, queue_id=queue_id, v=1, topic_id="conformance", min_offset=first))
        if end is not None and end > first:
            self._write(topic, queue_id, [WrittenRange(first, end - 1)])
            self._written[topic, queue_id] = end

    def send(self, topic: str, queue_id: int, tags: list[str | None]) -> list[int]:
        """Append messages; their offsets."""
        self.declare(topic, queue_id)
        first = self._written[topic, queue_id]
        ranges = [WrittenRange(first + i, first + i, tag_number(tag)) for i, tag in enumerate(tags)]
        if ranges:
            self._write(topic, queue_id, ranges)
        self._written[topic, queue_id] = first + len(tags)
        return list(range(first, first + len(tags)))

    def pop(
        self,
        group: str,
        topic: str,
        queue_id: int,
        *,
        count: int,
        invisible_time_ms: int,
        order: bool,
        attempt_id: str | None = None,
        tag: str | None = None,
    ) -> Answer:
        """Pop from one queue, from its first message on when the group is new."""
        self.declare(topic, queue_id)
        answer = self._do(
            Pop(
                topic=topic,
                queue_id=queue_id,
                v=1,
                group=group,
                max_messages=count,
                invisible_time_ms=invisible_time_ms,
                order=order,
                attempt_id=attempt_id,
                tags=None if tag is None else [tag_number(tag)],
            )
        )
        if answer.handle is not None:
            self._handles[group, topic, queue_id, self.now_ms] = answer.handle
        return answer

    def ack(self, group: str, topic: str, queue_id: int, offset: int, handle: RocketHandle) -> dict[str, Any]:
        """The answer to an ack of one offset, under RocketMQ's names."""
        text = self._handle(group, topic, queue_id, handle)
        run = self._run(
            Ack(
                topic=topic,
                queue_id=queue_id,
                v=1,
                handles=[HandleRef(group, text)],
                entries=[AckEntry(0, [(offset, offset)])],
            )
        )
        return {"code": run.code}

    def ack_many(self, group: str, topic: str, queue_id: int, offsets: list[int], handle: RocketHandle | None) -> int:
        """The code of an ack of several offsets of one handle; without a handle there are no entries."""
        text = "" if handle is None else self._handle(group, topic, queue_id, handle)
        return self._do(
            Ack(
                topic=topic,
                queue_id=queue_id,
                v=1,
                handles=[] if handle is None else [HandleRef(group, text)],
                entries=[AckEntry(0, [(offset, offset)]) for offset in offsets],
            )
        ).code

    def change(
        self,
        group: str,
        topic: str,
        queue_id: int,
        offset: int,
        handle: RocketHandle,
        *,
        invisible_time_ms: int,
        suspend: bool = False,
    ) -> dict[str, Any]:
        """The answer to a change of one offset, under RocketMQ's names."""
        text = self._handle(group, topic, queue_id, handle)
        answer = self._do(
            ChangeInvisible(
                topic=topic,
                queue_id=queue_id,
                v=1,
                handles=[HandleRef(group, text)],
                entries=[ChangeEntry(0, [(offset, offset)], invisible_time_ms, suspend)],
            )
        )
        run = answer.runs[0] if answer.runs else None
        if run is not None and run.handle is not None and run.revive_queue_id != REVIVE_QUEUE_ID_ORDERLY:
            self._handles[group, topic, queue_id, self.now_ms] = answer.handles[run.handle]
        return {
            "code": answer.code if run is None else run.code,
            "pop_time": run.pop_time_ms if run else None,
            "invisible_time": run.invisible_time_ms if run else None,
            "revive_qid": run.revive_queue_id if run else None,
        }

    def reset_offset(self, group: str, topic: str, queue_id: int, offset: int) -> int:
        """The code of a reset; it makes the lane."""
        self.declare(topic, queue_id)
        return self._do(ResetOffset(topic=topic, queue_id=queue_id, v=1, group=group, queue_offset=offset)).code

    def request(
        self, group: str, topic: str, queue_id: int, offset: int, handle: RocketHandle, invisible_time_ms: int = 0
    ) -> Request:
        """What the rules may know of a request that is about to be made."""
        queue = self._queue(topic, queue_id)
        lane = self.lane(group, topic, queue_id)
        info = self.order_info(group, topic, queue_id)
        known = self._handles.get((group, topic, queue_id, handle.pop_time_ms)) is not None
        return Request(
            now_ms=self.now_ms,
            offset=offset,
            known=known,
            zero_header=not handle.pop_time_ms and not handle.revive_queue_id,
            is_current=info is not None and info.head.member_count > 0 and info.head.pop_time_ms == handle.pop_time_ms,
            is_queue=queue is not None,
            min_offset=queue.record.min_offset if queue else 0,
            max_offset=queue.written.floor if queue else 0,
            commit_offset=lane.acked.floor if lane else 0,
            order_info=info,
            lane_exists=lane is not None,
            invisible_time_ms=invisible_time_ms,
        )

    def commit_offset(self, group: str, topic: str, queue_id: int) -> int | None:
        """Of a lane, None before there is one."""
        lane = self.lane(group, topic, queue_id)
        return None if lane is None else lane.acked.floor

    def order_info(self, group: str, topic: str, queue_id: int) -> OrderInfo | None:
        """Of an orderly lane."""
        lane = self.lane(group, topic, queue_id)
        return lane.order_info if lane is not None and lane.record.orderly else None

    def leases(self) -> list[dict[str, Any]]:
        """Every live lease of a concurrent lane, a message each, as RocketMQ's store would list it."""
        found = []
        for group, topic, queue_id in {key[:3] for key in self._handles}:
            lane = self.lane(group, topic, queue_id)
            assert lane is not None, "a lane that gave out a handle exists"
            for page_no in range(lane.acked.floor >> 6, (lane.record.next_offset >> 6) + 1):
                page = lane.page(page_no)
                for first, end, delivery in page.runs if page is not None else []:
                    if delivery.state == DeliveryState.LEASED:
                        found += [
                            {
                                "visibility_timeout": delivery.deadline_ms,
                                "pop_time": delivery.pop_time_ms,
                                "invisible_time": delivery.invisible_time_ms,
                                "topic": topic,
                                "queue_id": queue_id,
                                "offset": offset,
                            }
                            for offset in range(first, end)
                        ]
        return sorted(found, key=lambda lease: (lease["visibility_timeout"], lease["queue_id"], lease["offset"]))

    def lane(self, group: str, topic: str, queue_id: int) -> LaneState | None:
        """A lane as it is now."""
        queue = self._queue(topic, queue_id)
        return None if queue is None else queue.lane(group)

    def _queue(self, topic: str, queue_id: int) -> QueueState | None:
        return load_queue(self._overlay, topic, queue_id) if queue_id >= 0 else None

    def _handle(self, group: str, topic: str, queue_id: int, handle: RocketHandle) -> str:
        """Ours for RocketMQ's: that of the pop or change with its pop time, else one that was never current."""
        known = self._handles.get((group, topic, queue_id, handle.pop_time_ms))
        if known is not None:
            return known
        info = self.order_info(group, topic, queue_id)
        return encode_handle(
            Handle(
                handle.start_offset,
                handle.pop_time_ms,
                handle.invisible_time_ms,
                REVIVE_QUEUE_ID_ORDERLY if info is not None else handle.revive_queue_id,
                max(queue_id, 0),
                0,
                0,
                lane_check(topic, queue_id, group),
            )
        )

    def _write(self, topic: str, queue_id: int, ranges: list[WrittenRange]) -> None:
        self._do(Dispatch(topic=topic, queue_id=queue_id, v=1, ranges=ranges))

    def _run(self, command: Ack) -> Run | Answer:
        answer = self._do(command)
        return answer.runs[0] if answer.runs else answer

    def _do(self, command: Command) -> Answer:
        self._records += 1
        number = self._records
        command = msgspec.structs.replace(command, op_id=f"op-{number}", reply_to=0)
        decision = Decision()
        fold(self._overlay, [OpRecord(0, number, self.now_ms, command, number.to_bytes(8, "big"))], decision)
        self._kv.write(self._overlay)
        self.notified += [f"{n.topic}@{n.group}@{n.queue_id}" for n in decision.notifications]
        answers = [msgspec.json.decode(encoded, type=Answer) for _, encoded in decision.answers]
        return next(answer for answer in answers if answer.op_id == command.op_id)


def tag_number(tag: str | None) -> int:
    """A number for a tag, 0 for none."""
    return zlib.crc32(tag.encode()) + 1 if tag else 0
