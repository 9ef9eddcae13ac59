"""Threads that call a handler with the messages of a subscription: acked when it returns, released when it raises."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from popstream.lease.entries import RETURNED, Change
from popstream.wire.base_errors import Invalid

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from popstream.message import Message
    from popstream.pop.subscription import Subscription

__all__ = ["HandlerPool", "each_message"]

LOG = logging.getLogger(__name__)

STOP_CHECK_S = 0.5


class HandlerPool:
    """A handler and the threads that call it.

    A set is one message, unless more were asked for; in an orderly group it is the messages of one pop. When the
    handler fails, the message at which it failed and all later ones of its set are released in one request (seed 000: a
    failed delivery returns the rest of the response). Only the first one has had an attempt.

    Args:
        name: Prefix of the names of the threads.
        subscription: The source of messages.
        handle: Called with a set of messages; the messages that it has not settled are settled by its result.
        set_size: Maximum number of messages in a set.
        failure_delay_ms: Delay before the failed message is redelivered, in milliseconds.
    """

    def __init__(
        self,
        name: str,
        subscription: Subscription,
        handle: Callable[[Sequence[Message]], object],
        *,
        set_size: int,
        failure_delay_ms: int,
    ) -> None:
        self._name = name
        self._subscription = subscription
        self._handle = handle
        self._set_size = set_size
        self._failed = Change(failure_delay_ms)
        self._threads: list[threading.Thread] = []
        self._failures: list[BaseException] = []
        self._ended = threading.Event()

    def wait(self, timeout_s: float) -> None:
        """Wait until every thread has ended; return at once when one of them calls this."""
        if threading.current_thread() not in self._threads:
            deadline_s = time.monotonic() + timeout_s
            for thread in self._threads:
                thread.join(max(0.0, deadline_s - time.monotonic()))

    def run(self, workers: int) -> None:
        """Handle messages in `workers` threads until the subscription stops, or a thread dies; raise its error.

        In any case every thread has finished its current set when this returns.

        Raises:
            Invalid: The number of workers or the size of a set is less than 1.
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
            # A signal may have interrupted the start of the threads.
            self._subscription.stop()
            for thread in threads:
                if thread.ident is not None:
                    thread.join()
        if self._failures:
            raise self._failures[0]

    def _run_one(self) -> None:
        try:
            while messages := self._subscription.take(self._set_size):
                self._handle_set(messages)
        except BaseException as error:  # noqa: BLE001 - raised by `run`
            self._failures.append(error)
        finally:
            self._ended.set()

    def _handle_set(self, messages: list[Message]) -> None:
        try:
            self._handle(messages)
        except BaseException as error:
            left = _unsettled(messages)
            if left:
                where = (left[0].topic, left[0].queue_id, left[0].queue_offset)
                LOG.warning("the handler failed at %s/%d offset %d", *where, exc_info=error)
                self._subscription.release_with_rest(left, self._failed)
            if not isinstance(error, Exception):
                raise
        else:
            if left := _unsettled(messages):
                self._subscription.finish(left)


def _unsettled(messages: Sequence[Message]) -> list[Message]:
    return [message for message in messages if not message.is_settled]


def each_message(
    handle: Callable[[Message], object], subscription: Subscription
) -> Callable[[Sequence[Message]], None]:
    """Return a handler of sets that calls a handler of messages, and acks each message as soon as it is done.

    After a stop, and when a lease has ended, it releases the messages that it has not passed on.
    """

    def handle_all(messages: Sequence[Message]) -> None:
        for place, message in enumerate(messages):
            if message.is_settled:
                continue  # its unit was released meanwhile
            if place and not subscription.may_begin(message):  # the first one was looked at when it was taken
                subscription.release_with_rest(_unsettled(messages[place:]), RETURNED)
                return
            handle(message)
            if not message.is_settled:
                subscription.finish((message,))

    return handle_all
