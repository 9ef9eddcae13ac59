"""RocketMQ's requests as records of the ops topic, decided by the kernel and its model: offsets, handles, codes."""

import copy
import zlib
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from popstream.wire.answer import Answer, Run
from popstream.wire.command import (
    Ack,
    AckEntry,
    ChangeEntry,
    ChangeInvisible,
    Declare,
    Dispatch,
    HandleRef,
    Init,
    Pop,
    ResetOffset,
    Tick,
    WrittenRange,
)
from popstream.wire.handle import REVIVE_QUEUE_ID_ORDERLY, Handle, encode_handle, lane_check
from popstream.wire.reason import Reason
from tests.conformance.conformance_verdict import NotApplicableError
from tests.conformance.kernel.paired_kernel import PairedKernel

__all__ = ["Changing", "KernelBroker", "KernelOutcome", "Lane", "RocketHandle", "offsets_of", "tag_number"]

Lane = tuple[str, str, int]
"""(topic, group, queue id)."""

_U32_MAX, _U64_MAX = (1 << 32) - 1, (1 << 64) - 1


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

    @property
    def is_zero_header(self) -> bool:
        """Whether a client made it of an answer that was all zeros."""
        return not self.pop_time_ms and not self.revive_queue_id


class Changing(NamedTuple):
    """One entry of a change."""

    offset: int
    handle: RocketHandle
    invisible_time_ms: int
    suspend: bool = False


class KernelOutcome(NamedTuple):
    """What the answer says of one offset. `commit_offset` None: the lane was not touched."""

    code: int
    reason: Reason
    applied: bool
    pop_time_ms: int | None = None
    invisible_time_ms: int | None = None
    revive_queue_id: int | None = None
    commit_offset: int | None = None


