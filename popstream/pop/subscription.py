"""Pops the queues of some topics ahead of their use, within bounds, and hands the messages out.

```
Visits ─> pops under way ─> popped sets, held, without records ─> take: records, within the byte bound ─> caller
   ^  room: prefetch - under way - held                                                                   │
   └───────────────────────────── a message was finished or given back ──────────────────────────────────┘
```
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, get_args

import msgspec

from popstream.errors import ClientClosed, Refused
from popstream.exchange.transport import new_op_id
from popstream.lease.entries import RETURNED, Change
from popstream.pop.popped_set import PoppedSet
from popstream.pop.pops import LATE, POP_RESULTS, UNREADABLE, Filled
from popstream.pop.visits import Visits
from popstream.wire.command import Init, Pop
from popstream.wire.failures import Corrupt, Invalid, PopstreamError, Unavailable
from popstream.wire.limits import POP_MESSAGES_MAX
from popstream.wire.reason import Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    from popstream.lease.held_messages import HeldMessages
    from popstream.lease.settlement import Settlement
    from popstream.message import Message
    from popstream.outcome import QueueKey
    from popstream.pop.notifications import Listen
    from popstream.pop.pops import Pops
    from popstream.pop.visits import Visit
    from popstream.wire.answer import Answer

__all__ = ["Subscription", "SubscriptionOptions"]

LOG = logging.getLogger(__name__)

POLL_MS_MAX = 10_000
POLL_MS_SHARED = 1_000
"""While some queue is left out for want of room, a pop that brings nothing makes way for it after so long."""
LOOK_FOR_QUEUES_S = 30.0
UNKNOWN_PAUSE_S = 1.0
TROUBLE_PAUSE_S = 2.0
PART_COUNT_MAX = 200
ROOM_PART = 8
ROOM_A_QUEUE = 4


class SubscriptionOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How messages come to a consumer that names topics.

    Args:
        order: Orderly consumption: a message of a queue is handed out when those before it are finished.
        prefetch: At most so many messages are popped, or asked for, and not finished.
        prefetch_bytes: At most so many bytes of records are in hand, but for a single record that is longer.
        invisible_time_ms: Length of a lease; a longer one finds out later that a process was killed.
        tags: Only messages with one of these tags, by their hash.
        init: Where the group begins at a queue that it has never popped: at the queue's first message ("min"), or
            behind the last one there is when its first pop is decided ("max"). A queue that is found later than the
            topic's others, because it was added, begins at its first message in either case.
    """

    order: bool = False
    prefetch: int = 1_000
    prefetch_bytes: int = 64 * 1024 * 1024
    invisible_time_ms: int = 60_000
    tags: list[int] | None = None
    init: Init = "min"

    def __post_init__(self) -> None:
        """Refuse what cannot work.

        Raises:
            Invalid: A bound is not positive, or `init` is neither "min" nor "max".
        """
        wrong = [
            f"{name} must be at least 1, not {getattr(self, name)}"
            for name in ("prefetch", "prefetch_bytes", "invisible_time_ms")
            if getattr(self, name) < 1
        ]
        if self.init not in get_args(Init):
            wrong.append(f'init must be "min" or "max", not {self.init!r}')
        if wrong:
            message = "a subscription cannot work so"
            raise Invalid(message, subject="subscription", details=wrong)


