"""Gives the state of a job, which must not run, another number of partitions, by Spark's own repartitioning."""

from typing import Any

from pyspark.sql import SparkSession

from pipelines.cluster.checkpoint_identity import CheckpointIdentity
from pipelines.cluster.checkpoint_layout import decide_checkpoint
from pipelines.cluster.decide.shard_rows import content_of
from pipelines.cluster.migration.stored_state import Migrated, digest_of, rows_of_checkpoint
from popstream.wire.base_errors import Corrupt, Invalid

__all__ = ["rescale"]


def rescale(spark: SparkSession, checkpoint: str, identity: CheckpointIdentity, partitions: int) -> Migrated:
    """Repartition the newest committed state, and compare what it holds before and after.

    Args:
        spark: A session with the state store of `cluster_session`.
        checkpoint: Path or URL of the job's state.
        identity: Its identity.
        partitions: The number of partitions from now on: as many tasks decide at a time.

    Raises:
        Invalid: This Spark cannot repartition a state.
        Corrupt: The state is another one afterwards.
    """
    # Experimental in Spark 4.2, and without a public name.
    manager: Any = getattr(spark, "_streamingCheckpointManager", None)
    if not hasattr(manager, "repartition"):
        message = f"Spark {spark.version} cannot repartition the state of a query: this needs Spark 4.2"
        raise Invalid(message)
    before = _digest(spark, checkpoint, identity)
    manager.repartition(decide_checkpoint(checkpoint), partitions)
    after = _digest(spark, checkpoint, identity)
    if after != before:
        message = (
            f"{checkpoint} holds {after.keys:,} keys with digest {after.digest}, and held {before.keys:,} with"
            f" {before.digest}: go back to a copy of the checkpoint"
        )
        raise Corrupt(message, subject=checkpoint)
    return after


def _digest(spark: SparkSession, checkpoint: str, identity: CheckpointIdentity) -> Migrated:
    rows = rows_of_checkpoint(spark, decide_checkpoint(checkpoint), identity.ops_partitions)
    return digest_of(content_of(rows, identity.seed).content)
