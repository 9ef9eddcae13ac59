"""Prefetches messages of some topics: pops all their queues within bounds, and hands the messages out.

```
QueueDiscovery ─> NextQueue ─> pops in flight ─> HandOut: leased messages, their records ─> callers
                    ^  room: PrefetchWindow - in flight - held                              │
                    └──────────────── a message was finished or released ───────────────────┘
```

One thread sends the pops and takes their answers in; callers fetch records and take messages (`HandOut`).
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Literal

import msgspec

from popstream.errors import ClientClosed, Refused
from popstream.exchange.transport import new_op_id
from popstream.lease.entries import RELEASED_UNCOUNTED
from popstream.pop.hand_out import HandOut
from popstream.pop.next_queue import NextQueue
from popstream.pop.pops import POLL_MS_SHARED, POP_RESULTS
from popstream.pop.prefetch_window import ROOM_PER_QUEUE, PrefetchWindow
from popstream.pop.queue_discovery import QueueDiscovery
from popstream.pop.rate_limit import RateLimit
from popstream.retries import Reject, Retry
from popstream.wire.base_errors import Invalid
from popstream.wire.command import Init, Pop
from popstream.wire.limits import POP_MESSAGES_MAX
from popstream.wire.queue_name import QueueName
from popstream.wire.reason import Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    from popstream.lease.leases import Leases
    from popstream.message import Message
    from popstream.pop.next_queue import PlannedPop
    from popstream.pop.notifications import Listen
    from popstream.pop.pops import Pops
    from popstream.wire.answer import Answer

__all__ = ["Subscription", "SubscriptionOptions", "init_on_wire"]

LOG = logging.getLogger(__name__)

POLL_MS_MAX = 10_000
POLL_MS_HOLDING = 5_000
"""Poll time, or half of the invisible time if that is less, while messages of the queue are held: if this process is
killed, its pop has ended before their leases, and does not get them again. A lease has that much left when it is
renewed (`RenewalPolicy`)."""
REFUSED_PAUSE_S = 1.0
"""Pause before another pop of a queue after one of WAIT_REASONS."""
WAIT_REASONS = frozenset((Reason.TOPIC_NOT_EXIST, Reason.POLLING_FULL, Reason.QUOTA_EXCEEDED))
"""The job does not know the queue, parks no more pops there, or a quota is reached."""
RETRY_PAUSE_S = 2.0
"""Pause before another pop of a queue whose last pop was not answered."""
ROOM_PART = 8
"""While pops are in flight, another is sent only when at least this part of the window is free: not one per message."""

INIT_OF_START: dict[str, Init] = {"earliest": "min", "latest": "max"}
"""The client's words are Kafka's; a pop has RocketMQ's on the wire."""


class SubscriptionOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a consumer prefetches messages of its topics; `Consumer` has the defaults.

    Args:
        order: Orderly consumption: a message of a queue is handed out when those before it are finished.
        prefetch: Maximum number of messages that pops ask for, or that are held; see `PrefetchWindow`.
        prefetch_bytes: Maximum size of the records held, in bytes; a single larger record is still fetched.
        rate_limit: Maximum number of messages that are handed out in a second; None: no limit.
        invisible_time_ms: Length of a lease, in milliseconds. Longer: messages of a killed process wait longer.
        tags: Hashes of the tags to receive; None: all messages.
        init: Where the group begins at a queue that it has never popped: at the queue's first message ("earliest"), or
            after its last message at the time of the first pop ("latest"). A queue that is added later begins at its
            first message in either case.
    """

    order: bool
    prefetch: int
    prefetch_bytes: int
    rate_limit: float | None
    invisible_time_ms: int
    tags: list[int] | None
    init: Literal["earliest", "latest"]

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            Invalid: A bound or limit is not positive, or `init` is neither "earliest" nor "latest".
        """
        wrong = [
            f"{name} must be at least 1, not {getattr(self, name)}"
            for name in ("prefetch", "prefetch_bytes", "invisible_time_ms")
            if getattr(self, name) < 1
        ]
        if self.rate_limit is not None and not 0 < self.rate_limit < math.inf:
            wrong.append(f"rate_limit must be a number of messages a second, more than 0, not {self.rate_limit}")
        if self.init not in INIT_OF_START:
            wrong.append(_init_error(self.init))
        if wrong:
            message = "the options of the subscription are out of range"
            raise Invalid(message, subject="subscription", details=wrong)


