"""The thread that takes snapshots of a running job, and deletes those that are no longer kept."""

import threading
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import structlog

from checkpoints.snapshot_retention import SnapshotRetention
from checkpoints.snapshot_store import Snapshot, SnapshotStore
from pipelines.laps import Lap, OnLap, ignore_lap
from pipelines.loops.periodic import Periodic
from popstream.wire.base_errors import Unavailable

__all__ = ["SnapshotLoop"]

_IN_USE: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
"""By URL, held from the first file of a snapshot until old ones are deleted, which deletes files that no snapshot has.

For all jobs of the process: the thread of one that has failed may still be storing when its successor begins.
"""

_log = structlog.get_logger(__name__)


class SnapshotLoop:
    """Takes a snapshot every `interval_s` seconds if anything was decided since the last one.

    A failure is logged, and does not stop the job; the next interval tries again.

    Args:
        take: Takes a snapshot. True: a user asked for it, and all stored files that it shares are read.
        snapshots: The snapshot storage.
        interval_s: 0 takes snapshots only on request.
        retention: The snapshots to keep; others are deleted.
        decided: Returns the last apply_seq.
        last_done: Folder with the time of the last snapshot, which survives restarts.
        on_lap: Is told of each snapshot.
    """

    def __init__(
        self,
        take: Callable[[bool], Snapshot],
        snapshots: SnapshotStore,
        *,
        interval_s: float,
        retention: SnapshotRetention,
        decided: Callable[[], int],
        last_done: Path,
        on_lap: OnLap = ignore_lap,
    ) -> None:
        self._take = take
        self._snapshots = snapshots
        self._retention = retention
        self._decided = decided
        self._on_lap = on_lap
        self.last: Snapshot | None = None
        self._periodic = Periodic("snapshot", interval_s, self._take_if_new, last_done)

    def start(self) -> None:
        """Start the thread."""
        self._periodic.start()

    def stop(self) -> None:
        """Stop the thread, after a snapshot in progress."""
        self._periodic.stop()

    @property
    def last_failure(self) -> str | None:
        """Why the last scheduled snapshot failed; None if it did not."""
        return self._periodic.failure

    def take_now(self, *, reads_all: bool = True) -> Snapshot:
        """Take a snapshot, and delete those that are no longer kept.

        Args:
            reads_all: As in `SnapshotStore.put`.

        Raises:
            Unavailable: The storage does not accept it.
            Corrupt: The stores are damaged. Older snapshots stay as they are.
        """
        with _IN_USE[self._snapshots.url], Lap("snapshot", self._on_lap) as lap:
            self.last = snapshot = self._take(reads_all)
            lap.facts = {"snapshot_id": snapshot.id, "bytes": snapshot.size}
            self._periodic.failure = None
            self._prune()
        _log.info("snapshot_taken", id=snapshot.id, bytes=snapshot.size, seconds=round(lap.seconds, 3))
        return snapshot

    def _prune(self) -> None:
        """Delete old snapshots, but not for a job that ends: the next one may be storing files that none has yet."""
        if self._periodic.is_stopping:
            return
        try:
            self._snapshots.prune(self._retention)
        except (OSError, Unavailable) as error:
            _log.warning("snapshots_not_pruned", error=str(error))

    def _take_if_new(self) -> None:
        last_seq = 0 if self.last is None else self.last.applied.apply_seq
        if self._decided() != last_seq:
            self.take_now(reads_all=False)
