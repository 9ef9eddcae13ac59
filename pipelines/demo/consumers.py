"""The consumers of the demo: steady, orderly, one that is killed before it acks, one that keeps changing its mind."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from pipelines.demo.journal import Journal, Opened
from pipelines.demo.key_order import KeyOrder
from pipelines.demo.lifeline import Lifeline
from pipelines.demo.messages import is_poison
from pipelines.demo.orders import Orders
from pipelines.demo.recorder import Recorder, client_options, keyed
from popstream import ClientClosed, Consumer, Message, Transport
from popstream.settings import ClientSettings

__all__ = ["is_released", "open_recorder", "run_changer", "run_doomed", "run_orderly", "run_steady"]

THREADS_MAX = 16
STEADY_THREADS = 2
"""For each queue: while one works on what it has, the other waits for what comes next."""
POLL_MS = 2_000
POLL_SHARED_MS = 300
"""When a thread looks after several queues, none may keep it long."""

STEADY_COUNT = 1_000
STEADY_INVISIBLE_MS = 60_000
WORK_S = 0.004
"""Work on the messages of one ack; if it were shorter, the client would join acks that are meant to be small."""

DOOMED_COUNT = 200
DOOMED_INVISIBLE_MS = 6_000
ORDERLY_TURNS = 5
_HALVES = ("again", "backwards")
"""In the first turns of five a pop is halved: the second half is tried again, or done before the first."""
CHANGER_COUNT = 100
CHANGER_INVISIBLE_MS = 30_000
CHANGER_SHORT_MS = 2_500


@contextmanager
def open_recorder(
    orders: Orders, lifeline: Lifeline, *, ack_delay_ms: float = 5.0
) -> Iterator[tuple[Recorder, Journal]]:
    """A consumer with its journal; `STOP` cancels the pops that wait. What it holds at the end is left to expire."""
    options: dict[str, Any] = client_options(orders)
    opened = Opened(orders.name, orders.role, orders.group)
    with (
        Journal(Path(orders.journal), opened) as journal,
        Transport(ClientSettings(bootstrap_servers=orders.bootstrap_servers, **options)) as transport,
    ):
        consumer = Consumer(
            orders.bootstrap_servers, group=orders.group, ack_delay_ms=ack_delay_ms, transport=transport, **options
        )
        lifeline.on_stop(partial(consumer.close, release=False))
        try:
            yield Recorder(orders, consumer, journal, lifeline), journal
        finally:
            consumer.close(release=False)


def run_steady(orders: Orders, lifeline: Lifeline) -> None:
    """Pop, work, ack, until `STOP`."""
    with open_recorder(orders, lifeline, ack_delay_ms=1.0 if orders.ack_count else 5.0) as (recorder, _):
        lifeline.wait_for_go()
        _in_threads(orders, lifeline, partial(_steady, orders, lifeline, recorder), for_each_queue=STEADY_THREADS)


def run_doomed(orders: Orders, lifeline: Lifeline) -> None:
    """Pop from every queue and never ack; the demo kills this process with all it holds."""
    with open_recorder(orders, lifeline) as (recorder, _):
        lifeline.wait_for_go()
        _in_threads(orders, lifeline, partial(_doomed, lifeline, recorder))
        lifeline.wait_for_stop()


def run_changer(orders: Orders, lifeline: Lifeline) -> None:
    """Lengthen, shorten, suspend and give back leases; ack what comes a second time."""
    with open_recorder(orders, lifeline) as (recorder, _):
        lifeline.wait_for_go()
        _in_threads(orders, lifeline, partial(_changer, orders, lifeline, recorder))


def run_orderly(orders: Orders, lifeline: Lifeline) -> None:
    """Pop in order, and see to it that no message of a key overtakes another; `STOP` ends it."""
    with open_recorder(orders, lifeline) as (recorder, _):
        lifeline.wait_for_go()
        _in_threads(orders, lifeline, partial(_orderly, lifeline, recorder))


def _in_threads(
    orders: Orders, lifeline: Lifeline, consume: Callable[[list[int]], None], *, for_each_queue: int = 1
) -> None:
    """Let threads share the queues; the first failure ends all."""
    count = min(orders.queues, THREADS_MAX // for_each_queue)
    shares = [list(range(first, orders.queues, count)) for first in range(count)] * for_each_queue
    failures: list[BaseException] = []
    ended = threading.Event()

    def run(share: list[int]) -> None:
        try:
            consume(share)
        except ClientClosed as error:
            if not lifeline.is_stopping:
                failures.append(error)
                ended.set()
        except BaseException as error:  # noqa: BLE001 - raised below, in the main thread
            failures.append(error)
            ended.set()

    threads = [threading.Thread(target=run, args=(share,), daemon=True) for share in shares]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads) and not ended.wait(0.2):
        pass
    if failures:
        raise failures[0]


def _steady(orders: Orders, lifeline: Lifeline, recorder: Recorder, share: list[int]) -> None:
    poll_time_ms = POLL_MS if len(share) == 1 else POLL_SHARED_MS
    unanswered: list[Future[Any]] = []
    while not lifeline.is_stopping:
        for queue_id in share:
            messages = recorder.pop(queue_id, STEADY_COUNT, STEADY_INVISIBLE_MS, poll_time_ms)
            # They were sent before the pop, so by now most are answered; an error must not go unseen.
            for future in unanswered:
                future.result()
            unanswered = _work(orders, recorder, messages)
    for future in unanswered:
        future.result()


def _work(orders: Orders, recorder: Recorder, messages: Sequence[Message]) -> list[Future[Any]]:
    poison = [message for message in messages if is_released(orders, message)]
    if poison:
        recorder.change(poison, 0)
        messages = [message for message in messages if not is_released(orders, message)]
    count = orders.ack_count or len(messages)
    unanswered: list[Future[Any]] = []
    for start in range(0, len(messages), max(count, 1)):
        time.sleep(WORK_S)
        unanswered.append(recorder.ack(messages[start : start + count]))
    return unanswered


def is_released(orders: Orders, message: Message) -> bool:
    """Whether this message is given back, for as long as it comes."""
    return orders.releases_poison and orders.source.is_made and is_poison(message.value or b"")


def _doomed(lifeline: Lifeline, recorder: Recorder, share: list[int]) -> None:
    waiting = list(share)
    while waiting and not lifeline.is_stopping:
        queue_id = waiting.pop(0)
        if recorder.pop(queue_id, DOOMED_COUNT, DOOMED_INVISIBLE_MS, POLL_SHARED_MS):
            lifeline.tell("armed")
        else:
            waiting.append(queue_id)


def _orderly(lifeline: Lifeline, recorder: Recorder, share: list[int]) -> None:
    """Mostly all of a pop is done; each fifth time in two halves, the later one first or not at all."""
    poll_time_ms = POLL_MS if len(share) == 1 else POLL_SHARED_MS
    key_order = KeyOrder()
    pops = 0
    while not lifeline.is_stopping:
        for queue_id in share:
            messages = recorder.pop(queue_id, STEADY_COUNT, STEADY_INVISIBLE_MS, poll_time_ms, key_order=key_order)
            if not messages:
                continue
            pops += 1
            time.sleep(WORK_S)
            turn = pops % ORDERLY_TURNS
            middle = (len(messages) + 1) // 2 if turn < len(_HALVES) else len(messages)
            first, second = messages[:middle], messages[middle:]
            is_backwards = turn < len(_HALVES) and _HALVES[turn] == "backwards"
            for part in [second, first] if is_backwards else [first]:
                if part:
                    recorder.ack(part).result()
                    key_order.done(map(keyed, part))
            if second and not is_backwards:
                recorder.change(second, 0)


def _changer(orders: Orders, lifeline: Lifeline, recorder: Recorder, share: list[int]) -> None:
    poll_time_ms = POLL_MS if len(share) == 1 else POLL_SHARED_MS
    met: set[tuple[int, int]] = set()
    while not lifeline.is_stopping:
        for queue_id in share:
            messages = recorder.pop(queue_id, CHANGER_COUNT, CHANGER_INVISIBLE_MS, poll_time_ms)
            if not messages:
                continue
            lifeline.tell("armed")
            poison = [message for message in messages if is_released(orders, message)]
            rest = [message for message in messages if not is_released(orders, message)]
            again = [message for message in rest if (queue_id, message.queue_offset) in met]
            fresh = [message for message in rest if (queue_id, message.queue_offset) not in met]
            met.update((queue_id, message.queue_offset) for message in fresh)
            unanswered = [recorder.ack(again)] if again else []
            if poison:
                recorder.change(poison, 0)
            unanswered += _change_minds(recorder, fresh)
            for future in unanswered:
                future.result()


def _change_minds(recorder: Recorder, messages: Sequence[Message]) -> list[Future[Any]]:
    """A quarter each: longer and done, longer and shorter and done, shorter and forgotten, given back."""
    longer, both, shorter, back = (list(messages[number::4]) for number in range(4))
    unanswered: list[Future[Any]] = []
    if longer:
        recorder.change(longer, 2 * CHANGER_INVISIBLE_MS)
        unanswered.append(recorder.ack(longer))
    if both:
        recorder.change(both, 2 * CHANGER_INVISIBLE_MS)
        recorder.change(both, CHANGER_INVISIBLE_MS)
        unanswered.append(recorder.ack(both))
    if shorter:
        recorder.change(shorter, CHANGER_SHORT_MS)
    if back:
        recorder.change(back, 0, suspend=True)
    return unanswered
