"""Answers the redrives that clients announce, where a test has a broker and no job."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Self

import msgspec
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from connectors.kafka.own_topics import Topics
from popstream.testing._memory_link import frame_of
from popstream.wire.answer import Answer
from popstream.wire.command import Command, Redrive
from popstream.wire.reason import Reason
from tests.support.wire import wait_for

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["RedriveAnswers", "ok_answer"]

POLL_MS = 100


class RedriveAnswers:
    """Answers OK to each, from `with` to its end.

    Args:
        servers: The broker.
        prefix: Prefix of the topics, which exist.
    """

    def __init__(self, servers: str, prefix: str) -> None:
        self._servers = servers
        self._topics = Topics.of(prefix)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        ops, results = self._topics.ops, self._topics.results
        with (
            contextlib.closing(KafkaProducer(bootstrap_servers=self._servers)) as producer,
            contextlib.closing(
                KafkaConsumer(bootstrap_servers=self._servers, auto_offset_reset="earliest")
            ) as consumer,
        ):
            consumer.assign(
                [TopicPartition(ops, number) for number in wait_for(lambda: consumer.partitions_for_topic(ops))]
            )
            while not self._is_over.is_set():
                for records in consumer.poll(timeout_ms=POLL_MS).values():
                    for record in records:
                        command = msgspec.json.decode(record.value, type=Command)
                        if isinstance(command, Redrive):
                            frame = frame_of([ok_answer(command)])
                            producer.send(results, frame, partition=command.reply_to)


def ok_answer(redrive: Redrive) -> Answer:
    """The answer of a job that has audited it."""
    return Answer(
        op_id=redrive.op_id or "",
        type="redrive",
        code=0,
        reason=Reason.OK,
        applied=False,
        topic=redrive.topic,
        queue_id=redrive.queue_id,
        now_ms=0,
    )
