"""Pops messages, and says what became of them: the consumer side of the public API."""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from popstream.errors import AnswerTimeout, ClientClosed
from popstream.exchange.transport import Transport, new_op_id
from popstream.lease.entries import Change
from popstream.lease.entry_sender import EntrySender
from popstream.lease.held_messages import HeldMessages
from popstream.lease.renewal import LeaseRenewer, RenewalPolicy
from popstream.lease.settlement import Settlement
from popstream.outcome import Outcome
from popstream.payload.records import records_of
from popstream.payload.shared_payloads import shared_payloads
from popstream.pop.handler_pool import HandlerPool, each
from popstream.pop.notifications import listen
from popstream.pop.pop_calls import PopCalls, require
from popstream.pop.pops import Pops
from popstream.pop.subscription import Subscription, SubscriptionOptions
from popstream.settings import ClientSettings, new_client_id
from popstream.shutdown import close_at_exit, install_sigterm_handler
from popstream.wire.command import Cancel, Pop, ReturnClient
from popstream.wire.failures import Invalid, PopstreamError
from popstream.wire.headers import tag_hash
from popstream.wire.limits import POP_MESSAGES_MAX
from popstream.wire.reason import Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from types import TracebackType

    from popstream.lease.entries import OutcomesFuture
    from popstream.lease.settlement import Resender
    from popstream.message import Message, MessageFilter, PopResult
    from popstream.outcome import Receipt, Record
    from popstream.payload.payloads import FetchCounts, Payloads
    from popstream.pop.notifications import Listen
    from popstream.wire.answer import Answer
    from popstream.wire.command import Cause, Command, Init

__all__ = ["Consumer"]

LOG = logging.getLogger(__name__)

CLOSE_TIMEOUT_MS = 30_000
FETCH_TIMEOUT_MS = 10_000


