"""A KafkaProducer over a `MemoryJob`: what it writes is poppable at once. It can be told what to refuse."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from kafka.future import Future

from popstream.payload.payloads import Payload
from popstream.testing.memory_job import MemoryJob
from popstream.wire.headers import BATCH_COUNT_HEADER
from popstream.wire.tag import tag_hash, tag_value

__all__ = ["MemoryKafka"]


class MemoryKafka:
    """Confirms at once, unless `judge` gives an error for a record; `raises` lets `send` itself raise one."""

    def __init__(self, job: MemoryJob, partitions: int = 1) -> None:
        self.sent: list[dict[str, Any]] = []
        self.written: list[dict[str, Any]] = []
        self.judge: Callable[[dict[str, Any]], Exception | None] = lambda _: None
        self.raises: Callable[[dict[str, Any]], Exception | None] = lambda _: None
        self._job = job
        self._partitions = set(range(partitions))

    def partitions_for(self, _topic: str) -> set[int]:
        return self._partitions

    def send(self, topic: str, **record: Any) -> Future:
        record = {"topic": topic, "key": None, **record}
        if (error := self.raises(record)) is not None:
            raise error
        self.sent.append(record)
        if (error := self.judge(record)) is not None:
            return Future().failure(error)
        self.written.append(record)
        headers = record["headers"]
        offset = self._job.append(
            topic,
            record["partition"],
            Payload(record["key"], record["value"], headers, record["timestamp_ms"]),
            tag=tag_hash(tag_value(headers)),
            count=int(dict(headers).get(BATCH_COUNT_HEADER, b"1")),
        )
        place = SimpleNamespace(
            topic=topic, partition=record["partition"], offset=offset, timestamp=record["timestamp_ms"]
        )
        return Future().success(place)

    def close(self, timeout: float) -> None: ...
