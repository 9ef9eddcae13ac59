"""Claim: a checkpoint answers about queues, lanes and policies as the folder of an embedded job with the same log."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from broker_state.store.rocks_store import RocksStore
from checkpoints.layout import JobFolder
from connectors.kafka.topic_admin import describe
from pipelines.build_consume_queue.queue_view import QueueRequest
from pipelines.cluster.checkpoint_layout import decide_checkpoint
from pipelines.cluster.committed import Committed, last_committed
from pipelines.cluster.watch.checkpoint_view import answer_from_checkpoint
from pipelines.control.messages import PoliciesRequest, StatusRequest
from pipelines.control.stored_answers import stored_policies, stored_status
from popstream.kafka_connection import KafkaConnection
from popstream.wire.base_errors import Invalid
from tests.support.cluster_log import Log, decide, decided_entries
from tests.support.in_process.folding import records_of

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from connectors.kafka.embedded import EmbeddedKafka

pytestmark = pytest.mark.cluster

RECORDS = 900


def test_a_checkpoint_answers_as_a_folder(
    cluster_spark: SparkSession, kafka: EmbeddedKafka, topic_prefix: str, tmp_path: Path
) -> None:
    log = Log(KafkaConnection(kafka.bootstrap_servers), topic_prefix, records_of(6, RECORDS))
    checkpoint = str(tmp_path / "checkpoint")
    assert answer_from_checkpoint(cluster_spark, checkpoint, StatusRequest()).queues == []
    assert last_committed(cluster_spark, decide_checkpoint(checkpoint), log.topics.ops) is None
    log.write(log.records)
    decide(cluster_spark, log, "view", decide_checkpoint(checkpoint))
    folder = JobFolder(tmp_path / "folder")
    with RocksStore(folder.state) as store:
        decided_entries(store, log.records)

    every = stored_status(folder, StatusRequest())
    assert len(every.queues) > 1
    topics = sorted({queue.topic for queue in every.queues})
    groups = sorted({lane.group for queue in every.queues for lane in queue.lanes})
    requests = [
        StatusRequest(),
        StatusRequest(limit=1),
        *(StatusRequest(topic=topic) for topic in topics),
        *(StatusRequest(group=group, topic=topics[0]) for group in groups),
        StatusRequest(group=groups[0]),
    ]
    for request in requests:
        found, wanted = answer_from_checkpoint(cluster_spark, checkpoint, request), stored_status(folder, request)
        assert found == msgspec.structs.replace(wanted, folder=checkpoint), request
    for asked in (PoliciesRequest(), PoliciesRequest(topic=topics[-1]), PoliciesRequest(group=groups[0])):
        assert answer_from_checkpoint(cluster_spark, checkpoint, asked) == stored_policies(folder, asked), asked
    with pytest.raises(Invalid, match="has built no queues"):
        answer_from_checkpoint(cluster_spark, checkpoint, QueueRequest(topic=topics[0]))

    ends = dict.fromkeys(range(log.partition_count), 0)
    for record in log.records:
        ends[record.partition] = record.kafka_offset + 1
    committed = last_committed(cluster_spark, decide_checkpoint(checkpoint), log.topics.ops)
    assert isinstance(committed, Committed)
    assert committed.ends == ends
    assert describe(log.connection, [log.topics.ops])[log.topics.ops].partition_count == len(committed.ends)
