"""Sends what is to go to each queue in order, one batch at a time, and tells every sender what became of its message.

```
submit ─> Accumulator ─> guard: due? ─> queue of batches ─> Writer ─> Kafka
               │  full: at once            ^   one load on its way       │
               │                           └── alone, and again: what was not written
               └─ account <── results: futures <── outcomes of the batch <──┘
```

The guard hands batches over and waits for none of them; results come on a thread of their own, so that a slow or
throwing callback holds up neither the guard nor Kafka.

Order: what goes to a queue next goes when all that went before is answered, so what has to be sent again can go ahead
of it. Batches that are ready together go as one *load*, unless they have a message that Kafka may find too large, or
Kafka has refused one for the queue lately. Should one of a load be refused and a later one be written, a message of the
former with the same key as one of the latter is not sent again.
"""

from __future__ import annotations

import enum
import logging
import threading
import time
from collections import defaultdict, deque
from itertools import count
from queue import SimpleQueue
from typing import TYPE_CHECKING, Protocol

import msgspec

from popstream.errors import ClientClosed, NotWritten, OutcomeUnknown
from popstream.send.accumulator import Accumulator
from popstream.send.outgoing import is_in_order

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from popstream.outcome import SendResult
    from popstream.send.accumulator import BatchLimits, OpenBatch
    from popstream.send.outgoing import Destination, Order, Outgoing

__all__ = ["NOT_ASKED", "OrderedSender", "Retry", "SendOutcome", "Shipment", "Writer"]

LOG = logging.getLogger(__name__)

LATE = "Kafka did not take the message in time: it was busy, or away"
CLOSED = "the producer was closed before the message was written"
OVERTAKEN = "Kafka refused the batch of the message, and one that is to follow it is written"
RETRY_AFTER_S = 0.1
NEVER_S = float("inf")
ON_ITS_WAY_PART = 8
"""Of the account, at most such a part is on its way, in copies of kafka-python's."""
CAREFUL_LOADS = 100
"""After a refusal the batches of a queue go one by one for so long."""
LOAD_BYTES_MAX = 256 * 1024
"""Batches of fewer bytes together are one load; one that is longer is a load by itself."""


class Shipment(msgspec.Struct, eq=False):
    """Messages that are handed to Kafka together, for one queue."""

    topic: str
    queue_id: int
    wait_for_store: bool
    messages: list[Outgoing]
    tag: str | None = None
    is_unit: bool = False
    """One record is to carry all of them."""
    is_by_itself: bool = False
    """It was refused beside others, and is to go with none."""
    outcomes: Sequence[SendOutcome] | None = None
    kafka: object = None
    """What it was handed to."""

    @property
    def body_bytes(self) -> int:
        """Length of all values."""
        return sum(outgoing.message.body_bytes for outgoing in self.messages)

    def may_share(self, message_bytes_max: int) -> bool:
        """Whether others may be on their way with it."""
        return not self.is_by_itself and all(one.message.body_bytes <= message_bytes_max for one in self.messages)


class Retry(enum.Enum):
    """Whether a message is tried again; only one of which it is proven that it was not written."""

    NO = "no"
    ALONE = "alone"
    """By itself it may be written, or a little later."""
    TOGETHER = "together"
    """Kafka was not asked yet: nothing is said against its batch."""


class SendOutcome(msgspec.Struct, frozen=True):
    """What became of a message.

    Attributes:
        result: Where it is written.
        error: Why that is not known, or known not to be so.
        retry: Whether that is its end.
    """

    result: SendResult | None = None
    error: Exception | None = None
    retry: Retry = Retry.NO


NOT_ASKED = SendOutcome(retry=Retry.TOGETHER)


class Writer(Protocol):
    """Hands messages to Kafka."""

    def write(self, shipment: Shipment, on_done: Callable[[Sequence[SendOutcome]], None]) -> bool:
        """Begin; `on_done` is called once, with the outcome of each message, from any thread. Neither waits nor raises.

        False: Kafka was not asked, and nothing that comes behind is to be tried before.
        """

    def give_up(self, shipment: Shipment) -> None:
        """Nobody waits any longer for `on_done` of a shipment."""

    def queue_ids(self, topic: str) -> Sequence[int]:
        """The queues that a message may go to which asks for none; without waiting."""


