"""Sends messages, batched by itself, with a result for each: the producer side of the public API."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from concurrent.futures import Future
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Self, get_args

from popstream.errors import ClientClosed, NotDispatched, NotWritten
from popstream.exchange.partitioner import partition_of
from popstream.exchange.transport import Transport
from popstream.outcome import SendResult
from popstream.send.accumulator import BatchLimits
from popstream.send.dispatcher import Dispatcher
from popstream.send.kafka_writer import KafkaWriter
from popstream.send.ordered_sender import OrderedSender
from popstream.send.outgoing import Destination, Outgoing, OutgoingMessage, SendFuture
from popstream.settings import ClientSettings, new_client_id
from popstream.shutdown import close_at_exit
from popstream.topics.describe import describe_topic
from popstream.topics.queue_types import QueueTypes
from popstream.wire.command import QueueType
from popstream.wire.failures import Invalid, PopstreamError, Unavailable
from popstream.wire.limits import POP_MESSAGES_MAX
from popstream.wire.tag import NO_TAG, tag_hash

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from types import TracebackType

    TypeOf = Callable[[str], QueueType | None]

__all__ = ["Producer"]

LOG = logging.getLogger(__name__)

_partition_of = lru_cache(maxsize=4096)(partition_of.__wrapped__)
"""Of users' keys, of which there may be as many as messages: they shall not crowd out those of operations."""

FLUSH_TIMEOUT_MS = 60_000
SHARING = 256
ANSWER_GRACE_S = 2.0
NEW_TOPIC_PAUSE_S = 0.05
NEW_TOPIC_DOUBT_S = 1.0
"""A topic that Kafka's metadata does not show for so long may not exist: that is asked for."""


