"""Runs a handler over the messages of a subscription: acked when it returns, given back when it raises."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from popstream.lease.entries import Change
from popstream.wire.failures import Invalid

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from popstream.lease.settlement import Settlement
    from popstream.message import Message
    from popstream.pop.subscription import Subscription

__all__ = ["HandlerPool", "each"]

LOG = logging.getLogger(__name__)

STOP_CHECK_S = 0.5


class HandlerPool:
    """A handler and the threads that run it.

    When the handler fails, the message it failed at and all after it in the set it was given go back in one request
    (seed 000: a failed delivery returns the rest of the response). The others have not had their attempt by that, and
    the first one has. A set is one message, unless more were asked for; in an orderly group it is what one pop brought.

    Args:
        name: Of the threads.
        subscription: Gives the messages.
        settlement: Takes the outcomes.
        handle: Is given a set of messages, and says how far it got by what it raises and settles.
        set_size: At most so many messages at once.
        failure_delay_ms: The message that failed comes again so much later.
    """

    def __init__(
        self,
        name: str,
        subscription: Subscription,
        settlement: Settlement,
        handle: Callable[[Sequence[Message]], object],
        *,
        set_size: int,
        failure_delay_ms: int,
    ) -> None:
        self._name = name
        self._subscription = subscription
        self._settlement = settlement
        self._handle = handle
        self._set_size = set_size
        self._failed = Change(failure_delay_ms)
        self._threads: list[threading.Thread] = []
        self._failures: list[BaseException] = []
        self._ended = threading.Event()

    def wait(self, timeout_s: float) -> None:
        """Wait until every thread has ended, within the time; not from one of them, which would wait for itself."""
        if threading.current_thread() not in self._threads:
            deadline_s = time.monotonic() + timeout_s
            for thread in self._threads:
                thread.join(max(0.0, deadline_s - time.monotonic()))

    def run(self, workers: int) -> None:
        """HandlerPool in so many threads until the subscription stops, or a thread dies; its error is raised here.

        However it ends, every thread has finished the set it was at.

        Raises:
            Invalid: There is to be no worker, or no message in a set.
        """
        if workers < 1 or self._set_size < 1:
            message = f"a handler needs at least one worker and one message, not {workers} and {self._set_size}"
            raise Invalid(message, subject=self._name)
        threads = self._threads = [
            threading.Thread(target=self._run_one, name=f"{self._name}-{number}", daemon=True)
            for number in range(workers)
        ]
        try:
            for thread in threads:
                thread.start()
            while any(thread.is_alive() for thread in threads) and not self._ended.wait(STOP_CHECK_S):
                pass
        finally:
            # Also when a signal interrupts the starting.
            self._subscription.stop()
            for thread in threads:
                if thread.ident is not None:
                    thread.join()
        if self._failures:
            raise self._failures[0]

    def _run_one(self) -> None:
        try:
            while messages := self._subscription.take(self._set_size):
                self._work_through(messages)
        except BaseException as error:  # noqa: BLE001 - raised by `run`
            self._failures.append(error)
        finally:
            self._ended.set()

    def _work_through(self, messages: list[Message]) -> None:
        try:
            self._handle(messages)
        except BaseException as error:
            left = _unsettled(messages)
            if left:
                where = (left[0].topic, left[0].queue_id, left[0].queue_offset)
                LOG.warning("the handler failed at %s/%d offset %d", *where, exc_info=error)
                self._subscription.give_back_rest(left, self._failed)
            if not isinstance(error, Exception):
                raise
        else:
            if left := _unsettled(messages):
                self._settlement.ack(left, None)


def _unsettled(messages: list[Message]) -> list[Message]:
    return [message for message in messages if not message.is_settled]


def each(handle: Callable[[Message], object], settlement: Settlement) -> Callable[[Sequence[Message]], None]:
    """A handler of sets out of a handler of messages: one after the other, each acked as soon as it is done."""

    def handle_all(messages: Sequence[Message]) -> None:
        for message in messages:
            if message.is_settled:
                continue  # its unit was given back meanwhile
            handle(message)
            if not message.is_settled:
                settlement.ack([message], None)

    return handle_all