def init_on_wire(init: str) -> Init:
    """Return where a pop begins in a new lane, in the word of the wire.

    Raises:
        Invalid: It is neither "earliest" nor "latest".
    """
    if init not in INIT_OF_START:
        message = _init_error(init)
        raise Invalid(message, subject="init")
    return INIT_OF_START[init]


def _init_error(init: str) -> str:
    return f'init must be "earliest" or "latest", not {init!r}'


class _PopInFlight(msgspec.Struct, frozen=True):
    """A pop in flight, and how often callers had begun to wait when it was sent."""

    planned: PlannedPop
    wait_count: int


class Subscription:
    """A stream of the messages of several topics. `take` is safe for use by many threads.

    Args:
        name: Name of the thread.
        group: The consumer group.
        client_id: Name of the consumer, for the audit.
        topics: Topics to pop from.
        options: Bounds and mode.
        pops: Sends the pops.
        leases: The leases of the consumer.
        queues_of: Returns the queue ids of a topic.
        listen: Calls its argument with each queue that becomes poppable, and returns an unsubscribe callable. It is
            used when there is too little room to park a pop at every queue.
    """

    def __init__(
        self,
        name: str,
        *,
        group: str,
        client_id: str,
        topics: Sequence[str],
        options: SubscriptionOptions,
        pops: Pops,
        leases: Leases,
        queues_of: Callable[[str], Sequence[int]],
        listen: Listen,
    ) -> None:
        """Start the thread; it is a daemon, and `stop` ends it."""
        self._group = group
        self._client_id = client_id
        self._options = options
        self._pops = pops
        self._leases = leases
        self._listen = listen
        self._unsubscribe: Callable[[], None] | None = None
        self._changed = threading.Condition()
        self._window = PrefetchWindow(
            bound=options.prefetch, invisible_time_ms=options.invisible_time_ms, rate_limit=options.rate_limit
        )
        self._hand_out = HandOut(
            self._changed,
            pops.filler,
            leases,
            self._window,
            is_orderly=options.order,
            prefetch_bytes=options.prefetch_bytes,
            rate=None if options.rate_limit is None else RateLimit(options.rate_limit, now_s=time.monotonic()),
        )
        self._discovery = QueueDiscovery(topics, queues_of)
        self._queues = NextQueue()
        self._in_flight: dict[str, _PopInFlight] = {}
        self._answers: deque[tuple[str, Future[Answer]]] = deque()
        self._is_cancelled = False
        self._is_abandoned = False
        self._stop_watching_releases = leases.held.on_release(self._on_release)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def is_stopped(self) -> bool:
        """Whether nothing more is handed out."""
        return self._hand_out.is_stopped

    @property
    def window_size(self) -> int:
        """Number of messages that may be requested or held."""
        return self._window.size

    @property
    def asked_count(self) -> int:
        """Number of messages that the pops in flight may lease."""
        return sum(pop.planned.max_messages for pop in list(self._in_flight.values()))

    def notified(self, queue: QueueName) -> None:
        """Pop a queue soon, because it has become poppable for this group."""
        with self._changed:
            self._queues.notified(queue)
            self._changed.notify_all()

    def take(
        self, count: int, timeout_s: float | None = None, *, owner: threading.Thread | None = None
    ) -> list[Message]:
        """Wait for the next messages: at least one and at most `count`; of an orderly queue those of one pop, in order.

        Returns an empty list after `stop`, and when the time is over.

        Args:
            count: How many messages at most.
            timeout_s: How long to wait; None: until `stop`.
            owner: The thread that works on them; default: the caller's.

        Raises:
            Refused: The job refuses pops of this group.
            Invalid: A topic does not exist, or `count` is not positive.
        """
        if count < 1:
            message = f"at least one message must be taken, not {count}"
            raise Invalid(message, subject=self._client_id)
        messages = self._hand_out.take(count, timeout_s)
        self._leases.held.own(messages, owner or threading.current_thread())
        return messages

    def take_fetched(self, count: int) -> list[Message]:
        """Return at most `count` messages whose records are here, without waiting.

        Raises:
            Refused: The job refuses pops of this group.
            Invalid: A topic does not exist.
        """
        messages = self._hand_out.take_fetched(count)
        self._leases.held.own(messages, threading.current_thread())
        return messages

    def may_begin(self, message: Message) -> bool:
        """Tell whether to work on a message that was taken before: not after a stop, nor when its lease has ended."""
        return not self.is_stopped and self._leases.held.is_live(message, time.monotonic())

    def finish(self, messages: Sequence[Message]) -> None:
        """Ack messages that were taken, within `ack_delay_ms` and together with others.

        Raises:
            ClientClosed: The consumer is closed.
        """
        self._leases.settlement.finish(messages)

    def release_with_rest(self, messages: Sequence[Message]) -> None:
        """Release messages without counting the attempt, and the later ones of an orderly queue's pop, in one request.

        Args:
            messages: At least one, of one queue or of a concurrent group.
        """
        behind = self._hand_out.rest_behind(messages[0])
        self._leases.settlement.change(((message, RELEASED_UNCOUNTED) for message in (*messages, *behind)), keeps=False)

    def fail(self, messages: Sequence[Message], error: BaseException) -> None:
        """Settle messages whose handler has raised: the first one by the error, the others without an attempt.

        Unless the first one is rejected, the later messages of an orderly queue's pop follow it.

        Args:
            messages: At least one, of one queue or of a concurrent group.
            error: What the handler has raised.
        """
        failed, later = messages[0], [*messages[1:]]
        where = (failed.topic, failed.queue_id, failed.queue_offset)
        if isinstance(error, (Retry, Reject)):
            LOG.info("the handler of %s/%d offset %d says: %r", *where, error)
        else:
            LOG.warning("the handler failed at %s/%d offset %d", *where, exc_info=error)
        if not isinstance(error, Reject):
            later += self._hand_out.rest_behind(failed)
        self._leases.settlement.fail(failed, error, later, is_orderly=self._options.order)

    def stop(self) -> None:
        """Hand out nothing more, release the messages that were not handed out, and cancel the parked pops."""
        with self._changed:
            self._hand_out.is_stopped = True
            self._changed.notify_all()

    def close(self, timeout_s: float) -> None:
        """Stop, and wait for the thread; messages that it has not released in time remain held."""
        self.stop()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout_s)
        with self._changed:
            self._is_abandoned = True
            self._changed.notify_all()

    def _on_release(self) -> None:
        """Wake the thread if it can pop now, and callers that wait for this: a message may be released every 50 us."""
        with self._changed:
            if self._options.order or self._hand_out.is_waited_for or self._can_pop(time.monotonic()):
                self._changed.notify_all()

    def _can_pop(self, now_s: float) -> bool:
        return self._queues.has_free(now_s) and self._room() > 0

    def _run(self) -> None:
        try:
            self._find_queues()
            while (due := self._wait_for_work()) is not None:
                answers, pops = due
                for op_id, answered in answers:
                    self._on_answer(op_id, answered)
                self._hand_out.release_broken()
                for planned in pops:
                    self._send(planned)
                self._find_queues()
        except Exception as error:
            LOG.exception("%s has stopped popping", self._client_id)
            self._fail(error)
            self._abandon()
        finally:
            self._hand_out.release_all()
            self._stop_watching_releases()
            if self._unsubscribe is not None:
                self._unsubscribe()

    def _abandon(self) -> None:
        """Have the messages released that pops in flight lease: nobody takes their answers any more."""
        with self._changed:
            abandoned = list(self._in_flight.items())
            self._in_flight.clear()
            self._answers.clear()
        for op_id, pop in abandoned:
            self._pops.abandon(*pop.planned.queue, op_id)
            self._pops.ended(op_id)

    def _fail(self, error: Exception) -> None:
        with self._changed:
            self._hand_out.failure = self._hand_out.failure or error
        self.stop()

    def _find_queues(self) -> None:
        if not self.is_stopped:
            try:
                found = self._discovery.refresh(time.monotonic())
            except Invalid as error:
                self._fail(error)
            else:
                with self._changed:
                    self._queues.add(found)
                    self._window.found_queues(len(self._queues))
        if self._unsubscribe is None and len(self._queues) * ROOM_PER_QUEUE > self._window.bound:
            self._unsubscribe = self._listen(self.notified)

    def _wait_for_work(self) -> tuple[list[tuple[str, Future[Answer]]], list[PlannedPop]] | None:
        """Wait at most `REFUSED_PAUSE_S` for answers and pops to send; None: the thread is to end."""
        with self._changed:
            planned = self._plan()
            if not self._answers and not planned:
                if self._is_abandoned or (self.is_stopped and not self._in_flight):
                    return None
                if self._is_cancelled or not self.is_stopped:
                    self._changed.wait(REFUSED_PAUSE_S)
                planned = self._plan()
            answers = list(self._answers)
            self._answers.clear()
            cancelled = list(self._in_flight) if self.is_stopped and not self._is_cancelled else []
            self._is_cancelled = self.is_stopped
        self._pops.cancel(cancelled)
        return answers, planned

    def _plan(self) -> list[PlannedPop]:
        if self.is_stopped:
            return []
        now_s = time.monotonic()
        if self._room() < 1 and self._hand_out.waiting_count and self._queues.has_free(now_s):
            self._window.used_up()
        return self._queues.plan(min(self._room(), POP_MESSAGES_MAX), now_s)

    def _room(self) -> int:
        """Return for how many messages pops may be sent."""
        room = self._window.size - self.asked_count - len(self._leases.held)
        return 0 if self._in_flight and room < self._window.size // ROOM_PART else room

    def _send(self, planned: PlannedPop) -> None:
        op_id, options = new_op_id(), self._options
        topic, queue_id = planned.queue
        command = Pop(
            v=1,
            topic=topic,
            queue_id=queue_id,
            op_id=op_id,
            group=self._group,
            max_messages=planned.max_messages,
            invisible_time_ms=options.invisible_time_ms,
            order=options.order,
            poll_time_ms=self._poll_time_ms(planned.queue),
            # The group must miss no message that was sent to an added queue before the queue was found.
            init="min" if self._discovery.is_added(planned.queue) else INIT_OF_START[options.init],
            client_id=self._client_id,
            tags=options.tags,
        )
        with self._changed:
            self._in_flight[op_id] = _PopInFlight(planned, self._hand_out.wait_count)
        try:
            self._pops.send(command).add_done_callback(lambda answered: self._arrived(op_id, answered))
        except ClientClosed:
            self._ended(op_id, 0, 0.0)
            self.stop()
            self._pops.ended(op_id)

    def _poll_time_ms(self, queue: QueueName) -> int:
        if self._queues.waiting_count > 0:
            return POLL_MS_SHARED
        if self._leases.held.has_any(queue):
            return max(1, min(POLL_MS_HOLDING, self._options.invisible_time_ms // 2))
        return POLL_MS_MAX

    def _arrived(self, op_id: str, answered: Future[Answer]) -> None:
        with self._changed:
            self._answers.append((op_id, answered))
            self._changed.notify_all()

    def _on_answer(self, op_id: str, answered: Future[Answer]) -> None:
        error = answered.exception()
        if error is None:
            self._take_in(op_id, answered.result())
        elif isinstance(error, ClientClosed):
            self._ended(op_id, 0, 0.0)
            self.stop()
        else:
            planned = self._ended(op_id, 0, RETRY_PAUSE_S)
            LOG.warning("a pop of %s/%d was not answered: %s", *planned.queue, error)
            self._pops.abandon(*planned.queue, op_id)
        self._pops.ended(op_id)

    def _take_in(self, op_id: str, answer: Answer) -> None:
        count = sum(leased.last - leased.first + 1 for leased in answer.messages)
        must_wait = answer.reason in WAIT_REASONS
        self._ended(op_id, count, REFUSED_PAUSE_S if must_wait else 0.0)
        if not must_wait and answer.reason not in POP_RESULTS:
            self._fail(Refused(answer))
        messages = self._pops.lease(answer, is_renewed=self._leases.is_renewing)
        if messages:
            self._hand_out.add(messages)

    def _ended(self, op_id: str, got_count: int, pause_s: float) -> PlannedPop:
        """Record that a pop is no longer in flight."""
        with self._changed:
            pop = self._in_flight.pop(op_id)
            planned = pop.planned
            self._window.pop_ended(
                asked_count=planned.max_messages,
                got_count=got_count,
                has_worker_waited=self._hand_out.wait_count > pop.wait_count,
            )
            not_before_s = time.monotonic() + pause_s if pause_s else 0.0
            self._queues.ended(
                planned.queue, asked_count=planned.max_messages, got_count=got_count, not_before_s=not_before_s
            )
        return planned