class Consumer:
    """Pops messages of one group and acks them.

    With `topics` it pops ahead by itself, from all their queues, and keeps the leases of what it holds alive:

    ```python
    with Consumer("localhost:9092", group="billing", topics=["orders"]) as consumer:
        for message in consumer:      # or consumer.run(handle, workers=8)
            with message:             # acked at the end, given back when the block raises
                work_on(message.value)
    ```

    Without, or besides, `pop` leases when it is called, and what it leases ends by itself.

    Safe for use by many threads; a single message should be in the hands of one of them at a time. Calls wait for the
    job's answer, which takes as long as a micro-batch; `ack_async` and the methods of a message do not wait. What one
    thread asks for on one queue reaches the job in the order of the calls.

    When the consumer is closed, by whatever way its process leaves, what it holds goes back at once: at the end of the
    `with` block, at interpreter exit, by SIGTERM (from the main thread, where nobody else handles it). What is renewed
    and belongs to a thread that has ended goes back within seconds. Only a process that is killed cannot; its leases
    end by themselves, or by `return_client`, which the next consumer with the same explicit `client_id` sends first of
    all.

    Args:
        bootstrap_servers: `host:port` of one or more brokers, separated by commas.
        group: The consumer group; every group gets every message.
        topics: Message topics to iterate over or `run` with.
        client_id: Unique name of this consumer, for the audit and for `return_client`; by default a random one.
        prefix: Names the job, see `ClientSettings`.
        order: Of the topics' queues, see `SubscriptionOptions`; so the next five.
        prefetch: At most so many messages asked for or held. More: fewer pops; fewer: less to give back.
        prefetch_bytes: At most so many bytes of records held, but for a single longer one.
        invisible_time_ms: Length of the first lease; the renewals' are the policy's.
        tags: Only messages with one of these tags.
        init: Where the group begins at a queue that it has never popped: at its first message ("min"), or behind its
            last one ("max"); at its first message in any case when the queue is added while the consumer runs.
        message_filter: Is asked about each message before it is handed out.
        renewal: How leases are renewed, of the topics' messages and of pops with `renew`; None: not at all.
        ack_delay_ms: Acks wait so long for others of the same queue. Longer: fewer records; shorter: sooner done.
        fetch_timeout_ms: How long the records of a pop may take to come before they are given back.
        enable_batch_change_invisible: Whether one record may change many messages.
        resend_with: Sends a failed message of a unit again, as a message of its own for this group; the unit is done
            when all its messages are. Without it, one that is given back brings its whole unit back. Not for orderly
            groups.
        return_first: Give back, before the first pop of a queue, what an earlier process of the same client id held of
            it; by default when a `client_id` is given and the transport is not shared.
        exit_on_sigterm: Let SIGTERM unwind the process, where it would end it at once.
        transport: Share the one of another client instead of making one; it is not closed here.
        payloads: Take payloads from elsewhere than Kafka, as tests do.
        notifications: Learn from elsewhere which queues become poppable; see `Subscription`.
        **settings: Further fields of `ClientSettings`.

    Raises:
        Unavailable: Kafka does not answer.
        Invalid: The job's topics do not exist, or a setting is wrong.
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
        prefetch: int = 1_000,
        prefetch_bytes: int = 64 * 1024 * 1024,
        invisible_time_ms: int = 60_000,
        tags: Sequence[str] | None = None,
        init: Init = "min",
        message_filter: MessageFilter | None = None,
        renewal: RenewalPolicy | None = RenewalPolicy(),  # noqa: B008 - frozen
        ack_delay_ms: float = 5.0,
        fetch_timeout_ms: int = FETCH_TIMEOUT_MS,
        enable_batch_change_invisible: bool = True,
        resend_with: Resender | None = None,
        return_first: bool | None = None,
        exit_on_sigterm: bool = True,
        transport: Transport | None = None,
        payloads: Payloads | None = None,
        notifications: Listen | None = None,
        **settings: Any,  # noqa: ANN401 - ClientSettings checks them
    ) -> None:
        if isinstance(topics, str):
            message = f"topics is a list of names, not one name: [{topics!r}]"
            raise Invalid(message, subject=topics)
        if order and resend_with is not None:
            message = "in an orderly group a unit comes again as a whole: what is sent again would be out of order"
            raise Invalid(message, subject=group)
        self.settings = ClientSettings(
            bootstrap_servers=bootstrap_servers, client_id=client_id or new_client_id(), prefix=prefix, **settings
        )
        self.group = group
        self._topics = list(dict.fromkeys(topics))
        self._options = SubscriptionOptions(
            order=order,
            prefetch=prefetch,
            prefetch_bytes=prefetch_bytes,
            invisible_time_ms=invisible_time_ms,
            tags=_hashes(tags),
            init=init,
        )
        if return_first is None:
            return_first = client_id is not None and transport is None
        self._owns_transport = transport is None
        self._transport = transport or Transport(self.settings)
        self._payloads: Payloads = payloads or shared_payloads(self.settings)
        self._listen: Listen = notifications or partial(listen, self.settings, group)
        self._renews = renewal is not None
        self._held = HeldMessages()
        self._entries = EntrySender(
            self._transport,
            group=group,
            client_id=self.client_id,
            ack_delay_ms=ack_delay_ms,
            held=self._held,
            batches_changes=enable_batch_change_invisible,
        )
        self._settlement = Settlement(
            self._entries,
            self._held,
            group=group,
            broker_clock=self._transport.broker_clock,
            resender=resend_with,
        )
        self._renewer = LeaseRenewer(
            f"{self.client_id}-renewals", self._held, self._entries, renewal or RenewalPolicy()
        )
        self._held.on_hold(self._renewer.watch)
        self._pops = Pops(
            self._transport,
            self._payloads,
            self._held,
            self._settlement,
            group=group,
            settler=self,
            fetch_timeout_ms=fetch_timeout_ms,
            message_filter=message_filter,
            returns_first=(group, self.client_id) if return_first else None,
        )
        self._pop_calls = PopCalls(self._pops, self._held, self._settlement, self._payloads.queue_ids)
        self._lock = threading.Lock()
        self._handler_pools: set[HandlerPool] = set()
        self._subscription: Subscription | None = None
        self._is_closed = False
        self._unregister_at_exit = close_at_exit(self)
        if exit_on_sigterm:
            install_sigterm_handler()

    @property
    def client_id(self) -> str:
        """Name of this consumer."""
        return self.settings.client_id

    @property
    def held_count(self) -> int:
        """Count the messages popped here that were neither finished nor given back."""
        return len(self._held)

    def __iter__(self) -> Iterator[Message]:
        """Messages of the topics as they come, until `stop` or `close`. To be settled each: see `Message`.

        In an orderly group the next message of a queue comes when the one before it is settled.

        Raises:
            Refused: The job does not let this group pop.
            Invalid: There are no topics, or one does not exist.
        """
        subscription = self.subscribe()
        while messages := subscription.take(1):
            for message in messages:
                if not message.is_settled:  # its unit was given back meanwhile
                    yield message

    def run(self, handle: Callable[[Message], object], *, workers: int = 1, failure_delay_ms: int = 1_000) -> None:
        """Call `handle` for each message of the topics, until `stop`, `close` or SIGTERM.

        A message is acked when the handler returns, unless the handler has settled it. When it raises, the message goes
        back, and in an orderly group all after it that the same pop brought, in one request.

        Args:
            handle: Takes a message; its result does not matter.
            workers: Threads to call it in. Messages of an orderly queue are given to one thread at a time, in order.
            failure_delay_ms: The message a handler failed at comes again so much later.

        Raises:
            Refused: The job does not let this group pop.
            Invalid: There are no topics, or one does not exist.
        """
        set_size = POP_MESSAGES_MAX if self._options.order else 1
        self._work(each(handle, self._settlement), set_size, workers, failure_delay_ms)

    def run_sets(
        self,
        handle: Callable[[Sequence[Message]], object],
        *,
        set_size: int,
        workers: int = 1,
        failure_delay_ms: int = 1_000,
    ) -> None:
        """As `run`, with up to `set_size` messages at a time.

        What the handler has settled itself stays so. When it returns the rest is acked; when it raises the rest goes
        back: the first of it as the one that failed, those after it without having had an attempt.
        """
        self._work(handle, set_size, workers, failure_delay_ms)

    def stop(self) -> None:
        """End iterations and `run` once they are done with the message at hand; what waits goes back.

        The consumer stays open, and can be iterated over or run again.
        """
        if self._subscription is not None:
            self._subscription.stop()

    def pop(
        self,
        topic: str,
        queue_id: int | None = None,
        max_messages: int = 32,
        invisible_time_ms: int = 60_000,
        poll_time_ms: int = 0,
        *,
        order: bool = False,
        attempt_id: str | None = None,
        init: Init = "min",
        tags: Sequence[str] | None = None,
        renew: bool = False,
        op_id: str | None = None,
        timeout_ms: int | None = None,
    ) -> PopResult:
        """Lease messages of one queue, or of whichever queues of a topic have some, and bring their payloads.

        Leased offsets whose record no longer exists are acked with cause GONE; they are counted, not returned. With
        `renew` the messages belong to the calling thread: what it has not settled when it ends goes back.

        Args:
            topic: Message topic.
            queue_id: Its partition; None: any, each pop begins at another one, and all share `max_messages`.
            max_messages: At most so many, 1..10,000.
            invisible_time_ms: Nobody else gets them for so long, counted by the broker from its decision on. Less than
                about 2,000 can be over before the messages arrive here.
            poll_time_ms: Wait so long at the broker for a first message.
            order: Orderly consumption: nothing else of the queue is handed out while one of these is in flight.
            attempt_id: For orderly consumption: the same id again gets the same messages again.
            init: Where a lane that does not exist yet begins: at the queue's first message, or behind its last ("max").
            tags: Only messages with one of these tags; the others are passed over for the group.
            renew: Renew the leases ahead of their end, by the consumer's policy.
            op_id: Name for this pop (`new_op_id`), so that another thread can `cancel` it; for one queue only.
            timeout_ms: How long to wait for the answer beyond the poll time; by default as the settings say.

        Raises:
            NotDeclared: The job does not know the queue yet.
            Refused: A parameter is out of range, or the lane is used in the other mode.
            Invalid: The topic does not exist.
            AnswerTimeout: The job does not answer. What the pop may still lease is given back by a `cancel` sent for
            it. PayloadMissing: No record of what was leased could be read; it was given back.
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
            init=init,
            client_id=self.client_id,
            tags=_hashes(tags),
        )
        return self._pop_calls.pop(
            command, any_queue=queue_id is None, timeout_ms=timeout_ms, is_renewed=renew and self._renews
        )

    def read(
        self, topic: str, queue_id: int, queue_offset: int, count: int = 1, *, inner_index: int = 0
    ) -> list[Record]:
        """Look at messages without a lease: nothing is popped, and nobody else is kept from them.

        Args:
            topic: Message topic.
            queue_id: Its partition.
            queue_offset: The first record wanted; where it does not exist the next one that does.
            count: At most so many messages; fewer at the end of the queue.
            inner_index: Of the first record leave out so many messages.

        Raises:
            Invalid: There is no such queue.
            Unavailable: Kafka does not answer.
        """
        self._require_open()
        found = self._payloads.read(topic, queue_id, queue_offset, count, self._pops.fetch_timeout_ms / 1000)
        records = [record for at, payload in found for record in records_of(topic, queue_id, at, payload)]
        is_before = (record.queue_offset == queue_offset and record.inner_index < inner_index for record in records)
        return [record for record, left_out in zip(records, is_before, strict=True) if not left_out][:count]

    def fetch_counts(self) -> FetchCounts:
        """What was read from the message topics, by all consumers of this process, and what was made use of."""
        return self._payloads.counts()

    def ack(self, messages: Iterable[Receipt], *, cause: Cause | None = None) -> list[Outcome]:
        """Say that messages are done, and wait for the outcome of each, in the order given.

        Args:
            messages: Messages or receipts, of any queues.
            cause: Why they are done, when they were not processed: GONE or UNREADABLE.

        Raises:
            AnswerTimeout: Some outcomes are unknown; the error holds the known ones.
            ClientClosed: The consumer was closed.
        """
        return self.ack_async(messages, cause=cause).result()

    def ack_async(self, messages: Iterable[Receipt], *, cause: Cause | None = None) -> Future[list[Outcome]]:
        """As `ack`, without waiting. Acks of all threads that come within `ack_delay_ms` travel together, as ranges.

        The future's callbacks run on a background thread: they must be short, and must not wait for another answer.
        """
        self._require_open()
        return self._settlement.ack(messages, cause)

    def change_invisible(
        self, messages: Iterable[Receipt], invisible_time_ms: int, *, suspend: bool = False
    ) -> list[Outcome]:
        """Make messages visible `invisible_time_ms` from now, 0: at once. The handles in the messages are replaced.

        Args:
            messages: Messages or receipts, of any queues.
            invisible_time_ms: 0..43,200,000.
            suspend: The next delivery does not count as a further attempt.

        Returns:
            The outcome of each, in the order given. SUPERSEDED: somebody changed it since; the message now has the
            current handle.

        Raises:
            AnswerTimeout: Some outcomes are unknown; the error holds the known ones.
            ClientClosed: The consumer was closed.
        """
        self._require_open()
        change = Change(invisible_time_ms, suspend)
        return self._settlement.change((message, change) for message in messages).result()

    def reject(self, messages: Iterable[Receipt], cause: str | None = None) -> list[Outcome]:
        """Send messages to the dead-letter topic now; `cause` is kept with them.

        Raises:
            AnswerTimeout: Some outcomes are unknown; the error holds the known ones.
            ClientClosed: The consumer was closed.
        """
        self._require_open()
        return self._settlement.reject(messages, cause).result()

    def ack_one(self, message: Message) -> Future[Outcome]:
        """`Message.ack`."""
        return _first(self.ack_async([message]))

    def extend_one(self, message: Message, invisible_time_ms: int) -> Future[Outcome]:
        """`Message.extend`."""
        self._require_open()
        return _first(self._settlement.change([(message, Change(invisible_time_ms))]))

    def release_one(self, message: Message, invisible_time_ms: int) -> Future[Outcome]:
        """`Message.release`."""
        self._require_open()
        return _first(self._settlement.change([(message, Change(invisible_time_ms))], keeps=False))

    def reject_one(self, message: Message, cause: str | None) -> Future[Outcome]:
        """`Message.reject`."""
        self._require_open()
        return _first(self._settlement.reject([message], cause))

    def cancel(self, topic: str, queue_id: int, op_id: str) -> Outcome:
        """Take back a pop: one that waits ends with CANCELLED, one that was answered loses its leases.

        For those the attempt does not count.

        Raises:
            AnswerTimeout: The job does not answer.
            ClientClosed: The consumer was closed.
        """
        answer = self.request(Cancel(v=1, topic=topic, queue_id=queue_id, target_op_id=op_id))
        return Outcome(answer.applied, answer.reason, answer.code)

    def return_client(self, topic: str, queue_id: int, client_id: str | None = None) -> list[tuple[int, int]]:
        """Give back all that a client holds of a queue in this group, and cancel its waiting pops.

        Args:
            topic: Message topic.
            queue_id: Its partition.
            client_id: By default this consumer.

        Returns:
            The ranges of queue offsets that were released.

        Raises:
            NotDeclared: The job does not know the queue.
            Refused: A parameter is out of range.
            AnswerTimeout: The job does not answer.
            ClientClosed: The consumer was closed.
        """
        command = ReturnClient(
            v=1, topic=topic, queue_id=queue_id, group=self.group, client_id=client_id or self.client_id
        )
        return require(self.request(command), {Reason.OK}).released

    def request(self, command: Command, *, timeout_ms: int | None = None) -> Answer:
        """Send any operation and wait for its answer, whatever it says.

        Raises:
            AnswerTimeout: The job does not answer.
            ClientClosed: The consumer was closed.
        """
        self._require_open()
        self._entries.send_waiting()
        return self._transport.request(command, timeout_ms=timeout_ms)

    def renew_due(self) -> None:
        """Look after what is held now, as a thread does every few seconds: renew what is due, forget what is over."""
        self._renewer.look(time.monotonic())

    def flush(self, timeout_ms: int = CLOSE_TIMEOUT_MS) -> None:
        """Send the acks that wait for company, and wait until everything about messages is answered, or sent again.

        Raises:
            AnswerTimeout: Some is not, within the time.
        """
        deadline_s = time.monotonic() + timeout_ms / 1000
        self._settlement.flush(_left_s(deadline_s))
        self._entries.flush(_left_s(deadline_s))

    def close(self, *, release: bool = True, timeout_ms: int = CLOSE_TIMEOUT_MS) -> None:
        """Cancel pops that wait, finish the acks, give back what is held, and disconnect. More calls do nothing.

        What cannot be done in time is logged: the leases then end by themselves.

        Args:
            release: Make held messages visible at once, by one operation a queue; they have had an attempt. Otherwise
                their leases run on, and receipts stay good.
            timeout_ms: Bound for the whole.
        """
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        deadline_s = time.monotonic() + timeout_ms / 1000
        try:
            self._finish(deadline_s, release=release)
        except (PopstreamError, TimeoutError) as error:
            LOG.warning("%s could not finish what it had under way: %s", self.client_id, error)
        finally:
            self._entries.close()
            if self._owns_transport:
                self._transport.close()
            LOG.info("%s is closed; records of this process so far: %s", self.client_id, self._payloads.counts())
            self._payloads.close()
            self._unregister_at_exit()

    def __enter__(self) -> Self:
        """Give the open consumer."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()

    def _finish(self, deadline_s: float, *, release: bool) -> None:
        self.stop()
        for work in list(self._handler_pools):
            work.wait(_left_s(deadline_s))
        if self._subscription is not None:
            self._subscription.close(_left_s(deadline_s))
        self._renewer.close(_left_s(deadline_s))
        self._pops.close(_left_s(deadline_s))
        try:
            self._settlement.flush(_left_s(deadline_s))
        except AnswerTimeout as error:
            LOG.warning("%s: %s; their units come again", self.client_id, error)
        self._entries.close()
        held = self._held.take_all(time.monotonic())
        if held and release:
            # Before the acks are waited for: a queue that does not answer must not keep the others' messages.
            left_ms = int(_left_s(deadline_s) * 1000)
            changes = ((message, Change(0)) for message in held)
            given_back = self._entries.change(changes, keeps=False, timeout_ms=left_ms)
            given_back.add_done_callback(partial(_log_given_back, self.client_id))
        self._entries.flush(_left_s(deadline_s))

    def subscribe(self) -> Subscription:
        """The subscription to the topics, which begins with its first use."""
        with self._lock:
            self._require_open()
            if not self._topics:
                message = "the consumer names no topics to iterate over: Consumer(..., topics=[...])"
                raise Invalid(message, subject=self.client_id)
            if self._subscription is None or self._subscription.is_stopped:
                self._subscription = Subscription(
                    f"{self.client_id}-pops",
                    group=self.group,
                    client_id=self.client_id,
                    topics=self._topics,
                    options=self._options,
                    is_renewed=self._renews,
                    pops=self._pops,
                    held=self._held,
                    settlement=self._settlement,
                    queues_of=self._payloads.queue_ids,
                    listen=self._listen,
                )
            return self._subscription

    def _work(
        self, handle: Callable[[Sequence[Message]], object], set_size: int, workers: int, failure_delay_ms: int
    ) -> None:
        work = HandlerPool(
            f"{self.client_id}-worker",
            self.subscribe(),
            self._settlement,
            handle,
            set_size=set_size,
            failure_delay_ms=failure_delay_ms,
        )
        self._handler_pools.add(work)
        try:
            work.run(workers)
        finally:
            self._handler_pools.discard(work)

    def _require_open(self) -> None:
        if self._is_closed:
            message = f"consumer {self.client_id} is closed"
            raise ClientClosed(message, subject=self.client_id)


def _first(outcomes: OutcomesFuture) -> Future[Outcome]:
    """The future of a call about one message."""
    first: Future[Outcome] = Future()
    first.set_running_or_notify_cancel()

    def settle(done: OutcomesFuture) -> None:
        error = done.exception()
        if error is None:
            first.set_result(done.result()[0])
        else:
            first.set_exception(error)

    outcomes.add_done_callback(settle)
    return first


def _log_given_back(client_id: str, given_back: OutcomesFuture) -> None:
    if given_back.exception() is None:
        released_count = sum(outcome.applied for outcome in given_back.result())
        LOG.info("%s gave back %d of %d held messages", client_id, released_count, len(given_back.result()))


def _hashes(tags: Sequence[str] | None) -> list[int] | None:
    return None if tags is None else [tag_hash(tag) for tag in tags]


def _left_s(deadline_s: float) -> float:
    return max(0.0, deadline_s - time.monotonic())
