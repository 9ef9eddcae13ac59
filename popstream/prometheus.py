"""Metrics of clients for Prometheus; needs `popstream[prometheus]`.

| metric | labels | meaning |
|---|---|---|
| `popstream_client_popped_messages_total` | group, topic | messages that were leased |
| `popstream_client_acked_messages_total` | group, topic | messages whose ack the job has confirmed |
| `popstream_client_released_messages_total` | group, topic | likewise, messages that were released |
| `popstream_client_rejected_messages_total` | group, topic | likewise, messages that were sent to the dead letters |
| `popstream_client_handler_seconds` | group, topic, result | histogram: calls of a handler that were `ok` or `failed` |
| `popstream_client_answer_seconds` | operation | histogram: until an operation is answered; a pop may be parked |
| `popstream_client_send_seconds` | topic, result | histogram: from `send` until its result is known, `ok` or `failed` |
| `popstream_client_held_messages` | group, client_id | messages that are popped, and neither settled nor expired |
| `popstream_client_prefetch_window_messages` | group, client_id | messages that the consumer may request or hold |
"""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from popstream.observer import Observer

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram
    from prometheus_client.core import GaugeMetricFamily
    from prometheus_client.registry import Collector
except ModuleNotFoundError as error:
    message = "popstream.prometheus needs prometheus-client: pip install 'popstream[prometheus]'"
    raise ModuleNotFoundError(message, name=error.name) from error

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from concurrent.futures import Future

    from popstream.message import Message
    from popstream.observer import Observed, OnSent, Settled
    from popstream.outcome import SendResult
    from popstream.send.outgoing import OutgoingMessage

__all__ = ["PrometheusMetrics"]

HANDLER_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, float("inf"))
SEND_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 120, float("inf"))
ANSWER_BUCKETS_S = (0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, float("inf"))
"""A micro-batch takes hundreds of milliseconds; a pop is parked for up to 10 s."""


class PrometheusMetrics(Observer, Collector):
    """Counts what the consumers and producers of a process do.

    ```python
    from prometheus_client import start_http_server
    from popstream.prometheus import PrometheusMetrics

    metrics = PrometheusMetrics()      # one for all clients
    start_http_server(9_090)
    with Consumer("localhost:9092", group="billing", topics=["orders"], observers=[metrics]) as consumer:
        ...
    ```

    Args:
        registry: Where the metrics are registered.

    Raises:
        ValueError: The registry has the metrics of another `PrometheusMetrics`.
    """

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        def counter(name: str, what: str) -> Counter:
            return Counter(f"popstream_client_{name}_messages", what, ("group", "topic"), registry=registry)

        self._popped = counter("popped", "Messages that were leased")
        self._settled: dict[Settled, Counter] = {
            "acked": counter("acked", "Messages whose ack the job has confirmed"),
            "released": counter("released", "Messages that were released"),
            "rejected": counter("rejected", "Messages that were sent to the dead letters"),
        }
        self._handler_s = Histogram(
            "popstream_client_handler_seconds",
            "Time of each call of a handler",
            ("group", "topic", "result"),
            buckets=HANDLER_BUCKETS_S,
            registry=registry,
        )
        self._answer_s = Histogram(
            "popstream_client_answer_seconds",
            "Time from an operation to its answer",
            ("operation",),
            buckets=ANSWER_BUCKETS_S,
            registry=registry,
        )
        self._send_s = Histogram(
            "popstream_client_send_seconds",
            "Time from a message that a producer takes to its result",
            ("topic", "result"),
            buckets=SEND_BUCKETS_S,
            registry=registry,
        )
        self._lock = threading.Lock()
        self._consumers: list[Observed] = []
        registry.register(self)

    def opened(self, consumer: Observed) -> None:
        """`Observer.opened`."""
        with self._lock:
            self._consumers.append(consumer)

    def closed(self, consumer: Observed) -> None:
        """`Observer.closed`."""
        with self._lock:
            self._consumers.remove(consumer)

    def popped(self, group: str, topic: str, count: int) -> None:
        """`Observer.popped`."""
        self._popped.labels(group, topic).inc(count)

    def settled(self, group: str, topic: str, how: Settled, count: int) -> None:
        """`Observer.settled`."""
        self._settled[how].labels(group, topic).inc(count)

    def answered(self, operation: str, seconds: float) -> None:
        """`Observer.answered`."""
        self._answer_s.labels(operation).observe(seconds)

    @contextmanager
    def handling(self, consumer: Observed, messages: Sequence[Message]) -> Iterator[None]:
        """`Observer.handling`."""
        began_s, result = time.perf_counter(), "failed"
        try:
            yield
            result = "ok"
        finally:
            self._handler_s.labels(consumer.group, messages[0].topic, result).observe(time.perf_counter() - began_s)

    def sending(self, client_id: str, message: OutgoingMessage, headers: list[tuple[str, bytes]]) -> OnSent:  # noqa: ARG002
        """`Observer.sending`."""
        began_s = time.perf_counter()

        def on_sent(sent: Future[SendResult]) -> None:
            result = "ok" if sent.exception() is None else "failed"
            self._send_s.labels(message.topic, result).observe(time.perf_counter() - began_s)

        return on_sent

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Return the gauges, read from the open consumers now."""
        labels = ("group", "client_id")
        held = GaugeMetricFamily(
            "popstream_client_held_messages", "Messages that are popped, and neither settled nor expired", labels=labels
        )
        window = GaugeMetricFamily(
            "popstream_client_prefetch_window_messages", "Messages that the consumer may request or hold", labels=labels
        )
        with self._lock:
            consumers = list(self._consumers)
        for consumer in consumers:
            held.add_metric((consumer.group, consumer.client_id), consumer.held_count)
            window.add_metric((consumer.group, consumer.client_id), consumer.prefetch_window_size)
        return (held, window)
