"""Traces of clients for OpenTelemetry; needs `popstream[opentelemetry]`, which is its API alone.

A producer makes a span `send TOPIC` that ends with the result, and adds its context to the headers of the message. A
consumer makes a span `process TOPIC` around each call of the handler of `run`: its parent is the span of the producer,
also in another process. Around the handler of `run_sets` the spans of the producers are links. The attributes are those
of the semantic conventions for messaging; `popstream.attempt` is the number of the delivery.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from popstream import __version__
from popstream.observer import Observer

try:
    from opentelemetry.propagate import extract, inject
    from opentelemetry.trace import (
        Link,
        SpanKind,
        Status,
        StatusCode,
        get_current_span,
        get_tracer,
        set_span_in_context,
    )
except ModuleNotFoundError as error:
    message = "popstream.opentelemetry needs opentelemetry-api: pip install 'popstream[opentelemetry]'"
    raise ModuleNotFoundError(message, name=error.name) from error

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from concurrent.futures import Future

    from popstream.message import Message
    from popstream.observer import Observed, OnSent
    from popstream.outcome import Headers, SendResult
    from popstream.send.outgoing import OutgoingMessage

__all__ = ["OpenTelemetryTraces"]


class OpenTelemetryTraces(Observer):
    """Traces messages from their producers to their handlers.

    ```python
    traces = OpenTelemetryTraces()
    with Producer("localhost:9092", observers=[traces]) as producer: ...
    with Consumer("localhost:9092", group="billing", topics=["orders"], observers=[traces]) as consumer: ...
    ```

    Args:
        tracer_provider: Where the spans go; default: the provider of the process, which does nothing until it is set.
    """

    def __init__(self, tracer_provider: Any = None) -> None:  # noqa: ANN401 - the API is no dependency of popstream
        self._tracer = get_tracer("popstream", __version__, tracer_provider)

    def sending(self, client_id: str, message: OutgoingMessage, headers: list[tuple[str, bytes]]) -> OnSent:
        """`Observer.sending`."""
        attributes: dict[str, Any] = {**_attributes("send", message.topic, client_id), **_key(message.key)}
        if message.value is None:
            attributes["messaging.kafka.message.tombstone"] = True
        span = self._tracer.start_span(f"send {message.topic}", kind=SpanKind.PRODUCER, attributes=attributes)
        inject(headers, set_span_in_context(span), _SETTER)

        def on_sent(sent: Future[SendResult]) -> None:
            error = sent.exception()
            if error is None:
                result = sent.result()
                span.set_attributes(_place(result.queue_id, result.queue_offset, result.message_id))
            else:
                span.record_exception(error)
                span.set_status(Status(StatusCode.ERROR, str(error)))
                span.set_attribute("error.type", type(error).__qualname__)
            span.end()

        return on_sent

    @contextmanager
    def handling(self, consumer: Observed, messages: Sequence[Message]) -> Iterator[None]:
        """`Observer.handling`."""
        first = messages[0]
        attributes = _attributes("process", first.topic, consumer.client_id)
        attributes["messaging.consumer.group.name"] = consumer.group
        parents = [extract(message.headers, getter=_GETTER) for message in messages]
        if len(messages) == 1:
            context, links = parents[0], []
            attributes |= _place(first.queue_id, first.queue_offset, first.message_id)
            attributes |= {**_key(first.key), "popstream.attempt": first.attempt}
        else:
            spans = [get_current_span(parent).get_span_context() for parent in parents]
            context, links = None, [Link(span) for span in spans if span.is_valid]
            attributes["messaging.batch.message_count"] = len(messages)
        with self._tracer.start_as_current_span(
            f"process {first.topic}", context, kind=SpanKind.CONSUMER, attributes=attributes, links=links
        ) as span:
            try:
                yield
            except Exception as error:
                span.set_attribute("error.type", type(error).__qualname__)
                raise


def _attributes(operation: str, topic: str, client_id: str) -> dict[str, Any]:
    return {
        "messaging.system": "kafka",
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": topic,
        "messaging.client.id": client_id,
    }


def _place(queue_id: int, queue_offset: int, message_id: str) -> dict[str, Any]:
    place = {"messaging.destination.partition.id": str(queue_id), "messaging.kafka.offset": queue_offset}
    return {**place, "messaging.message.id": message_id} if message_id else place


def _key(key: bytes | None) -> dict[str, str]:
    return {} if key is None else {"messaging.kafka.message.key": key.decode(errors="replace")}


class _HeaderSetter:
    """Puts the context of a trace into headers, in place of another that was forwarded."""

    @staticmethod
    def set(carrier: list[tuple[str, bytes]], key: str, value: str) -> None:
        carrier[:] = [*((name, found) for name, found in carrier if name != key), (key, value.encode())]


class _HeaderGetter:
    @staticmethod
    def get(carrier: Headers, key: str) -> list[str] | None:
        return [value.decode(errors="replace") for name, value in carrier if name == key and value] or None

    @staticmethod
    def keys(carrier: Headers) -> list[str]:
        return [name for name, _ in carrier]


_SETTER: Any = _HeaderSetter()
_GETTER: Any = _HeaderGetter()
"""Without the base classes of the API, which has types only where it is installed."""
