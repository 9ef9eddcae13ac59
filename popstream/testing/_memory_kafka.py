"""A KafkaProducer over a `MemoryJob`: what it writes is poppable at once. It can be told what to refuse."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from kafka.future import Future

from popstream.payload.payloads import Payload
from popstream.wire.dedup_id import dedup_id_of
from popstream.wire.deliver_at import deliver_at_ms_of
from popstream.wire.headers import BATCH_COUNT_HEADER
from popstream.wire.tag import tag_hash, tag_value

if TYPE_CHECKING:
    from collections.abc import Callable

    from popstream.testing.memory_job import MemoryJob
    from popstream.wire.command import QueueType

__all__ = ["MemoryKafka"]


class MemoryKafka:
    """Confirms at once, unless `judge` gives an error for a record; `raises` lets `send` itself raise one.

    Args:
        job: Gets the records.
        partitions: Number of partitions of each topic.
        type_of: Returns the type of a topic, for a topic that the job does not know yet.

    Attributes:
        sent: Each record, as options of `KafkaProducer.send` with `topic`.
        written: Those that were confirmed.
        judge: Returns an error for a record that Kafka refuses.
        raises: Returns an error that `send` raises.
    """

    def __init__(
        self, job: MemoryJob, partitions: int | None = 1, type_of: Callable[[str], QueueType] = lambda _: "batch"
    ) -> None:
        self.sent: list[dict[str, Any]] = []
        self.written: list[dict[str, Any]] = []
        self.judge: Callable[[dict[str, Any]], Exception | None] = lambda _: None
        self.raises: Callable[[dict[str, Any]], Exception | None] = lambda _: None
        self._job = job
        self._partitions = partitions
        self._type_of = type_of

    def partitions_for(self, topic: str) -> set[int]:
        """Return the partitions of a topic."""
        if self._partitions is not None:
            return set(range(self._partitions))
        return {queue_id for name, queue_id in self._job.payloads.queues if name == topic} or {0}

    def send(self, topic: str, **record: Any) -> Future:  # noqa: ANN401 - as KafkaProducer's
        """Write a record, and make it poppable."""
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
            deliver_at_ms=deliver_at_ms_of(headers),
            dedup_id=dedup_id_of(headers),
            queue_type=self._type_of(topic),
        )
        place = SimpleNamespace(
            topic=topic, partition=record["partition"], offset=offset, timestamp=record["timestamp_ms"]
        )
        return Future().success(place)

    def close(self, timeout: float) -> None:
        """Do nothing."""
