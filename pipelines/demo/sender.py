"""Sends the messages of the demo, dealt out to the queues in turn; the job makes them poppable."""

from concurrent.futures import Future
from pathlib import Path
from typing import Any

from pipelines.demo.journal import Journal, Opened
from pipelines.demo.lifeline import Lifeline
from pipelines.demo.orders import Orders
from pipelines.demo.recorder import client_options
from popstream import Producer, SendResult

__all__ = ["run_sender"]

FLUSH_TIMEOUT_MS = 120_000
COUNT_EVERY = 100


def run_sender(orders: Orders, lifeline: Lifeline) -> None:
    """Send everything, and wait until it is written."""
    options: dict[str, Any] = client_options(orders)
    failures: list[BaseException] = []

    def on_result(future: "Future[SendResult]") -> None:
        if (error := future.exception()) is not None:
            failures.append(error)

    with (
        Journal(Path(orders.journal), Opened(orders.name, orders.role, "")),
        Producer(orders.bootstrap_servers, **options) as producer,
    ):
        lifeline.wait_for_go()
        number = -1
        for number, value in enumerate(orders.source.values()):
            if failures:
                break
            producer.send(orders.topic, value, queue_id=number % orders.queues).add_done_callback(on_result)
            if number % COUNT_EVERY == COUNT_EVERY - 1:
                if lifeline.is_stopping:
                    return
                lifeline.count(sent=COUNT_EVERY)
        lifeline.count(sent=(number + 1) % COUNT_EVERY)
        producer.flush(FLUSH_TIMEOUT_MS)
        if failures:
            raise failures[0]
