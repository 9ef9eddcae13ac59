"""Snapshots of a running job: RocksDB's own checkpoints of its stores, taken beside the work, then carried away."""

import secrets
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import structlog

from broker_state.store.rocks_store import RocksStore
from checkpoints.applied import applied_of
from checkpoints.snapshots import Snapshot, SnapshotStore
from pipelines.loops.periodic import Periodic

__all__ = ["SnapshotLoop", "take_image", "take_snapshot"]

_log = structlog.get_logger(__name__)


def take_image(state: RocksStore, scratch: Path) -> Path:
    """A folder with the state as it is now, as RocksDB's checkpoint: files are linked and not copied.

    Args:
        state: Of the job; writers go on meanwhile.
        scratch: A folder on the same disk.
    """
    image = scratch / secrets.token_hex(8)
    image.parent.mkdir(parents=True, exist_ok=True)
    state.checkpoint(image)
    return image


def take_snapshot(state: RocksStore, queues: RocksStore | None, scratch: Path, snapshots: SnapshotStore) -> Snapshot:
    """Take one and keep it; writers go on meanwhile.

    The builder's store comes first: what it no longer has to dispatch, the state then knows.

    Args:
        state: Of the job.
        queues: Of its builder, if there is one.
        scratch: A folder on the same disk, so that files are linked and not copied; it is made and removed.
        snapshots: Where it is kept.

    Raises:
        Unavailable: It cannot be kept there.
    """
    folder = scratch / secrets.token_hex(8)
    folder.mkdir(parents=True)
    try:
        taken_at_ms = int(time.time() * 1000)
        if queues is not None:
            queues.checkpoint(folder / "queues")
        state.checkpoint(folder / "state")
        with RocksStore(folder / "state", read_only=True) as copy:
            applied = applied_of(copy)
        return snapshots.put(folder, applied, taken_at_ms)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class SnapshotLoop:
    """Takes a snapshot every `interval_s` seconds if anything was decided since, and keeps the newest few.

    One that cannot be kept is said and tried again at the next time: it never stops the job.

    Args:
        take: Takes one.
        snapshots: Where they are kept.
        interval_s: 0: only when asked.
        keep: How many.
        decided: The last apply_seq.
        last_done: A folder that remembers the last time, over starts.
    """

    def __init__(
        self,
        take: Callable[[], Snapshot],
        snapshots: SnapshotStore,
        *,
        interval_s: float,
        keep: int,
        decided: Callable[[], int],
        last_done: Path,
    ) -> None:
        self._take = take
        self._snapshots = snapshots
        self._keep = keep
        self._decided = decided
        self._lock = threading.Lock()
        self.last: Snapshot | None = None
        self._periodic = Periodic("snapshot", interval_s, self._take_if_anything_is_new, last_done)

    def start(self) -> None:
        """Begin."""
        self._periodic.start()

    def stop(self) -> None:
        """End; one that is under way is finished."""
        self._periodic.stop()

    @property
    def last_failure(self) -> str | None:
        """Why the last one that was due could not be kept."""
        return self._periodic.failure

    def take_now(self) -> Snapshot:
        """Take one, and forget those that are too many.

        Raises:
            Unavailable: It cannot be kept.
        """
        with self._lock:
            started = time.perf_counter()
            self.last = snapshot = self._take()
            self._snapshots.prune(self._keep)
            self._periodic.failure = None
        seconds = round(time.perf_counter() - started, 3)
        _log.info("snapshot_taken", id=snapshot.id, bytes=snapshot.size, seconds=seconds)
        return snapshot

    def _take_if_anything_is_new(self) -> None:
        kept = 0 if self.last is None else self.last.applied.apply_seq
        if self._decided() != kept:
            self.take_now()
