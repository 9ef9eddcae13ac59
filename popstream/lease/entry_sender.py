"""Sends acks, changes and rejects of many messages, and returns to each caller the outcomes of its messages.

```
ack, finish ─> Coalescer (a few ms, by queue) ─┐
change ─> without expired leases ──────────────┤
reject ─> by queue ────────────────────────────┴─> plan ─> Transport ─> outcomes, new handles ─> BatchFuture ─> caller
```
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from concurrent.futures import Future, wait
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from popstream.errors import AnswerTimeout, ClientClosed
from popstream.exchange.coalescer import Coalescer
from popstream.lease.entries import DELIVERY_OVER, BatchFuture, Change, MessageRequest, SingleFuture, outcomes, plan
from popstream.message import Message, MessageState
from popstream.observer import Observers
from popstream.outcome import Outcome, queue_of
from popstream.wire.command import Ack, AckEntry, ChangeEntry, ChangeInvisible, HandleRef, Reject, RejectEntry
from popstream.wire.handle import decode_handle
from popstream.wire.limits import ENTRIES_MAX
from popstream.wire.queue_name import QueueName
from popstream.wire.reason import Reason, code_of

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

    from popstream.awaitable import AwaitableFuture
    from popstream.exchange.transport import Transport
    from popstream.lease.entries import OutcomesFuture, Plan, PlannedEntry
    from popstream.lease.held_messages import HeldMessages
    from popstream.observer import Settled
    from popstream.outcome import Receipt
    from popstream.wire.answer import Answer
    from popstream.wire.command import Cause, Entry

__all__ = ["EntrySender"]

LOG = logging.getLogger(__name__)

EXPIRED_LOCALLY = Outcome(False, Reason.EXPIRED_LOCALLY, code_of(Reason.EXPIRED_LOCALLY))


class _Kind(msgspec.Struct, frozen=True):
    """The differences between ack, change and reject; `settles` is how observers count it."""

    command: type[Ack | ChangeInvisible | Reject]
    entry: Callable[[PlannedEntry[Any]], Entry]
    settles: Settled | None = None

    @property
    def is_change(self) -> bool:
        """Whether the messages get new handles."""
        return self.command is ChangeInvisible


def _change_entry(planned: PlannedEntry[Change]) -> ChangeEntry:
    label = planned.label
    return ChangeEntry(
        planned.handle,
        planned.ranges,
        label.invisible_time_ms,
        label.suspend,
        release=label.release,
        cause=label.cause,
    )


_ACK = _Kind(Ack, lambda planned: AckEntry(planned.handle, planned.ranges, planned.label), "acked")
_REJECT = _Kind(Reject, lambda planned: RejectEntry(planned.handle, planned.ranges, planned.label), "rejected")
_EXTEND = _Kind(ChangeInvisible, _change_entry)
_RELEASE = _Kind(ChangeInvisible, _change_entry, "released")


class EntrySender:
    """Sends requests about leased messages. Safe for use by many threads.

    Args:
        transport: Carries the operations.
        group: The consumer group of the handles.
        client_id: Name of the consumer, for the audit.
        ack_delay_ms: How long an ack waits for others of the same queue.
        held: The held messages; the request that finishes or releases a message removes it.
        batches_changes: Whether one record may change more than one message.
        observers: Are told what is settled.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        group: str,
        client_id: str,
        ack_delay_ms: float,
        held: HeldMessages,
        batches_changes: bool = True,
        observers: Observers = Observers(),  # noqa: B008 - immutable
    ) -> None:
        self._transport = transport
        self._group = group
        self._client_id = client_id
        self._held = held
        self._batches_changes = batches_changes
        self._observers = observers
        self._lock = threading.Lock()
        self._unanswered: set[Future[Any]] = set()
        self._acks: Coalescer[QueueName, MessageRequest[Cause | None] | Message] = Coalescer(
            f"{client_id}-acks",
            delay_ms=ack_delay_ms,
            items_max=ENTRIES_MAX,
            emit=self._send_acks,
            failed=lambda acks, error: _fail([ack for ack in acks if isinstance(ack, MessageRequest)], error),
        )

    def ack(self, receipts: Iterable[Receipt], cause: Cause | None) -> OutcomesFuture:
        """Ack messages soon, together with others.

        Raises:
            ClientClosed: `close` was called.
        """
        requests, future = self._requests((receipt, cause) for receipt in receipts)
        self._ack(requests)
        return future

    def ack_one(self, message: Message) -> AwaitableFuture[Outcome]:
        """Like `ack` of one message, at half the cost.

        Raises:
            ClientClosed: `close` was called.
        """
        single = SingleFuture()
        self._follow(single.future)
        self._ack([MessageRequest(message, message.handle.text, None, single, 0)])
        return single.future

    def finish(self, messages: Sequence[Message]) -> None:
        """Like `ack`, for a caller that needs no outcome, at a third of the cost: the messages are released together.

        A message is settled at once, and counts as held until its ack is sent.

        Raises:
            ClientClosed: `close` was called.
        """
        self._add((queue_of(message), message) for message in messages)
        for message in messages:
            message.state = MessageState.FINISHED

    def change(
        self,
        changes: Iterable[tuple[Receipt, Change]],
        *,
        keeps: bool = True,
        is_renewal: bool = False,
        timeout_ms: int | None = None,
    ) -> OutcomesFuture:
        """Change invisible times now, by one record for each queue; receipts get new handles before the future is done.

        Messages whose lease has ended by the broker's clock are not sent: their outcome is EXPIRED_LOCALLY. A change of
        a message that is renewed meanwhile is sent again, with the new handle, if the job decides the renewal first.

        Args:
            changes: Each message with its change.
            keeps: The messages remain held, except for those that become visible at once. Otherwise all are released.
            is_renewal: A change that anybody else asks for takes precedence.
            timeout_ms: How long to wait for the answers; default: `answer_timeout_ms`.
        """
        requests, future = self._requests(changes, overtakes=not is_renewal)
        self.let_go(
            (request.receipt for request in requests if not (keeps and request.label.invisible_time_ms)),
            MessageState.RELEASED,
        )
        good = self._without_expired(requests)
        if keeps and not is_renewal:  # what is renewed is held, unless it was settled meanwhile
            self._keep(good)
        extends = keeps and all(request.label.invisible_time_ms for request in good)
        self._send_now(_EXTEND if extends else _RELEASE, good, timeout_ms)
        return future

    def reject(self, receipts: Iterable[Receipt], cause: str | None) -> OutcomesFuture:
        """Reject messages now."""
        requests, future = self._requests((receipt, cause) for receipt in receipts)
        self.let_go((request.receipt for request in requests), MessageState.FINISHED)
        self._send_now(_REJECT, requests, None)
        return future

    def has_expired(self, receipt: Receipt) -> bool:
        """Tell whether the lease of a message has ended by the broker's clock."""
        now_ms = self._transport.broker_clock.now_ms(time.monotonic())
        return now_ms is not None and _is_expired(receipt, now_ms)

    def let_go(self, receipts: Iterable[Receipt], state: MessageState) -> None:
        """Hold messages no longer, and record how they are settled, unless they were before."""
        listed = list(receipts)
        for receipt in listed:
            message = receipt if isinstance(receipt, Message) else self._held.message_of(receipt)
            if message is not None and not message.is_settled:
                message.state = state
        self._held.release(listed)

    def send_waiting(self) -> None:
        """Send the acks that wait for others: the next operation was asked for after them."""
        self._acks.flush()

    def flush(self, timeout_s: float) -> None:
        """Send the acks that wait, and wait for the outcomes of all requests.

        Raises:
            AnswerTimeout: Some outcomes did not come in time.
        """
        self._acks.flush()
        with self._lock:
            unanswered = list(self._unanswered)
        left = wait(unanswered, timeout_s).not_done
        if left:
            message = f"{len(left)} requests about messages have no answer after {timeout_s:.1f} s"
            raise AnswerTimeout(message, op_ids=(), in_log=False, subject=self._client_id)

    def close(self, timeout_s: float | None = None) -> None:
        """Send the acks that wait, and refuse later ones; None: wait as long as that takes."""
        self._acks.close(timeout_s)

    def _requests(
        self, labelled: Iterable[tuple[Receipt, Hashable]], *, overtakes: bool = False
    ) -> tuple[list[MessageRequest[Any]], OutcomesFuture]:
        listed = list(labelled)
        batch_future = BatchFuture(len(listed))
        self._follow(batch_future.future)
        requests: list[MessageRequest[Any]] = []
        for index, (receipt, label) in enumerate(listed):
            holding = self._held.find(receipt) if overtakes else None
            known = 0 if holding is None else holding.renewals_over  # before the handle, which a renewal replaces
            requests.append(MessageRequest(receipt, receipt.handle.text, label, batch_future, index, holding, known))
        return requests, batch_future.future

    def _ack(self, requests: Sequence[MessageRequest[Cause | None]]) -> None:
        try:
            self._add((queue_of(request.receipt), request) for request in requests)
        except ClientClosed as closed:
            _fail(requests, closed)
            raise
        self.let_go((request.receipt for request in requests), MessageState.FINISHED)

    def _add(self, acks: Iterable[tuple[QueueName, MessageRequest[Cause | None] | Message]]) -> None:
        try:
            self._acks.add(acks)
        except RuntimeError as error:
            raise ClientClosed.of("consumer", self._client_id) from error

    def _follow(self, future: Future[Any]) -> None:
        """Have `flush` wait for the result."""
        with self._lock:
            self._unanswered.add(future)
        future.add_done_callback(self._forget)

    def _forget(self, future: Future[Any]) -> None:
        with self._lock:
            self._unanswered.discard(future)

    def _keep(self, requests: list[MessageRequest[Change]]) -> None:
        """Hold the messages that are extended but not held, because their lease seemed to have ended."""
        now_s = time.monotonic()
        for request in requests:
            # A bare receipt belongs to a message that another process works on.
            if (
                isinstance(request.receipt, Message)
                and request.label.invisible_time_ms
                and not self._held.find(request.receipt)
            ):
                lease_ms = request.label.invisible_time_ms
                self._held.hold([request.receipt], now_s + lease_ms / 1000, now_s, first_lease_ms=lease_ms)

    def _without_expired(self, requests: list[MessageRequest[Change]]) -> list[MessageRequest[Change]]:
        """Settle the requests whose lease has ended, and return the others."""
        now_ms = self._transport.broker_clock.now_ms(time.monotonic())
        if now_ms is None:
            return requests
        # A renewal in flight was sent in time: it may have been decided.
        expired = [
            request for request in requests if not request.meets_renewal and _is_expired(request.receipt, now_ms)
        ]
        if not expired:
            return requests
        self._held.release(request.receipt for request in expired)
        _settle_all(expired, [EXPIRED_LOCALLY] * len(expired))
        found = set(map(id, expired))
        return [request for request in requests if id(request) not in found]

    def _send_acks(self, queue: QueueName, acks: list[MessageRequest[Cause | None] | Message]) -> None:
        requests = [ack for ack in acks if isinstance(ack, MessageRequest)]
        if finished := [ack for ack in acks if isinstance(ack, Message)]:
            requests += self._requests((message, None) for message in finished)[0]
            self._held.release(finished)
        self._send(_ACK, queue, requests)

    def _send_now(self, kind: _Kind, requests: list[MessageRequest[Any]], timeout_ms: int | None) -> None:
        self.send_waiting()
        by_queue: defaultdict[QueueName, list[MessageRequest[Any]]] = defaultdict(list)
        for request in requests:
            by_queue[queue_of(request.receipt)].append(request)
        for queue, found in by_queue.items():
            self._send(kind, queue, found, timeout_ms)

    def _send(
        self, kind: _Kind, queue: QueueName, requests: list[MessageRequest[Any]], timeout_ms: int | None = None
    ) -> None:
        parts = [requests] if not kind.is_change or self._batches_changes else [[request] for request in requests]
        for planned in (planned for part in parts for planned in plan(part)):
            try:
                future = self._transport.submit(self._command(kind, queue, planned), timeout_ms=timeout_ms)
            except Exception as error:  # noqa: BLE001 - it reaches the callers through their futures
                _fail(planned.requests, error)
            else:
                future.add_done_callback(partial(self._on_answer, kind, planned))

    def _command(self, kind: _Kind, queue: QueueName, planned: Plan[Any]) -> Ack | ChangeInvisible | Reject:
        entries: list[Any] = [kind.entry(entry) for entry in planned.entries]
        return kind.command(
            v=1,
            topic=queue[0],
            queue_id=queue[1],
            handles=[HandleRef(self._group, handle) for handle in planned.handles],
            entries=entries,
            client_id=self._client_id,
        )

    def _on_answer(self, kind: _Kind, planned: Plan[Any], future: Future[Answer]) -> None:
        try:
            answer = future.result()
            if answer.reason is Reason.NOT_SUPPORTED and kind.is_change and len(planned.requests) > 1:
                # This answer proves that nothing of the record was decided, so it is safe to send it in parts.
                LOG.warning("the job accepts changes of one message only: %s", answer.detail)
                self._batches_changes = False
                # With the time-out of the settings, as another operation.
                self._send(kind, queue_of(planned.requests[0].receipt), planned.requests)
                return
            requests, found = planned.requests, outcomes(planned, answer)
            if kind.is_change:
                for request, outcome in zip(requests, found, strict=True):
                    self._changed(request, outcome)
                requests, found = self._without_superseded(kind, requests, found)
        except Exception as error:  # noqa: BLE001 - it reaches the callers through their futures
            _fail(planned.requests, error)
        else:
            if self._observers and kind.settles is not None:
                count = sum(outcome.applied for outcome in found)
                self._observers.settled(self._group, planned.requests[0].receipt.topic, kind.settles, count)
            _settle_all(requests, found)

    def _without_superseded(
        self, kind: _Kind, requests: list[MessageRequest[Change]], found: list[Outcome]
    ) -> tuple[list[MessageRequest[Change]], list[Outcome]]:
        """Send again, with the new handle, what a renewal of this consumer came before; return the others."""
        left: list[MessageRequest[Change]] = []
        outcomes_left: list[Outcome] = []
        again: list[MessageRequest[Change]] = []
        for request, outcome in zip(requests, found, strict=True):
            if request.meets_renewal and outcome.reason is Reason.SUPERSEDED and outcome.handle is not None:
                again.append(request.again(outcome.handle.text))
            else:
                left.append(request)
                outcomes_left.append(outcome)
        if again:
            self._send(kind, queue_of(again[0].receipt), again)
        return left, outcomes_left

    def _changed(self, request: MessageRequest[Change], outcome: Outcome) -> None:
        receipt = request.receipt
        if outcome.handle is not None:
            receipt.handle = outcome.handle
        if outcome.applied and outcome.next_visible_time_ms is not None:
            self._ends_at(receipt, outcome.next_visible_time_ms)
            if isinstance(receipt, Message) and outcome.pop_time_ms is not None:
                receipt.pop_time_ms = outcome.pop_time_ms
        elif outcome.reason is Reason.SUPERSEDED and outcome.handle is not None:
            # Another change came first; the current handle holds its deadline.
            current = decode_handle(outcome.handle.text)
            if current is not None:
                self._ends_at(receipt, current.next_visible_time_ms)
        elif outcome.reason in DELIVERY_OVER:
            self._held.release([receipt])
        if isinstance(receipt, Message) and receipt.carries is not None:
            receipt.carries.renewed()

    def _ends_at(self, receipt: Receipt, next_visible_time_ms: int) -> None:
        if isinstance(receipt, Message):
            receipt.next_visible_time_ms = next_visible_time_ms
        self._held.extend(receipt, self._transport.broker_clock.local_s(next_visible_time_ms))


def _is_expired(receipt: Receipt, now_ms: int) -> bool:
    """Tell whether a lease has ended by the broker's clock; a handle holds the deadline, unless a change extends it."""
    if isinstance(receipt, Message):
        return receipt.next_visible_time_ms <= now_ms
    handle = decode_handle(receipt.handle.text)
    # A malformed handle is for the job to refuse.
    return handle is not None and handle.next_visible_time_ms <= now_ms


def _settle_all(
    requests: Sequence[MessageRequest[Any]], found: list[Outcome] | list[None], error: Exception | None = None
) -> None:
    """Report to each call the outcomes of its messages."""
    settled: dict[int, tuple[BatchFuture | SingleFuture, list[tuple[int, Outcome | None]]]] = {}
    for request, outcome in zip(requests, found, strict=True):
        _, own = settled.setdefault(id(request.call_future), (request.call_future, []))
        own.append((request.index, outcome))
    for call_future, own in settled.values():
        call_future.settle(own, error)


def _fail(requests: Sequence[MessageRequest[Any]], error: Exception) -> None:
    _settle_all(requests, [None] * len(requests), error)
