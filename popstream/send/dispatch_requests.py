"""Dispatches written queue offsets to the job: declares each queue once, then sends ranges until they are accepted.

```
written(queue, offset, tag) ─> Coalescer (about 10 ms) ─> declare, once ─> dispatch ─> answer ─┬─> done
                                     ^                                                          ├─> failed: flush raises
                                     └──────────── back-off: AHEAD_OF_WINDOW, no answer, ... ───┘
```

Dispatches are idempotent, so they are repeated until `close`.
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
from popstream.wire.base_errors import Invalid
from popstream.wire.command import Declare, Dispatch, QueueType, WrittenRange
from popstream.wire.deliver_at import AT_ONCE
from popstream.wire.queue_name import QueueName
from popstream.wire.reason import Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from concurrent.futures import Future

    from popstream.exchange.transport import Transport
    from popstream.topics.message_topics import MessageTopic
    from popstream.wire.answer import Answer

__all__ = ["RANGES_MAX", "Dispatcher", "declare_of", "still_to_dispatch"]

LOG = logging.getLogger(__name__)

RANGES_MAX = 5_000
WAITING_MAX = 20_000
RETRY_AFTER_S_MIN = 0.05
RETRY_AFTER_S_MAX = 10.0
# Short, because retention moves the start of a log: a queue that is declared with an older start would wait for ever
# for offsets that are gone.
TOPIC_FRESH_S = 5.0
TRY_AGAIN = frozenset((Reason.AHEAD_OF_WINDOW, Reason.TOPIC_NOT_EXIST, Reason.QUOTA_EXCEEDED))
# Below the start of the queue, where retention has removed the records.
SETTLED = frozenset((Reason.OK, Reason.BELOW_MIN))


_Label = tuple[int, int, int]
"""(tag hash, count of messages, deliver_at_ms): the fields of a `WrittenRange` after its offsets."""
_Written = tuple["QueueName", int, _Label]
"""(queue, offset, label)."""


class _Queue(msgspec.Struct, eq=False):
    is_declared: bool = False
    failures: int = 0
    again: list[WrittenRange] = []
    timer: threading.Timer | None = None


def declare_of(topic: MessageTopic, queue_id: int, queue_type: QueueType = "simple") -> Declare:
    """Return the declaration of one queue of a message topic."""
    return Declare(
        v=1,
        topic=topic.name,
        queue_id=queue_id,
        topic_id=topic.topic_id,
        queue_type=queue_type,
        min_offset=topic.starts[queue_id],
    )


def still_to_dispatch(answer: Answer, ranges: list[WrittenRange]) -> tuple[list[WrittenRange], list[WrittenRange]]:
    """Return the ranges that must be sent again, and those that the answer refuses for good.

    The answer has a run for each range, by its index; the reason of an answer without runs is that of all.
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
        type_of: Returns the type of a topic's queues.
        delay_ms: How long written offsets wait for others of the same queue, in milliseconds. Longer: fewer records;
            shorter: poppable sooner.
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
        self._queues: dict[QueueName, _Queue] = {}
        self._pending_count = 0
        self._refused: dict[QueueName, list[tuple[int, int]]] = {}
        self._open_ranges: dict[QueueName, dict[int, WrittenRange]] = {}
        self._topics: dict[str, tuple[MessageTopic, float]] = {}
        self._is_closed = False
        self._coalescer: Coalescer[QueueName, _Written] = Coalescer(
            f"{transport.settings.client_id}-dispatch",
            delay_ms=delay_ms,
            items_max=WAITING_MAX,
            emit=self._emit,
            failed=self._emit_failed,
        )

    def written(
        self, topic: str, queue_id: int, queue_offset: int, tag: int, count: int = 1, deliver_at_ms: int = AT_ONCE
    ) -> None:
        """Dispatch soon a record that Kafka has confirmed, and that carries `count` messages.

        Args:
            topic: Its topic.
            queue_id: Its queue.
            queue_offset: Its offset.
            tag: Hash of the tag of its messages.
            count: Number of its messages.
            deliver_at_ms: When they can be popped, ms since 1970; 0: at once.

        Raises:
            ClientClosed: `close` was called.
        """
        queue = (topic, queue_id)
        with self._state:
            self._pending_count += 1
        try:
            self._coalescer.add([(queue, (queue, queue_offset, (tag, count, deliver_at_ms)))])
        except RuntimeError as error:
            self._done(1)
            message = f"offset {queue_offset} of {topic}/{queue_id} was written after the producer was closed"
            raise ClientClosed(message) from error

    def flush(self, timeout_s: float) -> None:
        """Wait until all written offsets are dispatched.

        Raises:
            NotDispatched: Some were refused, or are not dispatched in time; the latter are still retried.
        """
        self._coalescer.flush()
        with self._state:
            self._state.wait_for(lambda: not self._pending_count, timeout_s)
            refused, self._refused = self._refused, {}
            left = {queue: _spans(ranges.values()) for queue, ranges in self._open_ranges.items() if ranges}
        if refused:
            message = "the job refused to dispatch written messages"
            raise NotDispatched(message, ranges=refused)
        if left:
            message = f"written messages are not dispatched after {timeout_s:.1f} s"
            raise NotDispatched(message, ranges=left)

    def close(self) -> None:
        """Send the waiting offsets, and end all retries."""
        self._coalescer.close()
        with self._state:
            self._is_closed = True
            timers = [queue.timer for queue in self._queues.values() if queue.timer is not None]
        for timer in timers:
            timer.cancel()

    def _emit(self, queue: QueueName, items: list[_Written]) -> None:
        ranges = [
            WrittenRange(first, last, *facts)
            for facts, found in ranges_by_label((offset, label) for _, offset, label in items).items()
            for first, last in found
        ]
        self._send(queue, ranges)

    def _emit_failed(self, items: list[_Written], error: Exception) -> None:
        # `_send` handles its failures, so this is a bug; `dispatch_existing` can dispatch the messages.
        with self._state:
            for queue, offset, _ in items:
                self._refused.setdefault(queue, []).append((offset, offset))
        LOG.error("%d written messages are not dispatched: %s", len(items), error)
        self._done(len(items))

    def _send(self, queue: QueueName, ranges: list[WrittenRange]) -> None:
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
            LOG.error("messages written to %s/%d are not dispatched: %s", *queue, error)  # noqa: TRY400
            self._refuse(queue, ranges)
        except Exception as error:  # noqa: BLE001 - Kafka or the job do not answer now, so it is retried
            self._later(queue, ranges, f"{error}")

    def _declare(self, queue: QueueName) -> None:
        """Send the declaration before the first dispatch; both go through the same transport, which keeps the order."""
        with self._state:
            known = self._queues.setdefault(queue, _Queue())
            if known.is_declared:
                return
        command = declare_of(self._topic(*queue), queue[1], self._type_of(queue[0]))
        self._transport.submit(command).add_done_callback(partial(self._on_declared, queue))
        with self._state:
            known.is_declared = True

    def _topic(self, name: str, queue_id: int) -> MessageTopic:
        """Return the description of a topic, cached for a moment, so that one request serves all its queues."""
        found, asked_s = self._topics.get(name, (None, 0.0))
        if found is None or queue_id not in found.starts or time.monotonic() - asked_s > TOPIC_FRESH_S:
            found = self._describe(name)
            self._topics[name] = (found, time.monotonic())
        return found

    def _on_declared(self, queue: QueueName, future: Future[Answer]) -> None:
        error = future.exception()
        if error is None and future.result().reason is Reason.OK:
            return
        LOG.warning("%s/%d is not declared: %s", *queue, error or future.result().reason)
        with self._state:
            self._queues[queue].is_declared = False

    def _on_dispatched(self, queue: QueueName, ranges: list[WrittenRange], future: Future[Answer]) -> None:
        error = future.exception()
        if isinstance(error, ClientClosed):
            return
        if error is not None:
            self._later(queue, ranges, f"{error}")
            return
        answer = future.result()
        again, refused = still_to_dispatch(answer, ranges)
        with self._state:
            if answer.reason is Reason.TOPIC_NOT_EXIST:
                self._queues[queue].is_declared = False
                self._topics.pop(queue[0], None)
            if not again:
                self._queues[queue].failures = 0
        waiting = {id(written) for written in (*again, *refused)}
        self._settle(queue, [written for written in ranges if id(written) not in waiting])
        if refused:
            LOG.error("the job refused to dispatch %s of %s/%d: %s", _spans(refused), *queue, answer.reason)
            self._refuse(queue, refused)
        if again:
            self._later(queue, again, answer.reason)

    def _later(self, queue: QueueName, ranges: list[WrittenRange], why: str) -> None:
        """Retry after a pause that doubles with each failure in a row; each queue has one timer."""
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
        LOG.info("retrying the dispatch of %s/%d in %.2f s: %s", *queue, pause_s, why)

    def _again(self, queue: QueueName) -> None:
        with self._state:
            known = self._queues[queue]
            ranges, known.again, known.timer = known.again, [], None
        if ranges:
            self._send(queue, sorted(ranges, key=lambda written: written.first))

    def _refuse(self, queue: QueueName, ranges: list[WrittenRange]) -> None:
        with self._state:
            self._refused.setdefault(queue, []).extend(_spans(ranges))
        self._settle(queue, ranges)

    def _settle(self, queue: QueueName, ranges: list[WrittenRange]) -> None:
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
