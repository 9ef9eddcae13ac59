"""The producer of the public API: sends messages in batches, with a result for each message."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Self

import msgspec

from popstream.deadline import left_s
from popstream.errors import ClientClosed, NotDispatched
from popstream.exchange.transport import Transport
from popstream.observer import Observers
from popstream.outcome import SendResult
from popstream.send.accumulator import BatchLimits
from popstream.send.destinations import Destinations, TopicTypes
from popstream.send.dispatch_requests import Dispatcher
from popstream.send.kafka_writer import KafkaWriter
from popstream.send.ordered_sender import OrderedSender
from popstream.send.outgoing import Outgoing, OutgoingMessage, SendFuture, require_alike
from popstream.settings import ClientSettings, new_client_id
from popstream.shutdown import close_at_exit
from popstream.topics.access_rights import require_rights
from popstream.topics.describe import describe_topic
from popstream.topics.queue_types import QueueTypes
from popstream.type_variables import Value
from popstream.wire.base_errors import Invalid, PopstreamError, Unavailable
from popstream.wire.command import QueueType
from popstream.wire.limits import DELAY_MS_MAX
from popstream.wire.tag import NO_TAG, tag_hash

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from datetime import datetime
    from types import TracebackType

    from popstream.awaitable import AwaitableFuture
    from popstream.message import Message
    from popstream.observer import Observer, OnSent
    from popstream.payload.inner_batch import TypeOf
    from popstream.payload.redelivery import Redelivery
    from popstream.send.outgoing import Destination

__all__ = ["Producer"]

LOG = logging.getLogger(__name__)

FLUSH_TIMEOUT_MS = 60_000
ANSWER_GRACE_S = 2.0


class Producer(Generic[Value]):
    """Sends messages to message topics, from which the job makes them poppable.

    A message waits a moment for others, to be sent with them. On a topic of the type `batch` they become one record,
    which is counted and leased as one unit, and which `Consumer` unwraps; on other topics each is a record of its own.
    In both cases each message has its own result:

    ```python
    with Producer("localhost:9092") as producer:
        result = producer.send("orders", b"espresso", key=b"table-3")     # returns at once
        print(result.result().queue_offset)                               # waits for Kafka
    ```

    The result is a `SendResult`, or one of three errors: `Invalid` (refused and not written), `NotWritten` (not
    written; it may be sent again) or `OutcomeUnknown`. Messages of a batch fail one by one: when Kafka refuses one of
    them, the others, which are certainly not written, are sent again, each alone.

    Safe for use by many threads. Messages with the same key, and those of one thread for one `queue_id`, keep their
    order, also when some are sent again.

    Args:
        bootstrap_servers: `host:port` of one or more brokers, separated by commas.
        client_id: Name of this producer; by default as that of a `Consumer`.
        prefix: Name of the job, see `ClientSettings`.
        auto_batch: Let messages wait for others; otherwise each is sent at once, by itself.
        batch_max_delay_ms: How long a message waits for others, in milliseconds, 1..30,000.
        batch_max_bytes: A batch is sent at once when its values are longer than this, in bytes, 1..2 MiB.
        total_batch_max_bytes: Upper bound of the memory of all messages without a result, in bytes.
        queue_types: Types of topics that the job does not build.
        job_types: A source of the types that the job reports other than Kafka, for tests.
        dispatch: Dispatch written messages to the job. Needed for topics that are not among its `message_topics`;
            messages of other topics become poppable one micro-batch sooner. Only offsets that Kafka has confirmed are
            dispatched. A send that failed may still have been written: in a queue that the job does not build, its
            offset then holds back all later messages until `dispatch_existing` is called for the topic.
        dispatch_delay_ms: How long a confirmed offset waits for others of the same queue, in milliseconds.
        value_serializer: Makes bytes of the values of `send` and `send_and_wait`, such as `json_serializer`; None: they
            are bytes.
        compression_type: `gzip`; or `snappy`, `lz4` or `zstd` if their libraries are installed on both sides. A batch
            is compressed as a whole.
        observers: Are told what the producer sends: `popstream.opentelemetry.OpenTelemetryTraces`, or an `Observer`.
        transport: A transport to share; its owner closes it, not this producer.
        kafka_producer: Send with this KafkaProducer, or an object with its methods; `close` closes it.
        **settings: Other fields of `ClientSettings`.

    Raises:
        Unavailable: Kafka does not answer.
        Invalid: The topics of the job do not exist, or a setting is wrong.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        client_id: str | None = None,
        prefix: str = "popstream",
        auto_batch: bool = True,
        batch_max_delay_ms: int = 10,
        batch_max_bytes: int = 32 * 1024,
        total_batch_max_bytes: int = 32 * 1024 * 1024,
        queue_types: Mapping[str, QueueType] | None = None,
        job_types: TypeOf | None = None,
        dispatch: bool = False,
        dispatch_delay_ms: float = 10.0,
        value_serializer: Callable[[Value], bytes] | None = None,
        compression_type: str | None = None,
        observers: Sequence[Observer] = (),
        transport: Transport | None = None,
        kafka_producer: Any = None,  # noqa: ANN401 - kafka-python has no types
        **settings: Any,  # noqa: ANN401 - ClientSettings checks them
    ) -> None:
        self.settings = ClientSettings(
            bootstrap_servers=bootstrap_servers, client_id=client_id or new_client_id(), prefix=prefix, **settings
        )
        if "transactional_id" in self.settings.kafka:
            message = (
                "this producer does not send in transactions: use a Kafka producer, whose messages are popped as well"
            )
            raise Invalid(message, subject="transactional_id")
        limits = BatchLimits(
            hold_ms=batch_max_delay_ms, batch_bytes_max=batch_max_bytes, total_bytes_max=total_batch_max_bytes
        )
        self._delivery_timeout_s = self.settings.delivery_timeout_ms / 1000
        self._auto_batch = auto_batch
        self._serialize = value_serializer
        self._observers = Observers(observers)
        self._closing = threading.Lock()
        self._is_closed = False
        self._queue_types = QueueTypes(self.settings)
        types = TopicTypes(job_types or self._queue_types.of, queue_types or {})
        describe = partial(describe_topic, self.settings)
        self._owned_transport = Transport(self.settings) if dispatch and transport is None else None
        self._dispatcher: Dispatcher | None = None
        sharing = transport or self._owned_transport
        self._broker_clock = None if sharing is None else sharing.broker_clock
        self._unregister_at_exit: Callable[[], None] | None = None
        with contextlib.ExitStack() as opened:  # closed again when a later step fails or is interrupted
            opened.callback(self._close_dispatching)
            if found := self._owned_transport or (transport if dispatch else None):
                self._dispatcher = Dispatcher(found, describe=describe, type_of=types.of, delay_ms=dispatch_delay_ms)
            self._writer = KafkaWriter(
                self.settings,
                compression_type=compression_type,
                on_written=self._on_written,
                on_connected=self._register_at_exit,
                kafka_producer=kafka_producer,
            )
            opened.callback(self._writer.close)
            require_rights(self.settings.connection, self.settings.client_id, {self.settings.queue_types: ["Read"]})
            self._destinations = Destinations(
                types, self._writer.partitions, describe, timeout_s=self._delivery_timeout_s
            )
            answer_timeout_s = self._delivery_timeout_s + ANSWER_GRACE_S
            self._sender = OrderedSender(
                self.settings.client_id, limits, self._writer, answer_timeout_s=answer_timeout_s
            )
            self._register_at_exit()
            opened.pop_all()

    def send(
        self,
        topic: str,
        value: Value | None,
        key: bytes | None = None,
        headers: Iterable[tuple[str, bytes]] | None = None,
        queue_id: int | None = None,
        tag: str | None = None,
        *,
        wait_for_store: bool = True,
        deliver_at: datetime | int | None = None,
        dedup_id: str | None = None,
    ) -> AwaitableFuture[SendResult]:
        """Send a message; the future returns its offset when Kafka has confirmed it. It is poppable a little later.

        Returns at once, except for the first message of a topic, and while messages without a result take
        `total_batch_max_bytes`. Callbacks of all futures run one after the other on one thread, so they should be
        short.

        Args:
            topic: Message topic.
            value: Payload, for the `value_serializer` if there is one; None deletes the key from a compacted topic.
            key: Messages with the same key go to the same queue, as with any Kafka producer. Required without a value.
            headers: Names and values; names may repeat. None may begin with `popstream-`.
            queue_id: Partition to send to, whatever the key.
            tag: Short text by which pops can select.
            wait_for_store: Wait for all in-sync replicas (acks=all); otherwise for one (acks=1), without retries.
            deliver_at: When the message can be popped, by the broker's clock, at most 7 days ahead: a `datetime` with a
                time zone, or an int of ms since 1970. In the past or None: as soon as it is written.
            dedup_id: No group gets the message if an earlier one of its queue, within the `dedup_window_s` of the job
                (five minutes), has the same id of 1 to 128 bytes. Without a key and a queue id it chooses the queue.
                Only for simple topics that the job builds, and not for a producer with `dispatch=True`, which cannot
                know of duplicates.

        Returns:
            A future of the result. It raises Invalid, also when the value cannot be serialized, NotWritten or
            OutcomeUnknown.

        Raises:
            ClientClosed: The producer is closed.
        """
        sent = self.begin_send(
            topic,
            value,
            key=key,
            headers=headers,
            queue_id=queue_id,
            tag=tag,
            wait_for_store=wait_for_store,
            deliver_at=deliver_at,
            dedup_id=dedup_id,
        )
        self._sender.wait_for_room([sent])
        return sent

    def send_and_wait(
        self,
        topic: str,
        value: Value | None,
        key: bytes | None = None,
        headers: Iterable[tuple[str, bytes]] | None = None,
        queue_id: int | None = None,
        tag: str | None = None,
        *,
        wait_for_store: bool = True,
        deliver_at: datetime | int | None = None,
        dedup_id: str | None = None,
    ) -> SendResult:
        """Like `send`, and wait for the result. Threads that wait share batches with each other only.

        A single thread that waits gains nothing by batches; `batch_max_delay_ms=1` or `auto_batch=False` makes it
        faster.

        Raises:
            ClientClosed: The producer is closed.
            Invalid: The message was refused.
            NotWritten: The message is not written.
            OutcomeUnknown: The message may or may not be written.
        """
        return self.begin_send(
            topic,
            value,
            is_waited=True,
            key=key,
            headers=headers,
            queue_id=queue_id,
            tag=tag,
            wait_for_store=wait_for_store,
            deliver_at=deliver_at,
            dedup_id=dedup_id,
        ).result()

    def send_many(self, messages: Sequence[OutgoingMessage]) -> list[AwaitableFuture[SendResult]]:
        """Send messages as one batch, at once; each has its own result. Their values are bytes.

        On a topic of the type `batch` they become one unit. On other topics each is a record in the queue of its key.

        Args:
            messages: At most 10,000, all of one topic and with the same `wait_for_store`. The messages of a unit must
                also have the same tag, the same `deliver_at` and the same queue: by their `queue_id`, or by their
                keys.

        Raises:
            ClientClosed: The producer is closed.
            Invalid: The messages cannot be one batch. Nothing is sent.
            NotWritten: Kafka does not say which queues the topic has. Nothing is sent.
        """
        sent = self.begin_send_many(messages)
        self._sender.wait_for_room(sent)
        return list(sent)

    def begin_send_many(self, messages: Sequence[OutgoingMessage]) -> list[SendFuture]:
        """Like `send_many`, without waiting for room in the buffer, for which the caller waits (`SendFuture`).

        Raises:
            ClientClosed: The producer is closed.
            Invalid: As of `send_many`.
            NotWritten: As of `send_many`.
        """
        self._require_open()
        if not messages:
            return []
        require_alike(messages)
        topic = messages[0].topic
        destinations = [self._route(message) for message in messages]
        together = list(dict.fromkeys(destinations))
        if len(together) > 1 and together[0].is_batch_topic:
            text = (
                "messages of one unit must have one tag, one deliver_at and one queue: set their queue_id, or send them"
                " one by one"
            )
            raise Invalid(text, subject=topic, details=sorted(map(str, together))[:5])
        outgoing = [self._outgoing(*self._observed(message)) for message in messages]
        self._sender.submit_batches(
            [
                (destination, [one for one, place in zip(outgoing, destinations, strict=True) if place == destination])
                for destination in together
            ]
        )
        return [one.future for one in outgoing]

    def send_again(self, message: Message, redelivery: Redelivery) -> AwaitableFuture[SendResult]:
        """Send a message of a unit again, as a record of its own for one group; see `Consumer(resend_with=)`.

        Raises:
            ClientClosed: The producer is closed.
        """
        sent = self.begin_send(
            message.topic,
            message.value,
            key=message.key,
            headers=[(name, value or b"") for name, value in message.headers],
            queue_id=message.queue_id,
            tag=message.tag,
            message_id=message.message_id,
            redelivery=redelivery,
        )
        self._sender.wait_for_room([sent])
        return sent

    def begin_send(
        self,
        topic: str,
        value: Any,  # noqa: ANN401 - OutgoingMessage refuses what is not bytes
        *,
        is_waited: bool = False,
        key: bytes | None = None,
        headers: Iterable[tuple[str, bytes]] | None = None,
        queue_id: int | None = None,
        tag: str | None = None,
        wait_for_store: bool = True,
        deliver_at: datetime | int | None = None,
        dedup_id: str | None = None,
        message_id: str = "",
        redelivery: Redelivery | None = None,
    ) -> SendFuture:
        """Like `send`, without waiting for room in the buffer, for which the caller waits (`SendFuture`).

        Raises:
            ClientClosed: The producer is closed.
        """
        self._require_open()
        if is_waited:
            self._require_no_callback()
        try:
            if self._serialize is not None and value is not None and redelivery is None:
                value = _serialized(self._serialize, topic, value)
            message = OutgoingMessage(
                topic=topic,
                value=value,
                key=key,
                headers=list(headers) if headers else (),
                queue_id=queue_id,
                tag=tag,
                wait_for_store=wait_for_store,
                deliver_at=deliver_at,
                dedup_id=dedup_id,
            )
            destination = self._route(message)
            # A message that is sent again has the headers of its first time.
            message, on_sent = self._observed(message) if redelivery is None else (message, None)
        except (PopstreamError, TypeError, ValueError) as error:
            refused = SendFuture()
            refused.set_exception(error if isinstance(error, PopstreamError) else Invalid(str(error), subject=topic))
            return refused
        outgoing = self._outgoing(message, on_sent, message_id=message_id, redelivery=redelivery)
        is_alone = not self._auto_batch or not outgoing.is_batchable
        self._sender.submit(destination, outgoing, is_waited=is_waited, is_alone=is_alone)
        return outgoing.future

    def knows_topic(self, topic: str, *, wait_for_store: bool = True) -> bool:
        """Tell whether the metadata of a topic are known, so that `begin_send` does not wait for them."""
        return self._destinations.knows(topic, wait_for_store=wait_for_store)

    def learn_topic(self, topic: str, *, wait_for_store: bool = True) -> None:
        """Wait for the metadata of a topic, as its first message does.

        Raises:
            Invalid: The topic does not exist.
            NotWritten: Kafka does not answer.
        """
        self._destinations.learn(topic, wait_for_store=wait_for_store)

    def flush(self, timeout_ms: int = FLUSH_TIMEOUT_MS) -> None:
        """Send the messages that wait for others, and wait until every message has its result.

        The future of each message says whether it was written. If this producer dispatches, all written messages are
        poppable afterwards.

        Raises:
            NotDispatched: Written messages are not known to be poppable; unless they were refused, they are retried.
            Unavailable: Some messages have no result in time.
            Invalid: Called in a callback of a result, which would wait for itself.
        """
        self._require_no_callback()
        deadline_s = time.monotonic() + timeout_ms / 1000
        if not self._sender.flush(timeout_ms / 1000):
            message = f"messages have no result after {timeout_ms} ms"
            raise Unavailable(message, subject=self.settings.client_id)
        if self._dispatcher is not None:
            self._dispatcher.flush(left_s(deadline_s))

    def close(self, timeout_ms: int = FLUSH_TIMEOUT_MS) -> None:
        """Flush and disconnect. More calls do nothing. Called at interpreter exit if it was not before.

        All futures are done afterwards; messages that could not be handed to Kafka in time have `NotWritten`.

        Raises:
            NotDispatched: As in `flush`, but without further retries; dispatches in the ops topic will be decided.
            Unavailable: Some messages had no result in time.
            Invalid: Called in a callback of a result, which would wait for itself.
        """
        self._require_no_callback()
        with self._closing:
            if self._is_closed:
                return
            self._is_closed = True
        with contextlib.ExitStack() as stack:  # each of them, even if others raise or are interrupted
            if self._unregister_at_exit is not None:
                stack.callback(self._unregister_at_exit)
            stack.callback(self._queue_types.close)
            stack.callback(self._close_dispatching)
            stack.callback(self._sender.end)
            stack.callback(self._writer.close)
            stack.callback(self._sender.close)
            self.flush(timeout_ms)

    def stop(self) -> None:
        """Do nothing: on SIGTERM `close` finishes the messages in flight."""

    def __enter__(self) -> Self:
        """Return the open producer."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it; an error of the block is not replaced by an error of closing."""
        try:
            self.close()
        except (NotDispatched, Unavailable):
            if error is None:
                raise
            LOG.exception("%s was closed with unfinished messages", self.settings.client_id)

    def _route(self, message: OutgoingMessage) -> Destination:
        """Return where a message goes; refuse one that this producer may not send."""
        self._refuse_late_delivery_time(message)
        self._refuse_dedup_id_with_dispatch(message)
        return self._destinations.of(message)

    def _observed(self, message: OutgoingMessage) -> tuple[OutgoingMessage, OnSent | None]:
        """Return a message with the headers that observers add, and what they want to be called with its future."""
        if not self._observers:
            return message, None
        headers = list(message.headers)
        on_sent = self._observers.sending(self.settings.client_id, message, headers)
        return msgspec.structs.replace(message, headers=headers), on_sent

    def _outgoing(
        self,
        message: OutgoingMessage,
        on_sent: OnSent | None,
        *,
        message_id: str = "",
        redelivery: Redelivery | None = None,
    ) -> Outgoing:
        sent = SendFuture()
        if on_sent is not None:
            sent.add_done_callback(on_sent)
        deadline_s = time.monotonic() + self._delivery_timeout_s
        return Outgoing(message, sent, int(time.time() * 1000), deadline_s, redelivery, message_id)

    def _require_open(self) -> None:
        if self._is_closed:
            raise ClientClosed.of("producer", self.settings.client_id)

    def _refuse_late_delivery_time(self, message: OutgoingMessage) -> None:
        if message.deliver_at is None:
            return
        ahead_ms = message.deliver_at_ms - self._now_ms()
        if ahead_ms > DELAY_MS_MAX:
            text = (
                f"deliver_at is {ahead_ms:,} ms ahead, and may be {DELAY_MS_MAX:,}: keep the message until it is nearer"
            )
            raise Invalid(text, subject=message.topic)

    def _refuse_dedup_id_with_dispatch(self, message: OutgoingMessage) -> None:
        if message.dedup_id is not None and self._dispatcher is not None:
            text = "a producer with dispatch=True makes every message poppable, also duplicates: send without dedup_id"
            raise Invalid(text, subject=message.topic)

    def _now_ms(self) -> int:
        """Return the time by the broker's clock where that is known, ms since 1970."""
        clock = self._broker_clock
        known_ms = None if clock is None else clock.now_ms(time.monotonic())
        return int(time.time() * 1000) if known_ms is None else known_ms

    def _require_no_callback(self) -> None:
        if self._sender.is_in_callback:
            message = "a callback of a result must not wait for results, which are reported one by one on its thread"
            raise Invalid(message, subject=self.settings.client_id)

    def _register_at_exit(self) -> None:
        """Be closed before the KafkaProducers at interpreter exit: exit hooks run in reverse order."""
        if self._unregister_at_exit is not None:
            self._unregister_at_exit()
        self._unregister_at_exit = close_at_exit(self)

    def _on_written(self, result: SendResult, tag: str | None, count: int, deliver_at_ms: int) -> None:
        if self._dispatcher is None:
            return
        try:
            label = tag_hash(tag) if tag else NO_TAG
            place = result.topic, result.queue_id, result.queue_offset
            self._dispatcher.written(*place, label, count, deliver_at_ms)
        except ClientClosed as error:
            LOG.warning("%s", error)

    def _close_dispatching(self) -> None:
        if self._dispatcher is not None:
            self._dispatcher.close()
        if self._owned_transport is not None:
            self._owned_transport.close()


def _serialized(serialize: Callable[[Any], bytes], topic: str, value: object) -> bytes:
    try:
        return serialize(value)
    except Exception as error:
        message = f"the value cannot be serialized: {error!r}"
        raise Invalid(message, subject=topic) from error
