"""Which messages a consumer holds: popped, and neither finished nor given back."""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import TYPE_CHECKING

import msgspec

from popstream.message import Message
from popstream.outcome import queue_of
from popstream.wire.handle import decode_handle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from popstream.message import LeasedUnit
    from popstream.outcome import QueueKey, Receipt

__all__ = ["HeldMessage", "HeldMessages"]


class HeldMessage(msgspec.Struct, eq=False):
    """One message in hand. Times are monotonic, in seconds.

    Attributes:
        since_s: When it was popped.
        until_s: When its lease is over, as far as is known here.
        is_renewed: Whether its lease is renewed ahead of its end.
        owner: Who works on it; when that ends, the message goes back.
        renew_count: How often it was renewed.
        refused_count: How often in a row a renewal failed.
        is_renewing: A renewal is under way.
        payload_bytes: Size of its record, once that is here.
    """

    receipt: Receipt
    since_s: float
    until_s: float
    is_renewed: bool = False
    owner: threading.Thread | LeasedUnit | None = None
    renew_count: int = 0
    refused_count: int = 0
    is_renewing: bool = False
    payload_bytes: int = 0


class HeldMessages:
    """Messages in hand, each until its lease is over in any case. Safe for use by many threads.

    A message leaves with the request that finishes it or gives it back; what is left is what nobody has spoken about.
    An answer to an earlier request cannot bring it in again (RocketMQ's ReceiptHandleGroup: a removal wins over a
    renewal under way).
    """

    def __init__(self) -> None:
        """Hold nothing."""
        self._lock = threading.Lock()
        self._queues: defaultdict[QueueKey, dict[int, HeldMessage]] = defaultdict(dict)
        self._count = 0
        self._payload_bytes = 0
        self._on_release: list[Callable[[], None]] = []
        self._on_hold: list[Callable[[float], None]] = []

    def __len__(self) -> int:
        """Count the messages in hand, and those whose lease has ended unnoticed."""
        return self._count

    @property
    def payload_bytes(self) -> int:
        """Sum of the sizes of the records in hand."""
        return self._payload_bytes

    def on_release(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` whenever messages have left, or `changed`; it must be short. What comes back ends that."""
        self._on_release.append(listener)
        return lambda: self._on_release.remove(listener)

    def changed(self) -> None:
        """Tell those who listen that something else has become of what is in hand."""
        self._tell(1)

    def on_hold(self, listener: Callable[[float], None]) -> None:
        """Call `listener` with the end of each lease that is new, or has a new end; it must be short."""
        self._on_hold.append(listener)

    def hold(
        self,
        receipts: Iterable[Receipt],
        until_s: float,
        now_s: float,
        *,
        is_renewed: bool = False,
    ) -> None:
        """Take messages in hand; another delivery of one that is held takes its place."""
        with self._lock:
            for receipt in receipts:
                queue = self._queues[queue_of(receipt)]
                before = queue.get(receipt.queue_offset)
                if before is None:
                    self._count += 1
                else:
                    self._payload_bytes -= before.payload_bytes
                queue[receipt.queue_offset] = HeldMessage(receipt, now_s, until_s, is_renewed)
        self._tell_end(until_s)

    def find(self, receipt: Receipt) -> HeldMessage | None:
        """The holding of a message, or of the delivery that a bare receipt is of."""
        queue = self._queues.get(queue_of(receipt))
        holding = None if queue is None else queue.get(receipt.queue_offset)
        if holding is None or holding.receipt is receipt:
            return holding
        is_same = not isinstance(receipt, Message) and _epoch(receipt) == _epoch(holding.receipt)
        return holding if is_same else None

    def is_live(self, message: Message, now_s: float) -> bool:
        """Whether a message is in hand, by itself or with its unit, and its lease not over, for all that is known."""
        holding = self.find(message.leased)
        return holding is not None and (holding.until_s > now_s or holding.is_renewing)

    def extend(self, receipt: Receipt, until_s: float) -> None:
        """The lease of a message ends later or sooner than was known; one that was let go meanwhile stays so."""
        holding = self.find(receipt)
        if holding is not None:
            holding.until_s = until_s
            self._tell_end(until_s)

    def filled(self, message: Message, payload_bytes: int) -> None:
        """Note that the record of a message in hand is here; 0: no longer."""
        with self._lock:
            holding = self.find(message)
            if holding is not None:
                self._payload_bytes += payload_bytes - holding.payload_bytes
                holding.payload_bytes = payload_bytes

    def own(self, messages: Iterable[Message], owner: threading.Thread) -> None:
        """Note who works on messages in hand from now on."""
        for message in messages:
            if message.unit is not None:
                message.unit.own(message, owner)
            holding = self.find(message.leased)
            if holding is not None:
                holding.owner = message.unit or owner

    def release(self, receipts: Iterable[Receipt]) -> int:
        """Let go of messages, and tell how many of them were in hand."""
        with self._lock:
            holdings = [holding for receipt in receipts if (holding := self.find(receipt)) is not None]
            count = self._drop(holdings)
        self._tell(count)
        return count

    def holdings(self) -> list[HeldMessage]:
        """All that is in hand now."""
        with self._lock:
            return [holding for queue in self._queues.values() for holding in queue.values()]

    def take_all(self, now_s: float) -> list[Receipt]:
        """Everything whose lease may still last, by queue and offset; nothing is held afterwards."""
        with self._lock:
            taken = [
                holding.receipt
                for _, queue in sorted(self._queues.items())
                for _, holding in sorted(queue.items())
                if holding.until_s > now_s
            ]
            self._queues.clear()
            count, self._count, self._payload_bytes = self._count, 0, 0
        self._tell(count)
        return taken

    def _drop(self, holdings: Iterable[HeldMessage]) -> int:
        """Forget holdings, each known to be there or named twice; gives their count."""
        count = 0
        for holding in holdings:
            queue = self._queues[queue_of(holding.receipt)]
            if queue.pop(holding.receipt.queue_offset, None) is not None:
                count += 1
                self._payload_bytes -= holding.payload_bytes
        self._count -= count
        return count

    def _tell(self, count: int) -> None:
        if count:
            for listener in list(self._on_release):
                listener()

    def _tell_end(self, until_s: float) -> None:
        for listener in self._on_hold:
            listener(until_s)


def _epoch(receipt: Receipt) -> int | None:
    """What all handles of one delivery share."""
    handle = decode_handle(receipt.handle.text)
    return None if handle is None else handle.epoch
