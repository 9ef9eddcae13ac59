"""What clients report while they work: the hook of metrics and traces.

`popstream.prometheus` and `popstream.opentelemetry` are observers; derive from `Observer` for others.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar

import msgspec

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence
    from concurrent.futures import Future
    from contextlib import AbstractContextManager

    from popstream.message import Message
    from popstream.outcome import SendResult
    from popstream.send.outgoing import OutgoingMessage

    OnSent = Callable[[Future[SendResult]], None]

__all__ = ["Observed", "Observer", "Observers", "Settled"]

LOG = logging.getLogger(__name__)

Argument = TypeVar("Argument")

Settled = Literal["acked", "released", "rejected"]


class Observed(Protocol):
    """A consumer, as its observers see it."""

    @property
    def group(self) -> str:
        """The consumer group."""

    @property
    def client_id(self) -> str:
        """Name of the consumer."""

    @property
    def held_count(self) -> int:
        """Number of messages that were popped here and are neither settled nor expired."""

    @property
    def prefetch_window_size(self) -> int:
        """Number of messages that it may request or hold at present; 0 while it has no subscription."""


class Observer:
    """Is told what a client does: `Consumer(observers=[...])`, `Producer(observers=[...])`.

    Each method does nothing here; override what you need. They are called by many threads and must be short. An
    exception in one of them is logged, and harms no message. Messages are counted as they are leased: those of one unit
    are one.
    """

    def opened(self, consumer: Observed) -> None:
        """A consumer was opened: its properties can be read at any time until `closed`."""

    def closed(self, consumer: Observed) -> None:
        """A consumer was closed."""

    def popped(self, group: str, topic: str, count: int) -> None:
        """An answer has leased messages."""

    def settled(self, group: str, topic: str, how: Settled, count: int) -> None:
        """The job has confirmed acks, releases or rejects of messages."""

    def answered(self, operation: str, seconds: float) -> None:
        """The job has answered an operation, such as `pop` or `ack`, after this time; a pop may have been parked."""

    def handling(self, consumer: Observed, messages: Sequence[Message]) -> AbstractContextManager[object]:  # noqa: ARG002
        """Return a block around a call of the handler of `run` (one message) or `run_sets`; it sees its exceptions."""
        return nullcontext()

    def sending(self, client_id: str, message: OutgoingMessage, headers: list[tuple[str, bytes]]) -> OnSent | None:  # noqa: ARG002
        """A producer takes a message.

        Args:
            client_id: Name of the producer.
            message: The message.
            headers: Its headers, which can be changed here.

        Returns:
            A function that is called with the future of its result when it is known; None: none.
        """
        return None


class Observers(Observer):
    """Tells several observers, and logs their errors. False when there are none."""

    def __init__(self, observers: Sequence[Observer] = ()) -> None:
        self._observers = tuple(observers)

    def __bool__(self) -> bool:
        """Whether there are observers."""
        return bool(self._observers)

    def opened(self, consumer: Observed) -> None:
        """`Observer.opened`."""
        self._tell(lambda observer: observer.opened(consumer))

    def closed(self, consumer: Observed) -> None:
        """`Observer.closed`."""
        self._tell(lambda observer: observer.closed(consumer))

    def popped(self, group: str, topic: str, count: int) -> None:
        """`Observer.popped`."""
        self._tell(lambda observer: observer.popped(group, topic, count))

    def settled(self, group: str, topic: str, how: Settled, count: int) -> None:
        """`Observer.settled`."""
        if count:
            self._tell(lambda observer: observer.settled(group, topic, how, count))

    def answered(self, operation: str, seconds: float) -> None:
        """`Observer.answered`."""
        self._tell(lambda observer: observer.answered(operation, seconds))

    def follow(self, on_answered: Callable[[Callable[[str, float], None]], Callable[[], None]]) -> Callable[[], None]:
        """Subscribe `answered`, if there are observers; return an unsubscribe callable."""
        return on_answered(self.answered) if self else lambda: None

    @contextmanager
    def handling(self, consumer: Observed, messages: Sequence[Message]) -> Iterator[None]:
        """`Observer.handling`; the exception of a handler is raised whatever the observers do."""
        entered = ExitStack()
        self._tell(lambda observer: entered.enter_context(observer.handling(consumer, messages)))
        try:
            yield
        except BaseException as error:
            _guarded(partial(_leave, error), entered)
            raise
        else:
            _guarded(ExitStack.close, entered)

    def sending(self, client_id: str, message: OutgoingMessage, headers: list[tuple[str, bytes]]) -> OnSent | None:
        """`Observer.sending`."""
        called: list[OnSent] = []

        def tell(observer: Observer) -> None:
            changed = [*headers]
            on_sent = observer.sending(client_id, message, changed)
            msgspec.structs.replace(message, headers=changed)  # it raises here what it would raise in the send
            headers[:] = changed
            if on_sent is not None:
                called.append(on_sent)

        def on_all(sent: Future[SendResult]) -> None:
            for on_sent in called:
                _guarded(on_sent, sent)

        self._tell(tell)
        return on_all if called else None

    def around(self, consumer: Observed, handler: Callable[[Message], object]) -> Callable[[Message], object]:
        """Return a handler of messages that is observed."""
        if not self:
            return handler

        def observed(message: Message) -> None:
            with self.handling(consumer, (message,)):
                handler(message)

        return observed

    def around_sets(
        self, consumer: Observed, handler: Callable[[Sequence[Message]], object]
    ) -> Callable[[Sequence[Message]], object]:
        """Return a handler of sets that is observed."""
        if not self:
            return handler

        def observed(messages: Sequence[Message]) -> None:
            with self.handling(consumer, messages):
                handler(messages)

        return observed

    def around_coroutine(
        self, consumer: Observed, handler: Callable[[Sequence[Message]], Awaitable[object]]
    ) -> Callable[[Sequence[Message]], Awaitable[object]]:
        """Return a handler of sets, for coroutines, that is observed."""
        if not self:
            return handler

        async def observed(messages: Sequence[Message]) -> None:
            with self.handling(consumer, messages):
                await handler(messages)

        return observed

    def _tell(self, tell: Callable[[Observer], object]) -> None:
        for observer in self._observers:
            _guarded(tell, observer)


def _leave(error: BaseException, entered: ExitStack) -> None:
    """Leave blocks by the error of a handler, which they may raise again."""
    try:
        entered.__exit__(type(error), error, error.__traceback__)
    except BaseException as raised:
        if raised is not error:
            raise


def _guarded(call: Callable[[Argument], object], argument: Argument) -> None:
    try:
        call(argument)
    except Exception:
        LOG.exception("an observer raised")
