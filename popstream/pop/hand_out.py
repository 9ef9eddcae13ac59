"""The callers' side of a subscription: fetches the records of leased messages, and hands the messages out."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from popstream.lease.entries import RELEASED_UNCOUNTED
from popstream.payload.payload_block import RECORD_BYTES
from popstream.pop.popped_set import PoppedSet
from popstream.pop.record_filler import Filled, release_after
from popstream.wire.base_errors import PopstreamError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from popstream.lease.leases import Leases
    from popstream.message import Message
    from popstream.pop.prefetch_window import PrefetchWindow
    from popstream.pop.rate_limit import RateLimit
    from popstream.pop.record_filler import RecordFiller

__all__ = ["HandOut"]

LOG = logging.getLogger(__name__)

PART_COUNT_MAX = 200
"""The records of at most this many messages are fetched at once."""
AHEAD_COUNT_MAX = 2_000
"""Messages whose records are read ahead of their fetch: ten parts, or the small sets of many queues by one request."""
AHEAD_BYTES_MAX = 8 * 1024 * 1024
"""Of these records, in memory: a quarter of the cache in which they wait."""
SIGNAL_CHECK_S = 0.5
"""The main thread runs the handlers of signals at least this often while it waits."""


class HandOut:
    """Leased messages on their way to the callers. Safe for use by many threads.

    ```
    add: popped sets, without records ─> claim a part, within the byte bound ─> fetch records ─> ready ─> take
    ```

    Args:
        changed: Guards all state here, and is notified of each change; shared with the subscription.
        filler: Fetches records.
        leases: The leases of the consumer.
        window: Is told how old messages are when they are claimed.
        is_orderly: Whether the group consumes in order.
        prefetch_bytes: Maximum size of the records held, in bytes.
        rate: How many messages may be handed out; None: as many as are asked for.

    Attributes:
        is_stopped: Nothing more is handed out.
        failure: The error that callers of `take` get.
        wait_count: How often a caller has begun to wait because no more messages were leased.
        waiting_count: Number of callers that wait for this reason.
    """

    def __init__(
        self,
        changed: threading.Condition,
        filler: RecordFiller,
        leases: Leases,
        window: PrefetchWindow,
        *,
        is_orderly: bool,
        prefetch_bytes: int,
        rate: RateLimit | None = None,
    ) -> None:
        self._changed = changed
        self._filler = filler
        self._held = leases.held
        self._settlement = leases.settlement
        self._window = window
        self._is_orderly = is_orderly
        self._prefetch_bytes = prefetch_bytes
        self._rate = rate
        self._sets: list[PoppedSet] = []
        self._ready: deque[Message] = deque()
        self._reserved_bytes = 0
        self._longest_bytes = 0
        self._lately_bytes = 0
        """Size of the largest record of the part that was fetched last."""
        self.is_stopped = False
        self.failure: BaseException | None = None
        self.wait_count = 0
        self.waiting_count = 0
        self._caller_count = 0

    @property
    def is_waited_for(self) -> bool:
        """Whether a caller waits for any change."""
        return self._caller_count > 0

    def add(self, messages: Sequence[Message]) -> None:
        """Add the leased messages of one pop."""
        with self._changed:
            self._sets = [popped for popped in self._sets if not popped.is_over]
            self._sets.append(PoppedSet(messages, is_orderly=self._is_orderly))
            self._changed.notify_all()
        self._expect_more()

    def _expect_more(self) -> None:
        """Have the records read of the next leased messages, while callers work on those before them."""
        with self._changed:
            ahead_count = sum(popped.ahead_count for popped in self._sets)
            if not self._lately_bytes or ahead_count > AHEAD_COUNT_MAX // 2:
                return
            bytes_max = min(AHEAD_BYTES_MAX, self._prefetch_bytes)
            room = min(AHEAD_COUNT_MAX, bytes_max // (self._lately_bytes + RECORD_BYTES)) - ahead_count
            expected = []
            for popped in self._sets:
                if room <= 0:
                    break
                if messages := popped.expect(room):
                    expected.append(messages)
                    room -= len(messages)
        for messages in expected:
            self._filler.expect(messages)

    def take(self, count: int, timeout_s: float | None) -> list[Message]:
        """Wait for messages; return none after a stop, and when the time is over.

        Raises:
            PopstreamError: `failure`.
        """
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            with self._changed:
                claimed = self._wait_for_some(count, deadline_s)
            if claimed is None:
                return []
            messages, popped, reserved_bytes = claimed
            if popped is not None:
                messages = self._fill(messages, popped, reserved_bytes, count)
                self._expect_more()
            if messages:
                return messages

    def take_fetched(self, count: int) -> list[Message]:
        """Return messages whose records are here, without waiting.

        Raises:
            PopstreamError: `failure`.
        """
        with self._changed:
            return self._take_fetched(count, time.monotonic()) if self._is_open() else []

    def rest_behind(self, message: Message) -> list[Message]:
        """Remove and return the messages behind one that a caller works on, in its orderly set."""
        with self._changed:
            return [rest for popped in self._sets if popped.holds(message.leased) for rest in popped.rest()]

    def release_broken(self) -> None:
        """Release the rest of each orderly set with a message that will be redelivered, so that it comes after it."""
        if not self._is_orderly:
            return
        with self._changed:
            behind = [message for popped in self._sets if popped.is_broken for message in popped.rest()]
        self._release(behind)

    def release_all(self) -> None:
        """Release all messages that were not handed out."""
        with self._changed:
            behind = [*self._ready, *(message for popped in self._sets for message in popped.rest())]
            self._ready.clear()
        try:
            self._release(behind)
        except PopstreamError as error:
            LOG.warning("could not release %d messages that were not handed out: %s", len(behind), error)

    def _wait_for_some(
        self, count: int, deadline_s: float | None
    ) -> tuple[list[Message], PoppedSet | None, int] | None:
        """Wait for ready messages, or for a part of a set to fetch, with the set and the bytes reserved for it."""
        while True:
            if not self._is_open():
                return None
            now_s = time.monotonic()
            if fetched := self._take_fetched(count, now_s):
                return fetched, None, 0
            wait_s = None if deadline_s is None else deadline_s - now_s
            is_allowed = self._allowed(count, now_s) > 0
            if is_allowed and (claimed := self._claim(now_s)) is not None:
                return claimed
            if wait_s is not None and wait_s <= 0:
                return None
            if self._rate is not None and not is_allowed:
                pause_s = self._rate.pause_s(now_s)
                wait_s = pause_s if wait_s is None else min(wait_s, pause_s)
            lacks_leases = is_allowed and not any(popped.is_pending for popped in self._sets)
            if lacks_leases and not self.waiting_count:
                self._changed.notify_all()  # the subscription may pop more
            self.wait_count += lacks_leases
            self.waiting_count += lacks_leases
            try:
                self._wait(wait_s)
            finally:
                self.waiting_count -= lacks_leases

    def _wait(self, wait_s: float | None) -> None:
        """Wait for a change, or until the caller has to look again.

        In the main thread that is soon, as a signal does not end a wait that begins just after it. The caller looks
        after each wait: a change that comes when one is over, and the next has not begun, ends neither.
        """
        if threading.current_thread() is threading.main_thread():
            wait_s = SIGNAL_CHECK_S if wait_s is None else min(wait_s, SIGNAL_CHECK_S)
        self._caller_count += 1
        try:
            self._changed.wait(wait_s)
        finally:
            self._caller_count -= 1

    def _is_open(self) -> bool:
        if self.failure is not None:
            raise self.failure
        return not self.is_stopped

    def _take_fetched(self, count: int, now_s: float) -> list[Message]:
        """Take messages whose records are here, and whose leases have not ended."""
        taken: list[Message] = []
        count = self._allowed(count, now_s)
        while self._ready and len(taken) < count:
            message = self._ready.popleft()
            # When its lease has ended, or its unit was released, the job redelivers it.
            if not message.is_settled and self._held.is_live(message, now_s):
                taken.append(message)
        if count and not taken and self._is_orderly:
            outs = (popped.next_out(count, partial(self._held.is_live, now_s=now_s)) for popped in self._sets)
            taken = next(filter(None, outs), [])
        self._took(taken)
        return taken

    def _allowed(self, count: int, now_s: float) -> int:
        """Return how many of `count` messages the rate limit lets through now."""
        return count if self._rate is None else min(count, self._rate.allowed(now_s))

    def _took(self, messages: Sequence[Message]) -> None:
        if self._rate is not None:
            self._rate.took(len(messages))

    def _claim(self, now_s: float) -> tuple[list[Message], PoppedSet, int] | None:
        """Take a part of one set, and reserve bytes for its records."""
        in_use = self._held.payload_bytes + self._reserved_bytes
        # Until it is known how long records are, one part is fetched at a time: each fetches at least one record.
        if self._reserved_bytes and not self._longest_bytes:
            return None
        if in_use and in_use + self._longest_bytes > self._prefetch_bytes:
            return None
        for popped in self._sets:
            if popped.is_ready:
                part = popped.take_part(PART_COUNT_MAX, lambda message: self._held.is_live(message, now_s))
                if part:
                    self._window.claimed(len(part), self._held.age_s(part[0], now_s) * 1000)
                    # Half of the free bytes: other threads may want to fetch records meanwhile.
                    free_bytes = self._prefetch_bytes - in_use
                    reserved_bytes = max(1, free_bytes // 2, min(free_bytes, self._longest_bytes))
                    self._reserved_bytes += reserved_bytes
                    return part, popped, reserved_bytes
        return None

    def _fill(self, part: list[Message], popped: PoppedSet, reserved_bytes: int, count: int) -> list[Message]:
        """Fetch the records of a part. For a concurrent group they become ready for any caller; none is returned."""
        filled = Filled([], [], 0, 0)
        try:
            filled = self._filler.fill(part, bytes_max=reserved_bytes)
        except PopstreamError as error:
            LOG.warning("%d leased messages cannot be handed out: %s", len(part), error)
            self._settlement.change(((message, release_after(error)) for message in part), keeps=False)
        except BaseException:
            self._settlement.change(((message, RELEASED_UNCOUNTED) for message in part), keeps=False)
            raise
        finally:
            messages, behind = self._filled(part, popped, filled, reserved_bytes, count)
            self._release(behind)
        return messages

    def _filled(
        self, part: list[Message], popped: PoppedSet, filled: Filled, reserved_bytes: int, count: int
    ) -> tuple[list[Message], list[Message]]:
        """Return the messages of a part for the caller, and those that must be released."""
        with self._changed:
            self._reserved_bytes -= reserved_bytes
            self._longest_bytes = max(self._longest_bytes, filled.longest_bytes, int(bool(filled.messages)))
            self._lately_bytes = filled.longest_bytes or self._lately_bytes
            behind = popped.filled(part, filled.left)
            going_back = set(map(id, behind))
            messages = [message for message in filled.messages if id(message.leased) not in going_back]
            if self.is_stopped:
                messages, behind = [], [*messages, *behind, *popped.rest()]
            elif not self._is_orderly:
                self._ready.extend(messages)
                messages = []
            else:
                # What was allowed when the part was claimed, others may have taken meanwhile: then it is one message.
                messages = popped.hand_out(messages, max(1, self._allowed(count, time.monotonic())))
                self._took(messages)
            self._changed.notify_all()
        return messages, behind

    def _release(self, messages: Sequence[Message]) -> None:
        """Release messages that were not handed out, without counting the attempt."""
        if messages:
            self._settlement.change(
                [(message, RELEASED_UNCOUNTED) for message in messages if not message.is_settled], keeps=False
            )
