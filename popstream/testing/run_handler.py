"""Runs a handler for a number of messages, as a test wants it: `Consumer.run` ends when somebody stops it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from popstream.consumer import Consumer
    from popstream.message import Message
    from popstream.type_variables import Body

__all__ = ["run_handler"]


def run_handler(
    consumer: Consumer[Body],
    handler: Callable[[Message[Body]], object],
    *,
    count: int = 1,
    timeout_s: float = 10.0,
) -> None:
    """Call a handler as `Consumer.run` does, until it has been called `count` times.

    Afterwards its messages are settled, and those that were prefetched are released.

    A message whose handler raised is redelivered after its back-off: give the consumer one without jitter, such as
    `back_off=[5]`, and let it pass by `MemoryJob.advance(5_000)`.

    >>> from popstream.testing import MemoryJob
    >>> job = MemoryJob()
    >>> job.write("orders", 0, [b"espresso", b"mocha", b"latte"])
    >>> with job.consumer("baristas", topics=["orders"]) as consumer:
    ...     run_handler(consumer, lambda message: print(message.value), count=2)
    b'espresso'
    b'mocha'

    Args:
        consumer: A consumer with topics.
        handler: The handler under test.
        count: Number of calls.
        timeout_s: How long to wait for the messages, in seconds.

    Raises:
        AssertionError: Fewer messages came in time.
    """
    called_count = 0
    is_late = threading.Event()

    def stop_late() -> None:
        is_late.set()
        consumer.stop()

    def counted(message: Message[Body]) -> object:
        nonlocal called_count
        called_count += 1
        try:
            return handler(message)
        finally:
            if called_count >= count:
                consumer.stop()

    timer = threading.Timer(timeout_s, stop_late)
    timer.start()
    subscription = consumer.subscribe()
    try:
        consumer.run(counted)
    finally:
        timer.cancel()
    subscription.close(timeout_s)
    if is_late.is_set() and called_count < count:
        text = f"{called_count} messages came within {timeout_s} s, not {count}: write them first, or advance the clock"
        raise AssertionError(text)
    consumer.flush()