class _Queue(msgspec.Struct, eq=False):
    """What is to go to a queue. `not_before_s`: the last try failed, and the next one is to come later."""

    waiting: deque[Shipment]
    load: list[Shipment] = []
    load_bytes: int = 0
    load_until_s: float = 0.0
    not_before_s: float = 0.0
    careful_loads: int = 0

    def next_load(self, until_s: float, message_bytes_max: int) -> list[Shipment]:
        """Take the first that wait, as many as may go together; they are on their way by this, until then."""
        self.load_until_s = until_s
        first = self.waiting.popleft()
        self.load, self.load_bytes = [first], first.body_bytes
        if self.careful_loads or not first.may_share(message_bytes_max):
            return self.load
        while self.waiting and self.waiting[0].wait_for_store == first.wait_for_store:
            next_bytes = self.waiting[0].body_bytes
            if self.load_bytes + next_bytes > LOAD_BYTES_MAX or not self.waiting[0].may_share(message_bytes_max):
                break
            self.load.append(self.waiting.popleft())
            self.load_bytes += next_bytes
        return self.load


class OrderedSender:
    """The part of a producer between `send` and Kafka. Safe for use by many threads.

    Args:
        name: Begins the names of its two threads.
        limits: When messages that wait for others are sent.
        writer: Hands them to Kafka.
        answer_timeout_s: A load without an answer for so long is of unknown outcome, and the next one goes.
    """

    def __init__(self, name: str, limits: BatchLimits, writer: Writer, *, answer_timeout_s: float = 60.0) -> None:
        self._writer = writer
        self._answer_timeout_s = answer_timeout_s
        self._accumulator = Accumulator(limits)
        self._lock = threading.Lock()
        self._for_guard = threading.Condition(self._lock)
        self._for_flush = threading.Condition(self._lock)
        self._queues: dict[tuple[str, int], _Queue] = {}
        self._turns: defaultdict[str, count[int]] = defaultdict(count)
        self._epoch = 0
        self._open_counts = {0: 0}
        self._is_closed = False
        self._done: SimpleQueue[tuple[Shipment, Sequence[SendOutcome]] | None] = SimpleQueue()
        self._guard = threading.Thread(target=self._run_guard, name=f"{name}-guard", daemon=True)
        self._results = threading.Thread(target=self._run_results, name=f"{name}-results", daemon=True)
        self._guard.start()
        self._results.start()

    @property
    def account_bytes(self) -> int:
        """What the messages without a result take in memory, about."""
        return self._accumulator.account_bytes

    def submit(self, destination: Destination, outgoing: Outgoing, *, is_waited: bool, is_alone: bool = False) -> None:
        """Send a message, with others unless it is to go alone. Its future is set by another thread.

        When the account is full it goes alone too, and this waits for its result.

        Raises:
            ClientClosed: `close` was called.
        """
        with self._lock:
            has_room = self._open(outgoing)
            if has_room and not is_alone:
                was_idle = self._accumulator.next_due_s() is None
                ready = self._accumulator.add(destination, outgoing, time.monotonic(), is_waited=is_waited)
                for batch in ready:
                    self._put_batch(batch)
                if was_idle or ready:
                    self._for_guard.notify()
                return
            self._put_at_once(destination, [outgoing])
        if not has_room:
            self._wait_for(outgoing)

    def submit_batches(self, batches: Sequence[tuple[Destination, list[Outgoing]]]) -> None:
        """Send messages together and at once, behind all that was submitted for their queues.

        Raises:
            ClientClosed: `close` was called.
        """
        with self._lock:
            rooms = [self._open(outgoing) for _, messages in batches for outgoing in messages]
            for destination, messages in batches:
                self._put_at_once(destination, messages)
        if not all(rooms):
            for _, messages in batches:
                self._wait_for(messages[-1])

    @property
    def is_in_callback(self) -> bool:
        """Whether this is the thread that brings the results: it must not wait for one."""
        return threading.current_thread() is self._results

    def flush(self, timeout_s: float) -> bool:
        """Send what waits for company, and wait until all that was submitted before has its result; whether it has."""
        with self._lock:
            for batch in self._accumulator.take_all():
                self._put_batch(batch)
            self._for_guard.notify()
            before, self._epoch = self._epoch, self._epoch + 1
            self._open_counts[self._epoch] = 0
            self._forget_epochs()
            return self._for_flush.wait_for(lambda: min(self._open_counts) > before, timeout_s)

    def close(self) -> None:
        """Hand over nothing more. What is still here is not written, and its senders are told so."""
        with self._lock:
            self._is_closed = True
            for batch in self._accumulator.take_all():
                self._put_batch(batch)
            left = [shipment for found in self._queues.values() for shipment in found.waiting]
            for found in self._queues.values():
                found.waiting.clear()
            self._for_guard.notify()
        self._guard.join()
        for shipment in left:
            self._tell(
                [(outgoing, SendOutcome(error=_not_written(outgoing, CLOSED))) for outgoing in shipment.messages]
            )

    def end(self) -> None:
        """After `close`, when the writer tells no more outcomes: wait until every sender is told."""
        self._done.put(None)
        self._results.join()
        unanswered = [
            shipment for found in self._queues.values() for shipment in found.load if shipment.outcomes is None
        ]
        for shipment in unanswered:
            error = OutcomeUnknown("the producer was closed before Kafka answered", subject=shipment.topic)
            self._take(shipment, [SendOutcome(error=error)] * len(shipment.messages))

    def _wait_for(self, outgoing: Outgoing) -> None:
        """Hold up who sends more than there is room for; but not the thread that brings the results."""
        if not self.is_in_callback:
            outgoing.future.exception()

    # With the lock held.

    def _open(self, outgoing: Outgoing) -> bool:
        """Take responsibility for a message; False: the account is full."""
        if self._is_closed:
            raise ClientClosed("the producer is closed", subject=outgoing.message.topic)
        has_room = self._accumulator.reserve(outgoing)
        outgoing.epoch = self._epoch
        self._open_counts[self._epoch] += 1
        return has_room

    def _put_at_once(self, destination: Destination, messages: list[Outgoing]) -> None:
        for batch in self._accumulator.take_queue(destination.topic, destination.queue_id):
            self._put_batch(batch)
        self._put(destination, messages)
        self._for_guard.notify()

    def _put_batch(self, batch: OpenBatch) -> None:
        self._put(batch.destination, batch.messages)

    def _put(self, destination: Destination, messages: list[Outgoing]) -> None:
        queue_id = destination.queue_id
        if queue_id is None:
            queue_ids = self._writer.queue_ids(destination.topic)
            # One queue for the whole batch, another one for the next (RocketMQ: the round-robin of the producer).
            queue_id = queue_ids[next(self._turns[destination.topic]) % len(queue_ids)] if queue_ids else 0
        found = self._queues.setdefault((destination.topic, queue_id), _Queue(deque()))
        is_unit = len(messages) > 1 and destination.is_batch_topic
        found.waiting.append(
            Shipment(destination.topic, queue_id, destination.wait_for_store, messages, destination.tag, is_unit)
        )

    def _take_loads(self) -> tuple[list[list[Shipment]], float | None]:
        """The loads that are to be handed over now, and when to look again."""
        now_s = time.monotonic()
        for batch in self._accumulator.take_due(now_s):
            self._put_batch(batch)
        loads: list[list[Shipment]] = []
        due_s = [] if (batch_due_s := self._accumulator.next_due_s()) is None else [batch_due_s]
        on_its_way_bytes = sum(found.load_bytes for found in self._queues.values() if found.load)
        for queue, found in list(self._queues.items()):
            if found.load:
                if found.load_until_s <= now_s:
                    self._give_up(found)
                elif found.load_until_s < NEVER_S:
                    due_s.append(found.load_until_s)
                continue
            if not found.waiting:
                continue
            if found.not_before_s > now_s:
                due_s.append(found.not_before_s)
                continue
            # kafka-python has copies of what is on its way; the first load goes however long it is.
            if on_its_way_bytes and on_its_way_bytes >= self._accumulator.limits.total_bytes_max // ON_ITS_WAY_PART:
                continue
            loads.append(found.next_load(now_s + self._answer_timeout_s, self._accumulator.limits.batch_bytes_max))
            on_its_way_bytes += found.load_bytes
            self._queues[queue] = self._queues.pop(queue)  # the others are asked first the next time
        return loads, min(due_s, default=None)

    def _give_up(self, found: _Queue) -> None:
        """Wait no longer for an answer: kafka-python (3.0.12) owes it for as long as it waits for a producer id."""
        found.load_until_s = NEVER_S
        for shipment in found.load:
            if shipment.outcomes is None:
                error = OutcomeUnknown("Kafka did not answer in time", subject=shipment.topic)
                self._done.put((shipment, [SendOutcome(error=error)] * len(shipment.messages)))
                self._writer.give_up(shipment)

    def _forget_epochs(self) -> None:
        for epoch in [epoch for epoch, left in self._open_counts.items() if not left and epoch < self._epoch]:
            del self._open_counts[epoch]

    # The guard.

    def _run_guard(self) -> None:
        is_going = True
        while is_going:
            try:
                is_going = self._guard_once()
            except Exception:
                LOG.exception("what is to be sent could not be looked at")
                time.sleep(RETRY_AFTER_S)

    def _guard_once(self) -> bool:
        """Hand over what is due, or wait for something; False: it is closed."""
        with self._lock:
            loads, due_s = self._take_loads()
            if not loads:
                if not self._is_closed:
                    self._for_guard.wait(None if due_s is None else max(0.0, due_s - time.monotonic()))
                return not self._is_closed
        for load in loads:
            for number, shipment in enumerate(load, 1):
                if not self._hand_over(shipment):
                    for behind in load[number:]:
                        self._done.put((behind, [NOT_ASKED] * len(behind.messages)))
                    break
        return True

    def _hand_over(self, shipment: Shipment) -> bool:
        """Give a shipment to Kafka; False: that is not to be asked now."""
        now_s = time.monotonic()
        if min(outgoing.deadline_s for outgoing in shipment.messages) <= now_s:
            # What is late is not handed over; what is not goes on, in its order.
            outcomes = [
                SendOutcome(error=_not_written(outgoing, LATE)) if outgoing.deadline_s <= now_s else NOT_ASKED
                for outgoing in shipment.messages
            ]
            self._done.put((shipment, outcomes))
            return False
        try:
            return self._writer.write(shipment, lambda outcomes: self._done.put((shipment, outcomes)))
        except Exception as error:
            LOG.exception("%d messages to %s could not be handed over", len(shipment.messages), shipment.topic)
            unknown = OutcomeUnknown(f"a message could not be handed over: {error!r}", subject=shipment.topic)
            self._done.put((shipment, [SendOutcome(error=unknown)] * len(shipment.messages)))
            return True

    # The results.

    def _run_results(self) -> None:
        while (done := self._done.get()) is not None:
            self._take(*done)

    def _take(self, shipment: Shipment, outcomes: Sequence[SendOutcome]) -> None:
        """Note the outcomes of a shipment; those of its load are told when all are known."""
        if shipment.outcomes is not None:
            return  # this comes after it was given up
        shipment.outcomes = outcomes
        found = self._queues[shipment.topic, shipment.queue_id]
        if any(one.outcomes is None for one in found.load):
            return
        told, again = _judge(found.load)
        with self._lock:
            if self._is_closed:
                told += [
                    (outgoing, SendOutcome(error=_not_written(outgoing, CLOSED)))
                    for one in again
                    for outgoing in one.messages
                ]
                again = []
            found.waiting.extendleft(reversed(again))
            is_as_it_was = bool(again) and len(again[0].messages) == len(found.load[0].messages)
            found.not_before_s = time.monotonic() + RETRY_AFTER_S if is_as_it_was else 0.0
            was_refused = any(one.is_by_itself for one in again)
            found.careful_loads = CAREFUL_LOADS if was_refused else max(0, found.careful_loads - 1)
            found.load = []
            self._for_guard.notify()
        self._tell(told)

    def _tell(self, told: Sequence[tuple[Outgoing, SendOutcome]]) -> None:
        with self._lock:
            for outgoing, _ in told:
                self._accumulator.release(outgoing)
        for outgoing, outcome in told:
            try:
                if outcome.result is not None:
                    outgoing.future.set_result(outcome.result)
                else:
                    outgoing.future.set_exception(outcome.error)
            except BaseException:
                LOG.exception("a callback of a message to %s raised", outgoing.message.topic)
        with self._lock:
            for outgoing, _ in told:
                self._open_counts[outgoing.epoch] -= 1
            self._forget_epochs()
            self._for_flush.notify_all()


