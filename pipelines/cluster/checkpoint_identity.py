"""Whose state a checkpoint is: a file beside what Spark writes there, made once and never changed.

Spark would go on with any checkpoint, and with a topic of the same name that was made anew. The identity says for which
log the state was decided, so a start on another one is refused before anything is decided.
"""

import secrets
import uuid
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from pyspark.sql import SparkSession

from connectors.kafka.topic_admin import TopicFacts
from pipelines.cluster.checkpoint_layout import decide_checkpoint
from pipelines.cluster.hadoop_file import HadoopFile
from popstream.wire.base_errors import Corrupt, Invalid
from popstream.wire.decode_errors import DECODE_ERRORS

__all__ = [
    "Beginnings",
    "CheckpointIdentity",
    "identity_of_checkpoint",
    "owned_identity",
    "require_new",
    "stored_identity",
    "write_identity",
]

FORMAT = 2
"""1: entries in the audit topic were numbered by the writes of their shard."""
FILE_NAME = "popstream.json"

Beginnings = Mapping[str, dict[int, int] | int]
"""Fields of an identity: the ends and the numbers of partitions of topics."""


class CheckpointIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """What a state belongs to.

    Attributes:
        format: Of this file and of the state beside it.
        prefix: Prefix of the job's topics.
        state_epoch: Identity of the state, as in the tables.
        seed: Of the hashes of op_ids, which clients must not know.
        ops_topic_id: Kafka's id of the ops topic.
        ops_partitions: Partitions of the ops topic.
        former_epochs: The state epochs that this state continues.
        first_offset: Of a state that came from elsewhere: the first Kafka offset that it decides here, by partition.
        since_loss: Of such a state: its epochs since a restore with losses, to which the log alone does not lead.
        audit_from: By partition of the audit topic, its end when this state began: entries before it are of others.
        queue_log_from: The same of the log of queues, whose records before it may lack their beginning.
        audit_partitions: Partitions of the audit topic when this state began, and those that it writes to: the entries
            of a shard stay in one, also when somebody adds some. 0: the topic was not there yet.
        queue_log_partitions: The same of the log of queues.
    """

    format: int
    prefix: str
    state_epoch: str
    seed: int
    ops_topic_id: str
    ops_partitions: int
    former_epochs: list[str] = []
    first_offset: dict[int, int] = {}
    since_loss: list[str] = []
    audit_from: dict[int, int] = {}
    queue_log_from: dict[int, int] = {}
    audit_partitions: int = 0
    queue_log_partitions: int = 0

    @property
    def epochs(self) -> tuple[str, ...]:
        """The state epoch, and those that it continues."""
        return (self.state_epoch, *self.former_epochs)

    @classmethod
    def new(cls, prefix: str, ops: TopicFacts, **fields: Any) -> "CheckpointIdentity":  # noqa: ANN401 - as the fields are
        """Return the identity of a state that begins."""
        return cls(
            format=FORMAT,
            prefix=prefix,
            state_epoch=uuid.uuid4().hex,
            seed=secrets.randbits(64),
            ops_topic_id=ops.topic_id,
            ops_partitions=ops.partition_count,
            **fields,
        )

    def require(self, checkpoint: str, prefix: str, ops: TopicFacts) -> None:
        """Refuse another prefix, and another topic.

        Raises:
            Invalid: The state of `checkpoint` belongs to another prefix.
            Corrupt: The ops topic is not the one that it was decided from.
        """
        if self.prefix != prefix:
            message = f"{checkpoint} is the state of prefix {self.prefix!r}, not of {prefix!r}"
            raise Invalid(message, subject=checkpoint)
        if self.ops_topic_id != ops.topic_id:
            message = (
                f"{ops.name} was made anew since {checkpoint} decided it: what it decided belongs to other records."
                " Name a new checkpoint to begin with the new topic"
            )
            raise Corrupt(message, subject=ops.name)
        if self.ops_partitions != ops.partition_count:
            message = (
                f"{ops.name} has {ops.partition_count} partitions, and had {self.ops_partitions} when {checkpoint}"
                " began: queues would move between partitions"
            )
            raise Corrupt(message, subject=ops.name)


