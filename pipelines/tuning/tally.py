"""What became of the messages of a lane in a range of the log, counted from the rows of the kernel."""

from collections.abc import Sequence

import msgspec

from broker_state.audit import (
    ERA_ENDING_KINDS,
    CommitPositionRow,
    DeliveryRow,
    DeliveryStep,
    OperationRow,
    is_release_cause,
)
from pipelines.tuning.delivery_counts import DeliveryCounts
from popstream.wire.reason import Reason

__all__ = ["LaneOutcome", "LaneTally", "QueueTally", "total"]

_IN_VAIN = frozenset((Reason.STALE_HANDLE, Reason.ALREADY_ACKED))
_RUN_MAX = 1_000_000
"""Messages of a run that are looked at: a refused range may name any offsets up to 2^63 - 1."""
_ENDED = frozenset((DeliveryStep.EXPIRED, DeliveryStep.RELEASED))
_NO_END = frozenset((DeliveryStep.LEASED, DeliveryStep.CHANGED))
_DONE = frozenset((DeliveryStep.ACKED, DeliveryStep.DEAD_LETTERED, DeliveryStep.EXPIRED_FROM_LOG))


class LaneOutcome(msgspec.Struct, kw_only=True):
    """What became of the messages of a lane, or of several.

    Attributes:
        deliveries: Messages that were leased, each as often as it was.
        redeliveries: Of these, all but the first of a message in the range, and those of an attempt above 1.
        expired: Leases that ended at their deadline.
        given_back: Leases that their client ended by a change to 0 or a release.
        acked: Messages that were acked.
        acked_late: Of these, after the lease had ended, and before the message was delivered again.
        acked_in_vain: Acks of messages that had been delivered again since, or been acked by the client that got them
            then: work that was done twice.
        dead_letters: Messages that became dead letters.
        blocked_ms: How long the commit offset waited for a message whose lease had ended without an ack.
        commit_offset: At the end of the range; of several lanes the sum.
        not_done: Messages of the queue that are not done at the end of the range.
    """

    deliveries: int = 0
    redeliveries: int = 0
    expired: int = 0
    given_back: int = 0
    acked: int = 0
    acked_late: int = 0
    acked_in_vain: int = 0
    dead_letters: int = 0
    blocked_ms: int = 0
    commit_offset: int = 0
    not_done: int = 0


def total(outcomes: "list[LaneOutcome]") -> LaneOutcome:
    """Return the sums.

    >>> total([LaneOutcome(acked=1), LaneOutcome(acked=2, expired=1)]).acked
    3
    """
    return LaneOutcome(**{name: sum(getattr(one, name) for one in outcomes) for name in LaneOutcome.__struct_fields__})


