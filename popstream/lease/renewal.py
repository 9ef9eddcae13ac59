"""Renews the leases of held messages before they end, and releases the messages of threads that have ended."""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Self

import msgspec

from popstream.errors import AnswerTimeout
from popstream.lease.entries import DELIVERY_OVER, Change
from popstream.message import Message, MessageState
from popstream.outcome import queue_of
from popstream.wire.base_errors import Invalid
from popstream.wire.limits import INVISIBLE_TIME_MS_MAX
from popstream.wire.queue_name import QueueName

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from popstream.lease.entries import OutcomesFuture
    from popstream.lease.entry_sender import EntrySender
    from popstream.lease.held_messages import HeldMessage, HeldMessages
    from popstream.outcome import Outcome

__all__ = ["LeaseRenewer", "RenewalPolicy"]

LOG = logging.getLogger(__name__)

PAUSE_S_MIN = 0.01
ORPHANED = Change(1_000, release="after")
"""For a message of a thread that has ended, as for one whose handler has failed: the cause may last for a while."""
AHEAD_MS = 10_000
MINUTE_MS = 60_000


class RenewalPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """When and by how much leases are renewed. Times are milliseconds.

    Args:
        steps_ms: Invisible time of the first renewal, of the second and so on; the last one repeats. Empty: each one
            is as long as the lease that the pop asked for, so that after a kill the message waits no longer than that.
        ahead_ms: A lease is renewed when it has this much left, or less; None: ten seconds, or half of the lease that
            the pop asked for if that is less.
        check_ms: Interval between checks. A lease shorter than twice this is checked when half of it is over.
        refused_max: After this many refused renewals in a row a lease is left to expire.
        total_ms: Renewals end this long after the pop: the handler probably hangs, so that another consumer should try.
    """

    steps_ms: tuple[int, ...] = ()
    ahead_ms: int | None = None
    check_ms: int = 5_000
    refused_max: int = 3
    total_ms: int = 3 * 3_600_000

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            Invalid: A value is not positive, or a step is longer than a lease may be.
        """
        ahead_ms = 1 if self.ahead_ms is None else self.ahead_ms
        if min(*self.steps_ms, ahead_ms, self.check_ms, self.refused_max, self.total_ms) < 1:
            message = "the values of a renewal policy are at least 1"
            raise Invalid(message, subject="renewal")
        if max(self.steps_ms, default=0) > INVISIBLE_TIME_MS_MAX:
            message = f"a lease is at most {INVISIBLE_TIME_MS_MAX} ms (12 hours), not {max(self.steps_ms)}"
            raise Invalid(message, subject="renewal")

    @classmethod
    def rocketmq_ladder(cls) -> Self:
        """Return the policy of RocketMQ's proxy: leases of 1, 3, 5, 10, 30 and then 60 minutes, ten seconds ahead.

        Few renewals for long handlers; a message of a process that was killed waits for up to an hour.

        >>> policy = RenewalPolicy.rocketmq_ladder()
        >>> [policy.invisible_time_ms(count, first_lease_ms=30_000) // 60_000 for count in (0, 1, 5, 9)]
        [1, 3, 60, 60]
        """
        return cls(steps_ms=tuple(minutes * MINUTE_MS for minutes in (1, 3, 5, 10, 30, 60)), ahead_ms=AHEAD_MS)

    def invisible_time_ms(self, renew_count: int, first_lease_ms: int) -> int:
        """Return the invisible time of the renewal after `renew_count` renewals of a message.

        >>> [RenewalPolicy().invisible_time_ms(count, first_lease_ms=30_000) for count in (0, 9)]
        [30000, 30000]
        """
        return self.steps_ms[min(renew_count, len(self.steps_ms) - 1)] if self.steps_ms else first_lease_ms

    def left_ms_when_due(self, first_lease_ms: int) -> int:
        """Return how much of a lease is left when it is due for a renewal.

        >>> [RenewalPolicy().left_ms_when_due(first_lease_ms) for first_lease_ms in (3_000, 60_000)]
        [1500, 10000]
        """
        return min(AHEAD_MS, first_lease_ms // 2) if self.ahead_ms is None else self.ahead_ms


class LeaseRenewer:
    """Checks the held messages in a thread of its own, which the first `watch` starts.

    Args:
        name: Name of the thread.
        held: The held messages.
        entries: Sends the renewals, one record for each queue.
        policy: When and by how much to renew.
    """

    def __init__(self, name: str, held: HeldMessages, entries: EntrySender, policy: RenewalPolicy) -> None:
        self._name = name
        self._held = held
        self._entries = entries
        self._policy = policy
        self._checking = threading.Lock()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._next_check_s = float("inf")
        self._is_closed = False

    def watch(self, until_s: float) -> None:
        """Check a lease that ends at `until_s` in time."""
        now_s = time.monotonic()
        check_s = now_s + self._pause_s((until_s - now_s) / 2)
        with self._changed:
            if self._is_closed:
                return
            if check_s < self._next_check_s:
                self._next_check_s = check_s
                self._changed.notify()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()

    def close(self, timeout_s: float) -> None:
        """End the thread; renewals in flight go on."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout_s)

    def check(self, now_s: float) -> float:
        """Renew due leases, release the messages of ended threads, forget ended leases; return the next check time."""
        with self._checking:
            return self._check(now_s)

    @contextmanager
    def returning(self, queue: QueueName) -> Iterator[None]:
        """Renew no lease of a queue while the block releases them all; when it raises, they are held as before."""
        with self._checking:  # a check that has begun would renew them afterwards
            holdings = [holding for holding in self._held.holdings() if queue_of(holding.receipt) == queue]
            renewed = [holding for holding in holdings if holding.is_renewed]
            for holding in renewed:
                holding.is_renewed = False
        try:
            yield
        except BaseException:
            for holding in renewed:
                holding.is_renewed = True
            self.watch(time.monotonic())
            raise
        self._entries.let_go((holding.receipt for holding in holdings), MessageState.RELEASED)

    def _check(self, now_s: float) -> float:
        holdings = self._held.holdings()
        due: list[HeldMessage] = []
        over: list[HeldMessage] = []
        orphans: list[HeldMessage] = []
        wait_s = float("inf")
        for holding in holdings:
            left_s = holding.until_s - now_s
            if holding.is_renewing:
                continue  # it was sent in time: the answer says whether the lease has ended
            if left_s <= 0:
                over.append(holding)
            elif holding.is_abandoned:
                orphans.append(holding)
            elif not holding.is_renewed:
                wait_s = min(wait_s, left_s)
            elif (due_s := left_s - self._policy.left_ms_when_due(holding.first_lease_ms) / 1000) > 0:
                wait_s = min(wait_s, due_s)
            elif (now_s - holding.since_s) * 1000 >= self._policy.total_ms:
                self._stop_renewing(holding, f"it was renewed for {self._policy.total_ms} ms")
            else:
                due.append(holding)
        self._forget(over)
        self._release(orphans)
        self._renew(due)
        return now_s + self._pause_s(wait_s) if holdings else float("inf")

    def _pause_s(self, wait_s: float) -> float:
        """Return the pause before the next check, if something must be done in `wait_s`."""
        return max(PAUSE_S_MIN, min(self._policy.check_ms / 1000, wait_s))

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._is_closed and (left_s := self._next_check_s - time.monotonic()) > 0:
                    self._changed.wait(min(left_s, threading.TIMEOUT_MAX))
                if self._is_closed:
                    return
                self._next_check_s = float("inf")
            try:
                next_check_s = self.check(time.monotonic())
            except Exception:
                LOG.exception("%s: could not check the held messages", self._name)
                next_check_s = time.monotonic() + self._policy.check_ms / 1000
            with self._changed:
                self._next_check_s = min(self._next_check_s, next_check_s)

    def _forget(self, over: list[HeldMessage]) -> None:
        if over:
            LOG.info("%s: %d leases expired before their messages were settled", self._name, len(over))
            self._entries.let_go((holding.receipt for holding in over), MessageState.LAPSED)

    def _release(self, orphans: list[HeldMessage]) -> None:
        if orphans:
            LOG.warning("%s: releasing %d messages of threads that have ended", self._name, len(orphans))
            self._entries.change(((holding.receipt, ORPHANED) for holding in orphans), keeps=False)

    def _renew(self, due: list[HeldMessage]) -> None:
        by_queue: defaultdict[QueueName, list[HeldMessage]] = defaultdict(list)
        for holding in due:
            by_queue[queue_of(holding.receipt)].append(holding)
        # One call for each queue: a queue that does not answer delays no other.
        for holdings in by_queue.values():
            self._renew_queue(holdings)

    def _renew_queue(self, due: list[HeldMessage]) -> None:
        """Renew the leases of a queue, but for those that were settled since the check: calls before may have waited.

        A message that was released has a new handle by now, with which it could be leased again.
        """
        at_work: list[HeldMessage] = []
        for holding in due:
            holding.renewals_begun += 1  # before the look: what is asked for after it is sent again if need be
            if self._is_at_work(holding):
                at_work.append(holding)
            else:
                holding.renewals_over += 1
        changes = [
            (holding.receipt, Change(self._policy.invisible_time_ms(holding.renew_count, holding.first_lease_ms)))
            for holding in at_work
        ]
        future = self._entries.change(changes, is_renewal=True)
        future.add_done_callback(partial(self._on_renewed, at_work))

    def _is_at_work(self, holding: HeldMessage) -> bool:
        """Tell whether a message is held, and does not only wait for its ack to be sent."""
        receipt = holding.receipt
        is_settled = isinstance(receipt, Message) and receipt.is_settled
        return self._held.find(receipt) is holding and not is_settled

    def _on_renewed(self, due: list[HeldMessage], future: OutcomesFuture) -> None:
        error = future.exception()
        outcomes: Sequence[Outcome | None] = [None] * len(due)
        if error is None:
            outcomes = future.result()
        elif isinstance(error, AnswerTimeout):
            outcomes = error.outcomes
        renewed_count = 0
        for holding, outcome in zip(due, outcomes, strict=True):
            holding.renewals_over += 1
            if outcome is not None and outcome.applied:
                renewed_count += 1
                holding.renew_count += 1
                holding.refused_count = 0
            elif outcome is None or outcome.reason not in DELIVERY_OVER:
                holding.refused_count += 1
                if holding.refused_count >= self._policy.refused_max:
                    why = error if outcome is None else outcome.reason
                    self._stop_renewing(holding, f"{holding.refused_count} renewals failed, the last one with {why}")
        LOG.debug("%s: %d leases renewed, %d not", self._name, renewed_count, len(due) - renewed_count)

    def _stop_renewing(self, holding: HeldMessage, why: str) -> None:
        receipt = holding.receipt
        where = (receipt.topic, receipt.queue_id, receipt.queue_offset)
        LOG.warning("%s: the lease of %s/%d offset %d is left to expire: %s", self._name, *where, why)
        holding.is_renewed = False