def identity_of_checkpoint(
    spark: SparkSession, checkpoint: str, prefix: str, ops: TopicFacts
) -> CheckpointIdentity | None:
    """Return the identity of a checkpoint; None: it is new.

    Args:
        spark: A session.
        checkpoint: Path or URL of the state.
        prefix: Prefix of the job's topics.
        ops: Its ops topic.

    Raises:
        Invalid: It belongs to another prefix, or another program or version made it.
        Corrupt: The ops topic is not the one that it was decided from, or its file cannot be read.
        Unavailable: The place cannot be reached.
    """
    identity = stored_identity(spark, checkpoint)
    if identity is None:
        require_new(spark, checkpoint)
    else:
        identity.require(checkpoint, prefix, ops)
    return identity


def owned_identity(
    spark: SparkSession,
    checkpoint: str,
    prefix: str,
    ops: TopicFacts,
    *,
    take: Callable[[CheckpointIdentity], None],
    begins: Callable[[], Beginnings],
) -> CheckpointIdentity:
    """Return the identity of a checkpoint whose job owns the prefix; a new one is made, and stored once it does.

    A job that was refused leaves nothing, as another one decides meanwhile: a later start begins after that. The
    caller names the identity as the owner's only once it is returned: if it cannot be stored, no state has it.

    Args:
        spark: A session.
        checkpoint: Path or URL of the state.
        prefix: Prefix of the job's topics.
        ops: Its ops topic.
        take: Takes the prefix for a state, or raises.
        begins: Returns the fields of a new identity that say how its topics are now.

    Raises:
        Invalid: It belongs to another prefix, or another program or version made it.
        Corrupt: The ops topic is not the one that it was decided from, or its file cannot be read.
        Unavailable: The place cannot be reached.
    """
    stored = identity_of_checkpoint(spark, checkpoint, prefix, ops)
    identity = stored or CheckpointIdentity.new(prefix, ops)
    take(identity)
    if stored is None:
        identity = msgspec.structs.replace(identity, **begins())
        write_identity(spark, checkpoint, identity)
    return identity


def stored_identity(spark: SparkSession, checkpoint: str) -> CheckpointIdentity | None:
    """Return the identity that a checkpoint has; None: it has none.

    Raises:
        Invalid: Another version made it.
        Corrupt: Its file cannot be read.
        Unavailable: The place cannot be reached.
    """
    file = _file(spark, checkpoint)
    stored = file.read()
    if stored is None:
        return None
    try:
        fields = msgspec.json.decode(stored, type=dict[str, Any])
        if fields.get("format") == FORMAT:
            return msgspec.convert(fields, CheckpointIdentity, str_keys=True)
    except DECODE_ERRORS as error:
        message = f"{file.url} is damaged: restore it from a copy of the checkpoint"
        raise Corrupt(message, subject=file.url) from error
    message = (
        f"{file.url} has format {fields.get('format')!r}, and this version reads {FORMAT}: it was made by another"
        " version, which must run it. To go on with this one, stop the job, take a snapshot with that version by"
        f" `popstream snapshot --checkpoint {checkpoint}`, and begin a new checkpoint with it by"
        " `popstream migrate to-cluster --snapshot`"
    )
    raise Invalid(message, subject=file.url)


def write_identity(spark: SparkSession, checkpoint: str, identity: CheckpointIdentity) -> None:
    """Store the identity of a new state. Raises Unavailable."""
    _file(spark, checkpoint).write(msgspec.json.format(msgspec.json.encode(identity)), overwrite=False)


def _file(spark: SparkSession, checkpoint: str) -> HadoopFile:
    return HadoopFile(spark, f"{checkpoint}/{FILE_NAME}")


def require_new(spark: SparkSession, checkpoint: str) -> None:
    """Refuse a place that has a state already, or something else.

    Raises:
        Invalid: It has.
        Unavailable: The place cannot be reached.
    """
    if _file(spark, checkpoint).read() is not None:
        message = f"{checkpoint} has a state already: name another place"
        raise Invalid(message, subject=checkpoint)
    _require_no_checkpoint(spark, checkpoint)


def _require_no_checkpoint(spark: SparkSession, checkpoint: str) -> None:
    if HadoopFile(spark, f"{decide_checkpoint(checkpoint)}/metadata").read() is not None:
        message = f"{checkpoint} is a checkpoint of another program, or its {FILE_NAME} was deleted: name another place"
        raise Invalid(message, subject=checkpoint)
