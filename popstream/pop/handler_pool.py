"""Threads that call a handler with the messages of a subscription: acked when it returns, released when it raises."""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import TYPE_CHECKING, TypeVar

from popstream.deadline import left_s
from popstream.message import MessageState
from popstream.pop.handler_kind import WrongKind, ends_run, refuse_awaitable
from popstream.retries import Reject
from popstream.wire.base_errors import Invalid

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from popstream.message import Message
    from popstream.pop.subscription import Subscription

__all__ = ["HandlerPool", "each_message", "end_forked_child", "in_one_process", "log_after_settling", "unsettled"]

LOG = logging.getLogger(__name__)

STOP_CHECK_S = 0.5

Handled = TypeVar("Handled")


class HandlerPool:
    """A handler and the threads that call it.

    A set is one message, unless more were asked for; in an orderly group it is the messages of one pop. When the
    handler fails, the message at which it failed and all later ones of its set are settled in one request. Only the
    first one has had an attempt (`Subscription.fail`).

    Args:
        name: Prefix of the names of the threads.
        subscription: The source of messages.
        handler: Called with a set of messages; the messages that it has not settled are settled by its result.
        set_size: Maximum number of messages in a set.
    """

    def __init__(
        self,
        name: str,
        subscription: Subscription,
        handler: Callable[[Sequence[Message]], object],
        *,
        set_size: int,
    ) -> None:
        self._name = name
        self._subscription = subscription
        self._handler = handler
        self._set_size = set_size
        self._threads: list[threading.Thread] = []
        self._failures: list[BaseException] = []
        self._ended = threading.Event()

    def wait(self, timeout_s: float) -> None:
        """Wait until every thread has ended, but for the caller's."""
        deadline_s = time.monotonic() + timeout_s
        for thread in self._threads:
            if thread.ident is not None and thread is not threading.current_thread():
                thread.join(left_s(deadline_s))

    def has_worker(self, thread: threading.Thread) -> bool:
        """Tell whether a thread calls the handler."""
        return thread in self._threads

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
            self._handler(messages)
        except BaseException as error:
            if not (left := unsettled(messages)):
                log_after_settling(messages[0], error)
            elif isinstance(error, WrongKind):
                self._subscription.release_with_rest(left)
            else:
                self._subscription.fail(left, error)
            if ends_run(error):
                raise
        else:
            if left := unsettled(messages):
                self._subscription.finish(left)


def unsettled(messages: Sequence[Message]) -> list[Message]:
    """Return those that their handler has not settled."""
    return [message for message in messages if not message.is_settled]


def each_message(
    handler: Callable[[Message], object], subscription: Subscription
) -> Callable[[Sequence[Message]], None]:
    """Return a handler of sets that calls a handler of messages, and acks each message as soon as it is done.

    It releases the messages that it has not passed on after a stop, when a lease has ended, and behind a message that
    will be redelivered, because the set is then one of an orderly group.
    """

    def handle_all(messages: Sequence[Message]) -> None:
        for place, message in enumerate(messages):
            if not message.is_settled:
                if place and not subscription.may_begin(message):  # the first one was looked at when it was taken
                    release_all(messages[place:])
                    return
                handle_one(message, messages[place + 1 :])
            if message.leased.state is MessageState.RELEASED:
                release_all(messages[place + 1 :])
                return

    def handle_one(message: Message, behind: Sequence[Message]) -> None:
        try:
            handler(message)
        except BaseException as error:
            if message.is_settled:  # the error is about none of those behind it
                if ends_run(error):
                    release_all(behind)
                    raise
                log_after_settling(message, error)
            elif isinstance(error, Reject):  # the message is done with: the others go on
                subscription.fail((message,), error)
            else:
                raise
        if not message.is_settled:
            subscription.finish((message,))

    def release_all(messages: Sequence[Message]) -> None:
        if left := unsettled(messages):
            subscription.release_with_rest(left)

    return handle_all


def log_after_settling(message: Message, error: BaseException) -> None:
    """Log what a handler has raised after it had settled its messages: it changes nothing about them."""
    where = (message.topic, message.queue_id, message.queue_offset)
    LOG.warning("the handler of %s/%d offset %d failed after its message was settled", *where, exc_info=error)


def in_one_process(handler: Callable[[Handled], object]) -> Callable[[Handled], None]:
    """Return the handler, which may fork: a child that comes back from it ends, because the messages are its parent's.

    It has neither the threads nor the connections of the consumer.
    """
    process_id = os.getpid()

    def call(handled: Handled) -> None:
        try:
            returned = handler(handled)
        finally:
            end_forked_child(process_id)
        refuse_awaitable(returned)

    return call


def end_forked_child(process_id: int) -> None:
    """End this process if it is not the one with this id, but a child that a handler has forked."""
    if os.getpid() != process_id:
        LOG.error(
            "a process that a handler forked has come back from the handler: it ends, its messages are %d's", process_id
        )
        os._exit(1)
