"""Sends a `tick` when a deadline of a queue is due and no other record arrives for the queue.

A tick carries no time: the timestamp that the broker gives its record is the time of the decision. The broker's clock
may differ from ours, so the wait for a deadline starts at the latest append time that the broker has reported.
"""

import functools
import heapq
import threading
import time
from collections.abc import Callable, Mapping

import structlog

from broker_state.store.keys import NEVER_MS
from popstream.wire.command import Tick, encode_command
from popstream.wire.queue_name import QueueName

__all__ = ["Ticker"]

_log = structlog.get_logger(__name__)

_IDLE_S = 60.0
_BEHIND_S = 5.0
"""A job that is behind the log ends its next micro-batch within this time; if none ends, it is not."""
_RETRY_MS = 1_000
"""After a tick that could not be sent."""
_STALE_MAX = 1_000
"""Entries of the heap that are out of date, besides as many as there are queues."""


class _SentTick:
    """A tick that may not be decided yet.

    Attributes:
        append_ms: Its append time; None: it is on its way.
        decided_ms: Timestamp of the newest record that was decided in its partition since it was sent.
    """

    __slots__ = ("append_ms", "decided_ms")

    def __init__(self) -> None:
        self.append_ms: int | None = None
        self.decided_ms = 0

    @property
    def is_answered(self) -> bool:
        return self.append_ms is not None and self.decided_ms >= self.append_ms


class Ticker:
    """Tracks the earliest deadline of every queue, with at most one unanswered tick per queue.

    A tick is answered by records that are decided up to its append time: those before it in the log say nothing of it.

    Args:
        send: Sends a record for (topic, queue id) to the ops topic, and calls back with its append time in ms, or None
            if it could not be sent.
        on_failure: Called with the error that ended the thread.
    """

    def __init__(
        self,
        send: Callable[[QueueName, bytes, Callable[[int | None], None]], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._send = send
        self._on_failure = on_failure
        self._lock = threading.Condition()
        self._due_ms: dict[QueueName, int] = {}
        self._next_due: list[tuple[int, QueueName]] = []
        """A heap of what is due; entries that `_due_ms` no longer has are passed over."""
        self._unanswered: dict[QueueName, _SentTick] = {}
        self._broker_ms = 0
        self._broker_seen_at = time.monotonic()
        self._behind_until_s = float("inf")
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

    def learn(self, deadlines: Mapping[QueueName, int], append_ms: int, *, behind: bool) -> None:
        """Take over what a micro-batch left.

        Args:
            deadlines: The earliest deadline of each queue that it touched, in ms.
            append_ms: The timestamp of its newest record; all of its partitions before it are decided.
            behind: The job is behind the log: no tick is sent, as a record of the queue may follow.
        """
        with self._lock:
            self._behind_until_s = time.monotonic() + _BEHIND_S if behind else 0.0
            if append_ms > self.broker_ms:  # an earlier one is out of date
                self._set_broker_ms(append_ms)
            for queue, due_ms in deadlines.items():
                tick = self._unanswered.get(queue)
                if tick is not None:
                    tick.decided_ms = max(tick.decided_ms, append_ms)
                    if tick.is_answered:
                        del self._unanswered[queue]
                if due_ms >= NEVER_MS:
                    self._due_ms.pop(queue, None)
                else:
                    self._due_ms[queue] = due_ms
                    heapq.heappush(self._next_due, (due_ms, queue))
            if len(self._next_due) > 2 * len(self._due_ms) + _STALE_MAX:
                self._next_due = [(due_ms, queue) for queue, due_ms in self._due_ms.items()]
                heapq.heapify(self._next_due)
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
                    self._unanswered[queue] = _SentTick()
                tick = Tick(topic=queue[0], queue_id=queue[1], v=1)
                self._send(queue, encode_command(tick), functools.partial(self._sent, queue))
        except Exception as error:  # noqa: BLE001 - any error ends the job, which reports it
            self._on_failure(error)

    def _next(self) -> tuple[float, QueueName | None]:
        """Return the seconds to wait, and the queue to tick now or None."""
        if (behind_s := self._behind_until_s - time.monotonic()) > 0:
            return min(behind_s, _IDLE_S), None
        while self._next_due:
            due_ms, queue = self._next_due[0]
            if self._due_ms.get(queue) != due_ms or queue in self._unanswered:
                heapq.heappop(self._next_due)
                continue
            left_ms = due_ms - self.broker_ms
            if left_ms > 0:
                return min(left_ms / 1000, _IDLE_S), None
            heapq.heappop(self._next_due)
            return 0.0, queue
        return _IDLE_S, None

    def _sent(self, queue: QueueName, append_ms: int | None) -> None:
        """Handle the append time of a tick, or None if the broker did not accept it."""
        with self._lock:
            tick = self._unanswered.get(queue)
            if append_ms is None:
                self._unanswered.pop(queue, None)
                if queue in self._due_ms:
                    self._due_ms[queue] = self.broker_ms + _RETRY_MS
                self._look_again(queue)
                return
            self._set_broker_ms(append_ms)
            if tick is not None:
                tick.append_ms = append_ms
                if tick.is_answered:  # its micro-batch was decided before the broker's answer came
                    del self._unanswered[queue]
                    self._look_again(queue)

    def _look_again(self, queue: QueueName) -> None:
        """Put the deadline of a queue whose tick is no longer unanswered back among those that are due."""
        if (due_ms := self._due_ms.get(queue)) is not None:
            heapq.heappush(self._next_due, (due_ms, queue))
            self._lock.notify()
