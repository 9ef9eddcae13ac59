"""A record under which the Python worker ends: found, quarantined and answered, and all others are decided.

Beside it are healthy shards, whose rows leave with each attempt of the task: each is written once.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from connectors.delta.rows import completed_rows
from connectors.kafka.topic_admin import create_message_topic, open_admin
from pipelines.cluster.audit.audit_query import audit_key, new_entries
from pipelines.cluster.audit.entry_rows import rows_from
from pipelines.cluster.decide import decide_query
from pipelines.cluster.decide.extent import Cursors
from pipelines.cluster.decide.outgoing import EntryKey
from pipelines.cluster.decide.shard_attempts import dead_records
from pipelines.decide_ops.entries import read_slice
from pipelines.decide_ops.entry import EntryKind
from popstream.exchange.partitioner import ops_key, partition_of
from popstream.kafka_connection import KafkaConnection
from tests.cluster.dying_shard import POISON, DyingProcessor
from tests.model.generator import PARTITIONS
from tests.model.reference_model import Record
from tests.support.cluster_log import Log, decide, stored_quarantine, take_last_commit

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from connectors.kafka.embedded import EmbeddedKafka

pytestmark = pytest.mark.cluster

NOW_MS = 1_700_000_000_000


def record(at: int, queue_id: int = 0, **fields: Any) -> Record:
    key = ops_key("t", queue_id)
    full = {"v": 1, "topic": "t", "queue_id": queue_id, "reply_to": 0, "op_id": f"op-{queue_id}-{at}", **fields}
    return Record(partition_of(key, PARTITIONS), at, NOW_MS, key, json.dumps(full).encode())


def written_rows(log: Log) -> Counter[tuple[str, int, int, int]]:
    """(table, partition, Kafka offset, ordinal) of the rows that the audit query writes."""
    found = [((each.partition, each.offset), audit_key(each.key), each) for each in log.read(log.internal.audit)]
    heads = [(at, key, each.value[0], each.value) for at, key, each in found]
    new = new_entries(heads, Cursors({}), "epoch")
    rows: Counter[tuple[str, int, int, int]] = Counter()
    for at, key, each in found:
        if at in new.repeated or not isinstance(key, EntryKey) or key.kind != EntryKind.AUDIT:
            continue
        table, data = read_slice(each.value)
        (entry,) = completed_rows(table, [(None, data)], "epoch", "T")
        entry = rows_from(entry, new.partly[at]) if at in new.partly else entry
        places = entry.select(["partition", "kafka_offset", "ordinal"]).to_pylist()
        rows.update((table, *place.values()) for place in places)
    return rows


def poisoned_log(kafka: EmbeddedKafka, prefix: str, poison: int) -> tuple[Log, int]:
    """A log with a poison record at an offset of one partition, and that partition; it is written."""
    operations = [record(0, type="declare", topic_id="t"), *(record(at, type="tick") for at in range(1, 20))]
    operations[poison] = record(poison, type="tick", op_id=POISON)
    poisoned = operations[0].partition
    for queue_id in range(1, 8):
        if record(0, queue_id).partition != poisoned:
            operations += [record(0, queue_id, type="declare", topic_id="t")]
            operations += [record(at, queue_id, type="tick") for at in range(1, 20)]
    assert len({each.partition for each in operations}) == PARTITIONS
    log = Log(KafkaConnection(kafka.bootstrap_servers), prefix, operations, unreadable=())
    log.write(log.records)
    return log, poisoned


def answers_in(log: Log) -> list[dict[str, Any]]:
    return [answer for frame in log.read(log.topics.results) for answer in json.loads(frame.value)["answers"]]


def test_a_record_under_which_the_worker_ends_is_quarantined(
    cluster_spark: SparkSession,
    kafka: EmbeddedKafka,
    topic_prefix: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log, poisoned = poisoned_log(kafka, topic_prefix, 11)
    monkeypatch.setattr(decide_query, "ShardProcessor", DyingProcessor)
    checkpoint = str(tmp_path / "checkpoint")
    decide(cluster_spark, log, "poison", checkpoint)
    answers = {answer["op_id"]: answer for answer in answers_in(log)}
    assert len(answers) == len(log.records)
    assert answers[POISON]["detail"].startswith("QUARANTINED: the process ended each time")
    assert [op_id for op_id, answer in answers.items() if answer["code"]] == [POISON]
    quarantined = stored_quarantine(cluster_spark, checkpoint)
    assert {partition: list(errors) for partition, errors in quarantined.items() if errors} == {poisoned: [11]}
    notes = dead_records(KafkaConnection(kafka.bootstrap_servers), log.internal.attempts, "epoch")
    assert notes == {poisoned: {11}}, "if the micro-batch is repeated by another start"
    rows = written_rows(log)
    assert {*rows.values()} == {1}
    with_rows = {(partition, kafka_offset) for _, partition, kafka_offset, _ in rows}
    assert with_rows == {(each.partition, each.kafka_offset) for each in log.records}


def test_a_micro_batch_is_decided_again_as_before_after_the_topic_of_notes_was_deleted(
    cluster_spark: SparkSession,
    kafka: EmbeddedKafka,
    topic_prefix: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A job that ended in the middle of a micro-batch: its next start finds no note, and the record by new attempts."""
    log, poisoned = poisoned_log(kafka, topic_prefix, 19)
    monkeypatch.setattr(decide_query, "ShardProcessor", DyingProcessor)
    checkpoint = tmp_path / "checkpoint"
    decide(cluster_spark, log, "poison", str(checkpoint))
    before, quarantined = answers_in(log), stored_quarantine(cluster_spark, str(checkpoint))
    assert quarantined[poisoned].keys() == {19}
    take_last_commit(checkpoint)
    with open_admin(log.connection) as admin:
        admin.delete(log.internal.attempts)
    create_message_topic(log.connection, log.internal.attempts, 1)
    assert dead_records(log.connection, log.internal.attempts, "epoch") == {}
    decide(cluster_spark, log, "again", str(checkpoint))
    assert stored_quarantine(cluster_spark, str(checkpoint)) == quarantined
    assert dead_records(log.connection, log.internal.attempts, "epoch") == {poisoned: {19}}
    after = answers_in(log)
    assert all(answer in before for answer in after)
    assert [answer["op_id"] for answer in after].count(POISON) == 2, "its micro-batch was repeated"
    assert {*written_rows(log).values()} == {1}
