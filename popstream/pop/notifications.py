"""Reads the notifications of the job: which queue has become poppable for a group."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

import msgspec
from kafka import KafkaConsumer, TopicPartition

from popstream.wire.notification import Notification
from popstream.wire.queue_name import QueueName

if TYPE_CHECKING:
    from collections.abc import Callable

    from popstream.settings import ClientSettings

    Listener = Callable[[QueueName], None]
    Listen = Callable[[Listener], Callable[[], None]]

__all__ = ["Listen", "listen"]

LOG = logging.getLogger(__name__)

POLL_MS = 500
RETRY_PAUSE_S = 2.0


def listen(settings: ClientSettings, group: str, listener: Listener) -> Callable[[], None]:
    """Start a thread that reads notifications from now on; return an unsubscribe callable.

    A notification that is missed costs no more than a poll.

    Args:
        settings: Where Kafka is, and the name of the job.
        group: Only notifications for this group are reported.
        listener: Called with each queue, on the thread.
    """
    return _Notifications(settings, group, listener).close


class _Notifications:
    def __init__(self, settings: ClientSettings, group: str, listener: Listener) -> None:
        self._settings = settings
        self._group = group
        self._listener = listener
        self._is_closing = threading.Event()
        self._decode = msgspec.json.Decoder(Notification).decode
        self._thread = threading.Thread(target=self._run, name=f"{settings.client_id}-notifications", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._is_closing.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._is_closing.is_set():
            try:
                self._listen()
            except Exception as error:  # noqa: BLE001 - pops find messages without notifications, only later
                LOG.warning("cannot read notifications, retrying: %r", error)
                self._is_closing.wait(RETRY_PAUSE_S)

    def _listen(self) -> None:
        consumer: Any = KafkaConsumer(
            client_id=f"{self._settings.client_id}-notifications",
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="latest",
            allow_auto_create_topics=False,
            **self._settings.connection.for_kafka_python(),
        )
        try:
            topic = self._settings.notifications
            places = [TopicPartition(topic, partition) for partition in consumer.partitions_for_topic(topic) or ()]
            consumer.assign(places)
            consumer.seek_to_end(*places)
            suffix = b"\0" + self._group.encode()
            while not self._is_closing.is_set():
                for records in consumer.poll(timeout_ms=POLL_MS).values():
                    for record in records:
                        if record.key is not None and record.key.endswith(suffix):
                            self._report(record.value)
        finally:
            consumer.close(autocommit=False)

    def _report(self, value: bytes | None) -> None:
        try:
            found = self._decode(value or b"")
        except msgspec.DecodeError as error:
            LOG.warning("cannot decode a notification: %s", error)
            return
        if found.group == self._group:
            self._listener((found.topic, found.queue_id))
