"""What a report says. Times are in ms since 1970; what is counted are messages, of which a row may be about many."""

from collections.abc import Sequence

import msgspec

from pipelines.explain.message_events import Event
from pipelines.report.period import Period

__all__ = [
    "DeadLetters",
    "Lane",
    "LaneFacts",
    "LaneLeases",
    "Latency",
    "Pop",
    "QualityResult",
    "Quantiles",
    "Redelivered",
    "Refusals",
    "Report",
    "Scope",
    "SlowLease",
    "Totals",
    "Traffic",
]


class Lane(msgspec.Struct, frozen=True):
    """A consumer group on a queue."""

    group: str
    topic: str
    queue_id: int

    @property
    def queue(self) -> str:
        """The queue, as commands take it."""
        return f"{self.topic}/{self.queue_id}"


class Scope(msgspec.Struct, frozen=True, kw_only=True):
    """What a report is asked about; None: no bound.

    Attributes:
        since_ms: The first moment.
        until_ms: The moment after the last one.
        group: Only this group.
        topic: Only queues of this topic.
        lane: The lane whose leases are drawn.
    """

    since_ms: int | None = None
    until_ms: int | None = None
    group: str | None = None
    topic: str | None = None
    lane: Lane | None = None


class Traffic(msgspec.Struct, frozen=True, kw_only=True):
    """Messages by interval.

    Attributes:
        poppable: Those that the commit position of a queue has passed.
        delivered: Those that a pop got, again or for the first time.
        redelivered: Part of `delivered`: again.
        done: Those that were acked.
        dead: Those that became dead letters.
        expired: Leases that ended at their deadline.
        failed: Those that were released because a handler failed.
        released_by_client: Those that a client released for another reason.
        released_otherwise: Leases that ended otherwise: a client was gone, or the lane was reset.
        in_flight: Leased at the end of the interval.
    """

    poppable: Sequence[int]
    delivered: Sequence[int]
    redelivered: Sequence[int]
    done: Sequence[int]
    dead: Sequence[int]
    expired: Sequence[int]
    failed: Sequence[int]
    released_by_client: Sequence[int]
    released_otherwise: Sequence[int]
    in_flight: Sequence[int]


class Quantiles(msgspec.Struct, frozen=True):
    """Quantiles of durations in ms, to 2 %; None: there were none."""

    p50: float | None = None
    p95: float | None = None
    p99: float | None = None


class Latency(msgspec.Struct, frozen=True):
    """Quantiles of one kind of duration, over the whole period and by interval."""

    whole: Quantiles
    intervals: Sequence[Quantiles]


class LaneFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Where a lane was at the end of the period.

    Attributes:
        lane: Which.
        commit_offset: Its position; None: it has not moved yet.
        lag: Messages from there to the commit position of the queue.
        in_flight: Messages that clients hold.
        dead: Messages that became dead letters since the lane began.
        moved_ms: When the position moved last; None: not yet.
        waiting_since_ms: When the message at the position was written; None: it is not known, or there is none.
    """

    lane: Lane
    commit_offset: int | None
    lag: int
    in_flight: int
    dead: int
    moved_ms: int | None
    waiting_since_ms: int | None


class SlowLease(msgspec.Struct, frozen=True, kw_only=True):
    """Messages that one ack ended together, long after their pop."""

    lane: Lane
    first_offset: int
    last_offset: int
    client_id: str | None
    attempt: int
    began_ms: int
    acked_ms: int


class Redelivered(msgspec.Struct, frozen=True, kw_only=True):
    """A message that came again.

    Attributes:
        lane: To whom.
        queue_offset: Which.
        attempts: Number of its last delivery.
        causes: Why it came again, with how often.
        last_step: What happened to it last.
    """

    lane: Lane
    queue_offset: int
    attempts: int
    causes: dict[str, int]
    last_step: str


class DeadLetters(msgspec.Struct, frozen=True, kw_only=True):
    """Dead letters of a group for one reason.

    Attributes:
        group: Which.
        reason: As in the table.
        cause: Of those at their attempt limit what ended the last lease; None: it is not known.
        messages: How many.
        last_ms: When the last one was given up.
        example: The last one, as TOPIC/QUEUE/OFFSET.
    """

    group: str
    reason: str
    cause: str | None
    messages: int
    last_ms: int
    example: str


class Refusals(msgspec.Struct, frozen=True):
    """Operations that were read and decided against."""

    kind: str
    reason: str
    count: int


class QualityResult(msgspec.Struct, frozen=True, kw_only=True):
    """The last result of an expectation; `unexpected_count` -1: it could not be evaluated."""

    suite: str
    expectation: str
    success: bool
    unexpected_count: int
    observed: str
    run_ms: int


class Pop(msgspec.Struct, frozen=True, kw_only=True):
    """The messages that one pop got, and what became of them.

    Attributes:
        epoch: Its number within the lane.
        client_id: Who got them.
        first_offset: The first one.
        last_offset: The last one.
        messages: How many.
        attempt: The highest number of a delivery among them.
        began_ms: When.
        until_ms: The last deadline.
        events: What happened to them, in order.
    """

    epoch: int
    client_id: str | None
    first_offset: int
    last_offset: int
    messages: int
    attempt: int
    began_ms: int
    until_ms: int
    events: Sequence[Event]


class LaneLeases(msgspec.Struct, frozen=True):
    """The last pops of a lane within the period, the first one first; `count`: of all."""

    lane: Lane
    pops: Sequence[Pop]
    count: int


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """How many there are of what a report lists in part."""

    lanes: int
    lag: int
    redelivered: int
    dead_letter_kinds: int
    refusal_kinds: int


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What a report says.

    Attributes:
        name: The folder of the job.
        made_ms: When it was made.
        versions: The version of each table that was read.
        scope: What was asked.
        period: What it is about.
        notices: What a reader has to know about what the tables lack.
        traffic: Messages by interval.
        waiting: From when a message could be popped to its first delivery.
        handling: From a delivery to its ack.
        total: From when a message could be popped to its ack.
        lanes: Those with the greatest lag.
        slowest: Those that took longest from a delivery to its ack.
        redelivered: Messages with the most deliveries.
        dead_letters: By group and reason.
        refusals: By kind and reason.
        rejected: Records that are no operation, by reason; None: only some lanes are asked for.
        quality: The last results of `popstream check`.
        totals: Of what is listed in part.
        leases: Of the lane that was asked for.
    """

    name: str
    made_ms: int
    versions: dict[str, int]
    scope: Scope
    period: Period
    notices: Sequence[str]
    traffic: Traffic
    waiting: Latency
    handling: Latency
    total: Latency
    lanes: Sequence[LaneFacts]
    slowest: Sequence[SlowLease]
    redelivered: Sequence[Redelivered]
    dead_letters: Sequence[DeadLetters]
    refusals: Sequence[Refusals]
    rejected: dict[str, int] | None
    quality: Sequence[QualityResult]
    totals: Totals
    leases: LaneLeases | None
