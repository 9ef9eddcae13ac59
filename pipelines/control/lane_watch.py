"""Follows the lanes for the metrics by topic and group, in a thread of its own, from what each micro-batch decided.

The audit rows of a decision name the lanes that it changed, so only their records are read again: the cost follows the
load, and not the number of lanes. A pass joins them to figures by group. After a pass the thread rests for 40 times as
long as it took, but at most 6 seconds: 100,000 lanes that have all changed take a third of a second.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections import deque
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import structlog

from broker_state.audit import LANE_DELETING_KINDS, LANE_RESETTING_KINDS
from broker_state.store.keys import QueueTag, queue_prefix
from broker_state.store.overlay import STATE
from broker_state.store.state_records import LaneRecord, QueueRecord, Text
from pipelines.control.lane_metrics import REST, GroupFigures, GroupName, LaneFigures, LaneMetrics
from pipelines.control.lane_views import scan_queues

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from broker_state.kernel.context.audit_trail import AuditRows
    from broker_state.kernel.context.queue_state import QueueState
    from broker_state.store.rocks_store import RocksStore
    from pipelines.control.lane_views import StoredQueue

__all__ = ["DispatchTimes", "LaneTable", "LaneWatch"]

_log = structlog.get_logger(__name__)

REST_S_MIN, REST_S_MAX = 1.0, 6.0
RESTS_A_PASS = 40
"""For each second of CPU time of a pass this many seconds of rest follow."""
PENDING_ROWS_MAX = 300_000
"""Rows that may wait for the thread: some 100 MB. Those that follow are not counted, and all lanes are read again."""
READ_AT_ONCE = 1_000
TIMES_MAX = 256
TIME_STEP_MS = 1_000

LaneName = tuple[str, int, str]
"""(topic, queue id, group)"""
QueueName = tuple[str, int]
"""(topic, queue id)"""

_CHANGING_LANES = frozenset(("pop", "policy", *LANE_RESETTING_KINDS, *LANE_DELETING_KINDS))
"""Operations that may change a lane without a row of another table: a pop that finds none but delayed messages."""


_lane_of = attrgetter("topic", "queue_id", "group")


class DispatchTimes:
    """When the offsets of a queue were dispatched, to a second; coarser the longer ago, so that it stays small.

    >>> times = DispatchTimes(100, 1_000)
    >>> times.add(110, 5_000), times.add(120, 9_000)
    (None, None)
    >>> times.of(99), times.of(100), times.of(119), times.of(120)
    (1000, 5000, 9000, 0)

    Args:
        commit_position: Where the queue is now.
        at_ms: No offset below it was dispatched later than this.
    """

    __slots__ = ("_ends", "_times")

    def __init__(self, commit_position: int, at_ms: int) -> None:
        self._ends = [commit_position]
        self._times = [at_ms]

    @property
    def commit_position(self) -> int:
        """End of the offsets that were dispatched."""
        return self._ends[-1]

    def add(self, commit_position: int, at_ms: int) -> None:
        """Note that the queue has reached `commit_position`."""
        if len(self._ends) > 1 and at_ms - self._times[-1] < TIME_STEP_MS:
            self._ends[-1] = commit_position
            return
        self._ends.append(commit_position)
        self._times.append(at_ms)
        if len(self._ends) > TIMES_MAX:  # of each two neighbours in the older half one is left, with the earlier time
            half = TIMES_MAX // 2
            self._ends[:half] = self._ends[1:half:2]
            self._times[:half] = self._times[:half:2]

    def of(self, queue_offset: int) -> int:
        """Return when an offset was dispatched, in ms since 1970; 0: it was not yet."""
        place = bisect_right(self._ends, queue_offset)
        return 0 if place == len(self._ends) else self._times[place]


class _Columns(NamedTuple):
    """One row for each lane; rows of lanes that were deleted are cleared, and used again."""

    group: NDArray[np.int64]
    queue: NDArray[np.int64]
    commit_offset: NDArray[np.int64]
    in_flight: NDArray[np.int64]
    available: NDArray[np.int64]
    oldest_at_ms: NDArray[np.int64]
    """When the message at the commit offset was dispatched; 0: not known yet, or there is none."""


class LaneTable:
    """The positions of all lanes, as columns: figures of 100,000 lanes take milliseconds. Used by one thread."""

    def __init__(self) -> None:
        self._rows: dict[LaneName, int] = {}
        self._names: list[LaneName | None] = []
        self._free: list[int] = []
        self._groups: dict[GroupName, int] = {}
        self._queues: dict[QueueName, int] = {}
        self._times: list[DispatchTimes] = []
        self._positions = np.zeros(64, np.int64)
        self._columns = _Columns(*(np.zeros(64, np.int64) for _ in _Columns._fields))

    def lanes_of(self, queue: QueueName) -> list[LaneName]:
        """Return the lanes of a queue."""
        return [name for name in self._rows if name[:2] == queue]

    def knows(self, queue: QueueName) -> bool:
        """Return whether the queue was set."""
        return queue in self._queues

    def set_queue(self, queue: QueueName, commit_position: int, at_ms: int) -> None:
        """Begin a queue, or begin it anew."""
        number = self._queues.setdefault(queue, len(self._queues))
        times = DispatchTimes(commit_position, at_ms)
        if number == len(self._times):
            self._times.append(times)
            if number == len(self._positions):
                self._positions = _doubled(self._positions)
        else:
            self._times[number] = times
        self._positions[number] = commit_position

    def move_queue(self, queue: QueueName, commit_position: int, at_ms: int) -> None:
        """Note that a queue has reached `commit_position`."""
        number = self._queues[queue]
        times = self._times[number]
        if commit_position > times.commit_position:
            times.add(commit_position, at_ms)
            self._positions[number] = commit_position

    def set_lane(self, name: LaneName, commit_offset: int, in_flight: int, available: int) -> None:
        """Set the positions of a lane, whose queue was set."""
        columns = self._columns
        row = self._rows.get(name)
        if row is None:
            row = self._rows[name] = self._free.pop() if self._free else len(self._names)
            if row == len(self._names):
                self._names.append(name)
                if row == len(columns.group):
                    columns = self._columns = _Columns(*map(_doubled, columns))
            self._names[row] = name
            columns.group[row] = self._groups.setdefault((name[0], name[2]), len(self._groups))
            columns.queue[row] = self._queues[name[0], name[1]]
            columns.commit_offset[row] = -1
        if columns.commit_offset[row] != commit_offset:
            columns.commit_offset[row] = commit_offset
            columns.oldest_at_ms[row] = 0
        columns.in_flight[row] = in_flight
        columns.available[row] = available

    def drop_lane(self, name: LaneName) -> None:
        """Forget a lane."""
        row = self._rows.pop(name, None)
        if row is not None:
            self._names[row] = None
            self._free.append(row)

    def figures(self, groups_max: int, shown: Collection[GroupName]) -> LaneFigures:
        """Return the figures of the groups with the greatest lag, and the sum of the others.

        Args:
            groups_max: Groups shown by themselves, at most.
            shown: Those that were shown before: they come first where lags are equal.
        """
        read_at_s = time.monotonic()
        rows = np.fromiter(self._rows.values(), np.int64, len(self._rows))
        columns = _Columns(*(column[rows] for column in self._columns))
        lags = np.maximum(self._positions[columns.queue] - columns.commit_offset, 0)
        self._find_oldest(rows, columns, lags)
        size = len(self._groups)
        lanes = np.bincount(columns.group, minlength=size)
        lag, in_flight, available = (
            np.bincount(columns.group, weights, size).astype(np.int64)
            for weights in (lags, columns.in_flight, columns.available)
        )
        oldest = np.full(size, np.iinfo(np.int64).max)
        lagging = (lags > 0) & (columns.oldest_at_ms > 0)
        np.minimum.at(oldest, columns.group[lagging], columns.oldest_at_ms[lagging])
        oldest[oldest == np.iinfo(np.int64).max] = 0
        names = list(self._groups)
        alive = np.flatnonzero(lanes)
        order = alive[np.argsort(-lag[alive], kind="stable")].tolist()
        chosen = _chosen(order, lag, names, groups_max, shown)
        groups = [
            GroupFigures(names[at], int(lag[at]), int(in_flight[at]), int(available[at]), int(oldest[at]))
            for at in chosen
        ]
        rest = np.setdiff1d(alive, np.array(chosen, np.int64))
        if len(rest):
            waiting = oldest[rest][oldest[rest] > 0]
            groups.append(
                GroupFigures(
                    REST,
                    int(lag[rest].sum()),
                    int(in_flight[rest].sum()),
                    int(available[rest].sum()),
                    int(waiting.min()) if len(waiting) else 0,
                )
            )
        if len(alive) < size // 2:
            self._forget_empty_groups()
        return LaneFigures(read_at_s, len(alive), groups, max(0, groups_max - len(chosen)))

    def _find_oldest(self, rows: NDArray[np.int64], columns: _Columns, lags: NDArray[np.int64]) -> None:
        """Set when the oldest unacked message was dispatched, where a lane has one since the last figures."""
        for at in np.flatnonzero((lags > 0) & (columns.oldest_at_ms == 0)).tolist():
            found = self._times[columns.queue[at]].of(int(columns.commit_offset[at]))
            columns.oldest_at_ms[at] = self._columns.oldest_at_ms[rows[at]] = found

    def _forget_empty_groups(self) -> None:
        self._groups = {}
        for (topic, _, group), row in self._rows.items():
            self._columns.group[row] = self._groups.setdefault((topic, group), len(self._groups))


class LaneWatch:
    """The thread that keeps a table of the lanes of one job, from `start` to `stop`.

    Args:
        store: The state. RocksDB shows other threads a whole WriteBatch or nothing of it.
        metrics: Where counts and figures go; it outlives the job.
        groups_max: Groups shown by themselves, at most.
    """

    def __init__(self, store: RocksStore, metrics: LaneMetrics, groups_max: int) -> None:
        self._store = store
        self._metrics = metrics
        self._groups_max = groups_max
        self._table = LaneTable()
        self._pending: deque[tuple[AuditRows, float]] = deque()
        self._next_lane_no: dict[QueueName, int] = {}
        """Of the queues, as `observe` has seen it, which alone uses it: a queue with a higher number has a new lane."""
        self._new_numbers: deque[tuple[QueueName, int, int]] = deque()
        """(queue, first, end): numbers of lanes and eras that are new."""
        self._rows_taken = 0
        """By `observe`, which alone sets it."""
        self._rows_counted = 0
        """By the thread, which alone sets it."""
        self._has_lost_rows = False
        self._changed_lanes: set[LaneName] = set()
        """Some have no group: rows of a queue as a whole name them so."""
        self._changed_queues: set[QueueName] = set()
        """Which may have another record and other lanes."""
        self._moved: dict[QueueName, list[tuple[int, int]]] = {}
        """(commit position, when it was reached in ms since 1970), by queue; at most one a second each."""
        self._figures = LaneFigures(0.0, 0, (), 0)
        self._wake = threading.Event()
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="lane-watch", daemon=True)

    def start(self, queues: Collection[StoredQueue]) -> None:
        """Take the queues and lanes of the state, before anything is decided, and start the thread."""
        self._next_lane_no = {(queue.topic, queue.queue_id): queue.record.next_lane_no for queue in queues}
        self.load(queues)
        self._thread.start()

    def stop(self) -> None:
        """End the thread, and show no figures any more."""
        self._is_stopping = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()
        self._metrics.show(None)

    def observe(self, rows: AuditRows, touched: Iterable[QueueState]) -> None:
        """Take what was decided, written and published; it is counted later. Called by the thread that decides.

        Args:
            rows: The audit rows.
            touched: The queues that records named: a lane begins without a row while its first pop waits.
        """
        for queue in touched:
            name, next_lane_no = (queue.topic, queue.queue_id), queue.record.next_lane_no
            if (known := self._next_lane_no.get(name, 1)) != next_lane_no:
                self._next_lane_no[name] = next_lane_no
                self._new_numbers.append((name, known, next_lane_no))
        if self._rows_taken - self._rows_counted > PENDING_ROWS_MAX or self._is_stopping:
            self._has_lost_rows = True
            return
        self._rows_taken += _size(rows)
        self._pending.append((rows, time.time() * 1000))
        self._wake.set()

    def load(self, queues: Iterable[StoredQueue]) -> None:
        """Take all queues and lanes, in place of what is known of them, and show their figures."""
        self._table = LaneTable()
        for queue in queues:
            name = queue.topic, queue.queue_id
            self._table.set_queue(name, queue.record.commit_position, queue.record.now_ms)
            for lane in queue.lanes:
                self._table.set_lane((*name, lane.group), lane.commit_offset, lane.leased, lane.available)
        self._show()

    def refresh(self) -> None:
        """Count what is pending, read the lanes that were changed, and show the figures.

        Raises:
            StoreStopped: The state cannot be read.
            Corrupt: It is damaged.
        """
        self._count_pending()
        if self._has_lost_rows:
            self._has_lost_rows = False
            _log.warning("lane_rows_lost", why="the thread that counts them was too slow")
            self.load(scan_queues(self._store))
        elif self._changed_lanes or self._changed_queues or self._moved or self._new_numbers:
            self._read_changes()
            self._show()
        else:
            self._metrics.show(self._figures._replace(read_at_s=time.monotonic()))
        self._changed_lanes, self._changed_queues, self._moved = set(), set(), {}

    def _run(self) -> None:
        try:
            self._follow()
        except Exception as error:  # noqa: BLE001 - the job can do without it, and the age of the figures tells
            _log.error("lane_watch_failed", error=str(error), kind=type(error).__name__)
            self._is_stopping = True
            self._pending.clear()

    def _follow(self) -> None:
        next_at_s = 0.0
        while not self._is_stopping:
            self._wake.wait(max(0.0, next_at_s - time.monotonic()))
            self._wake.clear()
            self._count_pending()
            if time.monotonic() < next_at_s or self._is_stopping:
                continue
            began_s = time.thread_time()
            self.refresh()
            took_s = time.thread_time() - began_s
            next_at_s = time.monotonic() + min(REST_S_MAX, max(REST_S_MIN, took_s * RESTS_A_PASS))

    def _count_pending(self) -> None:
        while self._pending:
            rows, published_ms = self._pending.popleft()
            self._metrics.count_deliveries(rows.deliveries)
            self._metrics.count_operations(rows.operations, published_ms)
            self._note_changes(rows)
            self._rows_counted += _size(rows)

    def _note_changes(self, rows: AuditRows) -> None:
        operations = [row for row in rows.operations if row.kind in _CHANGING_LANES]
        for named in (rows.deliveries, rows.commit_positions, operations):
            self._changed_lanes.update(map(_lane_of, named))
        for row in [row for row in rows.commit_positions if row.group is None]:
            self._note_position((row.topic, row.queue_id), row.to_offset, row.now_ms)
        for operation in [row for row in operations if row.group is None]:
            if operation.applied and operation.kind in LANE_DELETING_KINDS:
                self._changed_queues.add((operation.topic, operation.queue_id))

    def _note_position(self, queue: QueueName, commit_position: int, at_ms: int) -> None:
        positions = self._moved.setdefault(queue, [])
        if positions and at_ms - positions[-1][1] < TIME_STEP_MS:
            positions[-1] = commit_position, positions[-1][1]
        else:
            positions.append((commit_position, at_ms))

    def _read_changes(self) -> None:
        table, lanes = self._table, self._changed_lanes
        for queue in self._changed_queues:
            if table.knows(queue):
                lanes.update(table.lanes_of(queue))
            self._read_queue(queue)
        for queue, positions in self._moved.items():
            if queue in self._changed_queues:  # they may be of the queue that this one replaces
                continue
            if not table.knows(queue):
                self._read_queue(queue)
            for commit_position, at_ms in positions:
                table.move_queue(queue, commit_position, at_ms)
        while self._new_numbers:
            queue, first, end = self._new_numbers.popleft()
            prefix = queue_prefix(*queue) + QueueTag.GROUP
            stored = self._store.get_many(STATE, [prefix + number.to_bytes(4, "big") for number in range(first, end)])
            lanes.update((*queue, Text.decode(name).text) for name in stored if name is not None)
        named = (name for name in lanes if name[2] is not None)
        for some in _batches(named, READ_AT_ONCE):
            self._read_lanes(some)

    def _read_queue(self, queue: QueueName) -> None:
        stored = self._store.get(STATE, queue_prefix(*queue) + QueueTag.RECORD)
        assert stored is not None, "a queue is never deleted"
        record = QueueRecord.decode(stored)
        self._table.set_queue(queue, record.commit_position, record.now_ms)

    def _read_lanes(self, lanes: list[LaneName]) -> None:
        keys = [queue_prefix(topic, queue_id) + QueueTag.LANE + group.encode() for topic, queue_id, group in lanes]
        for name, stored in zip(lanes, self._store.get_many(STATE, keys), strict=True):
            if stored is None:
                self._table.drop_lane(name)
                continue
            if not self._table.knows(name[:2]):
                self._read_queue(name[:2])
            lane = LaneRecord.decode(stored)
            self._table.set_lane(name, lane.commit_offset, lane.leased, lane.available)

    def _show(self) -> None:
        self._figures = self._table.figures(self._groups_max, {group.name for group in self._figures.groups})
        self._metrics.show(self._figures)


def _size(rows: AuditRows) -> int:
    return len(rows.operations) + len(rows.deliveries) + len(rows.commit_positions)


def _chosen(
    order: list[int], lag: NDArray[np.int64], names: Sequence[GroupName], groups_max: int, shown: Collection[GroupName]
) -> list[int]:
    """Return the groups to show, of all in the `order` of their lags: where lags are equal, those of `shown` first."""
    if len(order) > groups_max:
        least = lag[order[groups_max - 1]]
        sure = [at for at in order[:groups_max] if lag[at] > least]
        equal = [at for at in order[len(sure) :] if lag[at] == least]
        again = [at for at in equal if names[at] in shown]
        order = [*sure, *again, *(at for at in equal if names[at] not in shown)][:groups_max]
    return [at for at in order if names[at] != REST]


def _doubled(column: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate([column, np.zeros_like(column)])


def _batches(names: Iterable[LaneName], size: int) -> Iterator[list[LaneName]]:
    iterator = iter(names)
    while some := list(islice(iterator, size)):
        yield some