class Producer:
    """Sends messages to message topics, where the job finds them and makes them poppable.

    Messages wait for others for a moment, and travel together. On a topic of the type batch they are one record,
    counted and leased as one unit, which `Consumer` unwraps; on others they are records of their own. Either way each
    has its own result:

    ```python
    with Producer("localhost:9092") as producer:
        result = producer.send("orders", b"espresso", key=b"table-3")     # goes on at once
        print(result.result().queue_offset)                               # waits for Kafka
    ```

    A result is a `SendResult`, or an error that says what is known: `Invalid` (refused, it is not written),
    `NotWritten` (it is not, and may be sent again) or `OutcomeUnknown`. Within a batch each message fails for itself:
    one that Kafka refuses is no matter to the others, which are sent again, each alone, where it is proven that they
    were not written.

    Safe for use by many threads. Messages with one key, and those of one thread for one queue, keep their order, also
    when some are sent again.

    Args:
        bootstrap_servers: `host:port` of one or more brokers, separated by commas.
        client_id: Name of this producer; by default a random one.
        prefix: Names the job, see `ClientSettings`.
        auto_batch: Let messages wait for others; otherwise each goes at once, by itself.
        batch_max_delay_ms: See `BatchLimits`; so the next two.
        batch_max_bytes: Bodies beyond so many bytes are sent at once.
        total_batch_max_bytes: Bound of the memory that messages without a result take.
        queue_types: Types of topics that the job does not tell of, because it does not build them.
        job_types: Learn the types that the job tells from elsewhere than Kafka, as tests do.
        dispatch: Tell the job of what was written: for topics that are not among its `message_topics`; of others the
            messages are poppable a micro-batch sooner. Only offsets that Kafka has confirmed are dispatched. A send
            that failed may have been written all the same: then, if nobody builds the queue, that offset holds back
            what follows it, until `dispatch_existing` is run on the topic.
        dispatch_delay_ms: Confirmed offsets wait so long for others of the same queue.
        compression_type: `gzip`, or `snappy`, `lz4`, `zstd` where their libraries are installed on both sides. A batch
            is compressed as one.
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
        auto_batch: bool = True,
        batch_max_delay_ms: int = 10,
        batch_max_bytes: int = 32 * 1024,
        total_batch_max_bytes: int = 32 * 1024 * 1024,
        queue_types: Mapping[str, QueueType] | None = None,
        job_types: TypeOf | None = None,
        dispatch: bool = False,
        dispatch_delay_ms: float = 10.0,
        compression_type: str | None = None,
        transport: Transport | None = None,
        kafka_producer: Any = None,  # noqa: ANN401 - kafka-python has no types
        **settings: Any,  # noqa: ANN401 - ClientSettings checks them
    ) -> None:
        self.settings = ClientSettings(
            bootstrap_servers=bootstrap_servers, client_id=client_id or new_client_id(), prefix=prefix, **settings
        )
        if "transactional_id" in self.settings.kafka:
            text = (
                "what this producer sends is no part of a transaction: use Kafka's own, its messages are popped as any"
            )
            raise Invalid(text, subject="transactional_id")
        limits = BatchLimits(
            hold_ms=batch_max_delay_ms, batch_bytes_max=batch_max_bytes, total_bytes_max=total_batch_max_bytes
        )
        self._delivery_timeout_s = self.settings.delivery_timeout_ms / 1000
        self._auto_batch = auto_batch
        self._stated_types = dict(queue_types or {})
        if unknown := sorted(set(self._stated_types.values()) - set(get_args(QueueType))):
            text = f"a topic is one of {', '.join(get_args(QueueType))}, not {', '.join(map(str, unknown))}"
            raise Invalid(text, subject="queue_types")
        self._types = QueueTypes(
            bootstrap_servers,
            self.settings.queue_types,
            client_id=f"{self.settings.client_id}-queue-types",
            kafka=self.settings.kafka,
        )
        self._job_type_of: TypeOf = job_types or self._types.of
        self._known_topics: set[tuple[str, bool]] = set()
        self._condition, self._sharing_left = threading.Condition(), SHARING
        self._closing = threading.Lock()
        self._is_closed = False
        self._owned_transport: Transport | None = None
        self._dispatcher: Dispatcher | None = None
        if dispatch:
            if transport is None:
                transport = self._owned_transport = Transport(self.settings)
            self._dispatcher = Dispatcher(
                transport,
                describe=partial(describe_topic, self.settings),
                type_of=self._type_of,
                delay_ms=dispatch_delay_ms,
            )
        self._unregister_at_exit: Callable[[], None] | None = None
        try:
            self._writer = KafkaWriter(
                self.settings,
                compression_type=compression_type,
                on_written=self._on_written,
                on_connected=self._register_at_exit,
                kafka_producer=kafka_producer,
            )
        except Unavailable:
            self._close_dispatching()
            raise
        self._sender = OrderedSender(
            self.settings.client_id,
            limits,
            self._writer,
            answer_timeout_s=self._delivery_timeout_s + ANSWER_GRACE_S,
        )
        self._register_at_exit()

    def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        headers: Iterable[tuple[str, bytes]] | None = None,
        queue_id: int | None = None,
        tag: str | None = None,
        *,
        wait_for_store: bool = True,
    ) -> Future[SendResult]:
        """Send a message; the future brings its place once Kafka has confirmed it. It is poppable a little later.

        Does not wait, but at the first message for a topic, and when too much is under way already. The future's
        callbacks run on a thread that brings all results, one after the other: they should be short.

        Args:
            topic: Message topic.
            value: Payload.
            key: Messages with one key go to one queue, as with any Kafka producer. Needed when there is no value.
            headers: Names and values; names may repeat.
            queue_id: Partition to send to, instead of choosing by key.
            tag: Short text that a pop can choose by.
            wait_for_store: Confirmed by all in-sync replicas; otherwise by one, and not sent again by Kafka's protocol.

        Returns:
            The result, or why there is none: Invalid (the message or its topic cannot be), NotWritten, OutcomeUnknown.

        Raises:
            ClientClosed: The producer is closed.
        """
        return self._send(topic, value, key, headers, queue_id, tag, wait_for_store, is_waited=False)

    def send_and_wait(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        headers: Iterable[tuple[str, bytes]] | None = None,
        queue_id: int | None = None,
        tag: str | None = None,
        *,
        wait_for_store: bool = True,
    ) -> SendResult:
        """As `send`, and wait for the result. Messages of threads that wait share batches of their own.

        A single thread that waits gains nothing by batches: with `batch_max_delay_ms=1`, or `auto_batch=False`, it
        waits for less.

        Raises:
            ClientClosed: The producer is closed.
            Invalid: The message is refused.
            NotWritten: It is not written.
            OutcomeUnknown: It may be.
        """
        return self._send(topic, value, key, headers, queue_id, tag, wait_for_store, is_waited=True).result()

    def send_many(self, messages: Sequence[OutgoingMessage]) -> list[Future[SendResult]]:
        """Send messages as one batch, at once; each has its own result.

        On a topic of the type batch they become one unit. On others they are records of their own, each in the queue
        of its key.

        Args:
            messages: Of one topic and one `wait_for_store`, at most 10,000; none that is sent again. For a unit
                besides: of one tag, and of one queue: name it, or give keys of one queue only.

        Raises:
            ClientClosed: The producer is closed.
            Invalid: They cannot be one batch. Nothing is sent.
        """
        self._require_open()
        if not messages:
            return []
        self._require_alike(messages)
        topic = messages[0].topic
        destinations = [self._destination(message) for message in messages]
        together = list(dict.fromkeys(destinations))
        if len(together) > 1 and together[0].is_batch_topic:
            text = "messages of one unit have one tag and one queue: name the queue_id, or send them by themselves"
            raise Invalid(text, subject=topic, details=sorted(map(str, together))[:5])
        outgoing = [self._outgoing(message) for message in messages]
        self._sender.submit_batches(
            [
                (destination, [one for one, place in zip(outgoing, destinations, strict=True) if place == destination])
                for destination in together
            ]
        )
        return [one.future for one in outgoing]

    def flush(self, timeout_ms: int = FLUSH_TIMEOUT_MS) -> None:
        """Send what waits for company, and wait until all that was sent has its result.

        Whether a message was written is told by its own future. Where this producer dispatches, all that was written is
        poppable then.

        Raises:
            NotDispatched: Some is written and not known to be poppable; unless it was refused, it goes on being tried.
            Unavailable: Kafka did not take all messages in time.
            Invalid: This is a callback of a result, which others wait for.
        """
        self._require_no_callback()
        deadline_s = time.monotonic() + timeout_ms / 1000
        if not self._sender.flush(timeout_ms / 1000):
            message = f"messages have no result after {timeout_ms} ms"
            raise Unavailable(message, subject=self.settings.client_id)
        if self._dispatcher is not None:
            self._dispatcher.flush(max(0.0, deadline_s - time.monotonic()))

    def close(self, timeout_ms: int = FLUSH_TIMEOUT_MS) -> None:
        """Flush and disconnect. More calls do nothing. At interpreter exit this is done by itself.

        Every future has its result then: what could not be handed to Kafka in time is `NotWritten`.

        Raises:
            NotDispatched: As `flush`; now nobody tries again, but what is in the log already will be decided.
            Unavailable: Kafka did not take all messages in time.
            Invalid: This is a callback of a result, which others wait for.
        """
        self._require_no_callback()
        with self._closing:
            if self._is_closed:
                return
            self._is_closed = True
        with contextlib.ExitStack() as stack:  # each of them, whatever the others raise, an interrupt included
            if self._unregister_at_exit is not None:
                stack.callback(self._unregister_at_exit)
            stack.callback(self._types.close)
            stack.callback(self._close_dispatching)
            stack.callback(self._sender.end)
            stack.callback(self._writer.close)
            stack.callback(self._sender.close)
            self.flush(timeout_ms)

    def stop(self) -> None:
        """Nothing: what is under way when the process ends is finished by `close`."""

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

    def _send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: Iterable[tuple[str, bytes]] | None,
        queue_id: int | None,
        tag: str | None,
        wait_for_store: bool,  # noqa: FBT001 - as the public ones
        *,
        is_waited: bool,
    ) -> Future[SendResult]:
        self._require_open()
        if is_waited:
            self._require_no_callback()
        try:
            message = OutgoingMessage(
                topic=topic,
                value=value,
                key=key,
                headers=list(headers) if headers else (),
                queue_id=queue_id,
                tag=tag or None,
                wait_for_store=wait_for_store,
            )
            destination = self._destination(message)
        except (PopstreamError, TypeError, ValueError) as error:
            refused = SendFuture()
            refused.set_exception(error if isinstance(error, PopstreamError) else Invalid(str(error), subject=topic))
            return refused
        outgoing = self._outgoing(message, is_waited=is_waited)
        is_alone = not self._auto_batch or not message.is_batchable
        self._sender.submit(destination, outgoing, is_waited=is_waited, is_alone=is_alone)
        return outgoing.future

    def _outgoing(self, message: OutgoingMessage, *, is_waited: bool = False) -> Outgoing:
        sent = SendFuture() if is_waited else SendFuture(self._shared_condition())
        return Outgoing(message, sent, int(time.time() * 1000), time.monotonic() + self._delivery_timeout_s)

    def _shared_condition(self) -> threading.Condition:
        """For so many futures the same: few enough that a result does not wake too many who wait for another."""
        self._sharing_left -= 1
        if self._sharing_left < 0:
            self._condition, self._sharing_left = threading.Condition(), SHARING
        return self._condition

    def _destination(self, message: OutgoingMessage) -> Destination:
        """Where a message goes.

        Raises:
            Invalid: There is no such topic or queue, or no topic of its type takes the message.
            NotWritten: Kafka does not answer.
        """
        topic, queue_id = message.topic, message.queue_id
        queue_type = self._type_of(topic)
        if (topic, message.wait_for_store) not in self._known_topics:
            self._learn(topic, wait_for_store=message.wait_for_store)
        if queue_id is not None:
            partitions = self._writer.partitions(topic)
            if partitions and queue_id not in partitions:
                text = f"topic {topic} has no queue {queue_id}, only {len(partitions)}"
                raise Invalid(text, subject=topic)
        elif message.key is not None:
            queue_id = _partition_of(message.key, max(1, len(self._writer.partitions(topic))))
        if message.key is None and queue_type == "sparse":
            text = f"{topic} is a sparse topic, which Kafka compacts by key: a message needs one"
            raise Invalid(text, subject=topic)
        return Destination(topic, queue_id, message.wait_for_store, message.tag, queue_type == "batch")

    def _type_of(self, topic: str) -> QueueType:
        """The type of a topic's queues.

        Raises:
            Invalid: It is not what this producer was told.
        """
        told, stated = self._job_type_of(topic), self._stated_types.get(topic)
        if told is not None and stated is not None and told != stated:
            text = f"{topic} is a {told} topic, and this producer was told that it is a {stated} one"
            raise Invalid(text, subject=topic)
        return told or stated or "simple"

    def _partitions(self, topic: str, *, wait_for_store: bool) -> Collection[int]:
        try:
            return self._writer.partitions(topic, wait_for_store=wait_for_store)
        except Unavailable as error:
            raise NotWritten(error.message, subject=topic) from error

    def _learn(self, topic: str, *, wait_for_store: bool) -> None:
        """Wait, at the first message for a topic, until Kafka has told of it.

        Raises:
            Invalid: It does not exist, or may not be seen.
            NotWritten: Kafka does not answer.
        """
        began_s = time.monotonic()
        is_described = False
        while not self._partitions(topic, wait_for_store=wait_for_store):
            waited_s = time.monotonic() - began_s
            if waited_s > NEW_TOPIC_DOUBT_S and not is_described:
                try:
                    describe_topic(self.settings, topic)
                    is_described = True
                except Unavailable as error:
                    LOG.info("%s", error)
            if waited_s > self._delivery_timeout_s:
                text = f"Kafka does not tell of the partitions of {topic}"
                raise NotWritten(text, subject=topic)
            time.sleep(NEW_TOPIC_PAUSE_S)
        self._known_topics.add((topic, wait_for_store))

    @staticmethod
    def _require_alike(messages: Sequence[OutgoingMessage]) -> None:
        """Refuse what cannot be one batch (RocketMQ: MessageBatch.generateFromList; vectors ACC-04 to ACC-08)."""
        first = messages[0]
        wrong = []
        if len(messages) > POP_MESSAGES_MAX:
            wrong.append(f"it has {len(messages)} messages, and may have {POP_MESSAGES_MAX}")
        if any(message.topic != first.topic for message in messages):
            wrong.append("its messages are of several topics")
        if any(message.wait_for_store != first.wait_for_store for message in messages):
            wrong.append("some of its messages are to wait for the store, and some are not")
        if any(message.is_redelivery for message in messages):
            wrong.append("a message that is sent again, or delayed, goes by itself")
        if wrong:
            text = "the messages cannot be one batch"
            raise Invalid(text, subject=first.topic, details=wrong)

    def _require_open(self) -> None:
        if self._is_closed:
            text = f"producer {self.settings.client_id} is closed"
            raise ClientClosed(text, subject=self.settings.client_id)

    def _require_no_callback(self) -> None:
        if self._sender.is_in_callback:
            text = "a callback of a result must not wait for results: they come one after the other, on its thread"
            raise Invalid(text, subject=self.settings.client_id)

    def _register_at_exit(self) -> None:
        """Be closed ahead of the KafkaProducers when the interpreter exits: what came last goes first."""
        if self._unregister_at_exit is not None:
            self._unregister_at_exit()
        self._unregister_at_exit = close_at_exit(self)

    def _on_written(self, result: SendResult, tag: str | None, count: int) -> None:
        if self._dispatcher is None:
            return
        try:
            label = tag_hash(tag) if tag else NO_TAG
            self._dispatcher.written(result.topic, result.queue_id, result.queue_offset, label, count)
        except ClientClosed as error:
            LOG.warning("%s", error)

    def _close_dispatching(self) -> None:
        if self._dispatcher is not None:
            self._dispatcher.close()
        if self._owned_transport is not None:
            self._owned_transport.close()
