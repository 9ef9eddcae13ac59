"""The topic with the owner of a prefix, in memory: it fences producers as Kafka does."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from connectors.kafka.owner_log import LastRecord, SupersededError
from popstream.wire.base_errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from checkpoints.prefix_owner import Owner

__all__ = ["Records", "Topic"]


class Topic:
    """The topic, shared by the producers of all jobs."""

    def __init__(self) -> None:
        self.records: list[Owner] = []
        self.producer: object = None
        self.lock = threading.Lock()


class Records:
    """See `OwnerRecords`."""

    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self._producer: object | None = None
        self.is_away = False
        self.before_write: Callable[[], None] = lambda: None

    @property
    def is_open(self) -> bool:
        return self._producer is not None

    def last(self) -> LastRecord[Owner] | None:
        self._reach()
        with self._topic.lock:
            written = self._topic.records
            return LastRecord(len(written) - 1, written[-1]) if written else None

    def open_for_writing(self) -> None:
        self._reach()
        with self._topic.lock:
            self._producer = self._topic.producer = object()

    def write(self, value: Owner) -> None:
        self.before_write()
        self._reach()
        with self._topic.lock:
            if self._topic.producer is not self._producer:
                self._producer = None
                raise SupersededError
            self._topic.records.append(value)

    def close(self) -> None:
        self._producer = None

    def _reach(self) -> None:
        if self.is_away:
            self._producer = None
            message = "Kafka is away"
            raise Unavailable(message)
