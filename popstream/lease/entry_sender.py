"""Sends acks, changes and rejects of many messages, and brings each caller the outcomes of its own.

```
ack ─> Coalescer (a few ms, by queue) ─┐
change ─> those that are expired out ──┤
reject ─> by queue ────────────────────┴─> plan ─> Transport ─> outcomes ─> Held, handles ─> Gathering ─> caller
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
from popstream.lease.entries import DELIVERY_OVER, Change, Gathering, Wish, outcomes, plan
from popstream.message import Message, MessageState
from popstream.outcome import Outcome, queue_of
from popstream.wire.command import Ack, AckEntry, ChangeEntry, ChangeInvisible, HandleRef, Reject, RejectEntry
from popstream.wire.handle import decode_handle
from popstream.wire.limits import ENTRIES_MAX
from popstream.wire.reason import Reason, code_of

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

    from popstream.exchange.transport import Transport
    from popstream.lease.entries import OutcomesFuture, Plan, PlannedEntry
    from popstream.lease.held import Held
    from popstream.outcome import QueueKey, Receipt
    from popstream.wire.answer import Answer
    from popstream.wire.command import Cause, Entry

__all__ = ["EntrySender"]

LOG = logging.getLogger(__name__)

EXPIRED_LOCALLY = Outcome(False, Reason.EXPIRED_LOCALLY, code_of(Reason.EXPIRED_LOCALLY))


class _Kind(msgspec.Struct, frozen=True):
    """What tells ack, change and reject apart."""

    command: type[Ack | ChangeInvisible | Reject]
    entry: Callable[[PlannedEntry[Any]], Entry]


_ACK = _Kind(Ack, lambda planned: AckEntry(planned.handle, planned.ranges, planned.label))
_REJECT = _Kind(Reject, lambda planned: RejectEntry(planned.handle, planned.ranges, planned.label))
_CHANGE = _Kind(
    ChangeInvisible,
    lambda planned: ChangeEntry(planned.handle, planned.ranges, planned.label.invisible_time_ms, planned.label.suspend),
)


class EntrySender:
    """The part of a consumer that speaks about messages in hand. Safe for use by many threads.

    Args:
        transport: Carries the operations.
        group: The handles' group.
        client_id: For the audit.
        ack_delay_ms: How long acks wait for company.
        held: A message leaves it with the request that finishes it or gives it back.
        batches_changes: Whether a record may change more than one message.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        group: str,
        client_id: str,
        ack_delay_ms: float,
        held: Held,
        batches_changes: bool = True,
    ) -> None:
        self._transport = transport
        self._group = group
        self._client_id = client_id
        self._held = held
        self._batches_changes = batches_changes
        self._lock = threading.Lock()
        self._unanswered: set[OutcomesFuture] = set()
        self._acks: Coalescer[QueueKey, Wish[Cause | None]] = Coalescer(
            f"{client_id}-acks",
            delay_ms=ack_delay_ms,
            items_max=ENTRIES_MAX,
            emit=partial(self._send, _ACK),
            failed=_fail,
        )

    def ack(self, receipts: Iterable[Receipt], cause: Cause | None) -> OutcomesFuture:
        """Ack soon, together with others.

        Raises:
            ClientClosed: `close` was called.
        """
        wishes, future = self._wishes((receipt, cause) for receipt in receipts)
        try:
            self._acks.add((queue_of(wish.receipt), wish) for wish in wishes)
        except RuntimeError as error:
            message = f"consumer {self._client_id} is closed"
            closed = ClientClosed(message, subject=self._client_id)
            _fail(wishes, closed)
            raise closed from error
        self._let_go(wishes, MessageState.FINISHED)
        return future

    def change(
        self, changes: Iterable[tuple[Receipt, Change]], *, keeps: bool = True, timeout_ms: int | None = None
    ) -> OutcomesFuture:
        """Change invisible times now, one record a queue; the receipts get the new handles before the future is done.

        Messages whose lease is over by the broker's clock are left out: their outcome is EXPIRED_LOCALLY.

        Args:
            changes: Each message, and what to change.
            keeps: They stay in hand, but for those that become visible at once. Otherwise they are for somebody else,
                however soon they come again.
            timeout_ms: How long to wait for the answers; by default as the settings say.
        """
        wishes, future = self._wishes(changes)
        self._let_go([wish for wish in wishes if not (keeps and wish.label.invisible_time_ms)], MessageState.RETURNED)
        good = self._without_expired(wishes)
        if keeps:
            self._keep(good)
        self._send_now(_CHANGE, good, timeout_ms)
        return future

    def reject(self, receipts: Iterable[Receipt], cause: str | None) -> OutcomesFuture:
        """Reject now."""
        wishes, future = self._wishes((receipt, cause) for receipt in receipts)
        self._let_go(wishes, MessageState.FINISHED)
        self._send_now(_REJECT, wishes, None)
        return future

    def send_waiting(self) -> None:
        """Send the acks that wait for company: what is sent next was asked for after them."""
        self._acks.flush()

    def flush(self, timeout_s: float) -> None:
        """Send the acks that wait, and wait for all outcomes.

        Raises:
            AnswerTimeout: Some did not come in time.
        """
        self._acks.flush()
        with self._lock:
            unanswered = list(self._unanswered)
        left = wait(unanswered, timeout_s).not_done
        if left:
            message = f"{len(left)} calls about messages have no answer after {timeout_s:.1f} s"
            raise AnswerTimeout(message, op_ids=(), in_log=False, subject=self._client_id)

    def close(self) -> None:
        """Send the acks that wait; later ones are refused."""
        self._acks.close()

    def _wishes(self, labelled: Iterable[tuple[Receipt, Hashable]]) -> tuple[list[Wish[Any]], OutcomesFuture]:
        listed = list(labelled)
        gathering = Gathering(len(listed))
        with self._lock:
            self._unanswered.add(gathering.future)
        gathering.future.add_done_callback(self._forget)
        wishes = [
            Wish(receipt, receipt.handle.text, label, gathering, index) for index, (receipt, label) in enumerate(listed)
        ]
        return wishes, gathering.future

    def _forget(self, future: OutcomesFuture) -> None:
        with self._lock:
            self._unanswered.discard(future)

    def _let_go(self, wishes: list[Wish[Any]], state: MessageState) -> None:
        for wish in wishes:
            if isinstance(wish.receipt, Message) and not wish.receipt.is_settled:
                wish.receipt.state = state
        self._held.release(wish.receipt for wish in wishes)

    def _keep(self, wishes: list[Wish[Change]]) -> None:
        """Take in hand what is to stay there and is not: its lease had ended unnoticed, or another consumer had it."""
        now_s = time.monotonic()
        for wish in wishes:
            # A bare receipt is of a message that somebody else works on.
            if isinstance(wish.receipt, Message) and wish.label.invisible_time_ms and not self._held.find(wish.receipt):
                self._held.hold([wish.receipt], now_s + wish.label.invisible_time_ms / 1000, now_s)

    def _without_expired(self, wishes: list[Wish[Change]]) -> list[Wish[Change]]:
        """Answer for the wishes whose lease is over, and give the others (seed 000: filter expired handles)."""
        now_ms = self._transport.broker_clock.now_ms(time.monotonic())
        if now_ms is None:
            return wishes
        expired = [wish for wish in wishes if _is_expired(wish.receipt, now_ms)]
        if not expired:
            return wishes
        self._held.release(wish.receipt for wish in expired)
        _settle_all(expired, [EXPIRED_LOCALLY] * len(expired))
        found = set(map(id, expired))
        return [wish for wish in wishes if id(wish) not in found]

    def _send_now(self, kind: _Kind, wishes: list[Wish[Any]], timeout_ms: int | None) -> None:
        self.send_waiting()
        by_queue: defaultdict[QueueKey, list[Wish[Any]]] = defaultdict(list)
        for wish in wishes:
            by_queue[queue_of(wish.receipt)].append(wish)
        for queue, found in by_queue.items():
            self._send(kind, queue, found, timeout_ms)

    def _send(self, kind: _Kind, queue: QueueKey, wishes: list[Wish[Any]], timeout_ms: int | None = None) -> None:
        parts = [wishes] if kind is not _CHANGE or self._batches_changes else [[wish] for wish in wishes]
        for planned in (planned for part in parts for planned in plan(part)):
            try:
                future = self._transport.submit(self._command(kind, queue, planned), timeout_ms=timeout_ms)
            except Exception as error:  # noqa: BLE001 - it reaches the callers through their futures
                _fail(planned.wishes, error)
            else:
                future.add_done_callback(partial(self._on_answer, kind, planned))

    def _command(self, kind: _Kind, queue: QueueKey, planned: Plan[Any]) -> Ack | ChangeInvisible | Reject:
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
            if answer.reason is Reason.NOT_SUPPORTED and kind is _CHANGE and len(planned.wishes) > 1:
                # Nothing of the record was decided. After a time-out it may have been: that never comes here.
                LOG.warning("the job takes changes of one message only: %s", answer.detail)
                self._batches_changes = False
                # It is asked anew for as long as the settings say.
                self._send(kind, queue_of(planned.wishes[0].receipt), planned.wishes)
                return
            found = outcomes(planned, answer)
            if kind is _CHANGE:
                for wish, outcome in zip(planned.wishes, found, strict=True):
                    self._changed(wish, outcome)
        except Exception as error:  # noqa: BLE001 - it reaches the callers through their futures
            _fail(planned.wishes, error)
        else:
            _settle_all(planned.wishes, found)

    def _changed(self, wish: Wish[Change], outcome: Outcome) -> None:
        receipt = wish.receipt
        if outcome.handle is not None:
            receipt.handle = outcome.handle
        if outcome.applied and outcome.next_visible_time_ms is not None:
            self._ends_at(receipt, outcome.next_visible_time_ms)
            if isinstance(receipt, Message) and outcome.pop_time_ms is not None:
                receipt.pop_time_ms = outcome.pop_time_ms
        elif outcome.reason is Reason.SUPERSEDED and outcome.handle is not None:
            # Somebody else has changed it; the handle says how.
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
    """Whether a lease is over by the broker's clock (design: a handle says when it ends unless a change says more)."""
    if isinstance(receipt, Message):
        return receipt.next_visible_time_ms <= now_ms
    handle = decode_handle(receipt.handle.text)
    # What is no handle is for the job to judge.
    return handle is not None and handle.next_visible_time_ms <= now_ms


def _settle_all(wishes: list[Wish[Any]], found: list[Outcome] | list[None], error: Exception | None = None) -> None:
    """Tell each call the outcomes of its own messages."""
    settled: dict[int, tuple[Gathering, list[tuple[int, Outcome | None]]]] = {}
    for wish, outcome in zip(wishes, found, strict=True):
        _, own = settled.setdefault(id(wish.gathering), (wish.gathering, []))
        own.append((wish.index, outcome))
    for gathering, own in settled.values():
        gathering.settle(own, error)


def _fail(wishes: list[Wish[Any]], error: Exception) -> None:
    _settle_all(wishes, [None] * len(wishes), error)
