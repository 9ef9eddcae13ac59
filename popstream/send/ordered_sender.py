"""Sends the messages of each queue in order, one load at a time, and gives each sender the outcome of its message.

```
submit ─> Accumulator ─> send thread: due? ─> SendQueue ─> Writer ─> Kafka
               │  full: at once                 ^   one load in flight   │
               │                                └── not written: again   │
               └─ buffer <─── result thread: futures <── outcomes <──────┘
```

The send thread hands shipments over without waiting for their outcomes. Futures are completed on a thread of their own,
so that a slow or failing callback delays neither the send thread nor Kafka.

Order: the next load of a queue is sent when the one before it is answered, so messages that have to be sent again go
first. Batches that are ready together are one *load*, unless a message may be too large for Kafka, or Kafka has refused
one of the queue lately. When a batch of a load is refused and a later one is written, messages of the former whose key
is in the latter are not sent again.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections import deque
from queue import SimpleQueue
from typing import TYPE_CHECKING

from popstream.deadline import left_s
from popstream.errors import ClientClosed, OutcomeUnknown
from popstream.send.accumulator import Accumulator
from popstream.send.settle_load import settle_load
from popstream.send.shipment import NOT_ASKED, SendOutcome, SendQueue, Shipment, not_written
from popstream.wire.queue_name import QueueName

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from popstream.send.accumulator import BatchLimits, OpenBatch
    from popstream.send.outgoing import Destination, Outgoing, SendFuture
    from popstream.send.shipment import Writer

__all__ = ["OrderedSender"]

LOG = logging.getLogger(__name__)

LATE = "Kafka did not accept the message in time: it was busy, or did not answer"
CLOSED = "the producer was closed before the message was written"
RETRY_AFTER_S = 0.1
NEVER_S = float("inf")
IN_FLIGHT_PART = 8
"""At most this part of the buffer is in flight: kafka-python holds copies of it."""
FIRST_TURNS = 1 << 16
CAREFUL_LOADS = 100
"""After a refusal this many loads of the queue are one batch each."""


class OrderedSender:
    """Sends the messages of a producer. Safe for use by many threads.

    Args:
        name: Name of the producer, and prefix of the names of its two threads.
        limits: When messages that wait for others are sent.
        writer: Hands them to Kafka.
        answer_timeout_s: After this time without an answer a load has an unknown outcome, and the next one is sent.
    """

    def __init__(self, name: str, limits: BatchLimits, writer: Writer, *, answer_timeout_s: float = 60.0) -> None:
        self._name = name
        self._writer = writer
        self._answer_timeout_s = answer_timeout_s
        self._accumulator = Accumulator(limits)
        self._lock = threading.Lock()
        self._for_sends = threading.Condition(self._lock)
        self._for_flush = threading.Condition(self._lock)
        self._queues: dict[QueueName, SendQueue] = {}
        # Short-lived processes must not all begin at the first queue of a topic.
        self._turns: dict[str, int] = {}
        self._epoch = 0
        self._open_counts = {0: 0}
        self._is_closed = False
        self._done: SimpleQueue[tuple[Shipment, Sequence[SendOutcome]] | None] = SimpleQueue()
        self._send_thread = threading.Thread(target=self._run_sends, name=f"{name}-sends", daemon=True)
        self._result_thread = threading.Thread(target=self._run_results, name=f"{name}-results", daemon=True)
        self._send_thread.start()
        self._result_thread.start()

    def submit(self, destination: Destination, outgoing: Outgoing, *, is_waited: bool, is_alone: bool = False) -> None:
        """Send a message, with others unless `is_alone`; its future is completed by another thread.

        When the buffer is full, the message is sent alone; see `wait_for_room`.

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
                    self._for_sends.notify()
                return
            self._put_at_once(destination, [outgoing])

    def submit_batches(self, batches: Sequence[tuple[Destination, list[Outgoing]]]) -> None:
        """Send messages together and at once, after all messages that were submitted for their queues before.

        Raises:
            ClientClosed: `close` was called.
        """
        with self._lock:
            for _, messages in batches:
                for outgoing in messages:
                    self._open(outgoing)
            for destination, messages in batches:
                self._put_at_once(destination, messages)

    def wait_for_room(self, sent: Iterable[SendFuture]) -> None:
        """Block a sender until messages that had no room in the buffer have results, except on the result thread."""
        for future in sent:
            if not (future.had_room or self.is_in_callback):
                future.exception()

    @property
    def is_in_callback(self) -> bool:
        """Whether the caller is the result thread, which must not wait for a result."""
        return threading.current_thread() is self._result_thread

    def flush(self, timeout_s: float) -> bool:
        """Send the messages that wait for others, and wait for all results; return False after the time-out."""
        with self._lock:
            for batch in self._accumulator.take_all():
                self._put_batch(batch)
            self._for_sends.notify()
            before, self._epoch = self._epoch, self._epoch + 1
            self._open_counts[self._epoch] = 0
            self._forget_epochs()
            return self._for_flush.wait_for(lambda: min(self._open_counts) > before, timeout_s)

    def close(self) -> None:
        """Hand over nothing more; messages that were not handed over get `NotWritten`."""
        with self._lock:
            self._is_closed = True
            for batch in self._accumulator.take_all():
                self._put_batch(batch)
            left = [shipment for found in self._queues.values() for shipment in found.waiting]
            for found in self._queues.values():
                found.waiting.clear()
            self._for_sends.notify()
        self._send_thread.join()
        for shipment in left:
            self._complete([(outgoing, not_written(outgoing, CLOSED)) for outgoing in shipment.messages])

    def end(self) -> None:
        """Complete all futures; called after `close`, when the writer reports no more outcomes."""
        self._done.put(None)
        self._result_thread.join()
        unanswered = [
            shipment for found in self._queues.values() for shipment in found.load if shipment.outcomes is None
        ]
        for shipment in unanswered:
            error = OutcomeUnknown("the producer was closed before Kafka answered", subject=shipment.topic)
            self._take(shipment, [SendOutcome(error=error)] * len(shipment.messages))

    # The following are called with the lock held.

    def _open(self, outgoing: Outgoing) -> bool:
        """Add a message to the buffer and to the current epoch; return False when the buffer is full."""
        if self._is_closed:
            raise ClientClosed.of("producer", self._name)
        has_room = self._accumulator.reserve(outgoing)
        if not has_room:
            outgoing.future.had_room = False
        outgoing.epoch = self._epoch
        self._open_counts[self._epoch] += 1
        return has_room

    def _put_at_once(self, destination: Destination, messages: list[Outgoing]) -> None:
        for batch in self._accumulator.take_queue(destination.topic, destination.queue_id):
            self._put_batch(batch)
        self._put(destination, messages)
        self._for_sends.notify()

    def _put_batch(self, batch: OpenBatch) -> None:
        self._put(batch.destination, batch.messages)

    def _put(self, destination: Destination, messages: list[Outgoing]) -> None:
        if destination.queue_id is not None:
            self._put_shipment(destination, destination.queue_id, messages)
            return
        topic = destination.topic
        queue_ids = self._writer.queue_ids(topic) or (0,)
        turn = self._turns[topic] if topic in self._turns else _first_turn()
        if destination.is_batch_topic:
            # One queue for a whole unit, the next queue for the next one (RocketMQ: the producer's round robin).
            self._turns[topic] = turn + 1
            self._put_shipment(destination, queue_ids[turn % len(queue_ids)], messages)
            return
        self._turns[topic] = turn + len(messages)
        for place in range(min(len(queue_ids), len(messages))):
            dealt = messages[place :: len(queue_ids)]
            self._put_shipment(destination, queue_ids[(turn + place) % len(queue_ids)], dealt)

    def _put_shipment(self, destination: Destination, queue_id: int, messages: list[Outgoing]) -> None:
        found = self._queues.setdefault((destination.topic, queue_id), SendQueue(deque()))
        is_unit = len(messages) > 1 and destination.is_batch_topic
        found.waiting.append(
            Shipment(destination.topic, queue_id, destination.wait_for_store, messages, destination.tag, is_unit)
        )

    def _take_loads(self) -> tuple[list[list[Shipment]], float | None]:
        """Return the loads to hand over now, and when to look again."""
        now_s = time.monotonic()
        for batch in self._accumulator.take_due(now_s):
            self._put_batch(batch)
        loads: list[list[Shipment]] = []
        due_s = [] if (batch_due_s := self._accumulator.next_due_s()) is None else [batch_due_s]
        in_flight_bytes = sum(found.load_bytes for found in self._queues.values() if found.load)
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
            # The first load is sent whatever its size.
            if in_flight_bytes and in_flight_bytes >= self._accumulator.limits.total_bytes_max // IN_FLIGHT_PART:
                continue
            loads.append(found.next_load(now_s + self._answer_timeout_s, self._accumulator.limits.batch_bytes_max))
            in_flight_bytes += found.load_bytes
            self._queues[queue] = self._queues.pop(queue)  # other queues come first next time
        return loads, min(due_s, default=None)

    def _give_up(self, found: SendQueue) -> None:
        """Stop waiting for an answer, which kafka-python 3.0.12 may owe for ever without a producer id."""
        found.load_until_s = NEVER_S
        for shipment in found.load:
            if shipment.outcomes is None:
                error = OutcomeUnknown("Kafka did not answer in time", subject=shipment.topic)
                self._done.put((shipment, [SendOutcome(error=error)] * len(shipment.messages)))
                self._writer.give_up(shipment)

    def _forget_epochs(self) -> None:
        for epoch in [epoch for epoch, left in self._open_counts.items() if not left and epoch < self._epoch]:
            del self._open_counts[epoch]

    # The send thread.

    def _run_sends(self) -> None:
        is_open = True
        while is_open:
            try:
                is_open = self._send_once()
            except Exception:
                LOG.exception("could not send the messages that are due, retrying")
                time.sleep(RETRY_AFTER_S)

    def _send_once(self) -> bool:
        """Hand over the loads that are due, or wait for one; return False when the sender is closed."""
        with self._lock:
            loads, due_s = self._take_loads()
            if not loads:
                if not self._is_closed:
                    self._for_sends.wait(None if due_s is None else left_s(due_s))
                return not self._is_closed
        for load in loads:
            for number, shipment in enumerate(load, 1):
                if not self._hand_over(shipment):
                    for behind in load[number:]:
                        self._done.put((behind, [NOT_ASKED] * len(behind.messages)))
                    break
        return True

    def _hand_over(self, shipment: Shipment) -> bool:
        """Hand a shipment to Kafka; return False when later ones must wait."""
        now_s = time.monotonic()
        if min(outgoing.deadline_s for outgoing in shipment.messages) <= now_s:
            # Messages past their deadline are not handed over; the others are sent again in order.
            outcomes = [
                not_written(outgoing, LATE) if outgoing.deadline_s <= now_s else NOT_ASKED
                for outgoing in shipment.messages
            ]
            self._done.put((shipment, outcomes))
            return False
        try:
            return self._writer.write(shipment, lambda outcomes: self._done.put((shipment, outcomes)))
        except Exception as error:
            LOG.exception("could not hand over %d messages to %s", len(shipment.messages), shipment.topic)
            unknown = OutcomeUnknown(f"the message could not be handed over: {error!r}", subject=shipment.topic)
            self._done.put((shipment, [SendOutcome(error=unknown)] * len(shipment.messages)))
            return True

    # The result thread.

    def _run_results(self) -> None:
        while (done := self._done.get()) is not None:
            self._take(*done)

    def _take(self, shipment: Shipment, outcomes: Sequence[SendOutcome]) -> None:
        """Record the outcomes of a shipment; a load is settled when the outcomes of all its shipments are known."""
        if shipment.outcomes is not None:
            return  # it was given up before
        shipment.outcomes = outcomes
        found = self._queues[shipment.topic, shipment.queue_id]
        if any(one.outcomes is None for one in found.load):
            return
        settled, again = settle_load(found.load)
        with self._lock:
            if self._is_closed:
                settled += [(outgoing, not_written(outgoing, CLOSED)) for one in again for outgoing in one.messages]
                again = []
            found.waiting.extendleft(reversed(again))
            is_unchanged = bool(again) and len(again[0].messages) == len(found.load[0].messages)
            found.not_before_s = time.monotonic() + RETRY_AFTER_S if is_unchanged else 0.0
            was_refused = any(one.is_by_itself for one in again)
            found.careful_loads = CAREFUL_LOADS if was_refused else max(0, found.careful_loads - 1)
            found.load = []
            self._for_sends.notify()
        self._complete(settled)

    def _complete(self, settled: Sequence[tuple[Outgoing, SendOutcome]]) -> None:
        with self._lock:
            for outgoing, _ in settled:
                self._accumulator.release(outgoing)
        for outgoing, outcome in settled:
            try:
                if outcome.result is not None:
                    outgoing.future.set_result(outcome.result)
                else:
                    outgoing.future.set_exception(outcome.error)
            except BaseException:
                LOG.exception("a callback of a message to %s raised", outgoing.message.topic)
        with self._lock:
            for outgoing, _ in settled:
                self._open_counts[outgoing.epoch] -= 1
            self._forget_epochs()
            self._for_flush.notify_all()


def _first_turn() -> int:
    """Return where a sender begins in the queues of a topic, modulo their number."""
    return secrets.randbelow(FIRST_TURNS)
