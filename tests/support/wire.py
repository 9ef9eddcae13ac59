"""A client of few lines, without anything of `popstream`, and a job in this process."""

from __future__ import annotations

import json
import secrets
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from checkpoints.ownership import Ownership
from pipelines.decide_ops.entry import EntryKind
from pipelines.job_settings import JobSettings
from pipelines.process.job import Job
from popstream.exchange.partitioner import ops_key, partition_of
from popstream.kafka_connection import KafkaConnection
from tests.support.left_behind import audit_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from pyspark.sql import SparkSession

    from pipelines.process.job_traces import JobTraces

__all__ = ["Wire", "has_finished", "start_job", "wait_for"]

# For machines on which other things run.
PATIENCE_S = 180.0
REQUEST_BYTES_MAX = 17 * 1024 * 1024


class OwnJob(Job):
    """A job that owns its folder for as long as it runs, as `Host` does for the jobs of a process."""

    def stop(self) -> None:
        """Also let go of the folder."""
        super().stop()
        self._ownership.release()


def start_job(
    spark: SparkSession,
    servers: str,
    folder: Path,
    prefix: str,
    *,
    take_over: bool = True,
    traces: JobTraces | None = None,
    **settings: Any,
) -> Job:
    """A job in this process; `stop` it. It may have another folder than the job before it had."""
    more = {"ops_partitions": 2, "results_partitions": 4, "flush_interval_s": 0.5, **settings}
    ownership = Ownership(folder / "lock")
    try:
        chosen = JobSettings(folder=folder, topic_prefix=prefix, **more)
        return OwnJob(chosen, KafkaConnection(servers), spark, ownership, take_over=take_over, traces=traces).start()
    except BaseException:
        ownership.release()
        raise


def wait_for(
    what: Callable[[], Any], job: Job | None = None, *, patience_s: float = PATIENCE_S, look_each_s: float = 0.05
) -> Any:
    """The first true value of `what`.

    Raises:
        AssertionError: the job failed, or it took too long.
    """
    deadline = time.monotonic() + patience_s
    while not (found := what()):
        assert job is None or job.failure is None, f"the job failed: {job.failure!r}"
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(look_each_s)
    return found


def has_finished(job: Job, until: Mapping[int, int]) -> bool:
    """Whether the job has decided the log up to these offsets, and sent the dead letters of what it decided."""
    next_offset = job.apply_ops.applied.next_offset
    is_decided = all(next_offset.get(partition, 0) >= offset for partition, offset in until.items())
    return is_decided and not any(job.outbox.undelivered(EntryKind.DEAD_LETTER))


class Wire:
    """Sends bytes to the ops topic and reads one partition of the results topic from its end.

    Args:
        job: Whose topics are used; after a restart, set the new one.
        reply_to: The partition that is read.
    """

    def __init__(self, job: Job, reply_to: int = 1) -> None:
        self.job = job
        self.reply_to = reply_to
        self.frames: list[bytes] = []
        self._answers: dict[str, list[dict[str, Any]]] = {}
        self._number = 0
        self._name = secrets.token_hex(4)
        self.producer = KafkaProducer(
            bootstrap_servers=str(job.connection), acks="all", linger_ms=0, max_request_size=REQUEST_BYTES_MAX
        )
        self._consumer = KafkaConsumer(bootstrap_servers=str(job.connection), isolation_level="read_committed")
        self._partition = TopicPartition(job.topics.results, reply_to)
        self._consumer.assign([self._partition])
        self._consumer.seek_to_end(self._partition)
        self._consumer.position(self._partition)

    def operation(self, kind: str, topic: str = "orders", queue_id: int = 0, **fields: Any) -> dict[str, Any]:
        """One operation with an op_id of its own, as what its JSON says."""
        self._number += 1
        head = {"v": 1, "type": kind, "topic": topic, "queue_id": queue_id, "op_id": f"{self._name}-{self._number}"}
        return {**head, "reply_to": self.reply_to, **fields}

    def place(self, topic: str, queue_id: int) -> tuple[bytes, int]:
        """Key and partition of a queue's operations."""
        key = ops_key(topic, queue_id)
        return key, partition_of(key, self.job.ops.partition_count)

    def send_later(self, operation: dict[str, Any]) -> None:
        """Send without waiting until Kafka has it."""
        key, partition = self.place(operation["topic"], operation["queue_id"])
        self.producer.send(self.job.topics.ops, value=json.dumps(operation).encode(), key=key, partition=partition)

    def write(self, value: bytes | None, key: bytes | None, partition: int) -> int:
        """Any bytes to any place; the offset they got."""
        future = self.producer.send(self.job.topics.ops, value=value, key=key, partition=partition)
        return int(future.get(30).offset)

    def send(self, operation: dict[str, Any], padding: int = 0) -> int:
        """One operation to where it belongs, its JSON `padding` bytes longer than need be."""
        text = json.dumps(operation).encode()
        return self.write(text[:-1] + b" " * padding + b"}", *self.place(operation["topic"], operation["queue_id"]))

    def ask(self, kind: str, topic: str = "orders", queue_id: int = 0, **fields: Any) -> dict[str, Any]:
        """Send one operation and wait for the answer to it."""
        operation = self.operation(kind, topic, queue_id, **fields)
        self.send(operation)
        return self.answer(operation["op_id"])

    def answer(self, op_id: str) -> dict[str, Any]:
        """Wait for an answer, joined if it comes in parts."""

        def is_whole() -> bool:
            self._poll()
            return self._is_whole(op_id)

        wait_for(is_whole, self.job)
        return joined(self._answers[op_id])

    def parts(self, op_id: str) -> list[dict[str, Any]]:
        """The pieces of an answer that came, copies and all."""
        return self._answers.get(op_id, [])

    def forget(self, op_id: str) -> None:
        """Whatever comes from now on is new."""
        self._answers.pop(op_id, None)

    def rows(self, table: str, **wanted: Any) -> list[dict[str, Any]]:
        """Wait for rows of an audit table with these values."""

        def found() -> list[dict[str, Any]]:
            rows = audit_rows(self.job.folder.delta, table)
            return [row for row in rows if all(row[name] == value for name, value in wanted.items())]

        result: list[dict[str, Any]] = wait_for(found, self.job)
        return result

    def row(self, table: str, **wanted: Any) -> dict[str, Any]:
        """Wait for the one row with these values."""
        (row,) = self.rows(table, **wanted)
        return row

    def _poll(self) -> None:
        for record in self._consumer.poll(timeout_ms=50).get(self._partition, []):
            self.frames.append(record.value)
            for answer in json.loads(record.value)["answers"]:
                self._answers.setdefault(answer["op_id"], []).append(answer)

    def _is_whole(self, op_id: str) -> bool:
        parts = self._answers.get(op_id, [])
        return bool(parts) and {part.get("part", 0) for part in parts} == set(range(parts[0].get("parts", 1)))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.producer.close()
        self._consumer.close()


def joined(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """docs/wire.md, "Receiving answers", 5."""
    by_number = {part.get("part", 0): part for part in parts}
    whole = dict(by_number[0])
    for number in range(1, len(by_number)):
        for name in ("messages", "runs", "handles", "released"):
            if name in by_number[number]:
                whole[name] = [*whole.get(name, []), *by_number[number][name]]
        whole.setdefault("commit_offsets", {}).update(by_number[number].get("commit_offsets", {}))
    return whole
