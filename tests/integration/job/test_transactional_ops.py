"""Claim: an ops topic fed partly by a transactional producer, aborts included, loses and invents nothing.

Method: the same queue is written by a plain and by a transactional producer, whose transactions commit, abort, and stay
open over a restart of the job. What committed is decided once, in the order of the log; what did not is in no table;
positions pass the control records.
"""

from __future__ import annotations

import json
import secrets
from typing import TYPE_CHECKING, Any

import pytest
from kafka import KafkaProducer

from tests.support.left_behind import audit_rows, end_offsets
from tests.support.wire import Wire, start_job, wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from connectors.kafka.embedded import EmbeddedKafka
    from pipelines.process.job import Job

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

TOPIC_ID = "11111111-2222-4333-8444-555555555555"
GROUP = "g"


class Transactions:
    """Acks of single messages, several in one transaction."""

    def __init__(self, wire: Wire, handle: str) -> None:
        self._wire = wire
        self._handles = [{"group": GROUP, "handle": handle}]
        self.producer = KafkaProducer(
            bootstrap_servers=str(wire.job.connection), transactional_id=f"acks-{secrets.token_hex(4)}"
        )
        self.producer.init_transactions()
        self.committed: list[str] = []
        self.aborted: list[str] = []

    def ack(self, offset: int) -> dict[str, Any]:
        """An operation that acks one message."""
        entries = [{"handle": 0, "offsets": [[offset, offset]]}]
        return self._wire.operation("ack", handles=self._handles, entries=entries)

    def begin(self, offsets: list[int]) -> list[str]:
        """Send acks in a new transaction, durable but not committed; their op_ids."""
        self.producer.begin_transaction()
        op_ids = []
        key, partition = self._wire.place("orders", 0)
        for offset in offsets:
            operation = self.ack(offset)
            value = json.dumps(operation).encode()
            self.producer.send(self._wire.job.topics.ops, value, key, partition=partition)
            op_ids.append(operation["op_id"])
        self.producer.flush()
        return op_ids

    def commit(self, offsets: list[int]) -> None:
        """One committed transaction."""
        self.committed += self.begin(offsets)
        self.producer.commit_transaction()

    def abort(self, offsets: list[int]) -> None:
        """One aborted transaction."""
        self.aborted += self.begin(offsets)
        self.producer.abort_transaction()


def is_at_the_end(job: Job) -> bool:
    """Every offset of the log, control records included, is behind the job."""
    decided = job.apply_ops.applied.next_offset
    return all(decided.get(p, 0) >= end for p, end in end_offsets(str(job.connection), job.topics.ops).items())


def test_committed_once_aborted_never_open_ones_in_their_turn(
    kafka: EmbeddedKafka, spark: SparkSession, tmp_path: Path, topic_prefix: str
) -> None:
    servers = kafka.bootstrap_servers
    job = start_job(spark, servers, tmp_path, topic_prefix)
    with Wire(job) as wire:
        wire.ask("declare", topic_id=TOPIC_ID)
        wire.ask("dispatch", ranges=[{"first": 0, "last": 99}])
        popped = wire.ask("pop", group=GROUP, max_messages=100, invisible_time_ms=3_600_000)
        log = Transactions(wire, popped["handle"])
        log.commit([0, 1])
        log.abort([2, 3])
        log.commit([2])
        plain = log.ack(4)
        wire.send(plain)
        assert wire.answer(plain["op_id"])["commit_offsets"] == {GROUP: 3}
        # An aborted transaction at the very end: nothing follows that would push the position over it.
        log.abort([3, 5])
        wait_for(lambda: is_at_the_end(job), job)
        # The next one stays open; what others send after it has to wait for it, over a restart of the job.
        late = log.begin([3])
        behind = log.ack(5)
        wire.send(behind)
        job.stop()
        assert job.failure is None
        assert wire.parts(behind["op_id"]) == []
        job = wire.job = start_job(spark, servers, tmp_path, topic_prefix)
        assert wire.ask("declare", "another", queue_on(wire, 1), topic_id=TOPIC_ID)["applied"]
        assert not is_at_the_end(job)
        log.producer.commit_transaction()
        log.committed += late
        assert wire.answer(behind["op_id"])["commit_offsets"] == {GROUP: 6}
        assert wire.answer(late[0])["commit_offsets"] == {GROUP: 5}
        log.abort([90])
        log.producer.close()
        wait_for(lambda: is_at_the_end(job), job)
        job.stop()
        assert job.failure is None
        # Once more, with nothing but control records behind: nothing is decided again.
        rows = audit_rows(tmp_path / "delta", "operations")
        job = wire.job = start_job(spark, servers, tmp_path, topic_prefix)
        assert wire.ask("tick")["reason"] == "OK"
        job.stop()
        assert job.failure is None
    after = audit_rows(tmp_path / "delta", "operations")
    assert [row for row in after if row["kind"] != "tick"] == rows
    decided = [row["op_id"] for row in rows if row["kind"] == "ack"]
    assert sorted(decided) == sorted([*log.committed, plain["op_id"], behind["op_id"]])
    assert not set(log.aborted) & {row["op_id"] for row in after}
    acked = [row for row in audit_rows(tmp_path / "delta", "deliveries") if row["step"] == "acked"]
    assert sorted(row["first_offset"] for row in acked) == [0, 1, 2, 3, 4, 5]


def queue_on(wire: Wire, other_than: int) -> int:
    """A queue of topic `another` whose operations lie beside those of (orders, 0)."""
    taken = wire.place("orders", 0)[1]
    return next(n for n in range(other_than, 100) if wire.place("another", n)[1] != taken)