class KernelBroker:
    """The kernel in memory, beside its model, with RocketMQ's names for what is asked of it.

    Messages are written by `send`; a queue that is named is declared then, or by `declare`.
    """

    def __init__(self, now_ms: int) -> None:
        self.pair = PairedKernel(now_ms)
        self._ends: dict[tuple[str, int], int] = {}
        self._batches: dict[tuple[Lane, int], str] = {}
        """Handles of orderly lanes, by RocketMQ's pop time: it tells two batches apart by nothing else."""
        self._latest: dict[Lane, str] = {}
        """The handle of an orderly lane's latest batch."""
        self._pops: dict[tuple[Lane, int, int], str] = {}
        """Handles of concurrent lanes, by RocketMQ's pop time and invisible time."""
        self._messages: dict[tuple[Lane, int, int, int], str] = {}
        """The same of single messages, by the offset too: two pops may share a millisecond, and a change is of one."""

    @property
    def now_ms(self) -> int:
        """The clock."""
        return self.pair.now_ms

    @now_ms.setter
    def now_ms(self, now_ms: int) -> None:
        self.pair.now_ms = now_ms

    def fork(self) -> "KernelBroker":
        """A copy that goes its own way."""
        return copy.deepcopy(self)

    def is_declared(self, topic: str, queue_id: int) -> bool:
        """Whether the queue exists."""
        return (topic, queue_id) in self._ends

    def declare(self, topic: str, queue_id: int, first: int = 0, end: int | None = None) -> None:
        """A queue exists; with `end` it holds [first, end)."""
        if (topic, queue_id) in self._ends:
            return
        self._ends[topic, queue_id] = first
        self.pair.decide(Declare(topic=topic, queue_id=queue_id, v=1, topic_id="conformance", min_offset=first))
        if end is not None and end > first:
            self.write(topic, queue_id, [WrittenRange(first, end - 1)])

    def set_range(self, topic: str, queue_id: int, first: int, end: int) -> None:
        """A queue holds [first, end) from now on: what lies before has left the log.

        Raises:
            NotApplicableError: It held more.
        """
        self.declare(topic, queue_id, first, end)
        last = self._ends[topic, queue_id] - 1
        queue = self.pair.queue(topic, queue_id)
        if end - 1 < last:
            message = "a queue that loses its end"
            raise NotApplicableError(message)
        if end - 1 > last:
            self.write(topic, queue_id, [WrittenRange(last + 1, end - 1)])
        if queue is not None and first > queue["min_offset"]:
            gone = [(queue["min_offset"], first - 1)]
            self.pair.decide(Dispatch(topic=topic, queue_id=queue_id, v=1, skip=gone))

    def send(self, topic: str, queue_id: int, tags: Sequence[str | None]) -> list[int]:
        """Append messages; their offsets."""
        self.declare(topic, queue_id)
        first = self._ends[topic, queue_id]
        self.write(topic, queue_id, [WrittenRange(first + i, first + i, tag_number(tag)) for i, tag in enumerate(tags)])
        return list(range(first, first + len(tags)))

    def write(self, topic: str, queue_id: int, ranges: list[WrittenRange]) -> None:
        """Append messages with the offsets and tag numbers of `ranges`."""
        if ranges:
            self.pair.decide(Dispatch(topic=topic, queue_id=queue_id, v=1, ranges=ranges))
            self._ends[topic, queue_id] = ranges[-1].last + 1

    def end_offset(self, topic: str, queue_id: int) -> int:
        """The offset after the last message."""
        return self._ends.get((topic, queue_id), 0)

    def pop(
        self,
        lane: Lane,
        *,
        count: int,
        invisible_time_ms: int,
        order: bool,
        attempt_id: str | None = None,
        tags: list[int] | None = None,
        init: Init = "min",
        poll_time_ms: int = 0,
        known_as_ms: int | None = None,
    ) -> Answer | None:
        """Pop from one queue; None: it waits. `known_as_ms`: RocketMQ's pop time, if it is not that of the record."""
        topic, group, queue_id = lane
        self.declare(topic, queue_id)
        answer = self.pair.decide(
            Pop(
                topic=topic,
                queue_id=queue_id,
                v=1,
                group=group,
                max_messages=count,
                invisible_time_ms=invisible_time_ms,
                order=order,
                attempt_id=attempt_id,
                tags=tags,
                init=init,
                poll_time_ms=poll_time_ms,
            )
        )
        if answer is not None:
            self.keep_handle(lane, answer, known_as_ms)
        return answer

    def tick(self, topic: str, queue_id: int) -> None:
        """Let what is due take effect."""
        self.pair.decide(Tick(topic=topic, queue_id=queue_id, v=1))

    def ack(self, lane: Lane, offsets: list[int], handle: RocketHandle) -> list[KernelOutcome]:
        """An ack of some offsets with one handle, in one record: an outcome for each."""
        topic, group, queue_id = lane
        texts = [self._handle(lane, offset, handle) for offset in offsets]
        handles = list(dict.fromkeys(texts))
        answer = self.pair.decide(
            Ack(
                topic=topic,
                queue_id=queue_id,
                v=1,
                handles=[HandleRef(group, text) for text in handles],
                entries=[
                    AckEntry(handles.index(text), [(offset, offset)])
                    for offset, text in zip(offsets, texts, strict=True)
                ],
            )
        )
        return _outcomes(answer, group, len(offsets))

    def change(self, lane: Lane, changes: Sequence[Changing]) -> list[KernelOutcome]:
        """A change of some offsets in one record: an outcome for each."""
        topic, group, queue_id = lane
        texts = [self._handle(lane, change.offset, change.handle) for change in changes]
        handles = list(dict.fromkeys(texts))
        answer = self.pair.decide(
            ChangeInvisible(
                topic=topic,
                queue_id=queue_id,
                v=1,
                handles=[HandleRef(group, text) for text in handles],
                entries=[
                    ChangeEntry(handles.index(text), [(c.offset, c.offset)], c.invisible_time_ms, c.suspend)
                    for c, text in zip(changes, texts, strict=True)
                ],
            )
        )
        if answer is not None:
            self._keep_changed(lane, answer)
        return _outcomes(answer, group, len(changes))

    def reset_offset(self, lane: Lane, offset: int) -> Reason:
        """Why a reset came out as it did; it makes the lane."""
        topic, group, queue_id = lane
        self.declare(topic, queue_id)
        answer = self.pair.decide(ResetOffset(topic=topic, queue_id=queue_id, v=1, group=group, queue_offset=offset))
        return answer.reason if answer is not None else Reason.INVALID_PARAMETER

    def lane(self, lane: Lane) -> dict[str, Any] | None:
        """The model's lane (tests/model/reference_model.py)."""
        topic, group, queue_id = lane
        return self.pair.lane(group, topic, queue_id)

    def batch(self, lane: Lane) -> dict[str, Any] | None:
        """The model's batch of an orderly lane."""
        state = self.lane(lane)
        return None if state is None else state["batch"]

    def is_blocked(self, lane: Lane) -> bool:
        """Whether a member of the batch is invisible."""
        return self.free_ms(lane) > self.now_ms

    def free_ms(self, lane: Lane) -> int:
        """When the last member that blocks becomes visible; 0 when none is unacked."""
        members = (self.batch(lane) or {"members": {}})["members"].values()
        return max((member["next_visible"] for member in members if not member["acked"]), default=0)

    def deadlines(self, lane: Lane) -> list[int]:
        """The moments at which something of the lane changes by itself."""
        state = self.lane(lane)
        if state is None:
            return []
        members = (state["batch"] or {"members": {}})["members"].values()
        every = [message["deadline"] for message in state["messages"].values()]
        every += [member["next_visible"] for member in members if not member["acked"]]
        return sorted({deadline_ms for deadline_ms in every if deadline_ms is not None})

    def pop_times(self, lane: Lane) -> list[int]:
        """RocketMQ's pop times of an orderly lane's batch."""
        latest = self._latest.get(lane)
        return [pop_time_ms for (name, pop_time_ms), text in self._batches.items() if (name, text) == (lane, latest)]

    def is_current(self, lane: Lane, handle: RocketHandle) -> bool:
        """Whether the handle is that of an orderly lane's batch."""
        text = self._batches.get((lane, handle.pop_time_ms))
        return self.batch(lane) is not None and text is not None and text == self._latest[lane]

    def keep_handle(self, lane: Lane, answer: Answer, known_as_ms: int | None = None) -> None:
        """Keep the handle of a pop for later requests."""
        if answer.handle is None or answer.pop_time_ms is None or answer.invisible_time_ms is None:
            return
        if answer.revive_queue_id == REVIVE_QUEUE_ID_ORDERLY:
            self._latest[lane] = answer.handle
            self._batches[lane, answer.pop_time_ms if known_as_ms is None else known_as_ms] = answer.handle
            return
        key = (lane, answer.pop_time_ms, answer.invisible_time_ms)
        self._pops[key] = answer.handle
        for leased in answer.messages:
            for offset in range(leased.first, leased.last + 1):
                self._messages[*key, offset] = answer.handle

    def _keep_changed(self, lane: Lane, answer: Answer) -> None:
        for run in answer.runs:
            is_new = run.applied and run.handle is not None and run.revive_queue_id != REVIVE_QUEUE_ID_ORDERLY
            if is_new and run.handle is not None and run.pop_time_ms is not None and run.invisible_time_ms is not None:
                for offset in range(run.first, run.last + 1):
                    self._messages[lane, run.pop_time_ms, run.invisible_time_ms, offset] = answer.handles[run.handle]

    def _given_out(self, lane: Lane, offset: int, handle: RocketHandle) -> str | None:
        state = self.lane(lane)
        if state is not None and state["orderly"]:
            return self._batches.get((lane, handle.pop_time_ms))
        key = (lane, handle.pop_time_ms, handle.invisible_time_ms)
        return self._messages.get((*key, offset)) or self._pops.get(key)

    def _handle(self, lane: Lane, offset: int, handle: RocketHandle) -> str:
        """Ours for RocketMQ's, else one that was never given out."""
        known = self._given_out(lane, offset, handle)
        if known is not None:
            return known
        topic, group, queue_id = lane
        state = self.lane(lane)
        is_orderly = state is not None and state["orderly"]
        return encode_handle(
            Handle(
                _within(handle.start_offset, _U64_MAX),
                _within(handle.pop_time_ms, _U64_MAX),
                _within(handle.invisible_time_ms, _U32_MAX),
                REVIVE_QUEUE_ID_ORDERLY if is_orderly else _within(handle.revive_queue_id, 0xFFFF),
                max(queue_id, 0),
                0,
                0,
                lane_check(topic, queue_id, group),
            )
        )


def _outcomes(answer: Answer | None, group: str, count: int) -> list[KernelOutcome]:
    """The outcome of each entry; of the whole when the record was refused."""
    if answer is None:
        return [KernelOutcome(-1, Reason.INVALID_PARAMETER, applied=False)] * count
    commit_offset = answer.commit_offsets.get(group)
    if not answer.runs:
        return [KernelOutcome(answer.code, answer.reason, answer.applied)] * count
    return [_outcome(run, commit_offset) for run in answer.runs]


def _outcome(run: Run, commit_offset: int | None) -> KernelOutcome:
    header = (run.pop_time_ms, run.invisible_time_ms, run.revive_queue_id)
    return KernelOutcome(run.code, run.reason, run.applied, *header, commit_offset)


def _within(value: int, most: int) -> int:
    return min(max(value, 0), most)


def tag_number(tag: str | None) -> int:
    """A number for a tag, 0 for none."""
    return zlib.crc32(tag.encode()) + 1 if tag else 0


def offsets_of(answer: Answer) -> Iterable[tuple[int, int]]:
    """(offset, attempt) of each message of a pop's answer."""
    return ((offset, leased.attempt) for leased in answer.messages for offset in range(leased.first, leased.last + 1))
