"""The leases of one consumer: the messages that it holds, and all requests about them."""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import TYPE_CHECKING

from popstream.deadline import left_s
from popstream.errors import AnswerTimeout
from popstream.lease.entries import RELEASED_COUNTED
from popstream.lease.entry_sender import EntrySender
from popstream.lease.held_messages import HeldMessages
from popstream.lease.renewal import LeaseRenewer, RenewalPolicy
from popstream.lease.settlement import Settlement
from popstream.message import MessageState
from popstream.observer import Observers
from popstream.wire.queue_name import QueueName

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from popstream.exchange.transport import Transport
    from popstream.lease.entries import OutcomesFuture
    from popstream.lease.retry_rules import RetryRules
    from popstream.lease.settlement import Resender
    from popstream.message import Message

__all__ = ["Leases"]

LOG = logging.getLogger(__name__)


class Leases:
    """Wires the parts that hold, settle and renew leases, and finishes them in order. Safe for use by many threads.

    Args:
        transport: Carries the operations.
        group: The consumer group.
        client_id: Name of the consumer, for threads, logs and the audit.
        ack_delay_ms: How long acks wait for others of the same queue.
        batches_changes: Whether one record may change several messages.
        renewal: When leases are renewed; None renews none.
        retries: What becomes of messages whose handlers fail.
        resender: Sends failed messages of units again; None: their whole units are redelivered.
        observers: Are told what is popped and settled.

    Attributes:
        held: The messages that were popped and not settled yet.
        settlement: Acks, changes and rejects messages.
        is_renewing: Whether leases are renewed at all.
        group: The consumer group.
        observers: As above.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        group: str,
        client_id: str,
        ack_delay_ms: float,
        batches_changes: bool,
        renewal: RenewalPolicy | None,
        retries: RetryRules,
        resender: Resender | None,
        observers: Observers = Observers(),  # noqa: B008 - immutable
    ) -> None:
        self._client_id = client_id
        self.group = group
        self.observers = observers
        self.is_renewing = renewal is not None
        self.held = HeldMessages()
        self._entries = EntrySender(
            transport,
            group=group,
            client_id=client_id,
            ack_delay_ms=ack_delay_ms,
            held=self.held,
            batches_changes=batches_changes,
            observers=observers,
        )
        self.settlement = Settlement(
            self._entries,
            self.held,
            group=group,
            broker_clock=transport.broker_clock,
            retries=retries,
            resender=resender,
        )
        # Without a policy it still forgets leases that have ended.
        self._renewer = LeaseRenewer(f"{client_id}-renewals", self.held, self._entries, renewal or RenewalPolicy())
        self.held.on_hold(self._renewer.watch)

    def renew_due(self) -> None:
        """Renew the leases that are due, and forget those that have ended."""
        self._renewer.check(time.monotonic())

    def returning(self, queue: QueueName) -> AbstractContextManager[None]:
        """Hold no message of a queue any more when the block has released them all; it raises when it has not."""
        return self._renewer.returning(queue)

    def let_go(self, messages: Sequence[Message]) -> None:
        """Hold messages no longer, because the job has released them."""
        self._entries.let_go(messages, MessageState.RELEASED)

    def send_waiting_acks(self) -> None:
        """Send the acks that wait for others: the next operation was asked for after them."""
        self._entries.send_waiting()

    def flush(self, timeout_s: float) -> None:
        """Send the acks that wait for others, and wait for the outcomes of all requests.

        Raises:
            AnswerTimeout: Some outcomes did not come in time.
        """
        deadline_s = time.monotonic() + timeout_s
        self.settlement.flush(left_s(deadline_s))
        self._entries.flush(left_s(deadline_s))

    def stop_renewing(self, timeout_s: float) -> None:
        """End the thread that renews leases."""
        self._renewer.close(timeout_s)

    def finish(self, deadline_s: float, *, release: bool) -> None:
        """Finish all requests, and release the messages that are still held, if so asked.

        Args:
            deadline_s: Monotonic time by which this returns.
            release: Make the held messages visible at once; otherwise their leases run on.

        Raises:
            AnswerTimeout: Some outcomes did not come in time.
        """
        try:
            if release:
                self.settlement.send_rest_again(self.held.leased(time.monotonic()))
            self.settlement.flush(left_s(deadline_s))
        except AnswerTimeout as error:
            LOG.warning("%s: %s; their units will be redelivered", self._client_id, error)
        self._entries.close(left_s(deadline_s))
        held = self.held.leased(time.monotonic())
        if held and release:
            # Before the acks are waited for: a queue that does not answer must not keep the others' messages.
            timeout_ms = int(left_s(deadline_s) * 1000)
            released = self._entries.change(
                ((message, RELEASED_COUNTED) for message in held), keeps=False, timeout_ms=timeout_ms
            )
            released.add_done_callback(partial(_log_released, self._client_id))
        self.held.clear()
        self._entries.flush(left_s(deadline_s))

    def close(self, timeout_s: float | None = None) -> None:
        """Send the acks that wait for others, and refuse later ones; None: wait as long as that takes."""
        self._entries.close(timeout_s)


def _log_released(client_id: str, released: OutcomesFuture) -> None:
    if (error := released.exception()) is not None:
        LOG.warning("%s could not finish the release of its messages: %s", client_id, error)
    else:
        released_count = sum(outcome.applied for outcome in released.result())
        LOG.info("%s released %d of %d held messages", client_id, released_count, len(released.result()))
