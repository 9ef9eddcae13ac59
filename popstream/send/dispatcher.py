"""Tells the job which queue offsets are written: declares each queue once, then dispatches ranges, again where need be.

```
written(queue, offset, tag) ─> Coalescer (about 10 ms) ─> declare, once ─> dispatch ─> answer ─┬─> done
                                     ^                                                          ├─> failed: flush raises
                                     └──────────── back-off: AHEAD_OF_WINDOW, no answer, ... ───┘
```

A dispatch may be repeated at will: what the job knows already counts once. So there is no end to the attempts but
`close`.
"""

from __future__ import annotations

import logging
import threading
import time
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from popstream.back_off import back_off_s
from popstream.errors import ClientClosed, NotDispatched
from popstream.exchange.coalescer import Coalescer, ranges_by_label
from popstream.wire.command import Declare, Dispatch, QueueType, WrittenRange
from popstream.wire.failures import Invalid
from popstream.wire.reason import Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from concurrent.futures import Future

    from popstream.exchange.transport import Transport
    from popstream.outcome import QueueKey
    from popstream.topics.message_topics import MessageTopic
    from popstream.wire.answer import Answer

__all__ = ["RANGES_MAX", "Dispatcher", "declare_of", "still_to_dispatch"]

LOG = logging.getLogger(__name__)

RANGES_MAX = 5_000
WAITING_MAX = 20_000
RETRY_AFTER_S_MIN = 0.05
RETRY_AFTER_S_MAX = 10.0
# Not longer: where a log starts moves with retention, and a queue that is declared with an old start would wait for
# ever.
TOPIC_FRESH_S = 5.0
TRY_AGAIN = frozenset((Reason.AHEAD_OF_WINDOW, Reason.TOPIC_NOT_EXIST))
# Below the queue's start there is nothing to hand out: retention was faster.
SETTLED = frozenset((Reason.OK, Reason.BELOW_MIN))


_Written = tuple["QueueKey", int, tuple[int, int]]
"""(queue, offset, (tag hash, count of messages))."""


class _Queue(msgspec.Struct, eq=False):
    is_declared: bool = False
    failures: int = 0
    again: list[WrittenRange] = []
    timer: threading.Timer | None = None


def declare_of(topic: MessageTopic, queue_id: int, queue_type: QueueType = "simple") -> Declare:
    """Declaration of one queue of a message topic."""
    return Declare(
        v=1,
        topic=topic.name,
        queue_id=queue_id,
        topic_id=topic.topic_id,
        queue_type=queue_type,
        min_offset=topic.starts[queue_id],
    )


def still_to_dispatch(answer: Answer, ranges: list[WrittenRange]) -> tuple[list[WrittenRange], list[WrittenRange]]:
    """Which ranges must be sent again, and which are refused for good, by the answer about them.

    There is a run for each range, by its index; an answer without runs speaks for all.
    """
    reasons = {run.entry: run.reason for run in answer.runs}
    judged = [(written, reasons.get(index, answer.reason)) for index, written in enumerate(ranges)]
    again = [written for written, reason in judged if reason in TRY_AGAIN]
    refused = [written for written, reason in judged if reason not in TRY_AGAIN | SETTLED]
    return again, refused


