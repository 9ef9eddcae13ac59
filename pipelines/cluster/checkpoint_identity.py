"""Whose state a checkpoint is: a file beside what Spark writes there, made once and never changed.

Spark would go on with any checkpoint, and with a topic of the same name that was made anew. The identity says for which
log the state was decided, so a start on another one is refused before anything is decided.
"""

import secrets
import uuid
from typing import Any

import msgspec
from pyspark.sql import SparkSession

from connectors.kafka.topic_admin import TopicFacts
from pipelines.cluster.hadoop_file import HadoopFile
from popstream.wire.base_errors import Corrupt, Invalid
from popstream.wire.decode_errors import DECODE_ERRORS

__all__ = ["CheckpointIdentity", "identity_of_checkpoint"]

FORMAT = 1
FILE_NAME = "popstream.json"


class CheckpointIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """What a state belongs to.

    Attributes:
        format: Of this file and of the state beside it.
        prefix: Prefix of the job's topics.
        state_epoch: Identity of the state, as in the tables.
        seed: Of the hashes of op_ids, which clients must not know.
        ops_topic_id: Kafka's id of the ops topic.
        ops_partitions: Partitions of the ops topic.
    """

    format: int
    prefix: str
    state_epoch: str
    seed: int
    ops_topic_id: str
    ops_partitions: int


def identity_of_checkpoint(spark: SparkSession, checkpoint: str, prefix: str, ops: TopicFacts) -> CheckpointIdentity:
    """Return the identity of a checkpoint; a new one gets one.

    Raises:
        Invalid: It belongs to another prefix, or another program made it.
        Corrupt: The ops topic is not the one that it was decided from, or its file cannot be read.
        Unavailable: The place cannot be reached.
    """
    file = HadoopFile(spark, f"{checkpoint}/{FILE_NAME}")
    stored = file.read()
    if stored is None:
        _require_new(spark, checkpoint)
        identity = CheckpointIdentity(
            format=FORMAT,
            prefix=prefix,
            state_epoch=uuid.uuid4().hex,
            seed=secrets.randbits(64),
            ops_topic_id=ops.topic_id,
            ops_partitions=ops.partition_count,
        )
        file.write(msgspec.json.format(msgspec.json.encode(identity)), overwrite=False)
        return identity
    try:
        fields: dict[str, Any] = msgspec.json.decode(stored, type=dict[str, Any])
    except DECODE_ERRORS as error:
        message = f"{file.url} is damaged: restore it from a copy of the checkpoint"
        raise Corrupt(message, subject=file.url) from error
    if fields.get("format") != FORMAT:
        message = f"{file.url} has format {fields.get('format')!r}: it was made by another version, which must run it"
        raise Invalid(message, subject=file.url)
    try:
        identity = msgspec.convert(fields, CheckpointIdentity)
    except msgspec.ValidationError as error:
        message = f"{file.url} is damaged: restore it from a copy of the checkpoint"
        raise Corrupt(message, subject=file.url) from error
    _require_same(identity, checkpoint, prefix, ops)
    return identity


def _require_new(spark: SparkSession, checkpoint: str) -> None:
    if HadoopFile(spark, f"{checkpoint}/metadata").read() is not None:
        message = f"{checkpoint} is a checkpoint of another program, or its {FILE_NAME} was deleted: name another place"
        raise Invalid(message, subject=checkpoint)


def _require_same(identity: CheckpointIdentity, checkpoint: str, prefix: str, ops: TopicFacts) -> None:
    if identity.prefix != prefix:
        message = f"{checkpoint} is the state of prefix {identity.prefix!r}, not of {prefix!r}"
        raise Invalid(message, subject=checkpoint)
    if identity.ops_topic_id != ops.topic_id:
        message = (
            f"{ops.name} was made anew since {checkpoint} decided it: what it decided belongs to other records. Name a"
            " new checkpoint to begin with the new topic"
        )
        raise Corrupt(message, subject=ops.name)
    if identity.ops_partitions != ops.partition_count:
        message = (
            f"{ops.name} has {ops.partition_count} partitions, and had {identity.ops_partitions} when {checkpoint}"
            " began: queues would move between partitions"
        )
        raise Corrupt(message, subject=ops.name)
