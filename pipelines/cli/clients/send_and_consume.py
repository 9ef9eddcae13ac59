"""`popstream send` and `popstream consume`: messages between the shell and message topics."""

import contextlib
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import msgspec
import typer

from connectors.kafka.topic_admin import TopicFacts, create_message_topic, describe
from pipelines.bytes_as_json import bytes_fields
from pipelines.cli.control_characters import escape_controls
from pipelines.cli.exits import Exit, say
from pipelines.cli.printing import counted
from pipelines.cli.target import Target
from popstream import Consumer, Message, NotDeclared, PopstreamError, Producer, SendResult
from popstream.wire.base_errors import Invalid

__all__ = ["printable", "require_topic", "run_consume", "run_send"]

MESSAGES_PER_POP = 100
UNCONFIRMED_MAX = 10_000
POLL_MS = 1_000
UNDECLARED_PAUSE_S = 0.2


def run_send(
    target: Target,
    topic: str,
    file: Path | None,
    *,
    queue_id: int | None,
    tag: str | None,
    deliver_at_ms: int | None,
    create: int,
) -> None:
    """Send one message per line and wait until they are dispatched.

    Raises:
        Invalid: The topic, queue or file does not exist, or the time is too far ahead.
        NotDispatched: The messages are written, but not confirmed as dispatched.
        Unavailable: Kafka did not accept a message.
    """
    if create:
        create_message_topic(target.connection, topic, create)
    require_topic(target, topic)
    sent = _Sent()
    try:
        producer = Producer(**target.client_options("send"), dispatch=True)
        with _lines_of(file) as lines, producer:
            for line in lines:
                sent.add(producer.send(topic, line, queue_id=queue_id, tag=tag, deliver_at=deliver_at_ms))
            sent.confirm()
            producer.flush()
    except (PopstreamError, KeyboardInterrupt):
        if sent.count:
            say(f"of {counted(sent.count, 'message')} {sent.written_count:,} are known to be in {topic}")
        raise
    is_later = deliver_at_ms is not None and deliver_at_ms > time.time() * 1000
    ready = "to be popped later" if is_later else "ready to be popped"
    say(f"{counted(sent.count, 'message')} sent to {topic}, {ready}")


def run_consume(
    target: Target,
    topic: str,
    group: str,
    *,
    count_max: int,
    invisible_time_ms: int,
    wait_ms: int,
    follow: bool,
    ack: bool,
    as_json: bool,
) -> None:
    """Pop from the queues of the topic in turn, print the messages, and ack them.

    Raises:
        NotDeclared: The job has no queue of the topic, and none was added within `wait_ms`.
        Unavailable: Kafka or the job does not answer.
    """
    # The attempts are those of the group's own program.
    consumer = Consumer(**target.client_options("consume"), group=group, max_attempts=None)
    progress = _Progress(count_max)
    try:
        _consume(consumer, topic, progress, invisible_time_ms, wait_ms, follow=follow, ack=ack, as_json=as_json)
    finally:
        # An interrupt may leave printed messages unacked: they are released; with --no-ack they stay leased.
        consumer.close(release=ack)
        late = f"; {progress.lost} acked too late: they will be redelivered" if progress.lost else ""
        say(f"{counted(progress.printed, 'message')} of {topic} for {group}{late}")
    if progress.lost:
        raise typer.Exit(Exit.NOT_AS_ASKED)


def printable(message: Message, *, as_json: bool) -> str:
    """Return a message as one line."""
    if not as_json:
        return escape_controls(_text(message.value), kept="\t")
    fields: dict[str, Any] = {
        "topic": message.topic,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "inner_index": message.inner_index,
        "inner_count": message.inner_count,
        "message_id": message.message_id,
        "tag": message.tag,
        "deliver_at_ms": message.deliver_at_ms,
        "attempt": message.attempt,
        "timestamp_ms": message.timestamp_ms,
        "next_visible_time_ms": message.next_visible_time_ms,
        "handle": message.handle.text,
        "headers": [[name, None if value is None else _text(value)] for name, value in message.headers],
        **bytes_fields("key", message.key),
        **bytes_fields("value", message.value),
    }
    return msgspec.json.encode(fields).decode()


