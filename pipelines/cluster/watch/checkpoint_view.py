"""Answers about queues and lanes from a checkpoint: what the state holds after the last committed micro-batch.

Spark's reader hands the keys that an answer needs to this process, which puts them into stores as an embedded job has
them, and answers as for the folder of one.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import overload

import msgspec
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as f

from broker_state.store.keys import LANE_NO_BYTES, QUEUE_ID_BYTES, LaneTag, QueueTag, topic_prefix
from broker_state.store.overlay import STATE, Change
from broker_state.store.rocks_store import RocksStore
from checkpoints.layout import JobFolder
from connectors.delta.spark_errors import SPARK_ERRORS, spark_text
from pipelines.build_consume_queue.queue_view import ConsumeQueueView, QueueRequest
from pipelines.cluster.checkpoint_layout import decide_checkpoint, units_checkpoint
from pipelines.cluster.committed import is_committed
from pipelines.cluster.migration.exported_queues import export_queues
from pipelines.cluster.migration.stored_state import fill, stored_map
from pipelines.control.messages import Policies, PoliciesRequest, Status, StatusRequest
from pipelines.control.stored_answers import stored_policies, stored_queues, stored_status
from popstream.wire.base_errors import Invalid, Unavailable

__all__ = ["StateRequest", "answer_from_checkpoint"]

StateRequest = StatusRequest | PoliciesRequest | QueueRequest
"""What a checkpoint answers."""

_HEADS = (QueueTag.RECORD, QueueTag.LANE)
"""Kinds of keys from which queues and lanes are listed."""
_BULK_OF_QUEUE = (
    *(QueueTag.WRITTEN, QueueTag.HOLES, QueueTag.HOLE_COUNTS, QueueTag.LATE_SKIP, QueueTag.UNIT_FACTS),
    *(QueueTag.TAG_INDEX, QueueTag.WATCHING, QueueTag.OP_LOG),
)
_BULK_OF_LANE = (LaneTag.ACKED, LaneTag.DELIVERIES, LaneTag.AVAILABLE, LaneTag.CLIENT, LaneTag.CLIENT_ID)
"""Kinds of keys of which there is one for some messages, and which no answer shows."""


@overload
def answer_from_checkpoint(spark: SparkSession, checkpoint: str, request: StatusRequest) -> Status: ...
@overload
def answer_from_checkpoint(spark: SparkSession, checkpoint: str, request: PoliciesRequest) -> Policies: ...
@overload
def answer_from_checkpoint(spark: SparkSession, checkpoint: str, request: QueueRequest) -> list[ConsumeQueueView]: ...


def answer_from_checkpoint(
    spark: SparkSession, checkpoint: str, request: StateRequest
) -> Status | Policies | list[ConsumeQueueView]:
    """Answer a request, while the job runs or without it.

    Args:
        spark: A session with the state store of `cluster_session`.
        checkpoint: Path or URL of the state of a job.
        request: The request. Of a `Status` the queues alone are known, and the checkpoint as its folder.

    Raises:
        Invalid: The request names a queue that is not built.
        Corrupt: A stored value cannot be decoded.
        Unavailable: The place cannot be reached, or the job has replaced what was being read.
    """
    with tempfile.TemporaryDirectory(prefix="popstream-view-") as scratch:
        folder = JobFolder(Path(scratch))
        try:
            _export(spark, checkpoint, request, folder)
        except SPARK_ERRORS as error:
            message = f"the state in {checkpoint} cannot be read now, ask again: {spark_text(error)}"
            raise Unavailable(message, subject=checkpoint) from error
        match request:
            case StatusRequest():
                return msgspec.structs.replace(stored_status(folder, request), folder=checkpoint)
            case PoliciesRequest():
                return stored_policies(folder, request)
            case QueueRequest():
                return stored_queues(folder, request)


def _export(spark: SparkSession, checkpoint: str, request: StateRequest, folder: JobFolder) -> None:
    """Put what an answer needs into the stores of a folder."""
    if isinstance(request, QueueRequest):
        if not is_committed(spark, units_checkpoint(checkpoint)):
            message = f"the job of {checkpoint} has built no queues: does it have message_topics?"
            raise Invalid(message, subject=request.topic)
        export_queues(spark, checkpoint, folder.queues, request.topic)
    with RocksStore(folder.state) as store:
        if is_committed(spark, decide_checkpoint(checkpoint)):
            fill(store, _state_keys(spark, checkpoint, request))


def _state_keys(spark: SparkSession, checkpoint: str, request: StateRequest) -> Iterator[Change]:
    only_heads = isinstance(request, StatusRequest) and request.group is None
    frame = stored_map(spark, decide_checkpoint(checkpoint), "state")
    frame = frame.where(_kind_is_wanted(only_heads=only_heads))
    if request.topic is not None:
        prefix = topic_prefix(request.topic)
        frame = frame.where(f.substring("at", 1, len(prefix)) == f.lit(prefix))
    for row in frame.select("at", "value").toLocalIterator():
        yield STATE, bytes(row["at"]), bytes(row["value"])


def _kind_is_wanted(*, only_heads: bool) -> Column:
    """Return whether a key in column `at` is of a kind that answers need (keys.py draws them)."""
    topic_bytes = f.conv(f.hex(f.substring("at", 1, 1)), 16, 10).cast("int")
    tag_place = topic_bytes + 1 + QUEUE_ID_BYTES + 1  # Spark counts from 1
    tag = f.col("at").substr(tag_place, f.lit(1))
    if only_heads:
        return tag.isin([f.lit(kind) for kind in _HEADS])
    lane_tag = f.col("at").substr(tag_place + 1 + LANE_NO_BYTES, f.lit(1))
    is_bulk = tag.isin([f.lit(kind) for kind in _BULK_OF_QUEUE]) | (
        (tag == f.lit(QueueTag.LANE_DATA)) & lane_tag.isin([f.lit(kind) for kind in _BULK_OF_LANE])
    )
    return ~is_bulk