class Dispatcher:
    """Declares and dispatches for one producer. Safe for use by many threads.

    Args:
        transport: Carries the operations.
        describe: Asks Kafka about a topic; may block.
        type_of: The type of a topic's queues.
        delay_ms: Written offsets wait so long for others of the same queue. Longer: fewer records; shorter: sooner
            poppable.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        describe: Callable[[str], MessageTopic],
        type_of: Callable[[str], QueueType] = lambda _: "simple",
        delay_ms: float,
    ) -> None:
        self._transport = transport
        self._describe = describe
        self._type_of = type_of
        self._state = threading.Condition()
        self._queues: dict[QueueKey, _Queue] = {}
        self._pending_count = 0
        self._refused: dict[QueueKey, list[tuple[int, int]]] = {}
        self._open_ranges: dict[QueueKey, dict[int, WrittenRange]] = {}
        self._topics: dict[str, tuple[MessageTopic, float]] = {}
        self._is_closed = False
        self._coalescer: Coalescer[QueueKey, _Written] = Coalescer(
            f"{transport.settings.client_id}-dispatch",
            delay_ms=delay_ms,
            items_max=WAITING_MAX,
            emit=self._emit,
            failed=self._emit_failed,
        )

    def written(self, topic: str, queue_id: int, queue_offset: int, tag: int, count: int = 1) -> None:
        """Note that Kafka has confirmed a record, which carries `count` messages; it is dispatched soon.

        Raises:
            ClientClosed: `close` was called.
        """
        queue = (topic, queue_id)
        with self._state:
            self._pending_count += 1
        try:
            self._coalescer.add([(queue, (queue, queue_offset, (tag, count)))])
        except RuntimeError as error:
            self._done(1)
            message = f"offset {queue_offset} of {topic}/{queue_id} was written after the producer was closed"
            raise ClientClosed(message) from error

    def flush(self, timeout_s: float) -> None:
        """Wait until all that was written is dispatched.

        Raises:
            NotDispatched: Some is not within the time, or was refused; the former goes on being tried.
        """
        self._coalescer.flush()
        with self._state:
            self._state.wait_for(lambda: not self._pending_count, timeout_s)
            refused, self._refused = self._refused, {}
            left = {queue: _spans(ranges.values()) for queue, ranges in self._open_ranges.items() if ranges}
        if refused:
            message = "the job refuses to dispatch what was written"
            raise NotDispatched(message, ranges=refused)
        if left:
            message = f"what was written is not dispatched after {timeout_s:.1f} s"
            raise NotDispatched(message, ranges=left)

    def close(self) -> None:
        """Send what waits, and try nothing again from here on."""
        self._coalescer.close()
        with self._state:
            self._is_closed = True
            timers = [queue.timer for queue in self._queues.values() if queue.timer is not None]
        for timer in timers:
            timer.cancel()

    def _emit(self, queue: QueueKey, items: list[_Written]) -> None:
        ranges = [
            WrittenRange(first, last, tag, count)
            for (tag, count), found in ranges_by_label((offset, label) for _, offset, label in items).items()
            for first, last in found
        ]
        self._send(queue, ranges)

    def _emit_failed(self, items: list[_Written], error: Exception) -> None:
        # `_send` sees to its own failures, so this is one of ours; the messages can be dispatched by
        # `dispatch_existing`.
        with self._state:
            for queue, offset, _ in items:
                self._refused.setdefault(queue, []).append((offset, offset))
        LOG.error("%d written messages are not dispatched: %s", len(items), error)
        self._done(len(items))

    def _send(self, queue: QueueKey, ranges: list[WrittenRange]) -> None:
        with self._state:
            open_ranges = self._open_ranges.setdefault(queue, {})
            open_ranges.update((id(written), written) for written in ranges)
        try:
            self._declare(queue)
            for start in range(0, len(ranges), RANGES_MAX):
                sent = ranges[start : start + RANGES_MAX]
                command = Dispatch(v=1, topic=queue[0], queue_id=queue[1], ranges=sent)
                self._transport.submit(command).add_done_callback(partial(self._on_dispatched, queue, sent))
        except Invalid as error:
            LOG.error("what was written to %s/%d is not dispatched: %s", *queue, error)  # noqa: TRY400
            self._refuse(queue, ranges)
        except Exception as error:  # noqa: BLE001 - Kafka or the job do not answer now; it is tried again
            self._later(queue, ranges, f"{error}")

    def _declare(self, queue: QueueKey) -> None:
        """Send the declaration ahead of the first dispatch: both take the same way, so the order holds."""
        with self._state:
            known = self._queues.setdefault(queue, _Queue())
            if known.is_declared:
                return
        command = declare_of(self._topic(*queue), queue[1], self._type_of(queue[0]))
        self._transport.submit(command).add_done_callback(partial(self._on_declared, queue))
        with self._state:
            known.is_declared = True

    def _topic(self, name: str, queue_id: int) -> MessageTopic:
        """What Kafka says about a topic; for a moment, so that its queues can be declared with one question."""
        found, asked_s = self._topics.get(name, (None, 0.0))
        if found is None or queue_id not in found.starts or time.monotonic() - asked_s > TOPIC_FRESH_S:
            found = self._describe(name)
            self._topics[name] = (found, time.monotonic())
        return found

    def _on_declared(self, queue: QueueKey, future: Future[Answer]) -> None:
        error = future.exception()
        if error is None and future.result().reason is Reason.OK:
            return
        LOG.warning("%s/%d is not declared: %s", *queue, error or future.result().reason)
        with self._state:
            self._queues[queue].is_declared = False

    def _on_dispatched(self, queue: QueueKey, ranges: list[WrittenRange], future: Future[Answer]) -> None:
        error = future.exception()
        if isinstance(error, ClientClosed):
            return
        if error is not None:
            self._later(queue, ranges, f"{error}")
            return
        answer = future.result()
        with self._state:
            if answer.reason is Reason.TOPIC_NOT_EXIST:
                self._queues[queue].is_declared = False
                self._topics.pop(queue[0], None)
            else:
                self._queues[queue].failures = 0
        again, refused = still_to_dispatch(answer, ranges)
        waiting = {id(written) for written in (*again, *refused)}
        self._settle(queue, [written for written in ranges if id(written) not in waiting])
        if refused:
            LOG.error("dispatch of %s in %s/%d is refused: %s", _spans(refused), *queue, answer.reason)
            self._refuse(queue, refused)
        if again:
            self._later(queue, again, answer.reason)

    def _later(self, queue: QueueKey, ranges: list[WrittenRange], why: str) -> None:
        """Try again after a pause that doubles with every failure in a row; one timer a queue."""
        with self._state:
            known = self._queues.setdefault(queue, _Queue())
            known.again.extend(ranges)
            if known.timer is not None or self._is_closed:
                return
            known.failures += 1
            pause_s = back_off_s(known.failures, first_s=RETRY_AFTER_S_MIN, max_s=RETRY_AFTER_S_MAX)
            known.timer = threading.Timer(pause_s, self._again, [queue])
            known.timer.daemon = True
            known.timer.start()
        LOG.info("dispatch to %s/%d is tried again in %.2f s: %s", *queue, pause_s, why)

    def _again(self, queue: QueueKey) -> None:
        with self._state:
            known = self._queues[queue]
            ranges, known.again, known.timer = known.again, [], None
        if ranges:
            self._send(queue, sorted(ranges, key=lambda written: written.first))

    def _refuse(self, queue: QueueKey, ranges: list[WrittenRange]) -> None:
        with self._state:
            self._refused.setdefault(queue, []).extend(_spans(ranges))
        self._settle(queue, ranges)

    def _settle(self, queue: QueueKey, ranges: list[WrittenRange]) -> None:
        with self._state:
            open_ranges = self._open_ranges[queue]
            settled = [written for written in ranges if open_ranges.pop(id(written), None) is not None]
        self._done(sum(written.last - written.first + 1 for written in settled))

    def _done(self, count: int) -> None:
        with self._state:
            self._pending_count -= count
            self._state.notify_all()


def _spans(ranges: Iterable[WrittenRange]) -> list[tuple[int, int]]:
    return sorted((written.first, written.last) for written in ranges)
