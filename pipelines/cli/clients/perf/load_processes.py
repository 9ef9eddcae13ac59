"""The processes of a load: one that sends, and the workers of each group. Each has an interpreter of its own."""

import contextlib
import functools
import logging
import signal
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from pipelines.cli.clients.perf.ack_form import AckForm
from pipelines.cli.clients.perf.ledger import GroupLedger, LoadDelivery, ProcessCounts
from pipelines.cli.clients.perf.load_message import made_value, read_value
from pipelines.cli.clients.perf.plan import Plan
from pipelines.cli.clients.send_and_consume import POLL_MS, UNDECLARED_PAUSE_S
from popstream import AnswerTimeout, ClientClosed, Consumer, Message, NotDeclared, Outcome, Producer, SendResult

__all__ = ["LOOK_S", "Worker", "consume_load", "send_load"]

LOG = logging.getLogger(__name__)

UNCONFIRMED_MAX = 20_000
"""Messages that the sender has on the way at most."""
CLOSE_MS = 10_000
LOOK_S = 0.05
"""How often a process looks at what the others have set."""


def send_load(plan: Plan, counts: ProcessCounts, stopping: Any, failures: Any) -> None:  # noqa: ANN401 - multiprocessing's own
    """Send the messages of a load.

    Args:
        plan: The load.
        counts: Counters of the sender.
        stopping: Shared flag; the sender ends early when it is true. (Not an Event: a process that is killed while it
            waits for one leaves nobody able to set it.)
        failures: Queue that gets the text of an error.
    """
    with _child(failures):
        waiting: deque[Future[SendResult]] = deque()

        def confirm() -> None:
            waiting.popleft().result()
            counts.messages += 1
            counts.last_ns = time.time_ns()

        target = plan.target
        with Producer(**target.client_options("perf"), dispatch=True) as producer:
            began_s, counts.first_ns = time.perf_counter(), time.time_ns()
            for number in range(plan.messages):
                if plan.rate:
                    time.sleep(max(0.0, began_s + number / plan.rate - time.perf_counter()))
                if stopping.value:
                    break
                since_ns = counts.first_ns + round(number * 1e9 / plan.rate) if plan.rate else time.time_ns()
                value = made_value(plan, number, since_ns)
                waiting.append(producer.send(plan.topic, value, queue_id=number % plan.queues))
                while waiting and (waiting[0].done() or len(waiting) >= UNCONFIRMED_MAX):
                    confirm()
            while waiting:
                confirm()


def consume_load(
    plan: Plan,
    group: str,
    ledger: GroupLedger,
    counts: ProcessCounts,
    stopping: Any,  # noqa: ANN401 - multiprocessing's own
    failures: Any,  # noqa: ANN401
) -> None:
    """Consume as one worker of a group until `stopping` is true.

    Args:
        plan: The load.
        group: The group.
        ledger: Account of the group.
        counts: Counters of this worker.
        stopping: Shared flag.
        failures: Queue that gets the text of an error.
    """
    with _child(failures):
        target = plan.target
        with Consumer(
            **target.client_options("perf"),
            group=group,
            topics=[plan.topic],
            prefetch=plan.prefetch,
            invisible_time_ms=plan.invisible_time_ms,
            exit_on_sigterm=False,
        ) as consumer:
            worker = Worker(plan, consumer, ledger, counts)
            threading.Thread(target=_stop_when, args=(stopping, consumer), daemon=True).start()
            worker.consume(stopping)
            consumer.close(timeout_ms=CLOSE_MS)


