"""States of one queue that are as large as anybody can make them, without the memory they would take.

A `LargeState` is a store that computes its values: a million pages of leases, 100,000 lanes, a billion holes. It is
read like any store and never written: each input decides its records in one micro-batch over it.
"""

import time
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import msgspec

from broker_state.kernel.context.order_info import MemberPage
from broker_state.store.facts import Delivery, DeliveryState, Member, UnitFacts, client_hash
from broker_state.store.keys import (
    DEADLINE_BATCH,
    DEADLINE_PAGE,
    DEADLINE_PARKED,
    DeadlineRef,
    LaneTag,
    QueueTag,
    queue_prefix,
)
from broker_state.store.marks import MAPS
from broker_state.store.overlay import OPS, STATE, Family
from broker_state.store.pages import PAGE_OFFSETS, DeliveryPage, UnitFactsPage
from broker_state.store.segment import FULL, SEGMENT_BITS, encode_segment
from broker_state.store.state_records import (
    OP_LOG_ENTRIES,
    LanePolicy,
    LaneRecord,
    LateSkip,
    OpLog,
    OpWindowEntry,
    OrderInfoHead,
    ParkedPop,
    QueueRecord,
    Text,
)
from broker_state.store.tag_index import TAG_CLASSES
from broker_state.store.value_format import FORMAT_1
from popstream.wire.handle import REVIVE_QUEUE_ID_ORDERLY, Handle, encode_handle, lane_check
from popstream.wire.limits import PARKED_MAX, WINDOW_OFFSETS_MAX

__all__ = [
    "ALIKE_TAGS",
    "CLIENT",
    "DUE_MS",
    "NOW_MS",
    "QUEUE_ID",
    "SHAPES",
    "TOPIC",
    "LargeState",
    "Shape",
    "group_of",
    "handle_of",
]

TOPIC, QUEUE_ID = "orders", 0
CLIENT = "client"
NOW_MS = 1_790_000_000_000
"""The clock of the queue."""
DUE_MS = NOW_MS + 10_000
"""When every lease, batch and parked pop of a state is due."""
EPOCH = 7
_TAG = 5
"""The first of the tags: each run of a page has another one."""
ALIKE_TAGS = tuple(_TAG + TAG_CLASSES + run for run in range(PAGE_OFFSETS))
"""Tags that no unit has, each of the class of one that some have: a search for them reads every page."""
_MEMBERS = 10_000
_PREFIX = queue_prefix(TOPIC, QUEUE_ID)


class Shape(NamedTuple):
    """What a state is made of. Every lane of it is alike."""

    written: int = 10_000
    """Commit position of the queue; it starts at 0."""
    lanes: int = 1
    handed_out: int = 0
    """`next_offset` of the lanes."""
    run_offsets: int = 1
    """Length of each run of deliveries that are not acked."""
    run_distance: int = 64
    """From the beginning of one run to that of the next."""
    state: int = DeliveryState.LEASED
    holes: str = ""
    """Of the offsets beyond `handed_out`: none, "all", "every other", "every 64th" or "all but one in 64 segments"."""
    written_beyond: int = 0
    """Offsets beyond the commit position of which every other one is written."""
    late_skips: int = 0
    late_skip_offsets: int = 1
    late_skip_distance: int = 64
    min_offset: int = 0
    """What the lanes have not accounted for."""
    parked: int = 0
    """Pops parked in each lane."""
    parked_tags: tuple[int, ...] | None = None
    parked_messages: int = 10_000
    tag_runs: int = 0
    """Runs of tags in each page of 64 offsets that has any: none, 1 or 64."""
    tag_distance: int = 1
    """From one page with tags to the next, at most 4,096."""
    delay_ms: int = 0
    """Time until the units with tags can be popped, a millisecond more for each run of a page; 0: they can now."""
    orderly: bool = False
    member_distance: int = 1
    """From one member of the batch to the next; 10,000 members."""
    old_op_ids: int = 0
    """op_ids that have left the window and are not deleted yet."""
    policy: LanePolicy = LanePolicy(parked_max=PARKED_MAX)


