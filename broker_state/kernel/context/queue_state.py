"""A queue while records are decided: its record with its position, its lanes and the facts about its units."""

from collections.abc import Iterator
from typing import Final

from broker_state.kernel.context.deadlines import Deadlines
from broker_state.kernel.context.lane_state import LaneState
from broker_state.store.keys import DEADLINE_QUEUE, DeadlineRef, QueueTag, queue_prefix
from broker_state.store.marks import CountedMarks, Marks
from broker_state.store.overlay import Overlay
from broker_state.store.pages import PAGE_SHIFT, DeliveryPage, UnitFactsPage
from broker_state.store.position import Position
from broker_state.store.state_records import LaneRecord, LateSkip, QueueRecord, QueueUsage, Text
from broker_state.store.tag_index import TagIndex
from broker_state.store.tree import GrowingTree
from popstream.wire.limits import WINDOW_OFFSETS_MAX

__all__ = ["QueueState", "erase_queue", "load_queue", "new_queue"]

_ERASED_TAGS: Final = (
    QueueTag.LANE,
    QueueTag.GROUP,
    QueueTag.WRITTEN,
    QueueTag.HOLES,
    QueueTag.HOLE_COUNTS,
    QueueTag.LATE_SKIP,
    QueueTag.UNIT_FACTS,
    QueueTag.TAG_INDEX,
    QueueTag.WATCHING,
    QueueTag.USAGE,
    QueueTag.LANE_DATA,
)


class QueueState:
    """One declared queue."""

    __slots__ = (
        "_deadlines",
        "_lanes_prefix",
        "holes",
        "key",
        "oldest_op_minute",
        "overlay",
        "prefix",
        "queue_id",
        "record",
        "tag_index",
        "topic",
        "unsettled",
        "usage_key",
        "watching",
        "written",
    )

    def __init__(self, overlay: Overlay, topic: str, queue_id: int, record: QueueRecord) -> None:
        self.overlay = overlay
        self.topic = topic
        self.queue_id = queue_id
        self.prefix = queue_prefix(topic, queue_id)
        self.key = self.prefix + QueueTag.RECORD
        self.usage_key = self.prefix + QueueTag.USAGE
        self._lanes_prefix = self.prefix + QueueTag.LANE
        self.record = record
        self.written = Position(
            Marks(overlay, self.prefix + QueueTag.WRITTEN), record.commit_position, record.written_above
        )
        self.holes = CountedMarks(overlay, self.prefix + QueueTag.HOLES, self.prefix + QueueTag.HOLE_COUNTS)
        self.tag_index = TagIndex(overlay, self.prefix + QueueTag.TAG_INDEX)
        self.watching = GrowingTree(
            overlay, self.prefix + QueueTag.WATCHING, record.watching_depth, record.watching_count
        )
        self._deadlines = Deadlines(overlay, self.prefix)
        self.oldest_op_minute = 0
        """No op_id in the window is older, in minutes; 0 until it is read."""
        self.unsettled: dict[DeliveryPage, LaneState] = {}
        """Pages whose deadline may be earlier than that of any of their leases, with their lanes (`settle`)."""

    def encode(self) -> bytes:
        """Return the stored form of the record, with its position and tree as they are now."""
        record = self.record
        record.commit_position = self.written.floor
        record.written_above = self.written.above
        record.watching_depth = self.watching.depth
        record.watching_count = self.watching.count
        return record.encode()

    def follow(self, old: "QueueState") -> None:
        """Go on with what outlives the queue that this one replaces: numbers, op_ids, and deadlines of nothing."""
        record, before = self.record, old.record
        record.epoch_base = before.epoch_base
        record.next_lane_no = before.next_lane_no
        record.op_log_first, record.op_log_last = before.op_log_first, before.op_log_last
        self._deadlines = old.deadlines

    def touch(self) -> None:
        """Note that the queue changed."""
        self.overlay.put(self.key, self)

    def settle(self) -> None:
        """Settle the pages that wait for it.

        To be called before anything but an ack or a pop is decided, before deadlines are looked at, and before the
        changes are written: then nothing can show that a page has waited.
        """
        while self.unsettled:
            page, lane = self.unsettled.popitem()
            lane.settle(page)

    @property
    def deadlines(self) -> Deadlines:
        """The deadlines, read anew in each micro-batch."""
        if self._deadlines.generation != self.overlay.generation:
            self._deadlines = Deadlines(self.overlay, self.prefix)
        return self._deadlines

    def set_deadline(self, lane_no: int, kind: int, number: int, before_ms: int, after_ms: int) -> None:
        """Move the deadline of a page, a batch or a parked pop; 0 is never."""
        self.overlay.set_deadline(self.prefix, lane_no, kind, number, before_ms, after_ms)
        if after_ms:
            self.deadlines.push(DeadlineRef(after_ms, lane_no, kind, number))

    @property
    def usage(self) -> QueueUsage | None:
        """What the quotas of the queue count; None: it has none."""
        return self.overlay.get(self.usage_key, QueueUsage.decode)

    def lane_key(self, group: str) -> bytes:
        """Return the state key of a lane's record."""
        return self._lanes_prefix + group.encode()

    def lane(self, group: str) -> LaneState | None:
        """Return the lane of a group, if there is one."""
        return self.overlay.get(
            self._lanes_prefix + group.encode(), lambda value: LaneState(self, LaneRecord.decode(value))
        )

    def lane_by_no(self, lane_no: int) -> LaneState | None:
        """Return the lane with this number, or with an era of this number, unless it was deleted."""
        name = self.overlay.get(self._number_key(lane_no), Text.decode)
        return None if name is None else self.lane(name.text)

    def make_lane(self, group: str, start_offset: int) -> LaneState:
        """Make a lane that starts at `start_offset`."""
        record = self.record
        lane = LaneState(
            self,
            LaneRecord(
                lane_no=self.name_number(group),
                group=group,
                start_offset=start_offset,
                next_offset=start_offset,
                commit_offset=start_offset,
                acked_above=0,
                epoch=record.epoch_base,
                reset_epoch=record.epoch_base,
                min_seen=record.min_offset,
                late_skips_seen=record.late_skips,
            ),
        )
        lane.touch()
        return lane

    def name_number(self, group: str) -> int:
        """Return a number that was never used, for a lane of the group or an era of it."""
        number = self.record.next_lane_no
        self.record.next_lane_no += 1
        self.overlay.put(self._number_key(number), Text(group))
        self.touch()
        return number

    def forget_number(self, number: int) -> None:
        """Delete the name of a number."""
        self.overlay.delete(self._number_key(number))

    def forget_lane(self, lane: LaneState) -> None:
        """Delete a lane, without parked pops, and all that is stored under it."""
        lane.forget_era()
        self.watching.discard(lane.record.lane_no)
        self.record.epoch_base = max(self.record.epoch_base, lane.record.epoch)
        self.forget_number(lane.record.lane_no)
        self.overlay.delete(lane.key)
        if lane.usage is not None:
            self.overlay.delete(lane.usage_key)
        self.touch()

    def count_holes(self, first: int, end: int) -> int:
        """Return how many offsets of [first, end) are holes."""
        return self.holes.count(first, end) if self.record.holes and first < end else 0

    def watching_lanes(self, first_no: int = 0) -> Iterator[LaneState]:
        """Yield the lanes that wait for messages, in the order of their numbers, from `first_no` on."""
        number = self.watching.first(first_no)
        while number is not None:
            lane = self.lane_by_no(number)
            assert lane is not None, "a watched lane exists"
            yield lane
            number = self.watching.first(number + 1)

    def go_on(self, at_ms: int) -> None:
        """Let the queue go on with serving or closing lanes at `at_ms` at the latest; 0: no more."""
        record = self.record
        if at_ms != record.goes_on_ms:
            self.set_deadline(0, DEADLINE_QUEUE, 0, record.goes_on_ms, at_ms)
            record.goes_on_ms = at_ms

    def unit_facts(self, page_no: int) -> UnitFactsPage | None:
        """Return the tags and inner counts of 64 offsets, if a dispatch gave any."""
        return self.overlay.get(self._unit_facts_key(page_no), UnitFactsPage.decode)

    def set_unit_facts(self, page: UnitFactsPage) -> None:
        """Store tags and inner counts."""
        self.overlay.put(self._unit_facts_key(page.page_no), page)

    def late_skip(self, number: int) -> LateSkip:
        """Return a skip of offsets that had been written, by its number."""
        skip = self.overlay.get(self._late_skip_key(number), LateSkip.decode)
        assert skip is not None, "late skips are kept"
        return skip

    def add_late_skip(self, first: int, end: int) -> None:
        """Make holes of offsets that had been written; each lane accounts for them at its next operation."""
        self.overlay.put(self._late_skip_key(self.record.late_skips), LateSkip(first, end))
        self.record.late_skips += 1

    def _late_skip_key(self, number: int) -> bytes:
        return self.prefix + QueueTag.LATE_SKIP + number.to_bytes(8, "big")

    def _unit_facts_key(self, page_no: int) -> bytes:
        return self.prefix + QueueTag.UNIT_FACTS + page_no.to_bytes(8, "big")

    def _number_key(self, lane_no: int) -> bytes:
        return self.prefix + QueueTag.GROUP + lane_no.to_bytes(4, "big")