class Subscription:
    """Messages of several topics as they come. `take` is safe for use by many threads.

    Args:
        name: Name of its thread.
        group: The consumer group.
        client_id: For the audit.
        topics: What to pop from.
        options: Bounds and mode.
        is_renewed: Whether the leases are renewed.
        pops: Sends and fills.
        held: Counts what is in hand.
        settlement: Gives back what is not handed out.
        queues_of: Asks for the queues of a topic.
        listen: Begins to call its argument for each queue that becomes poppable; gives what ends that. It is used when
            there is not room enough to wait at every queue.
    """

    def __init__(
        self,
        name: str,
        *,
        group: str,
        client_id: str,
        topics: Sequence[str],
        options: SubscriptionOptions,
        is_renewed: bool,
        pops: Pops,
        held: HeldMessages,
        settlement: Settlement,
        queues_of: Callable[[str], Sequence[int]],
        listen: Listen,
    ) -> None:
        """Start the thread; it is a daemon, and `stop` ends it."""
        self._group = group
        self._client_id = client_id
        self._options = options
        self._is_renewed = is_renewed
        self._pops = pops
        self._held = held
        self._settlement = settlement
        self._queues_of = queues_of
        self._listen = listen
        self._stop_listening: Callable[[], None] | None = None
        self._changed = threading.Condition()
        self._visits = Visits()
        self._look_at_s = dict.fromkeys(topics, 0.0)
        self._not_found: set[str] = set()
        """Topics whose trouble has been told."""
        self._first_queues: dict[str, frozenset[int]] = {}
        """The queues that each topic had when it was first found."""
        self._asked: dict[str, Visit] = {}
        self._answers: deque[tuple[str, Future[Answer]]] = deque()
        self._sets: deque[PoppedSet] = deque()
        self._ready: deque[Message] = deque()
        self._reserved_bytes = 0
        self._longest_bytes = 0
        self._failure: BaseException | None = None
        self._is_stopped = False
        self._is_cancelled = False
        self._is_abandoned = False
        self._watch_no_more = held.on_release(self._wake)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def is_stopped(self) -> bool:
        """Whether nothing more is handed out."""
        return self._is_stopped

    @property
    def asked_count(self) -> int:
        """Sum of what the pops under way may bring."""
        return sum(visit.max_messages for visit in list(self._asked.values()))

    def notified(self, queue: QueueKey) -> None:
        """Something can be popped from a queue of this group."""
        with self._changed:
            self._visits.notified(queue)
            self._changed.notify_all()

    def take(self, count: int, timeout_s: float | None = None) -> list[Message]:
        """The next messages, at least one and at most `count`; of an orderly queue those of one pop, in order.

        Waits for them. Nothing comes back after `stop`, or when the time is over.

        Raises:
            Refused: The job does not let this group pop.
            Invalid: A topic does not exist, or `count` is not positive.
        """
        if count < 1:
            message = f"at least one message must be taken, not {count}"
            raise Invalid(message, subject=self._client_id)
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            with self._changed:
                claimed = self._wait_for_some(count, deadline_s)
            if claimed is None:
                return []
            messages, popped, reserved_bytes = claimed
            if popped is not None:
                messages = self._fill(messages, popped, reserved_bytes, count)
            if messages:
                self._held.own(messages, threading.current_thread())
                return messages

    def give_back_rest(self, messages: Sequence[Message], first: Change, others: Change = RETURNED) -> None:
        """Give back messages that were taken, and of an orderly queue what else its pop brought, in one request.

        Args:
            messages: Of one queue, or of a concurrent group.
            first: How the first of them goes back.
            others: How those after it do; by default as if they had not come.
        """
        changes = [(message, first if place == 0 else others) for place, message in enumerate(messages)]
        with self._changed:
            for popped in self._sets:
                if messages and popped.holds(messages[0].leased):  # of an orderly queue all are of one pop
                    changes += [(message, RETURNED) for message in popped.rest()]
        self._settlement.change(changes, keeps=False)

    def stop(self) -> None:
        """Hand out nothing more; what was not handed out goes back, and no pop waits any longer."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()

    def close(self, timeout_s: float) -> None:
        """Stop, and let the thread end, within the time: what is left is the owner's."""
        self.stop()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout_s)
        with self._changed:
            self._is_abandoned = True
            self._changed.notify_all()

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    # The caller's side.

    def _wait_for_some(
        self, count: int, deadline_s: float | None
    ) -> tuple[list[Message], PoppedSet | None, int] | None:
        """Messages that are ready, or a part of a set, its set, and the bytes its records may have; None: nothing."""
        while True:
            if self._failure is not None:
                raise self._failure
            if self._is_stopped:
                return None
            now_s = time.monotonic()
            while self._ready and (self._ready[0].is_settled or not self._held.is_live(self._ready[0], now_s)):
                self._ready.popleft()  # its lease is over, or its unit was given back: it comes again by itself
            if self._ready:
                taken = [self._ready.popleft() for _ in range(min(count, len(self._ready)))]
                return [message for message in taken if not message.is_settled], None, 0
            for popped in self._sets:
                if held_back := popped.next_out(count, partial(self._held.is_live, now_s=now_s)):
                    return held_back, None, 0
            claimed = self._claim(count, now_s)
            if claimed is not None:
                return claimed
            left_s = None if deadline_s is None else deadline_s - now_s
            if left_s is not None and left_s <= 0:
                return None
            self._changed.wait(left_s)

    def _claim(self, count: int, now_s: float) -> tuple[list[Message], PoppedSet, int] | None:
        """A part of one set whose records may be brought now, with bytes reserved for them."""
        in_use = self._held.payload_bytes + self._reserved_bytes
        if in_use and in_use + self._longest_bytes > self._options.prefetch_bytes:
            return None
        for popped in self._sets:
            if popped.is_ready:
                part_count = count if self._options.order else PART_COUNT_MAX
                part = popped.take_part(part_count, lambda message: self._held.is_live(message, now_s))
                if part:
                    # Half of what is free: others may want to bring records meanwhile.
                    free_bytes = self._options.prefetch_bytes - in_use
                    reserved_bytes = max(1, free_bytes // 2, min(free_bytes, self._longest_bytes))
                    self._reserved_bytes += reserved_bytes
                    return part, popped, reserved_bytes
        self._sets = deque(popped for popped in self._sets if not popped.is_over)
        return None

    def _fill(self, part: list[Message], popped: PoppedSet, reserved_bytes: int, count: int) -> list[Message]:
        """Bring the records of a part. Of a concurrent group they become ready for anyone, and none is given here."""
        filled = Filled([], [], 0, 0)
        try:
            filled = self._pops.fill(part, bytes_max=reserved_bytes)
        except PopstreamError as error:
            LOG.warning("%d leased messages cannot be handed out: %s", len(part), error)
            change = UNREADABLE if isinstance(error, Corrupt) else LATE
            self._settlement.change(((message, change) for message in part), keeps=False)
        except BaseException:
            self._settlement.change(((message, RETURNED) for message in part), keeps=False)
            raise
        finally:
            messages, behind = self._filled(part, popped, filled, reserved_bytes, count)
            self._return(behind)
        return messages

    def _filled(
        self, part: list[Message], popped: PoppedSet, filled: Filled, reserved_bytes: int, count: int
    ) -> tuple[list[Message], list[Message]]:
        """What the caller gets of a part, and what must go back."""
        with self._changed:
            self._reserved_bytes -= reserved_bytes
            self._longest_bytes = max(self._longest_bytes, filled.longest_bytes)
            behind = popped.filled(part, filled.left)
            going_back = set(map(id, behind))
            messages = [message for message in filled.messages if id(message.leased) not in going_back]
            if self._is_stopped:
                messages, behind = [], [*messages, *behind, *popped.rest()]
            elif not self._options.order:
                self._ready.extend(messages)
                messages = []
            else:
                messages = popped.hand_out(messages, count)
            self._changed.notify_all()
        return messages, behind

    def _return(self, messages: Sequence[Message]) -> None:
        """Give back what was not handed out, as if it had not come."""
        if messages:
            self._settlement.change(
                [(message, RETURNED) for message in messages if not message.is_settled], keeps=False
            )

    # The thread's side.

    def _run(self) -> None:
        try:
            self._look_for_queues()
            while (due := self._wait_for_work()) is not None:
                answers, visits = due
                for op_id, answered in answers:
                    self._on_answer(op_id, answered)
                self._return_broken()
                for visit in visits:
                    self._visit(visit)
                self._look_for_queues()
        except Exception as error:
            LOG.exception("%s pops no more", self._client_id)
            self._fail(error)
        finally:
            self._return_all()
            self._watch_no_more()
            if self._stop_listening is not None:
                self._stop_listening()

    def _fail(self, error: Exception) -> None:
        with self._changed:
            self._failure = self._failure or error
        self.stop()

    def _wait_for_work(self) -> tuple[list[tuple[str, Future[Answer]]], list[Visit]] | None:
        """Answers that came and visits to begin, after at most `UNKNOWN_PAUSE_S`; None: all is over."""
        with self._changed:
            visits = self._plan()
            if not self._answers and not visits:
                if self._is_abandoned or (self._is_stopped and not self._asked):
                    return None
                if self._is_cancelled or not self._is_stopped:
                    self._changed.wait(UNKNOWN_PAUSE_S)
                visits = self._plan()
            answers = list(self._answers)
            self._answers.clear()
            cancelled = list(self._asked) if self._is_stopped and not self._is_cancelled else []
            self._is_cancelled = self._is_stopped
        self._pops.cancel(cancelled)
        return answers, visits

    def _return_broken(self) -> None:
        """Orderly sets of which something comes again: the rest of them goes back, to come behind it."""
        with self._changed:
            behind = [message for popped in self._sets if popped.is_broken for message in popped.rest()]
        self._return(behind)

    def _return_all(self) -> None:
        """What was not handed out, when nothing is handed out any more."""
        with self._changed:
            behind = [*self._ready, *(message for popped in self._sets for message in popped.rest())]
            self._ready.clear()
        try:
            self._return(behind)
        except PopstreamError as error:
            LOG.warning("%d messages that were not handed out could not be given back: %s", len(behind), error)

    def _plan(self) -> list[Visit]:
        if self._is_stopped:
            return []
        room = self._options.prefetch - self.asked_count - len(self._held)
        # A pop for each message that is finished would be many small ones.
        if self._asked and room < self._options.prefetch // ROOM_PART:
            return []
        return self._visits.plan(min(room, POP_MESSAGES_MAX), time.monotonic())

    def _visit(self, visit: Visit) -> None:
        op_id, options = new_op_id(), self._options
        is_left_out = self._visits.waiting_count > 0
        topic, queue_id = visit.queue
        command = Pop(
            v=1,
            topic=topic,
            queue_id=queue_id,
            op_id=op_id,
            group=self._group,
            max_messages=visit.max_messages,
            invisible_time_ms=options.invisible_time_ms,
            order=options.order,
            poll_time_ms=POLL_MS_SHARED if is_left_out else POLL_MS_MAX,
            # A queue that was added since must lose nothing of what was sent before it was found.
            init=options.init if queue_id in self._first_queues.get(topic, ()) else "min",
            client_id=self._client_id,
            tags=options.tags,
        )
        with self._changed:
            self._asked[op_id] = visit
        try:
            self._pops.send(command).add_done_callback(lambda answered: self._arrived(op_id, answered))
        except ClientClosed:
            self._ended(op_id, 0, 0.0)
            self.stop()
            self._pops.ended(op_id)

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
            visit = self._ended(op_id, 0, TROUBLE_PAUSE_S)
            LOG.warning("a pop of %s/%d has no answer: %s", *visit.queue, error)
            self._pops.take_back(*visit.queue, op_id)
        self._pops.ended(op_id)

    def _take_in(self, op_id: str, answer: Answer) -> None:
        count = sum(leased.last - leased.first + 1 for leased in answer.messages)
        is_known = answer.reason not in (Reason.TOPIC_NOT_EXIST, Reason.POLLING_FULL)
        self._ended(op_id, count, 0.0 if is_known else UNKNOWN_PAUSE_S)
        if is_known and answer.reason not in POP_RESULTS:
            self._fail(Refused(answer))
        messages = self._pops.lease(answer, is_renewed=self._is_renewed)
        if messages:
            with self._changed:
                self._sets.append(PoppedSet(messages, is_orderly=self._options.order))
                self._changed.notify_all()

    def _ended(self, op_id: str, got_count: int, pause_s: float) -> Visit:
        """What a pop asked for is asked for no longer."""
        with self._changed:
            visit = self._asked.pop(op_id)
            not_before_s = time.monotonic() + pause_s if pause_s else 0.0
            self._visits.ended(
                visit.queue, asked_count=visit.max_messages, got_count=got_count, not_before_s=not_before_s
            )
        return visit

    def _look_for_queues(self) -> None:
        now_s = time.monotonic()
        for topic, look_at_s in self._look_at_s.items():
            if self._is_stopped or now_s < look_at_s:
                continue
            try:
                queue_ids = self._queues_of(topic)
            except Invalid as error:
                self._fail(error)
            except Unavailable as error:
                if topic not in self._not_found:
                    LOG.warning("the queues of %s cannot be found out, which is tried again: %s", topic, error)
                self._not_found.add(topic)
                self._look_at_s[topic] = now_s + TROUBLE_PAUSE_S
            else:
                self._not_found.discard(topic)
                self._first_queues.setdefault(topic, frozenset(queue_ids))
                with self._changed:
                    self._visits.add((topic, queue_id) for queue_id in queue_ids)
                self._look_at_s[topic] = now_s + LOOK_FOR_QUEUES_S
        if self._stop_listening is None and len(self._visits) * ROOM_A_QUEUE > self._options.prefetch:
            self._stop_listening = self._listen(self.notified)
