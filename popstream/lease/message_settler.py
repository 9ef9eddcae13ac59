"""Carries out the methods of a `Message`: each settles one message and returns the future of its outcome."""

from __future__ import annotations

from typing import TYPE_CHECKING

from popstream.lease.entries import Change, first_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from popstream.awaitable import AwaitableFuture
    from popstream.lease.settlement import Settlement
    from popstream.message import Message
    from popstream.outcome import Outcome

__all__ = ["MessageSettler"]


class MessageSettler:
    """The `Settler` of the messages that a consumer hands out. Safe for use by many threads.

    Args:
        settlement: Sends the requests.
        require_open: Raises `ClientClosed` once the consumer is closed.
    """

    def __init__(self, settlement: Settlement, require_open: Callable[[], None]) -> None:
        self._settlement = settlement
        self._require_open = require_open

    def ack_one(self, message: Message) -> AwaitableFuture[Outcome]:
        """`Message.ack`."""
        self._require_open()
        return self._settlement.ack_one(message)

    def extend_one(self, message: Message, invisible_time_ms: int) -> AwaitableFuture[Outcome]:
        """`Message.extend`."""
        self._require_open()
        return first_of(self._settlement.change([(message, Change(invisible_time_ms))]))

    def release_one(self, message: Message, invisible_time_ms: int) -> AwaitableFuture[Outcome]:
        """`Message.release`."""
        self._require_open()
        released = Change(invisible_time_ms, release="after")
        return first_of(self._settlement.change([(message, released)], keeps=False))

    def fail_one(self, message: Message, error: BaseException) -> AwaitableFuture[Outcome]:
        """The end of `with message:` by an exception."""
        self._require_open()
        return first_of(self._settlement.fail(message, error))

    def reject_one(self, message: Message, cause: str | None) -> AwaitableFuture[Outcome]:
        """`Message.reject`."""
        self._require_open()
        return first_of(self._settlement.reject([message], cause))