class _Sent:
    """The messages that were handed to a producer, of which few are without a result.

    Attributes:
        count: All of them.
    """

    def __init__(self) -> None:
        self.count = 0
        self._confirmed_count = 0
        self._waiting: list[Future[SendResult]] = []

    def add(self, future: Future[SendResult]) -> None:
        """Count a message, and confirm those before it if they are many. Raises the errors of `confirm`."""
        self.count += 1
        self._waiting.append(future)
        if len(self._waiting) == UNCONFIRMED_MAX:
            self.confirm()

    def confirm(self) -> None:
        """Wait for all results. Raises the error of the first message that is not written."""
        for future in self._waiting:
            future.result()
        self._confirmed_count += len(self._waiting)
        self._waiting.clear()

    @property
    def written_count(self) -> int:
        """How many are known to be written."""
        return self._confirmed_count + sum(one.done() and one.exception() is None for one in self._waiting)


class _Progress:
    """Counts printed messages, and those whose ack came too late."""

    def __init__(self, count_max: int) -> None:
        self.printed = 0
        self.lost = 0
        self._count_max = count_max
        self._seen: set[tuple[int, int, int]] = set()

    def is_first(self, message: Message) -> bool:
        """Return whether this run has not printed it before. Without it, --no-ack would never end."""
        before = len(self._seen)
        self._seen.add((message.queue_id, message.queue_offset, message.inner_index))
        return len(self._seen) > before

    @property
    def left(self) -> int:
        return self._count_max - self.printed if self._count_max else MESSAGES_PER_POP


def _consume(
    consumer: Consumer,
    topic: str,
    progress: _Progress,
    invisible_time_ms: int,
    wait_ms: int,
    *,
    follow: bool,
    ack: bool,
    as_json: bool,
) -> None:
    last_s = time.monotonic()
    while progress.left > 0:
        is_last = not follow and _waited_ms(last_s) >= wait_ms
        poll_time_ms = POLL_MS if follow else min(POLL_MS, wait_ms)
        try:
            popped = consumer.pop(
                topic, None, min(progress.left, MESSAGES_PER_POP), invisible_time_ms, 0 if is_last else poll_time_ms
            )
        except NotDeclared as error:
            if is_last:
                reason = f"the job has no queue of {topic}: is it among its message_topics?"
                raise NotDeclared(reason, subject=topic) from error
            time.sleep(UNDECLARED_PAUSE_S)
            continue
        if not popped.messages:
            if is_last:
                return
            continue
        last_s = time.monotonic()
        again = 0
        for message in popped:
            if ack or progress.is_first(message):
                print(printable(message, as_json=as_json))
                progress.printed += 1
            else:
                again += 1
        sys.stdout.flush()
        if again:
            say("stopped: messages are redelivered, because their invisible time is over")
            return
        if ack:
            progress.lost += sum(not outcome.applied for outcome in consumer.ack(popped.messages))


def _waited_ms(since_s: float) -> float:
    return (time.monotonic() - since_s) * 1000


def require_topic(target: Target, topic: str) -> TopicFacts:
    """Return the facts of a message topic.

    Raises:
        Invalid: The topic does not exist.
        Unavailable: Kafka does not answer.
    """
    found = describe(target.connection, [topic]).get(topic)
    if found is None:
        message = f"there is no topic {topic} at {target.connection}; `popstream send {topic} --create 4` creates it"
        raise Invalid(message, subject=topic)
    return found


@contextlib.contextmanager
def _lines_of(file: Path | None) -> Iterator[Iterator[bytes]]:
    if file is None or str(file) == "-":
        yield (line.rstrip(b"\r\n") for line in sys.stdin.buffer)
        return
    try:
        opened = file.open("rb")
    except OSError as error:
        message = f"{file} cannot be read: {error.strerror}"
        raise Invalid(message, subject=str(file)) from error
    with opened:
        yield (line.rstrip(b"\r\n") for line in opened)


def _text(value: bytes | None) -> str:
    return "" if value is None else value.decode("utf-8", "backslashreplace")
