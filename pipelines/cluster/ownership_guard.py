"""Stops the queries of a job as soon as it may decide no more.

An owner may decide for 6 seconds from a heartbeat that Kafka has committed, and another job waits for 10. Executors
decide without the driver for as long as a micro-batch takes; so the driver stops its queries when the heartbeat is too
old, and does not wait for the end of a micro-batch.
"""

import threading
from collections.abc import Callable

from popstream.wire.base_errors import Unavailable

__all__ = ["OwnershipGuard"]

POLL_S = 0.25


class OwnershipGuard:
    """Looks at the heartbeat from `start` to `stop`.

    Args:
        valid_for_s: Returns the seconds for which the job may still decide (`PrefixOwnership.valid_for_s`).
        on_lost: Called once with the error when it may not.
        prefix: The prefix.
    """

    def __init__(self, valid_for_s: Callable[[], float], on_lost: Callable[[BaseException], None], prefix: str) -> None:
        self._valid_for_s = valid_for_s
        self._on_lost = on_lost
        self._prefix = prefix
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ownership-guard", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(POLL_S):
            if self._valid_for_s() <= 0:
                message = (
                    f"Kafka does not confirm that this job owns the prefix {self._prefix}: it has stopped deciding, and"
                    " has to be started again"
                )
                self._on_lost(Unavailable(message, subject=self._prefix))
                return
