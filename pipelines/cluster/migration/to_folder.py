"""Takes the state of a job on a cluster, which must not run, to the folder of an embedded job."""

import uuid

from pyspark.sql import SparkSession

from checkpoints.layout import JobFolder
from checkpoints.reconcile import LogFound
from connectors.kafka.topic_admin import TopicFacts
from pipelines.cluster.checkpoint_identity import identity_of_checkpoint
from pipelines.cluster.migration.shards import Shards
from pipelines.cluster.migration.stored_state import Migrated
from popstream.wire.base_errors import Invalid

__all__ = ["migrate_to_folder"]


def migrate_to_folder(
    spark: SparkSession, checkpoint: str, *, prefix: str, ops: TopicFacts, log: LogFound, folder: JobFolder
) -> Migrated:
    """Write the newest committed state of a checkpoint to a folder that has none.

    Args:
        spark: A session with the state store of `cluster_session`.
        checkpoint: Path or URL of the state on the cluster; it is only read.
        prefix: Prefix of the job's topics.
        ops: Its ops topic.
        log: The log, as found.
        folder: Folder of the embedded job.

    Raises:
        Invalid: The folder has a state, or the checkpoint has none or is of another prefix.
        Corrupt: The log is not the one that was decided, or no longer reaches back to the state.
        Unavailable: The place cannot be reached.
    """
    if folder.state.exists():
        message = f"{folder.root} has a state already: name another folder"
        raise Invalid(message, subject=str(folder.root))
    identity = identity_of_checkpoint(spark, checkpoint, prefix, ops)
    if identity is None:
        message = f"there is no state in {checkpoint}: name the checkpoint of the job"
        raise Invalid(message, subject=checkpoint)
    shards = Shards.read(spark, checkpoint, identity)
    # The folder gets new tables: they have no rows of what was decided before.
    applied = shards.applied(ops.name, uuid.uuid4().hex, identity.epochs)
    return shards.write(folder.state, applied, log, rows_from=shards.next_offset)
