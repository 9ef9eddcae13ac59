"""What is known of all lanes and queues, as columns: for metrics by group and for the pages of lanes."""

from __future__ import annotations

import time
from bisect import bisect_right
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pipelines.control.lane_metrics import REST, GroupFigures, GroupName, LaneFigures
from popstream.wire.queue_name import QueueName

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from numpy.typing import NDArray

__all__ = ["TIME_STEP_MS", "DispatchTimes", "FoundLane", "LaneName", "LaneTable"]

TIMES_MAX = 256
TIME_STEP_MS = 1_000

LaneName = tuple[str, int, str]
"""(topic, queue id, group)"""


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


class FoundLane(NamedTuple):
    """A lane, and when its oldest message that is not done was dispatched, in ms since 1970; 0: all are done."""

    name: LaneName
    oldest_at_ms: int


class LaneTable:
    """The positions of all lanes, as columns: figures of 100,000 lanes take milliseconds. Not thread-safe."""

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

    def lanes(self, search: str, order: str, skip: int, limit: int) -> tuple[list[FoundLane], int]:
        """Return a page of the lanes whose topic or group has the text `search`, and how many there are of them.

        Args:
            search: Part of a topic or a group; empty: all lanes.
            order: As of a `LanesRequest`.
            skip: Lanes before the page.
            limit: Lanes of the page at most.
        """
        rows = np.fromiter(self._rows.values(), np.int64, len(self._rows))
        if search:
            named = [number for (topic, group), number in self._groups.items() if search in topic or search in group]
            rows = rows[np.isin(self._columns.group[rows], named)]
        columns = _Columns(*(column[rows] for column in self._columns))
        lags = np.maximum(self._positions[columns.queue] - columns.commit_offset, 0)
        if order == "name":
            chosen = sorted(range(len(rows)), key=lambda at: self._names[rows[at]] or ("", 0, ""))
        else:
            self._find_oldest(rows, columns, lags)
            oldest = np.where((lags > 0) & (columns.oldest_at_ms > 0), columns.oldest_at_ms, np.iinfo(np.int64).max)
            first = {"lag": -lags, "in_flight": -columns.in_flight, "oldest": oldest}[order]
            chosen = np.lexsort((rows, -lags, first)).tolist()
        page = [int(rows[at]) for at in chosen[skip : skip + limit]]
        found = []
        for row in page:
            name = self._names[row]
            assert name is not None, "rows of dropped lanes are not in the table"
            found.append(FoundLane(name, self._oldest_at_ms(row)))
        return found, len(rows)

    def queues(self, search: str) -> list[tuple[QueueName, int]]:
        """Return the queues whose topic has the text `search`, by name, each with the number of its lanes."""
        rows = np.fromiter(self._rows.values(), np.int64, len(self._rows))
        counts = np.bincount(self._columns.queue[rows], minlength=len(self._queues)).tolist()
        return sorted((name, counts[number]) for name, number in self._queues.items() if search in name[0])

    def _oldest_at_ms(self, row: int) -> int:
        queue, commit_offset = int(self._columns.queue[row]), int(self._columns.commit_offset[row])
        if commit_offset >= self._positions[queue]:
            return 0
        return int(self._columns.oldest_at_ms[row]) or self._times[queue].of(commit_offset)

    def _find_oldest(self, rows: NDArray[np.int64], columns: _Columns, lags: NDArray[np.int64]) -> None:
        """Set when the oldest unacked message was dispatched, where a lane has one since the last figures."""
        for at in np.flatnonzero((lags > 0) & (columns.oldest_at_ms == 0)).tolist():
            found = self._times[columns.queue[at]].of(int(columns.commit_offset[at]))
            columns.oldest_at_ms[at] = self._columns.oldest_at_ms[rows[at]] = found

    def _forget_empty_groups(self) -> None:
        self._groups = {}
        for (topic, _, group), row in self._rows.items():
            self._columns.group[row] = self._groups.setdefault((topic, group), len(self._groups))


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
