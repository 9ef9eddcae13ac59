"""The messages that a consumer holds: popped, and neither settled nor expired."""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import TYPE_CHECKING

import msgspec

from popstream.message import Message
from popstream.outcome import queue_of
from popstream.wire.handle import decode_handle
from popstream.wire.queue_name import QueueName

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from popstream.message import LeasedUnit
    from popstream.outcome import Receipt

__all__ = ["HeldMessage", "HeldMessages"]


class HeldMessage(msgspec.Struct, eq=False):
    """One held message. Times are monotonic, in seconds.

    Attributes:
        since_s: When it was popped.
        until_s: When its lease ends, as far as is known here.
        first_lease_ms: Length of its first lease, in milliseconds.
        is_renewed: Whether its lease is renewed before it ends.
        owner: The thread, or the unit with the threads, that works on it; the message is released when it has ended.
        renew_count: Number of renewals.
        refused_count: Number of renewals that failed in a row.
        renewals_begun: Number of renewals that were sent, or are about to be.
        renewals_over: Of these, those that are answered, or were not sent after all.
        payload_bytes: Size of its record, 0 until that is fetched.
    """

    receipt: Receipt
    since_s: float
    until_s: float
    first_lease_ms: int
    is_renewed: bool = False
    owner: threading.Thread | LeasedUnit | None = None
    renew_count: int = 0
    refused_count: int = 0
    renewals_begun: int = 0
    renewals_over: int = 0
    payload_bytes: int = 0

    @property
    def is_renewing(self) -> bool:
        """Whether a renewal is in flight."""
        return self.renewals_begun > self.renewals_over

    @property
    def is_abandoned(self) -> bool:
        """Whether the thread that worked on it has ended; a settled message only waits for its ack to be sent."""
        if self.owner is None or self.owner.is_alive():
            return False
        return not isinstance(self.receipt, Message) or not self.receipt.is_settled