_SPARSE = "all but one in 64 segments"
_HOLE_DISTANCE = {"all": 1, "every other": 2, "every 64th": 64}
_MILLION, _BILLION = 1_000_000, 1_000_000_000
_DAY_MS = 86_400_000
SHAPES: dict[str, Shape] = {
    "small": Shape(),
    "a million leases one a page": Shape(64 * _MILLION, handed_out=64 * _MILLION),
    "16,000 pages of 64 leases": Shape(_MILLION + 24_000, handed_out=_MILLION + 24_000, run_distance=1),
    "a million pages leased whole": Shape(64 * _MILLION, handed_out=64 * _MILLION, run_offsets=64),
    "a million messages available one a page": Shape(
        64 * _MILLION, handed_out=64 * _MILLION, state=DeliveryState.AVAILABLE
    ),
    "a million messages available, 64 runs a page": Shape(
        _MILLION, handed_out=_MILLION, run_distance=1, state=DeliveryState.AVAILABLE
    ),
    "a million messages backing off one a page": Shape(
        64 * _MILLION, handed_out=64 * _MILLION, state=DeliveryState.BACKING_OFF
    ),
    "one lease below a billion acked": Shape(_BILLION, handed_out=_BILLION, run_distance=2 * _BILLION),
    "one lease in each segment of a billion": Shape(_BILLION, handed_out=_BILLION, run_distance=4096),
    "a billion fresh": Shape(_BILLION),
    "a billion fresh, all tagged": Shape(_BILLION, tag_runs=1),
    "a billion fresh, 64 tags a page": Shape(_BILLION, tag_runs=64),
    "a billion put off": Shape(_BILLION, tag_runs=1, delay_ms=_DAY_MS),
    "a billion put off one by one": Shape(_BILLION, tag_runs=64, delay_ms=_DAY_MS),
    "an orderly lane of a billion put off": Shape(_BILLION, orderly=True, tag_runs=64, delay_ms=_DAY_MS),
    "one lease before a billion fresh": Shape(_BILLION, handed_out=64),
    "a billion holes": Shape(_BILLION, holes="all"),
    "half a billion holes": Shape(_BILLION, holes="every other"),
    "a billion holes but one in 64 segments": Shape(_BILLION, holes=_SPARSE),
    "an orderly lane before a billion holes but one in 64 segments": Shape(_BILLION, orderly=True, holes=_SPARSE),
    "a million offsets written every other one": Shape(4096 * 4096, written_beyond=_MILLION),
    "a billion with a hole in each page": Shape(_BILLION, holes="every 64th"),
    "a billion tagged with a hole in each page": Shape(_BILLION, holes="every 64th", tag_runs=1),
    "a hundred lanes before a billion holes": Shape(_BILLION, lanes=100, holes="all"),
    "a billion with a tagged page in each segment": Shape(_BILLION, holes="every other", tag_runs=1, tag_distance=64),
    "a billion with a tagged page in 64 segments": Shape(_BILLION, holes="every 64th", tag_runs=1, tag_distance=4096),
    "an orderly lane of a billion with a tagged page in each segment": Shape(
        _BILLION, orderly=True, holes="every other", tag_runs=1, tag_distance=64
    ),
    "100,000 lanes before a billion holes": Shape(_BILLION, lanes=100_000, holes="all"),
    "100,000 lanes before a billion that left the log": Shape(_BILLION, lanes=100_000, min_offset=_BILLION),
    "100,000 empty lanes": Shape(lanes=100_000, handed_out=10_000, run_distance=20_000),
    "100,000 lanes with a parked pop": Shape(lanes=100_000, handed_out=10_000, run_distance=20_000, parked=1),
    "100,000 lanes with a parked pop for tags": Shape(
        lanes=100_000, handed_out=10_000, run_distance=20_000, parked=1, parked_tags=ALIKE_TAGS[:1], tag_runs=1
    ),
    "100,000 lanes behind a late skip": Shape(lanes=100_000, handed_out=10_000, run_distance=128, late_skips=1),
    "8,192 parked pops": Shape(handed_out=10_000, run_distance=20_000, parked=PARKED_MAX),
    "8,192 parked pops of one message": Shape(
        handed_out=10_000, run_distance=20_000, parked=PARKED_MAX, parked_messages=1
    ),
    "8,192 parked pops for tags": Shape(
        handed_out=10_000, run_distance=20_000, parked=PARKED_MAX, parked_tags=ALIKE_TAGS[:1], tag_runs=1
    ),
    "a million late skips": Shape(64 * _MILLION, handed_out=64 * _MILLION, late_skips=_MILLION),
    "a million late skips and one lease": Shape(
        64 * _MILLION, handed_out=64 * _MILLION, run_distance=_BILLION, late_skips=_MILLION
    ),
    "a million late skips of a fresh lane": Shape(64 * _MILLION, late_skips=_MILLION),
    "a million late skips, a hundred lanes": Shape(
        64 * _MILLION, lanes=100, handed_out=64 * _MILLION, late_skips=_MILLION
    ),
    "wide late skips": Shape(
        64 * _MILLION,
        handed_out=64 * _MILLION,
        late_skips=64,
        late_skip_offsets=_MILLION,
        late_skip_distance=_MILLION,
    ),
    "a million leases that left the log": Shape(64 * _MILLION, handed_out=64 * _MILLION, min_offset=64 * _MILLION),
    "a hundred lanes whose leases left the log": Shape(
        _MILLION, lanes=100, handed_out=_MILLION, min_offset=_MILLION, run_distance=64
    ),
    "an orderly batch of 10,000": Shape(_MILLION, handed_out=_MEMBERS, orderly=True),
    "an orderly batch of 10,000, one a page": Shape(
        _MILLION, handed_out=64 * _MEMBERS, orderly=True, member_distance=64
    ),
    "an orderly batch in a billion": Shape(
        _BILLION, handed_out=_MEMBERS * 100_000, orderly=True, member_distance=100_000
    ),
    "an orderly batch and a million late skips": Shape(
        _MILLION, handed_out=_MEMBERS, orderly=True, late_skips=_MILLION, late_skip_distance=1
    ),
    "an orderly lane before a billion holes": Shape(_BILLION, orderly=True, holes="all"),
    "an orderly lane before half a billion holes": Shape(_BILLION, orderly=True, holes="every other"),
    "an orderly lane of a billion tagged": Shape(_BILLION, orderly=True, tag_runs=1),
    "1,000 orderly batches of 10,000": Shape(_MILLION, lanes=1_000, handed_out=_MEMBERS, orderly=True),
    "100,000 orderly lanes with a parked pop": Shape(
        lanes=100_000, handed_out=_MEMBERS, orderly=True, parked=1, member_distance=1
    ),
    "a million old op_ids": Shape(old_op_ids=_MILLION),
    "a million leases at their last attempt": Shape(
        64 * _MILLION, handed_out=64 * _MILLION, policy=LanePolicy(max_attempts=1, parked_max=PARKED_MAX)
    ),
    "an orderly batch at its last attempt": Shape(
        _MILLION,
        handed_out=_MEMBERS,
        orderly=True,
        policy=LanePolicy(max_attempts=1, parked_max=PARKED_MAX),
    ),
}


