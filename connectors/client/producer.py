"""Sends messages and makes them poppable: the producer side of the public API."""

from __future__ import annotations

import logging
import time
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from kafka import KafkaProducer
from kafka.errors import KafkaError, MessageSizeTooLargeError

from connectors.client.cluster import describe_topic
from connectors.client.dispatcher import Dispatcher
from connectors.client.errors import ClientClosed, NotDispatched
from connectors.client.exchange.kafka_link import producer_options
from connectors.client.exchange.transport import Transport
from connectors.client.message import SendResult
from connectors.client.settings import ClientSettings, new_client_id
from connectors.client.tags import NO_TAG, TAG_HEADER, tag_hash
from connectors.errors import Invalid, Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

__all__ = ["Producer"]

LOG = logging.getLogger(__name__)

LINGER_MS = 5
FLUSH_TIMEOUT_MS = 60_000


class Producer:
    """Sends messages to message topics, where the job finds them and makes them poppable.

    Safe for use by many threads. Messages of one thread to one queue keep their order.

    Args:
        bootstrap_servers: `host:port` of one or more brokers, separated by commas.
        client_id: Name of this producer; by default a random one.
        prefix: Names the job, see `ClientSettings`.
        dispatch: Tell the job of what was written: for topics that are not among its `message_topics`; of others the
            messages are poppable a micro-batch sooner. Only offsets that Kafka has confirmed are dispatched. A send
            that failed may have been written all the same: then, if nobody builds the queue, that offset holds back
            what follows it, until `dispatch_existing` is run on the topic.
        dispatch_delay_ms: Confirmed offsets wait so long for others of the same queue.
        compression_type: `gzip`, or `snappy`, `lz4`, `zstd` where their libraries are installed on both sides.
        linger_ms: Messages wait so long for others, so that they travel and are compressed together.
        transport: Share the one of another client instead of making one; it is not closed here.
        kafka_producer: Use this KafkaProducer (or what looks like one) for the messages, and close it at the end.
        **settings: Further fields of `ClientSettings`.

    Raises:
        Unavailable: Kafka does not answer.
        Invalid: The job's topics do not exist, or a setting is wrong.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        client_id: str | None = None,
        prefix: str = "popstream",
        dispatch: bool = False,
        dispatch_delay_ms: float = 10.0,
        compression_type: str | None = None,
        linger_ms: int = LINGER_MS,
        transport: Transport | None = None,
        kafka_producer: Any = None,  # noqa: ANN401 - kafka-python has no types
        **settings: Any,  # noqa: ANN401 - ClientSettings checks them
    ) -> None:
        self.settings = ClientSettings(
            bootstrap_servers=bootstrap_servers, client_id=client_id or new_client_id(), prefix=prefix, **settings
        )
        self._is_closed = False
        self._owned_transport: Transport | None = None
        self._dispatcher: Dispatcher | None = None
        if dispatch:
            if transport is None:
                transport = self._owned_transport = Transport(self.settings)
            self._dispatcher = Dispatcher(
                transport, describe=partial(describe_topic, self.settings), delay_ms=dispatch_delay_ms
            )
        try:
            self._kafka = kafka_producer or KafkaProducer(
                client_id=self.settings.client_id,
                compression_type=compression_type,
                linger_ms=linger_ms,
                **producer_options(self.settings),
            )
        except KafkaError as error:
            self._close_dispatching()
            message = f"Kafka does not answer: {error!r}"
            raise Unavailable(message, subject=bootstrap_servers) from error

    def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        headers: Iterable[tuple[str, bytes]] | None = None,
        queue_id: int | None = None,
        tag: str | None = None,
    ) -> Future[SendResult]:
        """Send a message; the future brings its place once Kafka has confirmed it. It is poppable a little later.

        The future's callbacks run on the Kafka producer's thread: they must be short.

        Args:
            topic: Message topic.
            value: Payload.
            key: Messages with one key go to one queue, as with any Kafka producer. Needed when there is no value.
            headers: Names and values; names may repeat.
            queue_id: Partition to send to, instead of choosing by key.
            tag: Short text that a pop can choose by.

        Raises:
            ClientClosed: The producer is closed.
            Invalid: The message is too large, or the topic or queue does not exist.
        """
        if self._is_closed:
            message = f"producer {self.settings.client_id} is closed"
            raise ClientClosed(message, subject=self.settings.client_id)
        all_headers = [*(headers or ())]
        if tag:
            all_headers.append((TAG_HEADER, tag.encode()))
        future: Future[SendResult] = Future()
        future.set_running_or_notify_cancel()
        try:
            sent = self._kafka.send(topic, value=value, key=key, headers=all_headers, partition=queue_id)
        except (MessageSizeTooLargeError, ValueError) as error:
            message = f"the message cannot be sent to {topic}: {error}"
            raise Invalid(message, subject=topic) from error
        except KafkaError as error:
            message = f"the message cannot be sent to {topic}: {error!r}"
            raise Unavailable(message, subject=topic) from error
        sent.add_callback(self._on_written, future, tag_hash(tag) if tag else NO_TAG)
        sent.add_errback(self._on_error, future, topic)
        return future

    def flush(self, timeout_ms: int = FLUSH_TIMEOUT_MS) -> None:
        """Wait until all that was sent is written and, where this producer dispatches, poppable.

        Whether a message was written is told by its own future.

        Raises:
            NotDispatched: Some is written and not known to be poppable; unless it was refused, it goes on being tried.
            Unavailable: Kafka did not take all messages in time.
        """
        deadline_s = time.monotonic() + timeout_ms / 1000
        try:
            self._kafka.flush(timeout=timeout_ms / 1000)
        except KafkaError as error:
            message = f"messages are not written after {timeout_ms} ms"
            raise Unavailable(message, subject=self.settings.client_id) from error
        if self._dispatcher is not None:
            self._dispatcher.flush(max(0.0, deadline_s - time.monotonic()))

    def close(self, timeout_ms: int = FLUSH_TIMEOUT_MS) -> None:
        """Flush and disconnect. More calls do nothing.

        Raises:
            NotDispatched: As `flush`; now nobody tries again, but what is in the log already will be decided.
            Unavailable: Kafka did not take all messages in time.
        """
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self.flush(timeout_ms)
        finally:
            self._kafka.close(timeout=self.settings.delivery_timeout_ms / 1000)
            self._close_dispatching()

    def __enter__(self) -> Self:
        """Give the open producer."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it; an error that is on its way is not replaced by one from closing."""
        try:
            self.close()
        except (NotDispatched, Unavailable):
            if error is None:
                raise
            LOG.exception("%s was closed with work undone", self.settings.client_id)

    def _on_written(self, future: Future[SendResult], tag: int, metadata: Any) -> None:  # noqa: ANN401
        result = SendResult(metadata.topic, metadata.partition, metadata.offset, metadata.timestamp)
        if self._dispatcher is not None:
            self._dispatcher.written(result.topic, result.queue_id, result.queue_offset, tag)
        future.set_result(result)

    def _on_error(self, future: Future[SendResult], topic: str, error: Exception) -> None:
        message = f"a message to {topic} is not confirmed, whether it was written is unknown: {error!r}"
        found = Unavailable(message, subject=topic)
        found.__cause__ = error
        future.set_exception(found)

    def _close_dispatching(self) -> None:
        if self._dispatcher is not None:
            self._dispatcher.close()
        if self._owned_transport is not None:
            self._owned_transport.close()