class HeldMessages:
    """The held messages, each until its lease has certainly ended. Safe for use by many threads.

    The request that settles or releases a message removes it. The answer to an earlier request cannot add it again
    (RocketMQ's ReceiptHandleGroup: a removal wins over a renewal in flight).
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queues: defaultdict[QueueName, dict[int, HeldMessage]] = defaultdict(dict)
        self._count = 0
        self._payload_bytes = 0
        self._on_release: list[Callable[[], None]] = []
        self._on_hold: list[Callable[[float], None]] = []

    def __len__(self) -> int:
        """Count the held messages, including those whose end has not been noticed yet."""
        return self._count

    @property
    def payload_bytes(self) -> int:
        """Total size of the records of held messages, in bytes."""
        return self._payload_bytes

    def on_release(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` after messages were removed, and on `changed`; it must be short.

        Returns:
            An unsubscribe callable.
        """
        self._on_release.append(listener)
        return lambda: self._on_release.remove(listener)

    def changed(self) -> None:
        """Call the listeners of `on_release`, because the state of a held message has changed."""
        self._notify_released(1)

    def on_hold(self, listener: Callable[[float], None]) -> None:
        """Call `listener` with the end of each lease that is new or was changed; it must be short."""
        self._on_hold.append(listener)

    def hold(
        self,
        receipts: Iterable[Receipt],
        until_s: float,
        now_s: float,
        *,
        first_lease_ms: int,
        is_renewed: bool = False,
    ) -> None:
        """Add messages with leases of `first_lease_ms`; a new delivery of a held message replaces the old one."""
        with self._lock:
            for receipt in receipts:
                queue = self._queues[queue_of(receipt)]
                before = queue.get(receipt.queue_offset)
                if before is None:
                    self._count += 1
                else:
                    self._payload_bytes -= before.payload_bytes
                queue[receipt.queue_offset] = HeldMessage(receipt, now_s, until_s, first_lease_ms, is_renewed)
        self._notify_end(until_s)

    def find(self, receipt: Receipt) -> HeldMessage | None:
        """Return the entry of a message, or of the delivery to which a bare receipt belongs."""
        queue = self._queues.get(queue_of(receipt))
        holding = None if queue is None else queue.get(receipt.queue_offset)
        if holding is None or holding.receipt is receipt:
            return holding
        is_same = not isinstance(receipt, Message) and _epoch(receipt) == _epoch(holding.receipt)
        return holding if is_same else None

    def message_of(self, receipt: Receipt) -> Message | None:
        """Return the held message to which a bare receipt belongs."""
        holding = self.find(receipt)
        return holding.receipt if holding is not None and isinstance(holding.receipt, Message) else None

    def has_any(self, queue: QueueName) -> bool:
        """Tell whether messages of a queue are held."""
        return bool(self._queues.get(queue))

    def is_live(self, message: Message, now_s: float) -> bool:
        """Tell whether a message is held, alone or with its unit, and its lease has not ended as far as is known."""
        holding = self.find(message.leased)
        return holding is not None and (holding.until_s > now_s or holding.is_renewing)

    def age_s(self, message: Message, now_s: float) -> float:
        """Return the seconds since a message was popped, 0 if it is not held."""
        holding = self.find(message.leased)
        return 0.0 if holding is None else now_s - holding.since_s

    def extend(self, receipt: Receipt, until_s: float) -> None:
        """Record a new end of a lease; a message that was removed meanwhile stays removed."""
        holding = self.find(receipt)
        if holding is not None:
            holding.until_s = until_s
            self._notify_end(until_s)

    def filled(self, message: Message, payload_bytes: int) -> None:
        """Record the size of the record of a held message."""
        with self._lock:
            holding = self.find(message)
            if holding is not None:
                self._payload_bytes += payload_bytes - holding.payload_bytes
                holding.payload_bytes = payload_bytes

    def own(self, messages: Iterable[Message], owner: threading.Thread) -> None:
        """Record which thread works on held messages from now on."""
        for message in messages:
            if message.unit is not None:
                message.unit.own(message, owner)
            holding = self.find(message.leased)
            if holding is not None:
                holding.owner = message.unit or owner

    def release(self, receipts: Iterable[Receipt]) -> int:
        """Remove messages; return how many of them were held."""
        with self._lock:
            holdings = [holding for receipt in receipts if (holding := self.find(receipt)) is not None]
            count = self._drop(holdings)
        self._notify_released(count)
        return count

    def holdings(self) -> list[HeldMessage]:
        """Return all entries."""
        with self._lock:
            return [holding for queue in self._queues.values() for holding in queue.values()]

    def leased(self, now_s: float) -> list[Receipt]:
        """Return the messages whose lease may not have ended yet, by queue and offset."""
        with self._lock:
            return [
                holding.receipt
                for _, queue in sorted(self._queues.items())
                for _, holding in sorted(queue.items())
                if holding.until_s > now_s or holding.is_renewing
            ]

    def clear(self) -> None:
        """Remove all messages."""
        with self._lock:
            self._queues.clear()
            count, self._count, self._payload_bytes = self._count, 0, 0
        self._notify_released(count)

    def _drop(self, holdings: Iterable[HeldMessage]) -> int:
        """Remove entries, of which some may be named twice; return how many were removed."""
        count = 0
        for holding in holdings:
            queue = self._queues[queue_of(holding.receipt)]
            if queue.pop(holding.receipt.queue_offset, None) is not None:
                count += 1
                self._payload_bytes -= holding.payload_bytes
        self._count -= count
        return count

    def _notify_released(self, count: int) -> None:
        if count:
            for listener in list(self._on_release):
                listener()

    def _notify_end(self, until_s: float) -> None:
        for listener in self._on_hold:
            listener(until_s)


def _epoch(receipt: Receipt) -> int | None:
    """Return the epoch, which all handles of one delivery share."""
    handle = decode_handle(receipt.handle.text)
    return None if handle is None else handle.epoch