def group_of(number: int) -> str:
    """The group of lane `number`, from 1."""
    return f"g{number:06}"


def handle_of(shape: Shape, number: int, *, epoch: int = EPOCH) -> str:
    """The handle of every lease in lane `number`."""
    group = group_of(number)
    revive = REVIVE_QUEUE_ID_ORDERLY if shape.orderly else 0
    check = lane_check(TOPIC, QUEUE_ID, group)
    return encode_handle(Handle(0, NOW_MS, DUE_MS - NOW_MS, revive, QUEUE_ID, epoch, 0, check))


class LargeState:
    """A `Kv` whose values are computed from a shape."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.reads = 0
        """Values that were read."""
        self.cpu_s = 0.0
        """CPU time of computing them: a store reads most of them in a few microseconds."""
        self._runs = 0 if shape.orderly else -(-shape.handed_out // shape.run_distance)
        self._queue_values: dict[bytes, Callable[[bytes], bytes | None]] = {
            QueueTag.RECORD: lambda _: self._queue().encode(),
            QueueTag.LANE: self._lane,
            QueueTag.GROUP: self._name,
            QueueTag.WRITTEN: self._written,
            QueueTag.HOLES: self._holes,
            QueueTag.HOLE_COUNTS: self._hole_count,
            QueueTag.LATE_SKIP: self._late_skip,
            QueueTag.UNIT_FACTS: self._facts,
            QueueTag.TAG_INDEX: self._tag_index,
            QueueTag.WATCHING: lambda key: _tree_node(key, shape.lanes + 1 if self._is_watched else 0, first=1),
            QueueTag.OP_LOG: self._op_log,
            QueueTag.LANE_DATA: self._lane_value,
        }

    @property
    def _is_watched(self) -> bool:
        """Whether the lanes wait for messages."""
        shape = self.shape
        return bool(shape.parked) or (shape.handed_out == shape.written and shape.state != DeliveryState.AVAILABLE)

    def get(self, family: Family, key: bytes) -> bytes | None:
        """See `Kv.get`."""
        started_s = time.thread_time()
        value = self._get(family, key)
        self.cpu_s += time.thread_time() - started_s
        return value

    def _get(self, family: Family, key: bytes) -> bytes | None:
        self.reads += 1
        if not key.startswith(_PREFIX):
            return None
        rest = key[len(_PREFIX) :]
        if family == OPS:
            return self._op(rest)
        value = self._queue_values.get(rest[:1])
        return value(rest[1:]) if family == STATE and value is not None else None

    def get_many(self, family: Family, keys: list[bytes]) -> list[bytes | None]:
        """See `Kv.get_many`."""
        return [self.get(family, key) for key in keys]

    def deadlines(self, queue: bytes, after: DeadlineRef | None, until_ms: int, limit: int) -> list[DeadlineRef]:
        """See `Kv.deadlines`."""
        if queue != _PREFIX or until_ms < DUE_MS:
            return []
        found: list[DeadlineRef] = []
        shape = self.shape
        for lane_no in range(1 if after is None else after.lane_no, shape.lanes + 1):
            for kind, count in self._due_kinds():
                first = 1 if kind == DEADLINE_PARKED else 0
                if after is not None and lane_no == after.lane_no:
                    if kind < after.kind:
                        continue
                    if kind == after.kind:
                        first = after.number + 1
                end = count + (kind == DEADLINE_PARKED)
                numbers = range(first, min(end, first + limit - len(found)))
                found.extend(DeadlineRef(DUE_MS, lane_no, kind, number) for number in numbers)
                if len(found) >= limit:
                    return found
        self.reads += len(found)
        return found

    def _due_kinds(self) -> list[tuple[int, int]]:
        shape = self.shape
        kinds = []
        if self._runs and shape.state != DeliveryState.AVAILABLE:
            pages = -(-shape.handed_out // max(PAGE_OFFSETS, shape.run_distance))
            if shape.run_distance <= PAGE_OFFSETS:
                kinds.append((DEADLINE_PAGE, pages))
        if shape.parked:
            kinds.append((DEADLINE_PARKED, shape.parked))
        if shape.orderly and shape.handed_out:
            kinds.append((DEADLINE_BATCH, 1))
        return kinds

    def _queue(self) -> QueueRecord:
        shape = self.shape
        holes = _HOLE_DISTANCE.get(shape.holes, 1 if shape.holes else 0)
        return QueueRecord(
            topic_id="id",
            queue_type="simple",
            now_ms=NOW_MS,
            min_offset=shape.min_offset,
            commit_position=shape.written,
            written_above=shape.written_beyond // 2,
            holes=(shape.written - shape.handed_out) // holes if holes else shape.late_skips and 1,
            late_skips=shape.late_skips,
            has_unit_facts=shape.tag_runs > 0,
            window_max=WINDOW_OFFSETS_MAX,
            next_lane_no=shape.lanes + 1,
            watching_depth=1 + (shape.lanes >= SEGMENT_BITS) + (shape.lanes >= SEGMENT_BITS**2),
            watching_count=shape.lanes if self._is_watched else 0,
            op_log_last=shape.old_op_ids,
            parked=shape.lanes * shape.parked,
            has_counts=True,
            tags_indexed_from=0,
        )

    def _lane(self, group: bytes) -> bytes | None:
        shape = self.shape
        if not (group.startswith(b"g") and group[1:].isdigit() and 1 <= int(group[1:]) <= shape.lanes):
            return None
        handed_out = shape.handed_out
        left = min(self._runs * shape.run_offsets, handed_out)
        leased = left if shape.state == DeliveryState.LEASED else 0
        pages = -(-handed_out // max(PAGE_OFFSETS, shape.run_distance))
        floor = 0 if left else handed_out
        if shape.orderly:
            leased, left, floor = (_MEMBERS, _MEMBERS, 0) if handed_out else (0, 0, 0)
        is_available = shape.state == DeliveryState.AVAILABLE and bool(left) and not shape.orderly
        return LaneRecord(
            lane_no=int(group[1:]),
            group=group.decode(),
            start_offset=0,
            next_offset=handed_out,
            commit_offset=floor,
            acked_above=0 if shape.orderly or not left else handed_out - left,
            epoch=EPOCH,
            reset_epoch=0,
            min_seen=0,
            late_skips_seen=0,
            orderly=shape.orderly,
            policy=shape.policy,
            acked=handed_out - left,
            leased=leased,
            available=left - leased,
            available_depth=1 + (pages >= SEGMENT_BITS) + (pages >= SEGMENT_BITS**2) if is_available else 1,
            available_pages=pages if is_available else 0,
            parked=shape.parked,
            parked_first=1 if shape.parked else 0,
            parked_last=shape.parked,
            parked_next=shape.parked + 1,
            empty=self._is_watched,
            watching=self._is_watched,
        ).encode()

    def _name(self, key: bytes) -> bytes | None:
        number = int.from_bytes(key, "big")
        return Text(group_of(number)).encode() if 1 <= number <= self.shape.lanes else None

    def _written(self, key: bytes) -> bytes | None:
        shape, base = self.shape, int.from_bytes(key, "big") * SEGMENT_BITS
        if not shape.written <= base < shape.written + shape.written_beyond:
            return None
        return encode_segment(FULL // 3 * 2)

    def _holes(self, key: bytes) -> bytes | None:
        shape, base = self.shape, int.from_bytes(key, "big") * SEGMENT_BITS
        if not shape.holes or base + SEGMENT_BITS > shape.written or base < shape.handed_out:
            return None
        if shape.holes == _SPARSE:
            return encode_segment(FULL if base // SEGMENT_BITS % 64 else FULL ^ 1)
        return _segment(_HOLE_DISTANCE[shape.holes])

    def _hole_count(self, key: bytes) -> bytes | None:
        shape, segments = self.shape, SEGMENT_BITS if key[0] == 0 else 64
        if not shape.holes:
            return None
        base = int.from_bytes(key[1:], "big") * segments
        first, end = (
            max(base, -(-shape.handed_out // SEGMENT_BITS)),
            min(base + segments, shape.written // SEGMENT_BITS),
        )
        if first >= end:
            return None
        if shape.holes == _SPARSE:
            return encode_segment((end - first) * SEGMENT_BITS - (-(-end // 64) - -(-first // 64)))
        return encode_segment((end - first) * SEGMENT_BITS // _HOLE_DISTANCE[shape.holes])

    def _late_skip(self, key: bytes) -> bytes | None:
        shape, number = self.shape, int.from_bytes(key, "big")
        if number >= shape.late_skips:
            return None
        first = number * shape.late_skip_distance
        return LateSkip(first, first + shape.late_skip_offsets).encode()

    def _facts(self, key: bytes) -> bytes | None:
        page_no = int.from_bytes(key, "big")
        if not self.shape.tag_runs or page_no * PAGE_OFFSETS >= self.shape.written or page_no % self.shape.tag_distance:
            return None
        return _tag_page(self.shape.tag_runs, self.shape.delay_ms, page_no).encode()

    def _tag_index(self, key: bytes) -> bytes | None:
        shape, tag_class = self.shape, int.from_bytes(key[:2], "big")
        if not (0 <= tag_class - _TAG < shape.tag_runs or (tag_class == TAG_CLASSES and shape.delay_ms)):
            return None
        level = key[2]
        node = _tree_node(key[2:], -(-shape.written // PAGE_OFFSETS))
        return _segment(shape.tag_distance) if node is not None and not level and shape.tag_distance > 1 else node

    def _op_log(self, key: bytes) -> bytes | None:
        first = int.from_bytes(key, "big") * OP_LOG_ENTRIES
        numbers = range(first, min(first + OP_LOG_ENTRIES, self.shape.old_op_ids))
        old = NOW_MS // 60_000 - 30
        return OpLog([(old, f"old-{number}", 1) for number in numbers]).encode() if numbers else None

    def _op(self, rest: bytes) -> bytes | None:
        name, page = rest[1:-2].decode(), int.from_bytes(rest[-2:], "big")
        shape, minute = self.shape, NOW_MS // 60_000
        kind, _, number = name.partition("-")
        if page or not number.isdigit():
            return None
        if kind == "old" and int(number) < shape.old_op_ids:
            return OpWindowEntry(minute - 30, b"", "tick", None, 0, 1, b"{}").encode()
        if kind == "parked":
            lane_no, place = divmod(int(number), PARKED_MAX + 1)
            if 1 <= lane_no <= shape.lanes and 1 <= place <= shape.parked:
                return OpWindowEntry(minute, b"", "pop", group_of(lane_no), place, 0, b"").encode()
        return None

    def _lane_value(self, key: bytes) -> bytes | None:  # noqa: PLR0911 - one for each tag
        lane_no, tag, rest = int.from_bytes(key[:4], "big"), key[4:5], key[5:]
        shape = self.shape
        if not 1 <= lane_no <= shape.lanes:
            return None
        if tag == LaneTag.PARKED:
            return self._parked(lane_no, int.from_bytes(rest, "big"))
        if tag == LaneTag.CLIENT_ID and rest == client_hash(CLIENT).to_bytes(8, "big"):
            return Text(CLIENT).encode()
        if shape.orderly:
            if tag == LaneTag.BATCH:
                return self._batch()
            return self._members(int.from_bytes(rest, "big")) if tag == LaneTag.MEMBERS else None
        if tag == LaneTag.ACKED:
            return self._acked(int.from_bytes(rest, "big"))
        if tag == LaneTag.DELIVERIES:
            return self._page(int.from_bytes(rest, "big"))
        pages = -(-shape.handed_out // PAGE_OFFSETS) if shape.run_distance <= PAGE_OFFSETS else 0
        if tag == LaneTag.AVAILABLE:
            return _tree_node(rest, pages if shape.state == DeliveryState.AVAILABLE else 0)
        if tag == LaneTag.CLIENT and rest[:8] == client_hash(CLIENT).to_bytes(8, "big"):
            if len(rest) == 8:
                depth = 1 + (pages > SEGMENT_BITS) + (pages > SEGMENT_BITS**2)
                return encode_segment(pages << 8 | depth) if pages else None
            return _tree_node(rest[8:], pages)
        return None

    def _parked(self, lane_no: int, number: int) -> bytes | None:
        shape = self.shape
        if not 1 <= number <= shape.parked:
            return None
        return ParkedPop(
            number=number,
            before=number - 1,
            after=(number + 1) % (shape.parked + 1),
            op_id=f"parked-{lane_no * (PARKED_MAX + 1) + number}",
            reply_to=0,
            max_messages=shape.parked_messages,
            invisible_time_ms=10_000,
            deadline_ms=DUE_MS,
            client_id=CLIENT,
            attempt_id=None,
            tags=shape.parked_tags,
        ).encode()

    def _acked(self, segment_no: int) -> bytes | None:
        shape, base = self.shape, segment_no * SEGMENT_BITS
        if segment_no >= MAPS:
            return self._acked_map((segment_no - MAPS) * SEGMENT_BITS)
        if base >= shape.handed_out or not self._runs:
            return None
        bits = FULL ^ self._run_bits(base, SEGMENT_BITS)
        if base + SEGMENT_BITS > shape.handed_out:
            bits &= (1 << (shape.handed_out - base)) - 1
        return None if bits == FULL else _encoded(bits)

    def _acked_map(self, first_no: int) -> bytes | None:
        """The segments from `first_no` on of which every message is acked."""
        shape = self.shape
        count = min(shape.handed_out // SEGMENT_BITS - first_no, SEGMENT_BITS)
        if count <= 0 or not self._runs:
            return None
        bits = (1 << count) - 1
        base = first_no * SEGMENT_BITS
        first = (base - shape.run_offsets + 1 + shape.run_distance - 1) // shape.run_distance * shape.run_distance
        for at in range(max(first, 0), base + count * SEGMENT_BITS, shape.run_distance):
            low = max(at // SEGMENT_BITS - first_no, 0)
            high = min((at + shape.run_offsets - 1) // SEGMENT_BITS - first_no, count - 1)
            bits &= ~(((1 << (high - low + 1)) - 1) << low)
            if not bits:
                return None
        return encode_segment(bits)

    def _run_bits(self, base: int, count: int) -> int:
        shape = self.shape
        bits = 0
        first = -(-(base - shape.run_offsets + 1) // shape.run_distance) * shape.run_distance
        for at in range(max(first, 0), min(base + count, shape.handed_out), shape.run_distance):
            low, high = max(at, base), min(at + shape.run_offsets, base + count)
            bits |= ((1 << (high - low)) - 1) << (low - base)
        return bits

    def _page(self, page_no: int) -> bytes | None:
        shape, base = self.shape, page_no * PAGE_OFFSETS
        if base >= shape.handed_out:
            return None
        bits = _low_bits(self._run_bits(base, PAGE_OFFSETS))
        runs = []
        at = 0
        for run in range(0, PAGE_OFFSETS, max(1, min(shape.run_distance, PAGE_OFFSETS))):
            if bits >> run & 1:
                length = min(shape.run_offsets, PAGE_OFFSETS - run)
                runs.append((base + run, base + run + length, _delivery(shape.state, at)))
                at += shape.run_distance < shape.run_offsets + 1
        if not runs:
            return None
        due_ms = 0 if shape.state == DeliveryState.AVAILABLE else DUE_MS
        return DeliveryPage(page_no, due_ms, [client_hash(CLIENT)], runs).encode()

    def _batch(self) -> bytes | None:
        shape = self.shape
        if not shape.handed_out:
            return None
        head = OrderInfoHead(
            epoch=EPOCH,
            pop_time_ms=NOW_MS,
            invisible_time_ms=DUE_MS - NOW_MS,
            attempt_id="attempt",
            client=client_hash(CLIENT),
            first=0,
            end=(_MEMBERS - 1) * shape.member_distance + 1,
            member_count=_MEMBERS,
            acked_count=0,
            next_offset=0,
            first_page_no=0,
            last_consume_ms=NOW_MS,
            last_op_ms=NOW_MS,
            due_ms=DUE_MS,
        )
        return FORMAT_1 + msgspec.msgpack.encode(head)

    def _members(self, page_no: int) -> bytes | None:
        distance, base = self.shape.member_distance, page_no * PAGE_OFFSETS
        first = -(-base // distance) * distance
        end = min(base + PAGE_OFFSETS, (_MEMBERS - 1) * distance + 1)
        runs = [(at, at + 1, Member(True, count=at % 2)) for at in range(first, end, distance)]
        if not runs or not self.shape.handed_out:
            return None
        following = -(-end // distance) * distance
        next_no = following // PAGE_OFFSETS if following <= (_MEMBERS - 1) * distance else -1
        return MemberPage(page_no, next_no, runs).encode()


@lru_cache(maxsize=64)
def _encoded(bits: int) -> bytes:
    return encode_segment(bits)


@lru_cache(maxsize=8)
def _segment(distance: int) -> bytes:
    return encode_segment(sum(1 << at for at in range(0, SEGMENT_BITS, distance)))


def _low_bits(bits: int) -> int:
    return bits & ((1 << PAGE_OFFSETS) - 1)


@lru_cache(maxsize=256)
def _delivery(state: int, revision: int) -> Delivery:
    deadline_ms = 0 if state == DeliveryState.AVAILABLE else DUE_MS
    client = client_hash(CLIENT)
    return Delivery(EPOCH, revision, NOW_MS, deadline_ms, DUE_MS - NOW_MS, client, 1, state, False)


def _tag_page(runs: int, delay_ms: int, page_no: int) -> UnitFactsPage:
    base, length = page_no * PAGE_OFFSETS, PAGE_OFFSETS // runs
    facts = []
    for at in range(0, PAGE_OFFSETS, length):
        deliver_at_ms = NOW_MS + delay_ms + at if delay_ms else 0
        facts.append((base + at, base + at + length, UnitFacts(_TAG + at // length, 1, deliver_at_ms)))
    return UnitFactsPage(page_no, facts)


def _tree_node(key: bytes, end: int, *, first: int = 0) -> bytes | None:
    """A node of the tree of all numbers in [first, end)."""
    level, node = key[0], int.from_bytes(key[1:], "big")
    below = SEGMENT_BITS**level
    base = node * SEGMENT_BITS
    count = min(SEGMENT_BITS, -(-end // below) - base)
    if count <= 0:
        return None
    bits = (1 << count) - 1
    if not level and first > base:
        bits &= ~((1 << (first - base)) - 1)
    return encode_segment(bits)
