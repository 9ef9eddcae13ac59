"""Sends the messages of the demo, dealt out to the queues in turn; the job makes them poppable."""

import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from connectors.client import Producer, SendResult
from pipelines.demo.journal import Journal, Opened
from pipelines.demo.lifeline import Lifeline
from pipelines.demo.orders import Orders
from pipelines.demo.recorder import client_options

__all__ = ["run_sender"]

UNDER_WAY_BYTES_MAX = 32 * 1024 * 1024
FLUSH_TIMEOUT_MS = 120_000
COUNT_EVERY = 100


class _Window:
    """Bounds what is sent and not yet confirmed, and keeps the first failure."""

    def __init__(self, bytes_max: int) -> None:
        self._changed = threading.Condition()
        self._bytes_max = bytes_max
        self._bytes = 0
        self.failure: BaseException | None = None

    def enter(self, size: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._bytes or self._bytes + size <= self._bytes_max or self.failure)
            self._bytes += size
            if self.failure is not None:
                raise self.failure

    def leave(self, size: int, future: "Future[SendResult]") -> None:
        with self._changed:
            self._bytes -= size
            self.failure = self.failure or future.exception()
            self._changed.notify()


def run_sender(orders: Orders, lifeline: Lifeline) -> None:
    """Send everything, and wait until it is written."""
    options: dict[str, Any] = client_options(orders)
    window = _Window(UNDER_WAY_BYTES_MAX)
    with (
        Journal(Path(orders.journal), Opened(orders.name, orders.role, "")),
        Producer(orders.bootstrap_servers, **options) as producer,
    ):
        lifeline.wait_for_go()
        number = -1
        for number, value in enumerate(orders.source.values()):
            size = len(value) + 512
            window.enter(size)
            sent = producer.send(orders.topic, value, queue_id=number % orders.queues)
            sent.add_done_callback(lambda future, size=size: window.leave(size, future))  # type: ignore[misc]
            if number % COUNT_EVERY == COUNT_EVERY - 1:
                if lifeline.is_stopping:
                    return
                lifeline.count(sent=COUNT_EVERY)
        lifeline.count(sent=(number + 1) % COUNT_EVERY)
        producer.flush(FLUSH_TIMEOUT_MS)
        if window.failure is not None:
            raise window.failure
