"""Settles messages: acks, rejects and changes of single messages, and of messages within a leased unit.

```
message ───────────────────────────────> EntrySender   leased by itself
message of a unit ─> LeasedUnit ─ all ─> EntrySender   the unit is acked, renewed, or redelivered as a whole
                          └─ failed ───> Producer      or the failed message is sent again as a message of its own
```
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Protocol

import msgspec

from popstream.errors import AnswerTimeout
from popstream.lease.entries import RELEASED_COUNTED, RELEASED_UNCOUNTED, BatchFuture, Change, first_of
from popstream.lease.entry_sender import EXPIRED_LOCALLY
from popstream.message import Message, MessageState
from popstream.outcome import Outcome
from popstream.payload.redelivery import Redelivery
from popstream.retries import Reject, bounded_cause, describe_error
from popstream.wire.base_errors import PopstreamError
from popstream.wire.reason import Reason, code_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from popstream.awaitable import AwaitableFuture
    from popstream.exchange.broker_clock import BrokerClock
    from popstream.lease.entries import OutcomesFuture
    from popstream.lease.entry_sender import EntrySender
    from popstream.lease.held_messages import HeldMessages
    from popstream.lease.retry_rules import RetryRules
    from popstream.message import LeasedUnit
    from popstream.outcome import Receipt, SendResult
    from popstream.wire.command import Cause

__all__ = ["Resender", "Settlement"]

LOG = logging.getLogger(__name__)

NOTED = Outcome(True, Reason.OK, code_of(Reason.OK))
"""Outcome of a settled message of a unit with other messages in flight: the unit is acked after the last one."""
DONE_BEFORE = Outcome(False, Reason.ALREADY_ACKED, code_of(Reason.ALREADY_ACKED))
REDELIVER_UNIT = Change(1_000, release="after")
"""For a unit with a message that could not be sent again; not at once, as the cause may last."""


class Resender(Protocol):
    """Sends a failed message again; a `Producer` is one."""

    def send_again(self, message: Message, redelivery: Redelivery) -> Future[SendResult]:
        """Send a message as a record of its own; the future is done when the record is written."""


class Settlement:
    """Settles messages, also those of units. Safe for use by many threads.

    Args:
        entries: Sends the requests.
        held: The held messages.
        group: The consumer group, for redeliveries.
        broker_clock: The clock of redeliveries with a delay.
        retries: What becomes of messages whose handlers fail.
        resender: Sends failed messages of units again, each by itself; None: their units are redelivered.
    """

    def __init__(
        self,
        entries: EntrySender,
        held: HeldMessages,
        *,
        group: str,
        broker_clock: BrokerClock,
        retries: RetryRules,
        resender: Resender | None = None,
    ) -> None:
        self._entries = entries
        self._held = held
        self._group = group
        self._broker_clock = broker_clock
        self._retries = retries
        self._resender = resender
        self._changed = threading.Condition()
        self._in_flight: set[Future[SendResult]] = set()

    def ack(self, receipts: Iterable[Receipt], cause: Cause | None) -> OutcomesFuture:
        """Like `EntrySender.ack`. The last message of a unit to be settled acks the unit."""

        def ack_parts(call: _Call, parts: list[_Part]) -> None:
            if finished := [part for part in parts if self._settle(call, part)]:
                self._finish(call, finished)

        return self._request(receipts, lambda whole, _: self._entries.ack(whole, cause), ack_parts)

    def ack_one(self, message: Message) -> AwaitableFuture[Outcome]:
        """Like `ack` of one message, without a cause."""
        return self._entries.ack_one(message) if message.unit is None else first_of(self.ack([message], None))

    def finish(self, messages: Sequence[Message]) -> None:
        """Like `EntrySender.finish`. The last message of a unit to be settled acks the unit."""
        if whole := [message for message in messages if message.unit is None]:
            self._entries.finish(whole)
        if parts := [message for message in messages if message.unit is not None]:
            self.ack(parts, None)

    def reject(self, receipts: Iterable[Receipt], cause: str | None) -> OutcomesFuture:
        """Like `EntrySender.reject`. A unit with a rejected message is rejected when all its messages are settled."""
        if cause is not None:
            cause = bounded_cause(cause)  # while the messages are held: later, what cannot be sent would be lost

        def reject_parts(call: _Call, parts: list[_Part]) -> None:
            if self._resender is not None:
                for part in parts:
                    if not self._was_settled(call, part):
                        rejected = Redelivery(self._group, part.message.attempt, reject=cause or "")
                        self._send_again(call, part, rejected)
            elif finished := [part for part in parts if self._settle(call, part)]:
                unit = finished[0].unit
                unit.cause = unit.cause or cause or ""
                self._finish(call, finished)

        return self._request(receipts, lambda whole, _: self._entries.reject(whole, cause), reject_parts)

    def change(self, changes: Iterable[tuple[Receipt, Change]], *, keeps: bool = True) -> OutcomesFuture:
        """Like `EntrySender.change`. A unit is renewed, or redelivered, with all its messages."""
        listed = list(changes)

        def change_whole(whole: list[Receipt], indices: Sequence[int]) -> OutcomesFuture:
            labels = (listed[index][1] for index in indices)
            return self._entries.change(zip(whole, labels, strict=True), keeps=keeps)

        def change_parts(call: _Call, parts: list[_Part]) -> None:
            is_split = len({part.message.inner_index for part in parts}) < len(parts[0].unit.messages)
            for part in parts:
                change_part(call, part, listed[part.index][1], is_split=is_split)

        def change_part(call: _Call, part: _Part, change: Change, *, is_split: bool) -> None:
            goes_back = not (keeps and change.invisible_time_ms)
            if id(part.unit) in call.units:
                call.follow(call.units[id(part.unit)], [part.index])
            elif self._was_settled(call, part):
                return
            # A redelivery of the unit would take along those of its messages that are settled, or at work.
            elif goes_back and self._resender is not None and (is_split or part.unit.is_begun or not change.suspend):
                attempts = part.message.attempt - change.suspend
                self._send_again(call, part, self._redelivery(attempts, change))
            else:
                self._change_unit(call, part, change, keeps=not goes_back)

        return self._request((receipt for receipt, _ in listed), change_whole, change_parts)

    def fail(
        self, message: Message, error: BaseException, later: Sequence[Message] = (), *, is_orderly: bool = False
    ) -> OutcomesFuture:
        """Settle a message whose handler has raised `error`, and release those `later` in its set, without an attempt.

        The result of the future begins with the outcome of the message, or in an orderly group ends with it.
        """
        others = [(other, RELEASED_UNCOUNTED) for other in later]
        log = partial(_log_unsettled, message)
        settled = self._retries.after_failure(error, message.attempt)
        if isinstance(settled, Reject):
            self.change(others, keeps=False).add_done_callback(log)
            future = self.reject([message], settled.reason or None)
        else:
            # An orderly batch becomes free by its last member: if that is the failed one, its dead letter has the cause
            failed = (message, settled)
            future = self.change([*others, failed] if is_orderly else [failed, *others], keeps=False)
        future.add_done_callback(log)
        return future

    def fail_all(self, failures: Sequence[tuple[Message, Exception]]) -> None:
        """Settle messages that failed before a handler got them, each by its error, as `fail` does."""
        changes: list[tuple[Receipt, Change]] = []
        rejected: defaultdict[str, list[Message]] = defaultdict(list)
        for message, error in failures:
            settled = self._retries.after_failure(error, message.attempt)
            if isinstance(settled, Reject):
                rejected[settled.reason].append(message)
            else:
                changes.append((message, settled))
        log = partial(_log_unsettled, failures[0][0])
        self.change(changes, keeps=False).add_done_callback(log)
        for reason, messages in rejected.items():
            self.reject(messages, reason or None).add_done_callback(log)

    def send_rest_again(self, held: Iterable[Receipt]) -> None:
        """Send again the unsettled messages of units with settled ones, which a redelivery of the unit would repeat."""
        if self._resender is not None:
            for receipt in held:
                unit = receipt.carries if isinstance(receipt, Message) else None
                if unit is not None and unit.is_begun:
                    rest = [(message, RELEASED_COUNTED) for message in unit.messages if not message.is_settled]
                    self.change(rest, keeps=False)

    def flush(self, timeout_s: float) -> None:
        """Wait until the messages that are sent again are written, and their units are settled.

        Raises:
            AnswerTimeout: Some were not written in time.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: not self._in_flight, timeout_s):
                message = f"{len(self._in_flight)} failed messages were not sent again within {timeout_s:.1f} s"
                raise AnswerTimeout(message, op_ids=(), in_log=False, subject=self._group)

    def _request(
        self,
        receipts: Iterable[Receipt],
        request_whole: Callable[[list[Receipt], Sequence[int]], OutcomesFuture],
        request_parts: Callable[[_Call, list[_Part]], None],
    ) -> OutcomesFuture:
        """Request messages leased alone by `request_whole`, and the messages of each unit by `request_parts`."""
        listed = list(receipts)
        parts = [
            _Part(index, receipt, receipt.unit)
            for index, receipt in enumerate(listed)
            if isinstance(receipt, Message) and receipt.unit is not None
        ]
        if not parts:
            return request_whole(listed, range(len(listed)))
        call = _Call(len(listed))
        of_parts = {part.index for part in parts}
        if whole := [index for index in range(len(listed)) if index not in of_parts]:
            call.follow(request_whole([listed[index] for index in whole], whole), whole)
        units: defaultdict[int, list[_Part]] = defaultdict(list)
        for part in parts:
            units[id(part.unit)].append(part)
        for of_unit in units.values():
            request_parts(call, of_unit)
        return call.batch_future.future

    @staticmethod
    def _was_settled(call: _Call, part: _Part) -> bool:
        """Tell whether a message was settled before; its outcome is then known here."""
        if not part.message.is_settled:
            return False
        was_done = part.message.state is MessageState.FINISHED
        call.settle([part], DONE_BEFORE if was_done else EXPIRED_LOCALLY)
        return True

    def _settle(self, call: _Call, part: _Part) -> bool:
        """Record that a message is finished; return False if it was settled before."""
        if self._was_settled(call, part):
            return False
        part.message.state = MessageState.FINISHED
        return True

    def _finish(self, call: _Call, parts: Sequence[_Part]) -> None:
        """Settle a unit if these messages, which are settled, are its last ones: its outcome is theirs then."""
        unit = parts[0].unit
        if unit.message.is_settled:
            # The unit is redelivered, or another consumer has it.
            call.settle(parts, EXPIRED_LOCALLY)
        elif not unit.finish(part.message for part in parts):
            # The job takes an ack after the deadline, but nobody knows yet whether it will be in time for this unit.
            call.settle(parts, EXPIRED_LOCALLY if self._entries.has_expired(unit.message) else NOTED)
            self._held.changed()
        else:
            if unit.cause is not None:
                future = self._entries.reject([unit.message], unit.cause or None)
            else:
                future = self._entries.ack([unit.message], None)
            for part in parts:
                call.follow(future, [part.index])

    def _change_unit(self, call: _Call, part: _Part, change: Change, *, keeps: bool) -> None:
        unit = part.unit
        future = call.units[id(unit)] = self._entries.change([(unit.message, change)], keeps=keeps)
        call.follow(future, [part.index])

    def _redelivery(self, attempts: int, change: Change) -> Redelivery:
        now_ms, delay_ms = self._broker_clock.now_ms(time.monotonic()), change.invisible_time_ms
        not_before_ms = now_ms + delay_ms if delay_ms and now_ms is not None else 0
        return Redelivery(self._group, attempts, not_before_ms, cause=change.cause)

    def _send_again(self, call: _Call, part: _Part, resent: Redelivery) -> None:
        """Send a message by itself, which settles it when it is written; otherwise its unit is redelivered."""
        assert self._resender is not None
        message = part.message
        message.state = MessageState.RELEASED
        if part.unit.message.state is MessageState.LAPSED:  # its unit is redelivered, so it would come twice
            call.settle([part], EXPIRED_LOCALLY)
            return
        where = f"message {message.inner_index} of {message.topic}/{message.queue_id} offset {message.queue_offset}"
        try:
            sent = self._resender.send_again(message, resent)
        except PopstreamError as error:
            LOG.warning("%s cannot be sent again, so its unit is redelivered: %s", where, error)
            self._change_unit(call, part, REDELIVER_UNIT, keeps=False)
            return
        with self._changed:
            self._in_flight.add(sent)

        def on_sent(done: Future[SendResult]) -> None:
            try:
                if (error := done.exception()) is None:
                    self._finish(call, [part])
                else:
                    LOG.warning("%s could not be sent again, so its unit is redelivered: %s", where, error)
                    self._change_unit(call, part, REDELIVER_UNIT, keeps=False)
            except PopstreamError as closed:
                call.batch_future.settle([(part.index, None)], closed)
            finally:
                with self._changed:
                    self._in_flight.discard(done)
                    self._changed.notify_all()

        sent.add_done_callback(on_sent)


