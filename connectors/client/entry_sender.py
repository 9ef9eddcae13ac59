"""Sends acks, changes and rejects of many messages, and brings each caller the outcomes of its own.

```
ack ─> Coalescer (a few ms, by queue) ─┐
change, reject ─> by queue ────────────┴─> plan ─> Transport ─> outcomes ─> Held, handles ─> Gathering ─> caller
```
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from concurrent.futures import Future, wait
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from broker_state.command import Ack, AckEntry, ChangeEntry, ChangeInvisible, HandleRef, Reject, RejectEntry
from broker_state.reason import Reason
from connectors.client.coalescer import Coalescer
from connectors.client.entries import Gathering, Wish, outcomes, plan
from connectors.client.errors import AnswerTimeout, ClientClosed
from connectors.client.held import Held
from connectors.client.message import Message, Outcome, queue_of

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

    from broker_state.answer import Answer
    from broker_state.command import Cause
    from connectors.client.entries import OutcomesFuture, Plan
    from connectors.client.message import QueueKey, Receipt
    from connectors.client.transport import Transport

    Build = Callable[[QueueKey, Plan[Any]], Ack | ChangeInvisible | Reject]
    Settle = Callable[[Wish[Any], Outcome], None]

__all__ = ["EntrySender"]

WAITING_ACKS_MAX = 10_000


class _Change(msgspec.Struct, frozen=True):
    invisible_time_ms: int
    suspend: bool


class EntrySender:
    """The part of a consumer that speaks about messages in hand. Safe for use by many threads.

    Args:
        transport: Carries the operations.
        group: The handles' group.
        client_id: For the audit.
        ack_delay_ms: How long acks wait for company.
        held: Is kept up to date with what the outcomes say.
    """

    def __init__(self, transport: Transport, *, group: str, client_id: str, ack_delay_ms: float, held: Held) -> None:
        self._transport = transport
        self._group = group
        self._client_id = client_id
        self._held = held
        self._lock = threading.Lock()
        self._unanswered: set[OutcomesFuture] = set()
        self._acks: Coalescer[QueueKey, Wish[Cause | None]] = Coalescer(
            f"{client_id}-acks",
            delay_ms=ack_delay_ms,
            items_max=WAITING_ACKS_MAX,
            emit=partial(self._send, build=self._build_ack, settle=self._settle_done, timeout_ms=None),
            failed=_fail,
        )

    def ack(self, receipts: Iterable[Receipt], cause: Cause | None) -> OutcomesFuture:
        """Ack soon, together with others.

        Raises:
            ClientClosed: `close` was called.
        """
        wishes, future = self._wishes(receipts, cause)
        try:
            self._acks.add((queue_of(wish.receipt), wish) for wish in wishes)
        except RuntimeError as error:
            message = f"consumer {self._client_id} is closed"
            raise ClientClosed(message, subject=self._client_id) from error
        return future

    def change(
        self, receipts: Iterable[Receipt], invisible_time_ms: int, *, suspend: bool, timeout_ms: int | None = None
    ) -> OutcomesFuture:
        """Change invisible times now; the receipts get the new handles before the future is done."""
        wishes, future = self._wishes(receipts, _Change(invisible_time_ms, suspend))
        self._send_now(wishes, self._build_change, self._settle_change, timeout_ms)
        return future

    def reject(self, receipts: Iterable[Receipt], cause: str | None) -> OutcomesFuture:
        """Reject now."""
        wishes, future = self._wishes(receipts, cause)
        self._send_now(wishes, self._build_reject, self._settle_done, None)
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

    def _wishes(self, receipts: Iterable[Receipt], label: Hashable) -> tuple[list[Wish[Any]], OutcomesFuture]:
        listed = list(receipts)
        gathering = Gathering(len(listed))
        with self._lock:
            self._unanswered.add(gathering.future)
        gathering.future.add_done_callback(self._forget)
        return [Wish(receipt, label, gathering, index) for index, receipt in enumerate(listed)], gathering.future

    def _forget(self, future: OutcomesFuture) -> None:
        with self._lock:
            self._unanswered.discard(future)

    def _send_now(self, wishes: list[Wish[Any]], build: Build, settle: Settle, timeout_ms: int | None) -> None:
        self.send_waiting()
        by_queue: defaultdict[QueueKey, list[Wish[Any]]] = defaultdict(list)
        for wish in wishes:
            by_queue[queue_of(wish.receipt)].append(wish)
        for queue, found in by_queue.items():
            self._send(queue, found, build=build, settle=settle, timeout_ms=timeout_ms)

    def _send(
        self, queue: QueueKey, wishes: list[Wish[Any]], *, build: Build, settle: Settle, timeout_ms: int | None
    ) -> None:
        for planned in plan(wishes):
            try:
                future = self._transport.submit(build(queue, planned), timeout_ms=timeout_ms)
            except Exception as error:  # noqa: BLE001 - it reaches the callers through their futures
                _fail(planned.wishes, error)
            else:
                future.add_done_callback(partial(self._on_answer, planned, settle))

    def _on_answer(self, planned: Plan[Any], settle: Settle, future: Future[Answer]) -> None:
        try:
            found = outcomes(planned, future.result())
            for wish, outcome in zip(planned.wishes, found, strict=True):
                settle(wish, outcome)
        except Exception as error:  # noqa: BLE001 - it reaches the callers through their futures
            _fail(planned.wishes, error)
        else:
            _settle_all(planned.wishes, found)

    def _settle_done(self, wish: Wish[Any], _outcome: Outcome) -> None:
        """Done, or refused for a reason that holding it longer does not change."""
        self._held.release([wish.receipt])

    def _settle_change(self, wish: Wish[_Change], outcome: Outcome) -> None:
        receipt, invisible_time_ms = wish.receipt, wish.label.invisible_time_ms
        if outcome.handle is not None:
            receipt.handle = outcome.handle
        if outcome.applied and isinstance(receipt, Message) and outcome.next_visible_time_ms is not None:
            receipt.pop_time_ms = outcome.next_visible_time_ms - invisible_time_ms
            receipt.next_visible_time_ms = outcome.next_visible_time_ms
        if outcome.applied and invisible_time_ms:
            # A bare receipt is of a message that somebody else works on.
            if isinstance(receipt, Message):
                now_s = time.monotonic()
                self._held.hold([receipt], now_s + invisible_time_ms / 1000, now_s)
        elif outcome.reason is not Reason.SUPERSEDED:
            self._held.release([receipt])

    def _handles(self, planned: Plan[Any]) -> list[HandleRef]:
        return [HandleRef(self._group, handle) for handle in planned.handles]

    def _build_ack(self, queue: QueueKey, planned: Plan[Cause | None]) -> Ack:
        return Ack(
            v=1,
            topic=queue[0],
            queue_id=queue[1],
            handles=self._handles(planned),
            entries=[AckEntry(entry.handle, entry.ranges, entry.label) for entry in planned.entries],
            client_id=self._client_id,
        )

    def _build_change(self, queue: QueueKey, planned: Plan[_Change]) -> ChangeInvisible:
        return ChangeInvisible(
            v=1,
            topic=queue[0],
            queue_id=queue[1],
            handles=self._handles(planned),
            entries=[
                ChangeEntry(entry.handle, entry.ranges, entry.label.invisible_time_ms, entry.label.suspend)
                for entry in planned.entries
            ],
            client_id=self._client_id,
        )

    def _build_reject(self, queue: QueueKey, planned: Plan[str | None]) -> Reject:
        return Reject(
            v=1,
            topic=queue[0],
            queue_id=queue[1],
            handles=self._handles(planned),
            entries=[RejectEntry(entry.handle, entry.ranges, entry.label) for entry in planned.entries],
            client_id=self._client_id,
        )


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