def load_queue(overlay: Overlay, topic: str, queue_id: int) -> QueueState | None:
    """Return the state of a queue; None before its `declare`."""
    return overlay.get(
        queue_prefix(topic, queue_id) + QueueTag.RECORD,
        lambda value: _upgraded(QueueState(overlay, topic, queue_id, QueueRecord.decode(value))),
    )


def _upgraded(queue: QueueState) -> QueueState:
    """Add what the record of an older version lacks: counts, or the start of the index of tags."""
    record = queue.record
    if record.tags_indexed_from < 0:
        record.tags_indexed_from = _unwritten_page(record) if record.has_unit_facts else 0
    if not record.has_counts:
        record.has_counts = True
        record.parked = sum(lane.record.parked for lane in queue.watching_lanes())
        if record.holes:
            queue.holes.recount(0, record.commit_position + record.window_max)
    return queue


def _unwritten_page(record: QueueRecord) -> int:
    """Return a page from which on no offset has been written: a policy may have made the window smaller meanwhile."""
    beyond = WINDOW_OFFSETS_MAX if record.written_above else 0
    return (record.commit_position + beyond >> PAGE_SHIFT) + 1


def new_queue(overlay: Overlay, topic: str, queue_id: int, record: QueueRecord) -> QueueState:
    """Make the state of a queue that is declared."""
    queue = QueueState(overlay, topic, queue_id, record)
    queue.touch()
    return queue


def erase_queue(queue: QueueState) -> None:
    """Delete everything stored of a queue but its record, the log of its op_ids, and its deadlines.

    Those leave the index when they are due: the numbers of lanes go on in the queue that follows.
    """
    queue.overlay.erase(queue.prefix, _ERASED_TAGS)