def _log_unsettled(message: Message, settled: Future[list[Outcome]]) -> None:
    """Log that a message was not settled after its handler had raised: nobody else waits for that."""
    if (error := settled.exception()) is not None:
        where = (message.topic, message.queue_id, message.queue_offset)
        LOG.warning("the failed message at %s/%d offset %d could not be settled: %s", *where, describe_error(error))


class _Part(msgspec.Struct, frozen=True):
    """A message of a unit, and its place in a call."""

    index: int
    message: Message
    unit: LeasedUnit


class _Call:
    """The outcomes of one call, and its requests about whole units."""

    def __init__(self, count: int) -> None:
        self.batch_future = BatchFuture(count)
        self.units: dict[int, OutcomesFuture] = {}

    def settle(self, parts: Iterable[_Part], outcome: Outcome) -> None:
        """Record the outcome of messages of a unit."""
        self.batch_future.settle((part.index, outcome) for part in parts)

    def follow(self, future: OutcomesFuture, indices: Sequence[int]) -> None:
        """Take over the outcomes of a request, one for each index."""

        def settle(done: Future[list[Outcome]]) -> None:
            error = done.exception()
            found: Sequence[Outcome | None] = [None] * len(indices)
            if error is None:
                found = done.result()
            elif isinstance(error, AnswerTimeout) and error.outcomes:
                found = error.outcomes
            self.batch_future.settle(zip(indices, found, strict=True), error if isinstance(error, Exception) else None)

        future.add_done_callback(settle)
