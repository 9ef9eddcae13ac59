"""Follows the lanes for the metrics by topic and group, in a thread of its own, from what each micro-batch decided.

The audit rows of a decision name the lanes that it changed, so only their records are read again: the cost follows the
load, and not the number of lanes. A pass joins them to figures by group. After a pass the thread rests for 40 times as
long as it took, but at most 6 seconds: 100,000 lanes that have all changed take a third of a second.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING

import structlog

from broker_state.audit import LANE_DELETING_KINDS, LANE_RESETTING_KINDS
from broker_state.store.keys import QueueTag, queue_prefix
from broker_state.store.overlay import STATE
from broker_state.store.state_records import LaneRecord, QueueRecord, Text
from pipelines.control.lane_metrics import LaneFigures, LaneMetrics
from pipelines.control.lane_table import TIME_STEP_MS, FoundLane, LaneName, LaneTable
from pipelines.control.lane_views import scan_queues
from popstream.wire.queue_name import QueueName

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from broker_state.kernel.context.audit_trail import AuditRows
    from broker_state.kernel.context.queue_state import QueueState
    from broker_state.store.rocks_store import RocksStore
    from pipelines.control.lane_views import StoredQueue

__all__ = ["LaneWatch"]

_log = structlog.get_logger(__name__)

REST_S_MIN, REST_S_MAX = 1.0, 6.0
RESTS_A_PASS = 40
"""For each second of CPU time of a pass this many seconds of rest follow."""
PENDING_ROWS_MAX = 300_000
"""Rows that may wait for the thread: some 100 MB. Those that follow are not counted, and all lanes are read again."""
READ_AT_ONCE = 1_000

_CHANGING_LANES = frozenset(("pop", "policy", *LANE_RESETTING_KINDS, *LANE_DELETING_KINDS))
"""Operations that may change a lane without a row of another table: a pop that finds none but delayed messages."""


_lane_of = attrgetter("topic", "queue_id", "group")


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
        self._table_lock = threading.Lock()
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
        table = LaneTable()
        for queue in queues:
            name = queue.topic, queue.queue_id
            table.set_queue(name, queue.record.commit_position, queue.record.now_ms)
            for lane in queue.lanes:
                table.set_lane((*name, lane.group), lane.commit_offset, lane.leased, lane.available)
        with self._table_lock:
            self._table = table
            self._show()

    def lanes(self, search: str, order: str, skip: int, limit: int) -> tuple[list[FoundLane], int]:
        """Return a page of the lanes as the last pass has seen them, see `LaneTable.lanes`. For any thread."""
        with self._table_lock:
            return self._table.lanes(search, order, skip, limit)

    def queues(self, search: str) -> list[tuple[QueueName, int]]:
        """Return the queues as the last pass has seen them, see `LaneTable.queues`. For any thread."""
        with self._table_lock:
            return self._table.queues(search)

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
            with self._table_lock:
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
        operations = [row for row in rows.operations.heads if row.kind in _CHANGING_LANES]
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


def _batches(names: Iterable[LaneName], size: int) -> Iterator[list[LaneName]]:
    iterator = iter(names)
    while some := list(islice(iterator, size)):
        yield some
