"""What a consumer says of messages, told the job in its terms: leases of units.

```
message ───────────────────────────────> EntrySender          leased by itself
message of a unit ─> LeasedUnit ─ all ─> EntrySender          the unit is acked, renewed, comes again as a whole
                          └─ failed ───> Producer             or the message is sent again by itself: that is done
```
"""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING, Protocol

import msgspec

from popstream.errors import AnswerTimeout
from popstream.lease.entries import BatchFuture, Change
from popstream.lease.entry_sender import EXPIRED_LOCALLY
from popstream.message import Message, MessageState
from popstream.outcome import Outcome
from popstream.payload.message_id import ID_HEADER
from popstream.payload.redelivery import REDELIVERY_HEADER, Redelivery
from popstream.wire.failures import PopstreamError
from popstream.wire.headers import TAG_HEADER
from popstream.wire.reason import Reason, code_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from popstream.exchange.broker_clock import BrokerClock
    from popstream.lease.entries import OutcomesFuture
    from popstream.lease.entry_sender import EntrySender
    from popstream.lease.held_messages import HeldMessages
    from popstream.message import LeasedUnit
    from popstream.outcome import Receipt, SendResult
    from popstream.wire.command import Cause

__all__ = ["Resender", "Settlement"]

LOG = logging.getLogger(__name__)

NOTED = Outcome(True, Reason.OK, code_of(Reason.OK))
"""Of a message of a unit that has others which are not done: the job is told when they are."""
DONE_BEFORE = Outcome(False, Reason.ALREADY_ACKED, code_of(Reason.ALREADY_ACKED))
AGAIN = Change(1_000)
"""Not at once: what kept a message from being sent again may last."""


class Resender(Protocol):
    """Sends a message again: a `Producer`."""

    def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        headers: Iterable[tuple[str, bytes]] | None = None,
        queue_id: int | None = None,
        tag: str | None = None,
    ) -> Future[SendResult]:
        """Send a message; the future is done when that has succeeded."""


