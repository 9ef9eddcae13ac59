"""Translates requests about many messages into entries with ranges, and the runs of an answer into outcomes.

```
receipts in the caller's order ── plan ──> records: handles, entries (handle, label, ranges)
outcomes in the caller's order <── outcomes ── runs (entry, first..last, reason)
```

A *label* is the content of an entry beside its handle and offsets: the cause of an ack, or the new time of a change.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Generic, TypeVar

import msgspec

from popstream.awaitable import AwaitableFuture
from popstream.errors import AnswerTimeout, AnswerUnreadable
from popstream.exchange.coalescer import ranges_by_label
from popstream.outcome import Outcome, ReceiptHandle
from popstream.wire.base_errors import Invalid
from popstream.wire.limits import INVISIBLE_TIME_MS_MAX
from popstream.wire.reason import Reason

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence
    from concurrent.futures import Future

    from popstream.lease.held_messages import HeldMessage
    from popstream.outcome import Receipt
    from popstream.wire.answer import Answer, Run
    from popstream.wire.command import Release

__all__ = [
    "DELIVERY_OVER",
    "RELEASED_COUNTED",
    "RELEASED_UNCOUNTED",
    "BatchFuture",
    "Change",
    "MessageRequest",
    "Plan",
    "PlannedEntry",
    "SingleFuture",
    "first_of",
    "outcomes",
    "plan",
]

Label = TypeVar("Label", bound="Hashable")

# Each message may lie in a page of 64 deliveries of its own, and the job decides no more in one record. One with this
# many handles and groups of their greatest length stays below RECORD_BYTES_MAX.
REQUEST_MESSAGES_MAX = 1_250

DELIVERY_OVER = frozenset(
    (
        Reason.ALREADY_ACKED,
        Reason.STALE_HANDLE,
        Reason.UNKNOWN_HANDLE,
        Reason.OUTSIDE_POP,
        Reason.EXPIRED_LOCALLY,
        Reason.BELOW_MIN,
        Reason.ABOVE_MAX,
    )
)
"""Reasons after which no request about the same delivery can succeed."""

OutcomesFuture = AwaitableFuture[list[Outcome]]


class Change(msgspec.Struct, frozen=True, gc=False):
    """Label of a change: visible `invisible_time_ms` after the decision.

    With `suspend` the next delivery does not count as a further attempt. `release` and `cause` are those of the wire
    (popstream.wire.command.ChangeEntry).

    Raises:
        Invalid: The job would refuse the time.
    """

    invisible_time_ms: int
    suspend: bool = False
    release: Release | None = None
    cause: str | None = None

    def __post_init__(self) -> None:
        """Check the time while the message is held: if the job refused it, the lease would be left to expire."""
        if not 0 <= self.invisible_time_ms <= INVISIBLE_TIME_MS_MAX:
            message = f"an invisible time is 0..{INVISIBLE_TIME_MS_MAX} ms (12 hours), not {self.invisible_time_ms}"
            raise Invalid(message, subject="invisible_time_ms")


RELEASED_COUNTED = Change(0, release="after")
"""Release at once: for messages that were handed out."""
RELEASED_UNCOUNTED = Change(0, suspend=True)
"""Release at once without counting the attempt: for messages that were not handed out."""


class BatchFuture:
    """Collects the outcomes of one call, which may be sent as several records.

    Args:
        count: Number of outcomes to expect; with 0 the future is done.

    Attributes:
        future: Its result are the outcomes, in the caller's order. When some remain unknown it raises an error that
            holds the known ones.
    """

    def __init__(self, count: int) -> None:
        self.future: OutcomesFuture = AwaitableFuture()
        self._lock = threading.Lock()
        self._outcomes: list[Outcome | None] = [None] * count
        self._missing_count = count
        self._errors: list[Exception] = []
        if not count:
            self.future.set_result([])

    def settle(self, settled: Iterable[tuple[int, Outcome | None]], error: Exception | None = None) -> None:
        """Record outcomes by index; None: the outcome is unknown because of `error`."""
        with self._lock:
            for index, outcome in settled:
                self._outcomes[index] = outcome
                self._missing_count -= 1
            if error is not None and error not in self._errors:
                self._errors.append(error)
            if self._missing_count or self.future.done():
                return
        if self._errors:
            self.future.set_exception(_joined(self._errors, self._outcomes))
        else:
            self.future.set_result([outcome for outcome in self._outcomes if outcome is not None])


class SingleFuture:
    """Like `BatchFuture`, for a call about one message; the result of its future is the outcome itself."""

    def __init__(self) -> None:
        self.future: AwaitableFuture[Outcome] = AwaitableFuture()

    def settle(self, settled: Iterable[tuple[int, Outcome | None]], error: Exception | None = None) -> None:
        """Record the outcome; None: it is unknown because of `error`."""
        ((_, outcome),) = settled
        if error is not None:
            self.future.set_exception(_joined([error], [outcome]))
        elif outcome is not None:
            self.future.set_result(outcome)


def _joined(errors: Sequence[Exception], outcomes: Sequence[Outcome | None]) -> Exception:
    """Return the error of a call: one of its own for each call, as several may share a record that had no answer."""
    timeouts = [error for error in errors if isinstance(error, AnswerTimeout)]
    if len(timeouts) < len(errors):
        return next(error for error in errors if not isinstance(error, AnswerTimeout))
    joined = AnswerTimeout(
        timeouts[0].message,
        op_ids=[op_id for error in timeouts for op_id in error.op_ids],
        in_log=all(error.in_log for error in timeouts),
        subject=timeouts[0].subject,
    )
    joined.outcomes = tuple(outcomes)
    return joined


def first_of(outcomes: OutcomesFuture) -> AwaitableFuture[Outcome]:
    """Return the future of the only outcome of a request about one message."""
    first: AwaitableFuture[Outcome] = AwaitableFuture()

    def settle(done: Future[list[Outcome]]) -> None:
        error = done.exception()
        if error is None:
            first.set_result(done.result()[0])
        else:
            first.set_exception(error)

    outcomes.add_done_callback(settle)
    return first


class MessageRequest(msgspec.Struct, Generic[Label], frozen=True, gc=False):
    """The request for one message, and the place of its outcome in the call."""

    receipt: Receipt
    handle: str
    """The receipt's handle at the time of the call: the answer to another request may replace it meanwhile."""
    label: Label
    call_future: BatchFuture | SingleFuture
    index: int
    holding: HeldMessage | None = None
    """The held message, if a renewal of it must not come before the request."""
    renewals_known: int = 0
    """Renewals of `holding` that were over at the time of the call: any other one replaces the handle that is sent."""

    @property
    def meets_renewal(self) -> bool:
        """Whether the message was being renewed at the time of the call, or has been since."""
        return self.holding is not None and self.holding.renewals_begun > self.renewals_known

    def again(self, handle: str) -> MessageRequest[Label]:
        """Return the request with the handle of the renewal that came first."""
        assert self.holding is not None, "only a held message is renewed"
        return msgspec.structs.replace(self, handle=handle, renewals_known=self.holding.renewals_over)


