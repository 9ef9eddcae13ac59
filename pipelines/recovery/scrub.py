"""The scrub: reads every block of a running job's stores, so that damage is found before a decision needs the block.

RocksDB verifies a block only when it reads it from the disk, and may not do so for weeks. Here the table files are read
beside RocksDB and past its block cache. The page cache of the system may answer instead of the disk.

Damage is reported, and the job continues: nothing that it decided came from the damaged block, because RocksDB verifies
what it reads, too. The job ends when a decision or a compaction meets the block.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import structlog

from broker_state.store.rocks_store import RocksStore
from checkpoints.layout import JobFolder
from checkpoints.table_file import check_table, name_in_folder, require_replaced
from pipelines.loops.periodic import Periodic
from popstream.wire.base_errors import RESTORE, Corrupt

__all__ = ["BYTES_PER_S_MIN", "Pace", "Scrub"]

_log = structlog.get_logger(__name__)

BYTES_PER_S_MIN = 1 << 20
"""Costs three thousandths of a core, and reads a store of 1 GiB in 17 minutes."""

PAUSE_S = 600.0
"""Between two passes, so that a small store is not read all the time."""


class Pace:
    """Slows a reader down to a rate.

    Args:
        bytes_per_s: The rate.
        clock: Seconds of a monotonic clock.
        sleep: Waits for some seconds.
    """

    def __init__(
        self,
        bytes_per_s: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._bytes_per_s = bytes_per_s
        self._clock = clock
        self._sleep = sleep
        self._next_at = clock()

    def wait(self, count: int) -> None:
        """Wait after `count` bytes were read. Lost time, as while the machine slept, is not made up for."""
        now = self._clock()
        self._next_at = max(self._next_at, now - 1) + count / self._bytes_per_s
        if self._next_at > now:
            self._sleep(self._next_at - now)


class Scrub:
    """Reads the table files of the stores in passes, each within `interval_s`, and notes the damaged ones.

    Args:
        stores: The stores of the job.
        interval_s: Seconds within which everything is read once; 0: never.
        folder: Folder of the job: it keeps how far a pass has come, and when the last one ended, over restarts.
        new_pace: Makes the pace of a pass from its rate.
    """

    def __init__(
        self,
        stores: Sequence[RocksStore],
        interval_s: float,
        folder: JobFolder,
        new_pace: Callable[[float], Pace] = Pace,
    ) -> None:
        self._stores = stores
        self._place = folder.scrubbed
        self._pause_s = min(PAUSE_S, interval_s / 2)
        self._pass_s = interval_s - self._pause_s
        self._new_pace = new_pace
        self._damage: dict[str, str] = {}
        self._periodic = Periodic("scrub", self._pause_s, self.read_stores, folder.last_done)

    @property
    def damage(self) -> list[str]:
        """A sentence for each damaged file that was found, with the command that repairs it.

        A table file that a later pass can read, or that the store has replaced, is left out again.
        """
        return list(self._damage.values())

    def start(self) -> None:
        """Start the thread, which waits first."""
        self._periodic.start()

    def stop(self) -> None:
        """Stop the thread, in the middle of a pass if necessary."""
        self._periodic.stop()

    def report(self, error: Corrupt) -> None:
        """Note damage, and log it if it is not known yet."""
        if error.subject not in self._damage:
            self._damage[error.subject] = error.message
            _log.error("damage_found", file=error.subject, error=error.message)

    def read_stores(self) -> None:
        """Read all table files once, but for those that the same pass has read before a restart."""
        files = [(store, name) for store in self._stores for name in store.table_files()]
        size = sum(_size(store.path / name) for store, name in files)
        pace = self._new_pace(max(BYTES_PER_S_MIN, size / self._pass_s))
        read = self._read_before_a_restart()
        for store, name in files:
            if name_in_folder(store.path / name) not in read:
                try:
                    self._read_file(store, name, pace)
                except Corrupt as error:
                    self.report(Corrupt(f"{error.message}: {RESTORE}", subject=error.subject))
            if self._periodic.is_stopping:
                return
        in_use = {name_in_folder(store.path / name) for store, name in files}
        for subject in [*self._damage]:
            if subject.endswith(".sst") and subject not in in_use:
                del self._damage[subject]
        self._place.unlink(missing_ok=True)

    def _read_file(self, store: RocksStore, name: str, pace: Pace) -> None:
        try:
            for count in check_table(store.path / name):
                if self._periodic.is_stopping:
                    return
                pace.wait(count)
        except FileNotFoundError:
            require_replaced(store, name)
        else:
            self._damage.pop(name_in_folder(store.path / name), None)
            with self._place.open("a") as place:
                place.write(f"{name_in_folder(store.path / name)}\n")

    def _read_before_a_restart(self) -> set[str]:
        """Return the sound files that the pass has read before the job was stopped in the middle of it."""
        return set(self._place.read_text(errors="replace").splitlines()) if self._place.exists() else set()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
