"""Sends a `tick` when a deadline of a queue is due and no other record arrives for the queue.

A tick carries no time: the timestamp that the broker gives its record is the time of the decision. The broker's clock
may differ from ours, so the wait for a deadline starts at the latest append time that the broker has reported.
"""

import functools
import threading
import time
from collections.abc import Callable, Mapping

import structlog

from broker_state.store.keys import NEVER_MS
from popstream.wire.command import Tick, encode_command

__all__ = ["Ticker"]

_log = structlog.get_logger(__name__)

_IDLE_S = 60.0


class Ticker:
    """Tracks the earliest deadline of every queue, with at most one unanswered tick per queue.

    Args:
        send: Sends a record for (topic, queue id) to the ops topic, and calls back with its append time in ms, or None
            if it could not be sent.
        on_failure: Called with the error that ended the thread.
    """

    def __init__(
        self,
        send: Callable[[tuple[str, int], bytes, Callable[[int | None], None]], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._send = send
        self._on_failure = on_failure
        self._lock = threading.Condition()
        self._due_ms: dict[tuple[str, int], int] = {}
        self._unanswered: set[tuple[str, int]] = set()
        self._broker_ms = 0
        self._broker_seen_at = time.monotonic()
        self._behind = True
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="ticker", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread; deadlines that fall due later are ticked after the next start."""
        with self._lock:
            self._stopping = True
            self._lock.notify()
        if self._thread.is_alive():
            self._thread.join()

    def learn(self, deadlines: Mapping[tuple[str, int], int], append_ms: int, *, behind: bool) -> None:
        """Take over what a micro-batch left.

        Args:
            deadlines: The earliest deadline of each queue that it touched, in ms.
            append_ms: The timestamp of its newest record.
            behind: The job is behind the log: no tick is sent, as a record of the queue may follow.
        """
        with self._lock:
            self._behind = behind
            if append_ms > self.broker_ms:  # an earlier one is out of date
                self._set_broker_ms(append_ms)
            for queue, due_ms in deadlines.items():
                self._unanswered.discard(queue)
                if due_ms >= NEVER_MS:
                    self._due_ms.pop(queue, None)
                else:
                    self._due_ms[queue] = due_ms
            self._lock.notify()

    @property
    def broker_ms(self) -> int:
        """The broker's clock, estimated from the last append time."""
        return self._broker_ms + int((time.monotonic() - self._broker_seen_at) * 1000)

    def _set_broker_ms(self, append_ms: int) -> None:
        self._broker_ms = append_ms
        self._broker_seen_at = time.monotonic()

    def _run(self) -> None:
        try:
            while True:
                with self._lock:
                    if self._stopping:
                        return
                    wait_s, queue = self._next()
                    if queue is None:
                        self._lock.wait(wait_s)
                        continue
                    self._unanswered.add(queue)
                tick = Tick(topic=queue[0], queue_id=queue[1], v=1)
                self._send(queue, encode_command(tick), functools.partial(self._sent, queue))
        except Exception as error:  # noqa: BLE001 - any error ends the job, which reports it
            self._on_failure(error)

    def _next(self) -> tuple[float, tuple[str, int] | None]:
        """Return the seconds to wait, and the queue to tick now or None."""
        waiting = [(due_ms, queue) for queue, due_ms in self._due_ms.items() if queue not in self._unanswered]
        if not waiting or self._behind:
            return _IDLE_S, None
        due_ms, queue = min(waiting)
        left_ms = due_ms - self.broker_ms
        if left_ms > 0:
            return min(left_ms / 1000, _IDLE_S), None
        return 0.0, queue

    def _sent(self, queue: tuple[str, int], append_ms: int | None) -> None:
        """Handle the append time of a tick, or None if the broker did not accept it."""
        with self._lock:
            if append_ms is None:
                self._unanswered.discard(queue)
            else:
                self._set_broker_ms(append_ms)