def _judge(load: Sequence[Shipment]) -> tuple[list[tuple[Outgoing, SendOutcome]], list[Shipment]]:
    """Whom of a load to tell what, and what to send again ahead of all that waits, in order."""
    told: list[tuple[Outgoing, SendOutcome]] = []
    again: list[Shipment] = []
    overtaken: set[bytes | Order] = set()
    for shipment in reversed(load):
        left: list[Outgoing] = []
        outcomes = shipment.outcomes or ()
        for outgoing, outcome in zip(reversed(shipment.messages), reversed(outcomes), strict=True):
            outgoing.last_error = outcome.error or outgoing.last_error
            if outcome.retry is Retry.NO:
                told.append((outgoing, outcome))
                if outcome.result is not None or isinstance(outcome.error, OutcomeUnknown):
                    overtaken.add(outgoing.message.order_key)
            elif is_in_order(outgoing.message.order_key, overtaken):
                told.append((outgoing, SendOutcome(error=_not_written(outgoing, OVERTAKEN))))
            else:
                left.append(outgoing)
        left.reverse()
        if left and all(outcome.retry is not Retry.ALONE for outcome in outcomes):
            again.append(msgspec.structs.replace(shipment, messages=left, outcomes=None))
        else:
            # So that one which Kafka refuses fails no other.
            again += (
                msgspec.structs.replace(shipment, messages=[one], is_unit=False, is_by_itself=True, outcomes=None)
                for one in reversed(left)
            )
    return told[::-1], again[::-1]


def _not_written(outgoing: Outgoing, why: str) -> NotWritten:
    text = why if outgoing.last_error is None else f"{why}; the last try: {outgoing.last_error}"
    error = NotWritten(text, subject=outgoing.message.topic)
    error.__cause__ = outgoing.last_error
    return error