class Settlement:
    """Takes what is said of messages, alone or of units. Safe for use by many threads.

    Args:
        entries: Speaks to the job.
        held: Is told of what the job is not.
        group: For whom a message is sent again.
        broker_clock: Tells when.
        resender: Sends failed messages of units again, each by itself; None: their units come again.
    """

    def __init__(
        self,
        entries: EntrySender,
        held: HeldMessages,
        *,
        group: str,
        broker_clock: BrokerClock,
        resender: Resender | None = None,
    ) -> None:
        self._entries = entries
        self._held = held
        self._group = group
        self._broker_clock = broker_clock
        self._resender = resender
        self._changed = threading.Condition()
        self._in_flight: set[Future[SendResult]] = set()

    def ack(self, receipts: Iterable[Receipt], cause: Cause | None) -> OutcomesFuture:
        """As `EntrySender.ack`. A message of a unit is noted; with the last one the unit is acked."""

        def ack_part(asked: _Call, part: _Part) -> None:
            if not self._is_over(asked, part):
                self._finish(asked, part, MessageState.FINISHED)

        return self._ask(receipts, lambda whole, _: self._entries.ack(whole, cause), ack_part)

    def reject(self, receipts: Iterable[Receipt], cause: str | None) -> OutcomesFuture:
        """As `EntrySender.reject`. Of a message of a unit: the unit goes to the dead letters when all of it is done."""

        def reject_part(asked: _Call, part: _Part) -> None:
            if self._is_over(asked, part):
                return
            if self._resender is not None:
                self._send_again(asked, part, Redelivery(self._group, part.message.attempt, reject=cause or ""))
            else:
                part.unit.cause = part.unit.cause or cause or ""
                self._finish(asked, part, MessageState.FINISHED)

        return self._ask(receipts, lambda whole, _: self._entries.reject(whole, cause), reject_part)

    def change(self, changes: Iterable[tuple[Receipt, Change]], *, keeps: bool = True) -> OutcomesFuture:
        """As `EntrySender.change`. A unit is renewed for all its messages, and comes again for all of them."""
        listed = list(changes)

        def change_whole(whole: list[Receipt], indices: Sequence[int]) -> OutcomesFuture:
            labels = (listed[index][1] for index in indices)
            return self._entries.change(zip(whole, labels, strict=True), keeps=keeps)

        def change_part(asked: _Call, part: _Part) -> None:
            change = listed[part.index][1]
            goes_back = not (keeps and change.invisible_time_ms)
            if id(part.unit) in asked.units:
                asked.follow(asked.units[id(part.unit)], [part.index])
            elif self._is_over(asked, part):
                return
            elif goes_back and self._resender is not None and (part.unit.is_begun or not change.suspend):
                attempts = part.message.attempt - change.suspend
                self._send_again(asked, part, self._redelivery(attempts, change.invisible_time_ms))
            else:
                self._change_unit(asked, part, change, keeps=not goes_back)

        return self._ask((receipt for receipt, _ in listed), change_whole, change_part)

    def flush(self, timeout_s: float) -> None:
        """Wait until what is being sent again is sent, and the job told of it where that was the last of a unit.

        Raises:
            AnswerTimeout: Some is not, within the time.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: not self._in_flight, timeout_s):
                message = f"{len(self._in_flight)} messages are not sent again after {timeout_s:.1f} s"
                raise AnswerTimeout(message, op_ids=(), in_log=False, subject=self._group)

    def _ask(
        self,
        receipts: Iterable[Receipt],
        ask_whole: Callable[[list[Receipt], Sequence[int]], OutcomesFuture],
        ask_part: Callable[[_Call, _Part], None],
    ) -> OutcomesFuture:
        """The outcomes of what is leased by itself, and of messages of units, in the caller's order."""
        listed = list(receipts)
        parts = [
            _Part(index, receipt, receipt.unit)
            for index, receipt in enumerate(listed)
            if isinstance(receipt, Message) and receipt.unit is not None
        ]
        if not parts:
            return ask_whole(listed, range(len(listed)))
        asked = _Call(len(listed))
        of_parts = {part.index for part in parts}
        if whole := [index for index in range(len(listed)) if index not in of_parts]:
            asked.follow(ask_whole([listed[index] for index in whole], whole), whole)
        for part in parts:
            ask_part(asked, part)
        return asked.batch_future.future

    @staticmethod
    def _is_over(asked: _Call, part: _Part) -> bool:
        """Whether it was said before what became of the message; that is the answer, then."""
        if not part.message.is_settled:
            return False
        was_done = part.message.state is MessageState.FINISHED
        asked.batch_future.settle([(part.index, DONE_BEFORE if was_done else EXPIRED_LOCALLY)])
        return True

    def _finish(self, asked: _Call, part: _Part, state: MessageState) -> None:
        unit = part.unit
        if unit.message.is_settled:
            # It comes again, or is in other hands.
            asked.batch_future.settle([(part.index, EXPIRED_LOCALLY)])
        elif not unit.finish(part.message, state):
            asked.batch_future.settle([(part.index, NOTED)])
            self._held.changed()
        elif unit.cause is not None:
            asked.follow(self._entries.reject([unit.message], unit.cause or None), [part.index])
        else:
            asked.follow(self._entries.ack([unit.message], None), [part.index])

    def _change_unit(self, asked: _Call, part: _Part, change: Change, *, keeps: bool) -> None:
        unit = part.unit
        future = asked.units[id(unit)] = self._entries.change([(unit.message, change)], keeps=keeps)
        asked.follow(future, [part.index])

    def _redelivery(self, attempts: int, delay_ms: int) -> Redelivery:
        now_ms = self._broker_clock.now_ms(time.monotonic())
        return Redelivery(self._group, attempts, now_ms + delay_ms if delay_ms and now_ms is not None else 0)

    def _send_again(self, asked: _Call, part: _Part, resent: Redelivery) -> None:
        """Send a message by itself; it is done when that has succeeded. Otherwise its unit comes again."""
        assert self._resender is not None
        message, unit = part.message, part.unit
        message.state = MessageState.RETURNED
        own = {REDELIVERY_HEADER, ID_HEADER, TAG_HEADER}
        headers = [(name, value or b"") for name, value in message.headers if name not in own]
        headers += [(ID_HEADER, message.message_id.encode()), resent.header()]
        where = f"message {message.inner_index} of {message.topic}/{message.queue_id} offset {message.queue_offset}"
        try:
            sent = self._resender.send(
                message.topic, message.value, message.key, headers, message.queue_id, unit.message.tag or None
            )
        except PopstreamError as error:
            LOG.warning("%s cannot be sent again, so its unit comes again: %s", where, error)
            self._change_unit(asked, part, AGAIN, keeps=False)
            return
        with self._changed:
            self._in_flight.add(sent)

        def on_sent(done: Future[SendResult]) -> None:
            try:
                if (error := done.exception()) is None:
                    self._finish(asked, part, MessageState.RETURNED)
                else:
                    LOG.warning("%s could not be sent again, so its unit comes again: %s", where, error)
                    self._change_unit(asked, part, AGAIN, keeps=False)
            except PopstreamError as closed:
                asked.batch_future.settle([(part.index, None)], closed)
            finally:
                with self._changed:
                    self._in_flight.discard(done)
                    self._changed.notify_all()

        sent.add_done_callback(on_sent)


class _Part(msgspec.Struct, frozen=True):
    """A message of a unit, and its place in a call."""

    index: int
    message: Message
    unit: LeasedUnit


class _Call:
    """The outcomes of one call, and what was asked about whole units in it."""

    def __init__(self, count: int) -> None:
        self.batch_future = BatchFuture(count)
        self.units: dict[int, OutcomesFuture] = {}

    def follow(self, future: OutcomesFuture, indices: Sequence[int]) -> None:
        """Take the outcomes of a request, one for each index, or one for all of them."""

        def settle(done: OutcomesFuture) -> None:
            error = done.exception()
            found: Sequence[Outcome | None] = [None] * len(indices)
            if error is None:
                found = done.result()
            elif isinstance(error, AnswerTimeout) and error.outcomes:
                found = error.outcomes
            self.batch_future.settle(zip(indices, found, strict=True), error if isinstance(error, Exception) else None)

        future.add_done_callback(settle)
