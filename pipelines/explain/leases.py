"""The deliveries of a message: each with its lease, its end, and what came for it too late."""

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from broker_state.audit import HANDLER_CAUSE, is_handler_cause
from pipelines.explain.message_events import Event, EventKind
from pipelines.times import duration_text

__all__ = ["Lease", "leases_of", "outcome_text", "raised_text", "released_text", "why_again"]

ENDS = frozenset(
    (
        EventKind.RELEASED_BY_CLIENT,
        EventKind.RELEASED,
        EventKind.EXPIRED,
        EventKind.ACKED,
        EventKind.DEAD_LETTERED,
        EventKind.EXPIRED_FROM_LOG,
        EventKind.RESET,
    )
)
DONE = frozenset((EventKind.ACKED, EventKind.DEAD_LETTERED, EventKind.EXPIRED_FROM_LOG))
ORDINALS = ("first", "second", "third", "fourth", "fifth")
TIMES = ("never", "once", "twice")
CAUSES_SHOWN = 3


class Lease(msgspec.Struct, kw_only=True):
    """One delivery of the message to a client.

    Attributes:
        number: Its number among the deliveries that the tables know, from 1.
        attempt: Its attempt, which counts from the last reset.
        epoch: The number of its pop.
        client_id: The client that got it.
        began_ms: When, ms since 1970.
        first_until_ms: Its first deadline.
        until_ms: Its last deadline.
        end: What ended it: its ack or dead letter where one came, otherwise the first end; None: nothing yet.
        expired_ms: When it expired, if it did, also where an ack came in time after all.
        is_forgotten: The lane was moved since: the delivery does not count any more.
        late: What its client asked for, and was refused.
    """

    number: int
    attempt: int
    epoch: int
    client_id: str | None
    began_ms: int
    first_until_ms: int
    until_ms: int
    end: Event | None = None
    expired_ms: int | None = None
    is_forgotten: bool = False
    late: list[Event] = []

    @property
    def holder(self) -> str:
        """The client, for people."""
        return self.client_id or "a client without an id"

    @property
    def late_ack(self) -> Event | None:
        """The first ack that was refused."""
        return next((event for event in self.late if event.operation == "ack"), None)


def leases_of(events: Iterable[Event]) -> list[Lease]:
    """Return the deliveries in the events of a group."""
    leases: list[Lease] = []
    by_epoch: dict[int, Lease] = {}
    for event in events:
        if event.kind is EventKind.LEASED:
            until_ms = event.at_ms if event.until_ms is None else event.until_ms
            lease = Lease(
                number=len(leases) + 1,
                attempt=event.attempt or 1,
                epoch=event.epoch or 0,
                client_id=event.client_id,
                began_ms=event.at_ms,
                first_until_ms=until_ms,
                until_ms=until_ms,
            )
            leases.append(lease)
            by_epoch[lease.epoch] = lease
        elif event.kind in (EventKind.RESET, EventKind.MOVED_BACK) and leases:
            leases[-1].end = leases[-1].end or event
            leases[-1].is_forgotten = True
        elif (found := by_epoch.get(-1 if event.epoch is None else event.epoch)) is not None:
            _add(found, event)
    return leases


def _add(lease: Lease, event: Event) -> None:
    if event.kind is EventKind.EXTENDED:
        lease.until_ms = event.until_ms or lease.until_ms
        lease.expired_ms, lease.end = None, None  # also of a message that nobody else had got since
    elif event.kind is EventKind.REFUSED:
        lease.late.append(event)
    elif event.kind in ENDS:
        lease.expired_ms = event.at_ms if event.kind is EventKind.EXPIRED else lease.expired_ms
        lease.end = event


def outcome_text(leases: Sequence[Lease]) -> str:
    """Return how often the message was delivered and why again: "delivered twice: ..."."""
    count = len(leases)
    times = TIMES[count] if count < len(TIMES) else f"{count} times"
    reasons = [why_again(lease) for lease in leases[:-1]]
    if not reasons:
        return f"delivered {times}"
    if len(reasons) == 1:
        return f"delivered {times}: {reasons[0][1]}"
    kinds = Counter(kind for kind, _ in reasons)
    if len(kinds) == len(reasons) <= CAUSES_SHOWN:
        return f"delivered {times}: " + "; ".join(text for _, text in reasons)
    shown = [f"{kind}, {_times(number)}" for kind, number in kinds.most_common(CAUSES_SHOWN)]
    rest = sum(kinds.values()) - sum(number for _, number in kinds.most_common(CAUSES_SHOWN))
    return f"delivered {times}: " + "; ".join([*shown, *([f"{rest} for other reasons"] if rest else [])])


def why_again(lease: Lease) -> tuple[str, str]:
    """Return why the message could be delivered again after this delivery: in a word that others share, and in full."""
    end = lease.end
    nth = ORDINALS[lease.number - 1] if lease.number <= len(ORDINALS) else f"{lease.number}th"
    if end is None:
        return "the tables lack the end of its delivery", f"the tables lack the end of its {nth} delivery"
    after = duration_text(end.at_ms - lease.began_ms)
    if lease.is_forgotten:
        what = "the lane was moved back or reset"
        return what, f"{what} after it was done" if end.kind in DONE else what
    if end.kind is EventKind.EXPIRED:
        length = duration_text(lease.until_ms - lease.began_ms)
        if (late := lease.late_ack) is not None:
            took = duration_text(late.at_ms - lease.began_ms)
            by = duration_text(late.at_ms - end.at_ms)
            full = f"the {nth} lease of {length} expired {by} before its ack; its handler took {took}"
            return "a lease expired before its ack", full
        full = f"the {nth} lease of {length} expired, and {lease.holder} sent no ack: it was stopped, hung or too slow"
        return "a lease expired without an ack", full
    if end.kind is EventKind.RELEASED_BY_CLIENT:
        if (failed := raised_text(end.cause)) is not None:
            return failed, f"{failed} after {after}"
        return "it was released", f"{lease.holder} released it after {after}"
    if end.kind is EventKind.ACKED:
        full = (
            f"it was acked, but a message before it was not, and an orderly lane delivers again from there (the {nth})"
        )
        return "an earlier message of the orderly pop was not acked", full
    return released_text(end.cause), f"{released_text(end.cause)} after {after}"


def _times(number: int) -> str:
    return TIMES[number] if number < len(TIMES) else f"{number} times"


def raised_text(cause: str | None) -> str | None:
    """Return how a handler failed, by the cause of a step; None: none did.

    >>> raised_text("handler: ValueError: no milk"), raised_text("handler"), raised_text("change_invisible")
    ('its handler raised ValueError: no milk', 'its handler failed', None)
    """
    if cause is None or not is_handler_cause(cause):
        return None
    raised = cause.removeprefix(HANDLER_CAUSE).removeprefix(": ")
    return f"its handler raised {raised}" if raised else "its handler failed"


def released_text(cause: str | None) -> str:
    """Return why a lease ended that neither its client nor its deadline ended, by the cause of the step."""
    match cause:
        case "return_client":
            return "its client was gone, and what it held was released"
        case "cancel":
            return "its pop was cancelled"
        case "attempt_id":
            return "the same attempt asked for it again"
        case _:
            return f"it was released ({cause})"
