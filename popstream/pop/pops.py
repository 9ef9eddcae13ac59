"""The pops of one consumer that are in flight, and the leases that their answers bring.

```
send ─> answer ─> lease: messages without records, held ─> RecordFiller: records ─> messages to hand out
```
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from popstream.errors import ClientClosed
from popstream.exchange.transport import new_op_id
from popstream.message import Message
from popstream.outcome import ReceiptHandle
from popstream.pop.own_returns import OwnReturns
from popstream.wire.command import Cancel, ReturnClient
from popstream.wire.queue_name import QueueName
from popstream.wire.reason import Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from concurrent.futures import Future

    from popstream.exchange.transport import Transport
    from popstream.lease.leases import Leases
    from popstream.lease.retry_rules import RetryRules
    from popstream.message import Settler
    from popstream.pop.own_returns import OwnReturn
    from popstream.pop.record_filler import RecordFiller
    from popstream.wire.answer import Answer
    from popstream.wire.command import Pop

__all__ = ["POLL_MS_SHARED", "POP_RESULTS", "Pops"]

LOG = logging.getLogger(__name__)

POLL_MS_SHARED = 1_000
"""Poll time while there is room for fewer pops than queues: a pop that finds nothing makes way for another queue."""

POP_RESULTS = frozenset(
    (
        Reason.OK,
        Reason.NO_MESSAGE,
        Reason.POLLING_TIMEOUT,
        Reason.POLLING_FULL,
        Reason.QUOTA_EXCEEDED,
        Reason.CANCELLED,
    )
)
"""Reasons of an answer that are results of a pop, not errors; all but OK lease nothing."""


class Pops:
    """Sends the pops of one consumer, and turns their answers into leases. Safe for use by many threads.

    Args:
        transport: Carries the operations.
        leases: The leases of the consumer.
        filler: Fetches the records of what was leased.
        client_id: Name of the consumer.
        settler: Carries out the methods of the messages.
        retries: What the pops declare.
        releases_earlier_of: (group, client_id) whose earlier leases of a queue are released before the first pop of it.
    """

    def __init__(
        self,
        transport: Transport,
        leases: Leases,
        filler: RecordFiller,
        *,
        client_id: str,
        settler: Settler,
        retries: RetryRules,
        releases_earlier_of: tuple[str, str] | None,
    ) -> None:
        self.filler = filler
        self._transport = transport
        self._leases = leases
        self._client_id = client_id
        self._settler = settler
        self._retries = retries
        self._releases_earlier_of = releases_earlier_of
        self._returned: set[QueueName] = set()
        self._own_returns = OwnReturns()
        self._changed = threading.Condition()
        self._in_flight: dict[str, QueueName] = {}
        self._is_closing = False

    def send(self, command: Pop, timeout_ms: int | None = None) -> Future[Answer]:
        """Send a pop; it is in flight until `ended` is called with its op_id.

        Raises:
            ClientClosed: The consumer or its transport is closed.
        """
        op_id = command.op_id or new_op_id()
        queue = (command.topic, command.queue_id)
        with self._changed:
            if self._is_closing:
                raise ClientClosed.of("consumer", self._client_id)
            if self._releases_earlier_of is not None and queue not in self._returned:
                group, client_id = self._releases_earlier_of
                returned = ReturnClient(v=1, topic=queue[0], queue_id=queue[1], group=group, client_id=client_id)
                answered = self._transport.submit(returned)
                own = self._own_returns.begin(queue, sent_before=frozenset())
                answered.add_done_callback(partial(self._on_returned, own))
                self._returned.add(queue)
            declaring = self._retries.declared_by(msgspec.structs.replace(command, op_id=op_id))
            answered = self._transport.submit(declaring, timeout_ms=timeout_ms)
            self._in_flight[op_id] = queue
        return answered

    def ended(self, op_id: str) -> None:
        """Record that a pop is no longer in flight: its leases are held, or it was abandoned."""
        with self._changed:
            self._in_flight.pop(op_id, None)
            self._changed.notify_all()

    def abandon(self, topic: str, queue_id: int, op_id: str) -> None:
        """Cancel a pop whose answer is not awaited; its messages are released without counting the attempt.

        Where that cannot be sent it is logged: the messages come again when their leases end.
        """
        try:
            self._transport.post(Cancel(v=1, topic=topic, queue_id=queue_id, target_op_id=op_id))
        except Exception:
            LOG.warning(
                "could not cancel pop %s on %s/%d: what it leases comes again when the lease ends",
                *(op_id, topic, queue_id),
                exc_info=True,
            )

    def cancel(self, op_ids: Iterable[str]) -> None:
        """Cancel pops in flight; each of them is still answered."""
        with self._changed:
            in_flight = [(op_id, self._in_flight[op_id]) for op_id in op_ids if op_id in self._in_flight]
        for op_id, (topic, queue_id) in in_flight:
            self._transport.submit(Cancel(v=1, topic=topic, queue_id=queue_id, target_op_id=op_id))

    def close(self, timeout_s: float) -> None:
        """Send no more pops, cancel those in flight, and wait until all have ended."""
        with self._changed:
            self._is_closing = True
            op_ids = list(self._in_flight)
        self.cancel(op_ids)
        with self._changed:
            self._changed.wait_for(lambda: not self._in_flight, timeout_s)

    @contextmanager
    def returning(self, queue: QueueName) -> Iterator[Callable[[Answer], None]]:
        """Renew and hold no lease of a queue any more that the block releases, nor what pops before it bring later.

        The block calls what this returns with the answer; when it raises, the leases are held as before.
        """
        with self._changed:
            sent_before = frozenset(op_id for op_id, other in self._in_flight.items() if other == queue)
        own = self._own_returns.begin(queue, sent_before=sent_before)
        answers: list[Answer] = []
        try:
            with self._leases.returning(queue):
                yield answers.append
        finally:
            self._end_return(own, answers[0] if answers else None)

    def lease(self, answer: Answer, *, is_renewed: bool) -> list[Message]:
        """Return the messages that an answer leases, without their records; they are held from now on.

        None are returned if they were released since (`returning`).
        """
        if not answer.messages:
            return []
        handle = ReceiptHandle(answer.handle or "")
        pop_time_ms = answer.pop_time_ms or 0
        first_lease_ms = answer.invisible_time_ms or 0
        next_visible_time_ms = pop_time_ms + first_lease_ms
        messages = [
            Message(
                topic=answer.topic,
                queue_id=answer.queue_id,
                queue_offset=queue_offset,
                handle=handle,
                attempt=leased.attempt,
                pop_time_ms=pop_time_ms,
                next_visible_time_ms=next_visible_time_ms,
                settler=self._settler,
            )
            for leased in answer.messages
            for queue_offset in range(leased.first, leased.last + 1)
        ]
        until_s = self._transport.broker_clock.local_s(next_visible_time_ms)
        hold = partial(
            self._leases.held.hold,
            messages,
            until_s,
            time.monotonic(),
            first_lease_ms=first_lease_ms,
            is_renewed=is_renewed,
        )
        if not self._own_returns.hold(answer.op_id, messages, hold):
            queue = (answer.topic, answer.queue_id)
            LOG.info("%d messages of %s/%d were released before their pop was answered", len(messages), *queue)
            return []
        self._leases.observers.popped(self._leases.group, answer.topic, len(messages))
        return messages

    def _end_return(self, own: OwnReturn, answer: Answer | None) -> None:
        decided_ms = answer.now_ms if answer is not None and answer.reason is Reason.OK else None
        if released := self._own_returns.end(own, decided_ms):
            self._leases.let_go(released)

    def _on_returned(self, own: OwnReturn, answered: Future[Answer]) -> None:
        error = answered.exception()
        # If it was sent again, after pops, it has released what these leased.
        self._end_return(own, None if error is not None else answered.result())
        if error is not None:
            LOG.warning("could not release the messages that an earlier process held: %s", error)
        elif answered.result().reason is Reason.NO_PERMISSION:
            if self._releases_earlier_of is not None:
                LOG.info("only an administrator may release what an earlier process held: its leases expire")
            self._releases_earlier_of = None  # nor of the other queues
        elif answered.result().released:
            LOG.info("released the messages that an earlier process held: %s", answered.result().released)
