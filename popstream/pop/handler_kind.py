"""The two kinds of handlers: `Consumer` calls a function, `AsyncConsumer` awaits what a function returns.

A function of the other kind would have its messages acked without having run, or would fail for every message.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from functools import partial

from popstream.wire.base_errors import Invalid

__all__ = ["WrongKind", "ends_run", "refuse_awaitable", "refuse_coroutine_function", "require_awaitable"]


class WrongKind(Invalid):
    """A handler of the wrong kind was called: `run` ends with this, and the call counts as no attempt."""


def ends_run(error: BaseException) -> bool:
    """Tell whether `run` ends with what a handler has raised."""
    return isinstance(error, WrongKind) or not isinstance(error, Exception)


def refuse_coroutine_function(handler: Callable[..., object]) -> None:
    """Check the handler of a `Consumer`.

    Raises:
        Invalid: Its code would not run when it is called.
    """
    called: Callable[..., object] = handler
    while isinstance(called, partial):
        called = called.func
    if inspect.iscoroutinefunction(called) or inspect.iscoroutinefunction(type(called).__call__):
        message = "the handler is a coroutine function, which a Consumer does not await: use AsyncConsumer"
        raise Invalid(message, subject="handler")


def refuse_awaitable(returned: object) -> None:
    """Check what a handler of a `Consumer` has returned: not a future, as of `message.ack()`, which nobody need await.

    Raises:
        WrongKind: It does its work only when it is awaited.
    """
    if inspect.isawaitable(returned) and not isinstance(returned, Future):
        if inspect.iscoroutine(returned):
            returned.close()  # otherwise Python warns that it was never awaited
        kind = type(returned).__name__
        message = f"the handler returned a {kind}, which a Consumer does not await: use AsyncConsumer"
        raise WrongKind(message, subject="handler")


def require_awaitable(returned: object) -> Awaitable[object]:
    """Return what a handler of an `AsyncConsumer` has returned.

    Raises:
        WrongKind: It cannot be awaited.
    """
    if not inspect.isawaitable(returned):
        message = f"the handler returned a {type(returned).__name__}, not an awaitable: make it async, or use Consumer"
        raise WrongKind(message, subject="handler")
    return returned
