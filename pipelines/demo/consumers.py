"""What the sender and the consumers of the demo do, through the public client."""

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from pipelines.demo.message_source import content_hash
from pipelines.demo.tasks import Task
from popstream import Consumer, Message, Producer, SendResult

__all__ = ["ProcessedLog", "open_consumer", "run_changer", "run_doomed", "run_orderly", "run_sender", "run_steady"]

FLUSH_TIMEOUT_MS = 120_000
STOP_GRACE_S = 20.0
ORPHANED = 3
WORKERS = 4
PREFETCH = 8_000
"""Messages in hand or asked for: a pop takes as long as a micro-batch, so few small ones would bound the rate."""

WORK_S = 0.004
"""Work on one set of messages; if it were shorter, the client would combine acks that are meant to be small."""

SET_SIZE_MAX = 1_000
POLL_TIME_MS = 300

DOOMED_COUNT = 200
DOOMED_INVISIBLE_TIME_MS = 6_000
CHANGER_COUNT = 100
CHANGER_INVISIBLE_TIME_MS = 30_000
CHANGER_SHORT_TIME_MS = 2_500
HALVED_EVERY = 5
"""An orderly consumer takes the first two of these sets in halves."""


class ProcessedLog:
    """Appends a line `queue_id queue_offset content_hash` for each processed message. Safe for use by many threads."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._file = path.open("w")

    def add(self, messages: Sequence[Message]) -> None:
        """Write messages to the file, before they are acked."""
        lines = (f"{m.queue_id} {m.queue_offset} {content_hash(m.value or b'')}\n" for m in messages)
        with self._lock:
            self._file.writelines(lines)
            self._file.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


@contextmanager
def open_consumer(task: Task, **options: Any) -> Iterator[tuple[Consumer, ProcessedLog]]:  # noqa: ANN401 - options of Consumer
    """Open the consumer of a task; it is closed when standard input ends."""
    options |= {"group": task.group, "topics": [task.topic], "prefetch": PREFETCH, **task.client_options}
    with ProcessedLog(task.processed_file) as processed, Consumer(**options) as consumer:
        at_end_of_input(consumer.close)
        yield consumer, processed


def at_end_of_input(close: Callable[[], None]) -> None:
    """Call `close` when the demo ends standard input, or has died; end the process if it goes on after that."""

    def wait() -> None:
        # Unbuffered: a thread that waits in a buffered read holds a lock that the interpreter needs at its end.
        while os.read(0, 1024):
            pass
        close()
        time.sleep(STOP_GRACE_S)
        os._exit(ORPHANED)

    threading.Thread(target=wait, name="input", daemon=True).start()


def run_sender(task: Task) -> None:
    """Send every message, and wait until Kafka has them all."""
    at_end_of_input(lambda: None)
    failures: list[BaseException] = []

    def note_failure(sent: "Future[SendResult]") -> None:
        if (error := sent.exception()) is not None:
            failures.append(error)

    with Producer(**task.client_options) as producer:
        for number, value in enumerate(task.source.values()):
            queue_id, _ = task.source.position(number, task.queues)
            producer.send(task.topic, value, queue_id=queue_id).add_done_callback(note_failure)
        producer.flush(FLUSH_TIMEOUT_MS)
    if failures:
        raise failures[0]


def run_steady(task: Task) -> None:
    """Process and ack."""
    with open_consumer(task, ack_delay_ms=1.0) as (consumer, processed):

        def handle(messages: Sequence[Message]) -> None:
            time.sleep(WORK_S)
            processed.add(without_poison(task, consumer, messages))

        consumer.run_sets(handle, set_size=task.set_size, workers=WORKERS)


def run_orderly(task: Task) -> None:
    """Process in order; some sets in halves: the second half is acked first, or it is released and comes again."""
    set_numbers = itertools.count()
    with open_consumer(task, order=True) as (consumer, processed):

        def handle(messages: Sequence[Message]) -> None:
            time.sleep(WORK_S)
            set_number = next(set_numbers) % HALVED_EVERY
            middle = (len(messages) + 1) // 2 if set_number < 2 else len(messages)
            first, second = messages[:middle], messages[middle:]
            if second and set_number == 0:
                processed.add(second)
                consumer.ack(second)
            elif second:
                consumer.change_invisible(second, 0)
            processed.add(first)
            consumer.ack(first)

        consumer.run_sets(handle, set_size=SET_SIZE_MAX, workers=WORKERS)


def run_doomed(task: Task) -> None:
    """Pop and never ack; the demo kills this process with the leases that it holds."""
    with open_consumer(task) as (consumer, _):
        for _ in range(task.queues):
            if consumer.pop(task.topic, None, DOOMED_COUNT, DOOMED_INVISIBLE_TIME_MS, POLL_TIME_MS).messages:
                task.armed_file.touch()
        threading.Event().wait()


def run_changer(task: Task) -> None:
    """Lengthen, shorten, suspend and release leases; ack messages that come a second time."""
    seen: set[tuple[int, int]] = set()
    with open_consumer(task) as (consumer, processed):
        while True:
            popped = consumer.pop(task.topic, None, CHANGER_COUNT, CHANGER_INVISIBLE_TIME_MS, POLL_TIME_MS)
            if not popped.messages:
                continue
            task.armed_file.touch()
            messages = without_poison(task, consumer, popped.messages)
            fresh = [message for message in messages if (message.queue_id, message.queue_offset) not in seen]
            seen.update((message.queue_id, message.queue_offset) for message in fresh)
            longer, both, shorter, back = (fresh[number::4] for number in range(4))
            consumer.change_invisible(longer + both, 2 * CHANGER_INVISIBLE_TIME_MS)
            consumer.change_invisible(both, CHANGER_INVISIBLE_TIME_MS)
            consumer.change_invisible(shorter, CHANGER_SHORT_TIME_MS)  # and its lease expires
            consumer.change_invisible(back, 0, suspend=True)
            done = [message for message in messages if message not in shorter and message not in back]
            processed.add(done)
            consumer.ack(done)


def without_poison(task: Task, consumer: Consumer, messages: Sequence[Message]) -> list[Message]:
    """Return the messages that can be processed; release the others, for as often as they come."""
    poison = [message for message in messages if task.releases_poison and task.source.is_poison(message.value)]
    if poison:
        consumer.change_invisible(poison, 0)
    return [message for message in messages if message not in poison]