class LaneTally:
    """Counts the rows of one lane, record by record: `leased`, `answered` and `ended`, then `settle`.

    Args:
        commit_offset: Of the lane at the start of the range; None: the lane begins within it.
    """

    __slots__ = ("_blocked_since_ms", "_commit_offset", "_failed_ms", "_moved_ms", "_waiting", "numbers", "outcome")

    def __init__(self, commit_offset: int | None) -> None:
        self.outcome = LaneOutcome()
        self.numbers = DeliveryCounts()
        self._commit_offset = commit_offset
        self._moved_ms = 0
        self._failed_ms: dict[int, int] = {}
        """By message that is not done, when a lease of it ended."""
        self._waiting: set[int] = set()
        """Those of them that were not delivered again since."""
        self._blocked_since_ms: int | None = None

    def leased(self, first: int, last: int, attempt: int | None) -> list[tuple[int, int, int]]:
        """Count a delivery of [first, last]; return (first, last, number of the delivery in the range)."""
        outcome = self.outcome
        outcome.deliveries += last - first + 1
        runs = self.numbers.deliver(first, last)
        if attempt is not None and attempt > 1:
            outcome.redeliveries += last - first + 1
        else:
            outcome.redeliveries += sum(end - at + 1 for at, end, number in runs if number > 1)
        if self._commit_offset is None:
            self._commit_offset = first
        if self._waiting:
            self._waiting.difference_update(range(first, last + 1))
        return runs

    def answered(self, row: OperationRow) -> None:
        """Count the outcome of a run of an ack."""
        first, last = row.first_offset, row.last_offset
        if row.reason not in _IN_VAIN or first is None or last is None or last - first >= _RUN_MAX:
            return
        if row.reason == Reason.STALE_HANDLE:
            self.outcome.acked_in_vain += last - first + 1
        else:
            self.outcome.acked_in_vain += sum(self.numbers.count(offset) > 1 for offset in range(first, last + 1))

    def ended(self, row: DeliveryRow) -> None:
        """Count a step that ends leases."""
        outcome, count = self.outcome, row.last_offset - row.first_offset + 1
        if row.step in _DONE:
            if row.step == DeliveryStep.ACKED:
                outcome.acked += count
            elif row.step == DeliveryStep.DEAD_LETTERED:
                outcome.dead_letters += count
            if self._failed_ms:
                self._forget(row)
        elif row.step in _ENDED:
            if row.cause in ERA_ENDING_KINDS:
                self._failed_ms.clear()
                self._waiting.clear()
                return
            if row.step == DeliveryStep.EXPIRED:
                outcome.expired += count
            elif is_release_cause(row.cause):
                outcome.given_back += count
            offsets = range(row.first_offset, row.last_offset + 1)
            self._failed_ms.update(dict.fromkeys(offsets, row.at_ms))
            self._waiting.update(offsets)
            if self._blocked_since_ms is None and self._commit_offset in offsets:  # the same record may end it
                self._blocked_since_ms = max(row.at_ms, self._moved_ms)

    def _forget(self, row: DeliveryRow) -> None:
        is_acked = row.step == DeliveryStep.ACKED
        for queue_offset in range(row.first_offset, row.last_offset + 1):
            if self._failed_ms.pop(queue_offset, None) is not None and queue_offset in self._waiting:
                self._waiting.discard(queue_offset)
                self.outcome.acked_late += is_acked

    def moved(self, row: CommitPositionRow) -> None:
        """Note the commit offset after a record."""
        self._commit_offset = row.to_offset
        self._moved_ms = row.now_ms

    def settle(self, now_ms: int) -> None:
        """Count, after a record, whether the commit offset waits."""
        failed_ms = None if self._commit_offset is None else self._failed_ms.get(self._commit_offset)
        if self._blocked_since_ms is None:
            if failed_ms is not None:
                self._blocked_since_ms = max(failed_ms, self._moved_ms)
        elif failed_ms is None:
            self.outcome.blocked_ms += now_ms - self._blocked_since_ms
            self._blocked_since_ms = None

    def finish(self, end_ms: int, *, commit_offset: int, not_done: int) -> LaneOutcome:
        """Return the outcome, with what the lane is like at the end of the range."""
        if self._blocked_since_ms is not None:
            self.outcome.blocked_ms += max(0, end_ms - self._blocked_since_ms)
            self._blocked_since_ms = None
        self.outcome.commit_offset = commit_offset
        self.outcome.not_done = not_done
        return self.outcome


class QueueTally:
    """The tallies of the lanes of a queue.

    Args:
        commit_offsets: By group, those at the start of the range.

    Attributes:
        lanes: By group.
    """

    def __init__(self, commit_offsets: dict[str, int] | None = None) -> None:
        self.lanes = {group: LaneTally(offset) for group, offset in (commit_offsets or {}).items()}

    def lane(self, group: str) -> LaneTally:
        """Return the tally of a lane; a new one begins within the range."""
        tally = self.lanes.get(group)
        if tally is None:
            tally = self.lanes[group] = LaneTally(None)
        return tally

    def add(
        self,
        operations: Sequence[OperationRow],
        deliveries: Sequence[DeliveryRow],
        positions: Sequence[CommitPositionRow],
        now_ms: int,
    ) -> None:
        """Count the rows of one record, but for leases, which the caller counts."""
        for row in operations:
            if row.kind == "ack" and row.group in self.lanes:
                self.lanes[row.group].answered(row)
        touched: dict[str, LaneTally] = {}
        for step in deliveries:
            if step.step not in _NO_END:
                touched[step.group] = tally = self.lane(step.group)
                tally.ended(step)
        for moved in positions:
            if moved.group is not None:
                touched[moved.group] = tally = self.lane(moved.group)
                tally.moved(moved)
        for tally in touched.values():
            tally.settle(now_ms)
