"""The consumer of the public API: pops messages and settles them."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, Self

from popstream.deadline import left_s
from popstream.errors import ClientClosed
from popstream.exchange.transport import Transport, new_op_id
from popstream.lease.entries import RELEASED_UNCOUNTED, Change
from popstream.lease.leases import Leases
from popstream.lease.message_settler import MessageSettler
from popstream.lease.renewal import RenewalPolicy
from popstream.lease.retry_rules import RetryRules
from popstream.observer import Observers
from popstream.outcome import Outcome
from popstream.payload.shared_payloads import shared_payloads
from popstream.payload.unwrapped_records import records_of
from popstream.pop.consumer_sources import ConsumerSources
from popstream.pop.handler_kind import refuse_coroutine_function
from popstream.pop.handler_pool import HandlerPool, each_message, in_one_process
from popstream.pop.notifications import listen
from popstream.pop.pop_calls import PopCalls, require
from popstream.pop.pops import Pops
from popstream.pop.record_filler import RecordFiller
from popstream.pop.subscription import Subscription, SubscriptionOptions, init_on_wire
from popstream.retries import MAX_ATTEMPTS, BackOff, describe_error
from popstream.settings import ClientSettings, new_client_id
from popstream.shutdown import close_at_exit, install_sigterm_handler
from popstream.topics.access_rights import require_rights
from popstream.topics.queue_types import QueueTypes
from popstream.type_variables import Body
from popstream.wire.base_errors import Invalid, PopstreamError
from popstream.wire.command import Cancel, Pop, ReturnClient
from popstream.wire.limits import POP_MESSAGES_MAX
from popstream.wire.reason import Reason
from popstream.wire.tag import NO_TAG, tag_hash

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from types import TracebackType

    from popstream.awaitable import AwaitableFuture
    from popstream.lease.settlement import Resender
    from popstream.message import Message, MessageFilter, PopResult
    from popstream.observer import Observer
    from popstream.outcome import Receipt, Record
    from popstream.payload.payloads import FetchCounts, Payloads
    from popstream.pop.notifications import Listen
    from popstream.pop.pops_of_call import PopsOfCall
    from popstream.wire.answer import Answer
    from popstream.wire.command import Cause, Command

__all__ = ["Consumer"]

LOG = logging.getLogger(__name__)

CLOSE_TIMEOUT_MS = 30_000
FETCH_TIMEOUT_MS = 10_000
INVISIBLE_TIME_MS = 60_000


class Consumer(Generic[Body]):
    """Pops messages of one consumer group and acks them.

    With `topics` the consumer prefetches from all queues of these topics and renews the leases of the messages it
    holds:

    ```python
    with Consumer("localhost:9092", group="billing", topics=["orders"]) as consumer:
        for message in consumer:      # or consumer.run(handler, workers=8)
            with message:             # acks at the end of the block, releases it when the block raises
                work_on(message.value)
    ```

    `pop` leases messages of any topic on demand. Their leases are not renewed unless the call says `renew=True`.

    Safe for use by many threads, but a single message should be used by one thread at a time. Calls wait for the answer
    of the job, which takes as long as a micro-batch; `ack_async` and the methods of a message return at once. Requests
    of one thread about one queue reach the job in the order of the calls.

    Closing the consumer releases all messages that it holds: at the end of the `with` block, at interpreter exit, and
    on SIGTERM (if the main thread made the consumer and nothing else handles the signal). Messages with renewed leases
    that belong to a thread which has ended are released within seconds. After a SIGKILL the leases expire; the next
    consumer with the same explicit `client_id` releases them before its first pop (`release_earlier_leases`).

    Args:
        bootstrap_servers: `host:port` of one or more brokers, separated by commas.
        group: The consumer group; each group receives each message.
        topics: Message topics for iteration and `run`.
        client_id: Unique name of this consumer in the audit tables, for `return_client` and `popstream release`;
            `HOSTNAME-PID` by default, with a number from the second client of a process on.
        prefix: Name of the job, see `ClientSettings`.
        order: Orderly consumption: a queue hands out nothing else while a message of its last pop is in flight.
        prefetch: Upper bound of the messages requested or held. The consumer begins with few, and asks for more while
            its workers wait. Higher: more throughput; lower: fewer messages to release.
        prefetch_bytes: Maximum size of the records held, in bytes; a single larger record is still fetched.
        rate_limit: Maximum number of messages that iteration and `run` hand out in a second, to all threads together; a
            tenth of it may come at once. The consumer prefetches no more than it hands out in a quarter of
            `invisible_time_ms`. Default: no limit.
        invisible_time_ms: Length of a lease, in milliseconds, also when it is renewed unless `renewal` says otherwise.
            Longer: messages of a killed process wait longer; shorter: more renewals.
        tags: Receive only messages with one of these tags.
        init: Where the group begins at a queue that it has never popped: at its first message ("earliest"), or after
            its last one ("latest"). A queue that is added while the consumer runs always begins at its first message.
        value_deserializer: Makes the `body` of a message of its value, such as `json_deserializer(Order)`; the type of
            the consumer is then `Consumer[Order]`. A message for which it raises is released as if its handler had
            raised.
        message_filter: Called for each message before it is handed out.
        max_attempts: Deliveries of a message before it goes to the dead-letter topic, 1..65,535; 0: no limit. Each pop
            declares it to its queue, for the whole group; a `policy` comes before it. None: declare nothing.
        back_off: The time between a failed delivery and the next one: a `BackOff`, or a list of seconds after the
            first, second, ... attempt, of which the last value repeats.
        describe_error: Describes what a handler raised, for the tables and the dead letters, which keep 256 characters;
            leave out there what must not be read by others.
        renewal: When leases are renewed, of the messages of `topics` and of pops with `renew`; None: never.
        ack_delay_ms: How long an ack waits for others of the same queue. Longer: fewer records; shorter: done sooner.
        fetch_timeout_ms: How long to wait for the records of a pop before the missing ones are released.
        enable_batch_change_invisible: Whether one record may change the invisible time of several messages.
        resend_with: A producer that sends a failed message of a unit again, as a message of its own for this group; the
            unit is acked when all its messages are settled. Without it, releasing one message redelivers its whole
            unit. Not for orderly groups.
        release_earlier_leases: Before the first pop of a queue, release the messages that an earlier process of the
            same client id held of it. Default: when `client_id` is given and the transport is not shared.
        exit_on_sigterm: Raise `SystemExit` on SIGTERM where the signal would otherwise end the process at once.
        observers: Are told what the consumer does, for metrics and traces: `popstream.prometheus.PrometheusMetrics`,
            `popstream.opentelemetry.OpenTelemetryTraces`, or an `Observer` of yours.
        transport: A transport to share; its owner closes it, not this consumer.
        sources: What it reads elsewhere than in Kafka, for tests.
        **settings: Other fields of `ClientSettings`.

    Raises:
        Unavailable: Kafka does not answer.
        Invalid: The topics of the job do not exist, or a setting is wrong.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        group: str,
        topics: Sequence[str] = (),
        client_id: str | None = None,
        prefix: str = "popstream",
        order: bool = False,
        prefetch: int = 10_000,
        prefetch_bytes: int = 64 * 1024 * 1024,
        rate_limit: float | None = None,
        invisible_time_ms: int = INVISIBLE_TIME_MS,
        tags: Sequence[str] | None = None,
        init: Literal["earliest", "latest"] = "earliest",
        value_deserializer: Callable[[bytes], Body] | None = None,
        message_filter: MessageFilter | None = None,
        max_attempts: int | None = MAX_ATTEMPTS,
        back_off: BackOff | Sequence[float] = BackOff.exponential(),  # noqa: B008 - frozen
        describe_error: Callable[[BaseException], str] = describe_error,
        renewal: RenewalPolicy | None = RenewalPolicy(),  # noqa: B008 - frozen
        ack_delay_ms: float = 5.0,
        fetch_timeout_ms: int = FETCH_TIMEOUT_MS,
        enable_batch_change_invisible: bool = True,
        resend_with: Resender | None = None,
        release_earlier_leases: bool | None = None,
        exit_on_sigterm: bool = True,
        observers: Sequence[Observer] = (),
        transport: Transport | None = None,
        sources: ConsumerSources | None = None,
        **settings: Any,  # noqa: ANN401 - ClientSettings checks them
    ) -> None:
        if isinstance(topics, str):
            message = f"topics is a list of names, not one name: [{topics!r}]"
            raise Invalid(message, subject=topics)
        if order and resend_with is not None:
            message = "an orderly group redelivers whole units: a message that is sent again would be out of order"
            raise Invalid(message, subject=group)
        retries = RetryRules(max_attempts, back_off, describe_error)
        self.settings = ClientSettings(
            bootstrap_servers=bootstrap_servers, client_id=client_id or new_client_id(), prefix=prefix, **settings
        )
        self.group = group
        self._topics = list(dict.fromkeys(topics))
        self._options = SubscriptionOptions(
            order=order,
            prefetch=prefetch,
            prefetch_bytes=prefetch_bytes,
            rate_limit=rate_limit,
            invisible_time_ms=invisible_time_ms,
            tags=_hashes(tags),
            init=init,
        )
        if release_earlier_leases is None:
            release_earlier_leases = client_id is not None and transport is None
        self._fetch_timeout_s = fetch_timeout_ms / 1000
        self._lock = threading.Lock()
        self._is_closing = False  # nothing begins any more
        self._is_closed = False
        self._closing_thread: threading.Thread | None = None
        self._closing_ended = threading.Event()
        self._handler_pools: set[HandlerPool] = set()
        self._subscription: Subscription | None = None
        self._owns_transport = transport is None
        self._observers = Observers(observers)
        sources = sources or ConsumerSources()
        with contextlib.ExitStack() as opened:  # closed again when a later step fails or is interrupted
            self._transport = transport or opened.enter_context(Transport(self.settings))
            self._ignore_answers = self._observers.follow(self._transport.on_answered)
            opened.callback(self._ignore_answers)
            self._payloads: Payloads = sources.payloads or opened.enter_context(
                contextlib.closing(shared_payloads(self.settings))
            )
            require_rights(self.settings.connection, self.client_id, {name: ["Read"] for name in self._read_topics})
            self._queue_types = QueueTypes(self.settings)
            opened.callback(self._queue_types.close)
            self._type_of = sources.job_types or self._queue_types.of
            self._listen: Listen = sources.notifications or partial(listen, self.settings, group)
            self._leases = Leases(
                self._transport,
                group=group,
                client_id=self.client_id,
                ack_delay_ms=ack_delay_ms,
                batches_changes=enable_batch_change_invisible,
                renewal=renewal,
                retries=retries,
                resender=resend_with,
                observers=self._observers,
            )
            opened.callback(self._leases.close)
            filler = RecordFiller(
                self._payloads,
                self._leases,
                self._transport.broker_clock,
                group=group,
                fetch_timeout_ms=fetch_timeout_ms,
                message_filter=message_filter,
                type_of=self._type_of,
                value_deserializer=value_deserializer,
            )
            self._pops = Pops(
                self._transport,
                self._leases,
                filler,
                client_id=self.client_id,
                settler=MessageSettler(self._leases.settlement, self._require_open),
                retries=retries,
                releases_earlier_of=(group, self.client_id) if release_earlier_leases else None,
            )
            self._pop_calls = PopCalls(self._pops, self._leases, self._payloads.queue_ids)
            self._unregister_at_exit = close_at_exit(self)
            if exit_on_sigterm:
                install_sigterm_handler()
            opened.pop_all()
        self._observers.opened(self)

    @property
    def client_id(self) -> str:
        """Name of this consumer."""
        return self.settings.client_id

    @property
    def _read_topics(self) -> list[str]:
        return [self.settings.notifications, self.settings.queue_types, *self._topics]

    @property
    def held_count(self) -> int:
        """Number of messages that were popped here and are neither settled nor expired."""
        return len(self._leases.held)

    @property
    def prefetch_window_size(self) -> int:
        """Number of messages of the topics that it may request or hold at present; 0 before it begins to prefetch."""
        return 0 if self._subscription is None else self._subscription.window_size

    @property
    def observers(self) -> Observers:
        """Those that are told what it does."""
        return self._observers

    def __iter__(self) -> Iterator[Message[Body]]:
        """Iterate over the messages of the topics until `stop` or `close`; settle each one, see `Message`.

        In an orderly group the next message of a queue is handed out when the one before it is settled. After `break`
        the messages that were prefetched are still held, for the next iteration: `stop` releases them.

        Raises:
            Refused: The job refuses pops of this group.
            Invalid: The consumer has no topics, or one does not exist.
        """
        subscription = self.subscribe()
        while messages := subscription.take(1):
            for message in messages:
                if not message.is_settled:  # its unit was released meanwhile
                    yield message

    def run(self, handler: Callable[[Message[Body]], object], *, workers: int = 1) -> None:
        """Call `handler` for each message of the topics, until `stop`, `close` or SIGTERM.

        A message is acked when the handler returns, unless the handler has settled it. When the handler raises, the
        message is released for as long as `back_off` says, and after `max_attempts` it is a dead letter; in an
        orderly group the later messages of the same pop are released with it. A handler decides by raising `Retry` or
        `Reject`.

        Args:
            handler: Takes a message; its return value is ignored, but must not be a coroutine.
            workers: Number of threads. Messages of an orderly queue go to one thread at a time, in order.

        Raises:
            Refused: The job refuses pops of this group.
            Invalid: The consumer has no topics, one does not exist, or the handler is one for `AsyncConsumer`.
        """
        refuse_coroutine_function(handler)
        # A worker takes one message at a time, so that the others need not wait for it; those of an orderly pop do.
        set_size = POP_MESSAGES_MAX if self._options.order else 1
        subscription = self.subscribe()
        handler = self._observers.around(self, in_one_process(handler))
        self._run(subscription, each_message(handler, subscription), set_size, workers)

    def run_sets(
        self,
        handler: Callable[[Sequence[Message[Body]]], object],
        *,
        set_size: int,
        workers: int = 1,
    ) -> None:
        """Like `run`, with up to `set_size` messages for each call of `handler`.

        Messages that the handler has settled stay settled. When it returns, the others are acked. When it raises, the
        first of the others is the failed one, and the later ones are released without a further attempt.
        """
        refuse_coroutine_function(handler)
        handler = self._observers.around_sets(self, in_one_process(handler))
        self._run(self.subscribe(), handler, set_size, workers)

    def stop(self) -> None:
        """End iterations and `run` after the current message; release the messages that were not handed out.

        The consumer stays open: it can be iterated over or run again.
        """
        if self._subscription is not None:
            self._subscription.stop()

    def pop(
        self,
        topic: str,
        queue_id: int | None = None,
        max_messages: int = 32,
        invisible_time_ms: int = INVISIBLE_TIME_MS,
        poll_time_ms: int = 0,
        *,
        order: bool = False,
        attempt_id: str | None = None,
        init: Literal["earliest", "latest"] = "earliest",
        tags: Sequence[str] | None = None,
        renew: bool = False,
        op_id: str | None = None,
        timeout_ms: int | None = None,
        call: PopsOfCall | None = None,
    ) -> PopResult[Body]:
        """Lease messages of one queue, or of any queues of a topic, and fetch their records.

        Leased offsets whose record no longer exists are acked with cause GONE: they are counted, not returned. With
        `renew` the messages belong to the calling thread: those that it has not settled when it ends are released.

        Args:
            topic: Message topic.
            queue_id: One partition; None: any. Each such pop begins at another queue, and all queues together return at
                most `max_messages`.
            max_messages: Maximum number of messages, 1..10,000.
            invisible_time_ms: Length of the lease, in milliseconds, from the broker's decision on. A lease of less than
                about 2,000 ms may expire before the messages arrive here.
            poll_time_ms: How long the broker waits for a first message, in milliseconds.
            order: Orderly consumption: the queue hands out nothing else while one of these messages is in flight.
            attempt_id: For orderly consumption: a pop with the same id returns the same messages again.
            init: Where the group begins at a queue that it has never popped: at its first message ("earliest"), or
                after its last one ("latest").
            tags: Receive only messages with one of these tags; the group skips the others.
            renew: Renew the leases before they end, by the policy of the consumer.
            op_id: Name of this pop (`new_op_id`), by which another thread can `cancel` it; for one queue only.
            timeout_ms: How long to wait for the answer beyond the poll time; default: `answer_timeout_ms`.
            call: A `new_pop_call`, by which another thread can interrupt this one.

        Raises:
            NotDeclared: The job does not know the queue yet.
            Refused: A parameter is out of range, or the lane is in use in the other mode.
            Invalid: The topic does not exist, or `tags` or `init` is not one of the values above.
            AnswerTimeout: The job does not answer. A `cancel` is sent, so that messages it leases later are released.
            PayloadMissing: None of the records could be read; the messages were released for one second.
            ClientClosed: The consumer was closed.
        """
        self._require_open()
        command = Pop(
            v=1,
            topic=topic,
            queue_id=-1 if queue_id is None else queue_id,
            op_id=op_id or new_op_id(),
            group=self.group,
            max_messages=max_messages,
            invisible_time_ms=invisible_time_ms,
            order=order,
            attempt_id=attempt_id,
            poll_time_ms=poll_time_ms,
            init=init_on_wire(init),
            client_id=self.client_id,
            tags=_hashes(tags),
        )
        is_renewed = renew and self._leases.is_renewing
        return self._pop_calls.pop(
            command,
            call or self.new_pop_call(),
            any_queue=queue_id is None,
            timeout_ms=timeout_ms,
            is_renewed=is_renewed,
        )

    def new_pop_call(self) -> PopsOfCall:
        """Return a `call` for one `pop`, whose `renew` messages then belong to the thread that calls this."""
        return self._pop_calls.new_call()

    def read(
        self, topic: str, queue_id: int, queue_offset: int, count: int = 1, *, inner_index: int = 0
    ) -> list[Record]:
        """Read messages without leasing them; other consumers are not affected.

        Args:
            topic: Message topic.
            queue_id: Its partition.
            queue_offset: The first record to read; if it does not exist, the next one that does.
            count: Maximum number of messages; fewer are returned at the end of the queue.
            inner_index: Skip the messages of the record at `queue_offset` before this one, which may be all of them.

        Raises:
            Invalid: The queue does not exist.
            Unavailable: Kafka does not answer.
        """
        self._require_open()
        # All messages of the first record may be left out, and each other record has one at least.
        record_count = count + (inner_index > 0)
        found = self._payloads.read(topic, queue_id, queue_offset, record_count, self._fetch_timeout_s)
        records = [
            record for at, payload in found for record in records_of(topic, queue_id, at, payload, self._type_of)
        ]
        is_before = (record.queue_offset == queue_offset and record.inner_index < inner_index for record in records)
        return [record for record, left_out in zip(records, is_before, strict=True) if not left_out][:count]

    def fetch_counts(self) -> FetchCounts:
        """Return the numbers of bytes and records that all consumers of this process have read and handed out."""
        return self._payloads.counts()

    def ack(self, messages: Iterable[Receipt], *, cause: Cause | None = None) -> list[Outcome]:
        """Ack messages, and wait for their outcomes, in the given order.

        Args:
            messages: Messages or receipts, of any queues.
            cause: Why they are acked without having been processed: GONE or UNREADABLE.

        Raises:
            AnswerTimeout: Some outcomes are unknown; the error holds the known ones.
            ClientClosed: The consumer was closed.
        """
        return self.ack_async(messages, cause=cause).result()

    def ack_async(self, messages: Iterable[Receipt], *, cause: Cause | None = None) -> AwaitableFuture[list[Outcome]]:
        """Like `ack`, without waiting. Acks of all threads within `ack_delay_ms` are sent together, as ranges.

        Callbacks of the future run on a background thread: they must be short, and must not wait for another answer.
        """
        self._require_open()
        return self._leases.settlement.ack(messages, cause)

    def change_invisible(
        self, messages: Iterable[Receipt], invisible_time_ms: int, *, suspend: bool = False
    ) -> list[Outcome]:
        """Make messages visible `invisible_time_ms` from now; 0: at once. The messages get new handles.

        Args:
            messages: Messages or receipts, of any queues.
            invisible_time_ms: 0..43,200,000 (12 hours).
            suspend: The next delivery does not count as a further attempt.

        Returns:
            The outcomes, in the given order. SUPERSEDED: another change came first; the message has the current handle
            now.

        Raises:
            AnswerTimeout: Some outcomes are unknown; the error holds the known ones.
            ClientClosed: The consumer was closed.
            Invalid: The time is out of range.
        """
        return self.change_invisible_async(messages, invisible_time_ms, suspend=suspend).result()

    def change_invisible_async(
        self, messages: Iterable[Receipt], invisible_time_ms: int, *, suspend: bool = False
    ) -> AwaitableFuture[list[Outcome]]:
        """Like `change_invisible`, without waiting for the outcomes. Callbacks are as those of `ack_async`."""
        self._require_open()
        change = Change(invisible_time_ms, suspend)
        return self._leases.settlement.change((message, change) for message in messages)

    def release_unseen(self, messages: Iterable[Message]) -> None:
        """Release messages that nobody has seen, without waiting: the delivery does not count as an attempt.

        A consumer that is closed has released them.
        """
        self._leases.settlement.change(((message, RELEASED_UNCOUNTED) for message in messages), keeps=False)

    def reject(self, messages: Iterable[Receipt], cause: str | None = None) -> list[Outcome]:
        """Send messages to the dead-letter topic now; `cause` is recorded with them.

        Raises:
            AnswerTimeout: Some outcomes are unknown; the error holds the known ones.
            ClientClosed: The consumer was closed.
        """
        return self.reject_async(messages, cause).result()

    def reject_async(self, messages: Iterable[Receipt], cause: str | None = None) -> AwaitableFuture[list[Outcome]]:
        """Like `reject`, without waiting for the outcomes. Callbacks are as those of `ack_async`."""
        self._require_open()
        return self._leases.settlement.reject(messages, cause)

    def cancel(self, topic: str, queue_id: int, op_id: str) -> Outcome:
        """Take back a pop: a parked one ends with CANCELLED, the messages of an answered one are released.

        The released delivery does not count as an attempt.

        Raises:
            AnswerTimeout: The job does not answer.
            ClientClosed: The consumer was closed.
        """
        answer = self.request(Cancel(v=1, topic=topic, queue_id=queue_id, target_op_id=op_id))
        return Outcome(answer.applied, answer.reason, answer.code)

    def return_client(self, topic: str, queue_id: int, client_id: str | None = None) -> list[tuple[int, int]]:
        """Release all messages of a queue that a client of this group holds, and cancel its parked pops.

        Messages that this consumer holds of the queue are settled by it, unless it raises, and so are those whose pop
        was decided before it and is answered later; meanwhile they are not renewed.

        Args:
            topic: Message topic.
            queue_id: Its partition.
            client_id: The client; default: this consumer.

        Returns:
            The inclusive ranges of queue offsets that were released.

        Raises:
            NotDeclared: The job does not know the queue.
            Refused: A parameter is out of range.
            AnswerTimeout: The job does not answer.
            ClientClosed: The consumer was closed.
        """
        command = ReturnClient(
            v=1, topic=topic, queue_id=queue_id, group=self.group, client_id=client_id or self.client_id
        )
        if command.client_id != self.client_id:
            return require(self.request(command), {Reason.OK}).released
        # A renewal would lease them again: until its next delivery a message has a valid handle.
        with self._pops.returning((topic, queue_id)) as returned:
            answer = require(self.request(command), {Reason.OK})
            returned(answer)
        return answer.released

    def request(self, command: Command, *, timeout_ms: int | None = None) -> Answer:
        """Send any operation and return its answer, whatever its reason.

        Raises:
            AnswerTimeout: The job does not answer.
            ClientClosed: The consumer was closed.
        """
        self._require_open()
        self._leases.send_waiting_acks()
        return self._transport.request(command, timeout_ms=timeout_ms)

    def flush(self, timeout_ms: int = CLOSE_TIMEOUT_MS) -> None:
        """Send the acks that wait for others, and wait for the outcomes of all requests about messages.

        Raises:
            AnswerTimeout: Some outcomes did not come in time.
        """
        self._leases.flush(timeout_ms / 1000)

    def close(self, *, release: bool = True, timeout_ms: int = CLOSE_TIMEOUT_MS) -> None:
        """Wait for handlers, cancel parked pops, finish the acks, release the held messages, and disconnect.

        A handler may call this: then the other handlers are waited for, and its own message is released. Another call
        waits for the first one, but in a handler it returns at once, since the first one waits for the handler.
        Anything that is not done in time is logged; the leases then expire.

        Args:
            release: Make held messages visible at once, by one operation for each queue; the delivery counts as an
                attempt. Otherwise their leases run on, and receipts remain valid.
            timeout_ms: Upper bound of the whole call, in milliseconds. Only a read of records that has begun may take
                longer, by `fetch_timeout_ms` at most.
        """
        with self._lock:
            is_first, self._is_closing = not self._is_closing, True
            if is_first:
                self._closing_thread = threading.current_thread()
        if is_first:
            try:
                self._close(time.monotonic() + timeout_ms / 1000, release=release)
            finally:
                self._closing_ended.set()
        elif not self._is_waited_for(threading.current_thread()):
            self._closing_ended.wait(timeout_ms / 1000)

    def __enter__(self) -> Self:
        """Return the open consumer."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()

    def subscribe(self) -> Subscription:
        """Return the subscription to the topics; prefetching begins with the first call of its `take`.

        Raises:
            Invalid: The consumer has no topics.
            ClientClosed: The consumer is closed.
        """
        with self._lock:
            if self._is_closing:
                raise ClientClosed.of("consumer", self.client_id)
            if not self._topics:
                message = "the consumer has no topics to iterate over: Consumer(..., topics=[...])"
                raise Invalid(message, subject=self.client_id)
            if self._subscription is None or self._subscription.is_stopped:
                self._subscription = Subscription(
                    f"{self.client_id}-pops",
                    group=self.group,
                    client_id=self.client_id,
                    topics=self._topics,
                    options=self._options,
                    pops=self._pops,
                    leases=self._leases,
                    queues_of=self._payloads.queue_ids,
                    listen=self._listen,
                )
            return self._subscription

    def _run(
        self,
        subscription: Subscription,
        handler: Callable[[Sequence[Message]], object],
        set_size: int,
        workers: int,
    ) -> None:
        pool = HandlerPool(
            f"{self.client_id}-worker",
            subscription,
            handler,
            set_size=set_size,
        )
        self._handler_pools.add(pool)
        try:
            pool.run(workers)
        finally:
            self._handler_pools.discard(pool)

    def _is_waited_for(self, thread: threading.Thread) -> bool:
        """Tell whether the first call of `close` is in this thread, or waits for it."""
        return thread is self._closing_thread or any(pool.has_worker(thread) for pool in list(self._handler_pools))

    def _close(self, deadline_s: float, *, release: bool) -> None:
        try:
            self.stop()
            for pool in list(self._handler_pools):
                pool.wait(left_s(deadline_s))  # until then handlers may settle their messages
            self._is_closed = True
            self._finish(deadline_s, release=release)
        except (PopstreamError, TimeoutError) as error:
            LOG.warning("%s could not finish its requests in flight: %s", self.client_id, error)
        finally:
            self._is_closed = True
            self._observers.closed(self)
            self._ignore_answers()
            self._leases.close(left_s(deadline_s))
            if self._owns_transport:
                self._transport.close(left_s(deadline_s))
            LOG.info("%s is closed; records of this process so far: %s", self.client_id, self._payloads.counts())
            self._payloads.close()
            self._queue_types.close()
            self._unregister_at_exit()

    def _finish(self, deadline_s: float, *, release: bool) -> None:
        if self._subscription is not None:
            self._subscription.close(left_s(deadline_s))
        self._leases.stop_renewing(left_s(deadline_s))
        self._pops.close(left_s(deadline_s))
        self._leases.finish(deadline_s, release=release)

    def _require_open(self) -> None:
        if self._is_closed:
            raise ClientClosed.of("consumer", self.client_id)


def _hashes(tags: Sequence[str] | None) -> list[int] | None:
    if tags is None:
        return None
    if isinstance(tags, (str, bytes)):  # each character would be a tag
        message = f"tags is a list of tags, not one tag: [{tags!r}]"
        raise Invalid(message, subject="tags")
    hashes = [tag_hash(tag) for tag in tags]
    if not hashes or NO_TAG in hashes:
        message = f"tags names at least one tag, and none that is empty; leave it out for all messages: {tags!r}"
        raise Invalid(message, subject="tags")
    return hashes
