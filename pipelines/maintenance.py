"""The tables of a running job are compacted by the job, now and then and when somebody asks: nobody else may meanwhile.

On a local disk Delta gives a version to one of two commits only if both come from one JVM: it looks whether the commit
file exists, then renames over it (`HDFSLogStore`, which holds a lock of its process between the two). With a compaction
in another process, a flush that comes between would be gone, and nobody would be told.
"""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import structlog

from connectors.delta.maintenance import Maintained
from pipelines.periodic import Periodic

__all__ = ["MaintenanceLoop", "MaintenanceView"]

_log = structlog.get_logger(__name__)


class MaintenanceView(msgspec.Struct, frozen=True, kw_only=True):
    """The maintenance that is under way, or the last one of this job.

    Attributes:
        begun_at_ms: None: there was none yet.
        is_under_way: There are tables left to do.
        done: Tables that are done.
        failure: Why some are not.
    """

    begun_at_ms: int | None = None
    is_under_way: bool = False
    done: list[Maintained] = []
    failure: str | None = None


class MaintenanceLoop:
    """Maintains all tables every `interval_s` seconds.

    Args:
        maintain: Does one table after the other.
        interval_s: 0: only when asked.
        last_done: A folder that remembers the last time, over starts.

    Attributes:
        view: How it goes.
    """

    def __init__(self, maintain: Callable[[], Iterator[Maintained]], interval_s: float, last_done: Path) -> None:
        self._maintain = maintain
        self._lock = threading.Lock()
        self._periodic = Periodic("maintenance", interval_s, self._run, last_done)
        self.view = MaintenanceView()

    def start(self) -> None:
        """Begin, with a pause."""
        self._periodic.start()

    def stop(self) -> None:
        """End after the table that is under way, unless it takes too long."""
        self._periodic.stop()

    def begin(self) -> MaintenanceView:
        """Begin now, unless one is under way; does not wait for its end."""
        if self._has_begun():
            self._periodic.hurry()
        return self.view

    def _has_begun(self) -> bool:
        with self._lock:
            if self.view.is_under_way:
                return False
            self.view = MaintenanceView(begun_at_ms=int(time.time() * 1000), is_under_way=True)
            return True

    def _run(self) -> None:
        self._has_begun()  # by `begin`, else now
        try:
            for done in self._maintain():
                _log.info("maintained", **msgspec.structs.asdict(done))
                self._note(done=[*self.view.done, done])
                if self._periodic.is_stopping:
                    return
        except Exception as error:
            self._note(failure=str(error))
            raise
        finally:
            self._note(is_under_way=False)

    def _note(self, **changes: object) -> None:
        self.view = msgspec.structs.replace(self.view, **changes)