class Worker:
    """One consumer of a load.

    Args:
        plan: The load.
        consumer: Of the worker's group, and of the topic of the load.
        ledger: Account of the group.
        counts: Counters of this worker.
    """

    def __init__(self, plan: Plan, consumer: Consumer, ledger: GroupLedger, counts: ProcessCounts) -> None:
        self._plan = plan
        self._consumer = consumer
        self._ledger = ledger
        self._counts = counts
        self._lock = threading.Lock()

    def consume(self, stopping: Any) -> None:  # noqa: ANN401 - multiprocessing's own
        """Take and ack messages until the consumer is stopped, or `stopping` is true."""
        plan = self._plan
        match plan.ack:
            case AckForm.MESSAGE:
                self._consumer.run(lambda message: self._take([message]), workers=plan.threads)
            case AckForm.SET:
                self._consumer.run_sets(self._take, set_size=plan.pop_size, workers=plan.threads)
            case AckForm.POP:
                with ThreadPoolExecutor(plan.threads) as pool:
                    for loop in [pool.submit(self._pop, stopping) for _ in range(plan.threads)]:
                        loop.result()

    def _pop(self, stopping: Any) -> None:  # noqa: ANN401
        plan = self._plan
        while not stopping.value:
            try:
                popped = self._consumer.pop(plan.topic, None, plan.pop_size, plan.invisible_time_ms, POLL_MS)
            except NotDeclared:  # the first message of the queue is on its way
                time.sleep(UNDECLARED_PAUSE_S)
                continue
            except AnswerTimeout:  # what it has leased comes again
                continue
            if popped.messages:
                wait([self._take(popped.messages)])

    def _take(self, messages: Sequence[Message]) -> Future[list[Outcome]]:
        """Enter messages, and ack them."""
        deliveries: list[LoadDelivery | None] = []  # None: of somebody else
        for message in messages:
            found = read_value(self._plan, message.value)
            if found is None:
                deliveries.append(None)
                continue
            granted_ms = message.pop_time_ms if message.unit is None else 0
            delivery = LoadDelivery(found[0], message.queue_offset, granted_ms)
            deliveries.append(delivery)
            self._ledger.note_delivery(delivery, found[1])
        now_ns = time.time_ns()
        with self._lock:
            self._counts.messages += len(messages)
            self._counts.others += deliveries.count(None)
            self._counts.first_ns = self._counts.first_ns or now_ns
        outcomes = self._consumer.ack_async(messages)
        outcomes.add_done_callback(functools.partial(self._acked, deliveries, now_ns))
        return outcomes

    def _acked(self, deliveries: Sequence[LoadDelivery | None], began_ns: int, acks: Future[list[Outcome]]) -> None:
        now_ns = time.time_ns()
        error = acks.exception()
        outcomes: Sequence[Outcome | None]
        if error is None:
            outcomes, took_ms = acks.result(), (now_ns - began_ns) / 1e6
        else:
            # Those that are known came at some time before the error.
            outcomes, took_ms = _known_outcomes(error, len(deliveries)), None
        refused = 0
        for delivery, outcome in zip(deliveries, outcomes, strict=True):
            if outcome is not None and not outcome.applied:
                refused += 1
            elif delivery is not None and outcome is not None:
                self._ledger.note_ack(delivery, took_ms)
            elif delivery is not None:
                self._ledger.note_unknown(delivery.number)
        with self._lock:
            self._counts.refused += refused
            if error is None:
                self._counts.last_ns = now_ns


def _known_outcomes(error: BaseException, count: int) -> Sequence[Outcome | None]:
    """Return the outcomes of acks that have failed as a whole; None: unknown."""
    if isinstance(error, AnswerTimeout) and error.outcomes:
        return error.outcomes
    if not isinstance(error, AnswerTimeout | ClientClosed):
        LOG.error("acks have no outcome: %s: %s", type(error).__name__, error)
    return [None] * count


def _stop_when(stopping: Any, consumer: Consumer) -> None:  # noqa: ANN401
    while not stopping.value:
        time.sleep(LOOK_S)
    consumer.stop()


@contextlib.contextmanager
def _child(failures: Any) -> Iterator[None]:  # noqa: ANN401
    """Leave Ctrl-C to the parent, and report an error to it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.basicConfig(level=logging.ERROR)
    try:
        yield
    except Exception as error:  # noqa: BLE001 - whatever it is, the parent reports it
        failures.put(f"{type(error).__name__}: {error}")