class PlannedEntry(msgspec.Struct, Generic[Label], frozen=True):
    """One entry of a record to send."""

    handle: int
    label: Label
    ranges: list[tuple[int, int]]


class Plan(msgspec.Struct, Generic[Label], frozen=True):
    """One record to send: each handle once, neighbouring offsets of a handle and label as one range."""

    handles: list[str]
    entries: list[PlannedEntry[Label]]
    requests: list[MessageRequest[Label]]


def plan(requests: Sequence[MessageRequest[Label]]) -> list[Plan[Label]]:
    """Return the records for the requests of one queue, in the order in which to send them.

    Each record names a message at most once: the job would refuse a second entry as DUPLICATE_ENTRY, even if only that
    one has a valid handle. So requests of independent callers are decided one after the other, as if sent separately.
    """
    plans: list[Plan[Label]] = []
    current: list[MessageRequest[Label]] = []
    offsets: set[int] = set()
    for request in requests:
        offset = request.receipt.queue_offset
        if offset in offsets or len(current) == REQUEST_MESSAGES_MAX:
            plans.append(_plan_one(current))
            current, offsets = [], set()
        current.append(request)
        offsets.add(offset)
    if current:
        plans.append(_plan_one(current))
    return plans


def _plan_one(requests: list[MessageRequest[Label]]) -> Plan[Label]:
    handles: dict[str, int] = {}
    for request in requests:
        handles.setdefault(request.handle, len(handles))
    ranges = ranges_by_label(
        (request.receipt.queue_offset, (handles[request.handle], request.label)) for request in requests
    )
    entries = [PlannedEntry(handle, label, found) for (handle, label), found in ranges.items()]
    return Plan(list(handles), entries, requests)


def outcomes(sent: Plan[Label], answer: Answer) -> list[Outcome]:
    """Return the outcome of each request of a record, in their order. An answer without runs is the outcome of all.

    Raises:
        AnswerUnreadable: The answer has no outcome for one of the requests.
    """
    if not answer.runs and answer.reason is not Reason.OK:
        return [Outcome(answer.applied, answer.reason, answer.code)] * len(sent.requests)
    handle_of_entry = [(sent.handles[entry.handle], entry.label) for entry in sent.entries]
    found: dict[tuple[str, Label, int], Outcome] = {}
    for run in answer.runs:
        if not 0 <= run.entry < len(handle_of_entry):
            continue
        handle, label = handle_of_entry[run.entry]
        outcome = _outcome(run, answer)
        for offset in range(run.first, run.last + 1):
            found[handle, label, offset] = outcome
    try:
        return [found[request.handle, request.label, request.receipt.queue_offset] for request in sent.requests]
    except KeyError as error:
        where = f"offset {error.args[0][2]} of {answer.topic}/{answer.queue_id}"
        message = f"the answer to {answer.op_id} has no outcome for {where}"
        raise AnswerUnreadable(message, subject=answer.op_id) from error


def _outcome(run: Run, answer: Answer) -> Outcome:
    handle = None if run.handle is None else ReceiptHandle(answer.handles[run.handle])
    return Outcome(
        run.applied, run.reason, run.code, run.pop_time_ms, run.invisible_time_ms, run.revive_queue_id, handle
    )
