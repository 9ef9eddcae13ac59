"""Gives the state of a job, which must not run, another number of partitions, by Spark's own repartitioning."""

from collections.abc import Callable
from typing import Any

from pyspark.sql import SparkSession

from pipelines.cluster.checkpoint_identity import CheckpointIdentity
from pipelines.cluster.checkpoint_layout import decide_checkpoint
from pipelines.cluster.migration.stored_state import Migrated, digest_of, rows_of_checkpoint
from pipelines.cluster.state_partitions import StatePartitions, plan_rescale, require_rescaled, state_partitions
from popstream.wire.base_errors import Corrupt, Invalid

__all__ = ["rescale"]


def rescale(
    spark: SparkSession,
    checkpoint: str,
    identity: CheckpointIdentity,
    partitions: int,
    *,
    require_owned: Callable[[], None],
) -> Migrated:
    """Repartition the newest committed state, and compare what it holds before and after.

    A rescale that was interrupted is finished by another one to the same number of partitions.

    Args:
        spark: A session with the state store of `cluster_session`.
        checkpoint: Path or URL of the job's state.
        identity: Its identity.
        partitions: The number of partitions from now on: as many tasks decide at a time.
        require_owned: Raises if something else may write the state by now.

    Raises:
        Invalid: This Spark cannot repartition a state, nothing is decided yet, the state has as many partitions, or a
            rescale to another number was interrupted.
        Corrupt: The state is another one afterwards, or a file of Spark cannot be read.
        Unavailable: The place cannot be reached.
    """
    # Experimental in Spark 4.2, and without a public name.
    manager: Any = getattr(spark, "_streamingCheckpointManager", None)
    if not hasattr(manager, "repartition"):
        message = f"Spark {spark.version} cannot repartition the state of a query: this needs Spark 4.2"
        raise Invalid(message)
    deciding = decide_checkpoint(checkpoint)
    found = _rescalable(state_partitions(spark, deciding), checkpoint, partitions)
    before = _digest(spark, checkpoint, identity)
    require_owned()  # so far nothing is written
    if found.rescaled_to is None and found.planned != found.committed:
        plan_rescale(spark, deciding, found, partitions)
    manager.repartition(deciding, partitions)
    require_owned()  # nobody has decided meanwhile
    after = _digest(spark, checkpoint, identity)
    if after != before:
        message = (
            f"{checkpoint} holds {after.keys:,} keys with digest {after.digest}, and held {before.keys:,} with"
            f" {before.digest}: go back to a copy of the checkpoint"
        )
        raise Corrupt(message, subject=checkpoint)
    return after


def _rescalable(found: StatePartitions | None, checkpoint: str, partitions: int) -> StatePartitions:
    if found is None or found.committed is None:
        message = f"the state in {checkpoint} has decided nothing yet: start its job first"
        raise Invalid(message, subject=checkpoint)
    if found.rescaled_to not in {None, partitions}:
        require_rescaled(found, checkpoint)
    if found.partitions == partitions:
        message = f"the state in {checkpoint} has {partitions} partitions already"
        raise Invalid(message, subject=checkpoint)
    return found


def _digest(spark: SparkSession, checkpoint: str, identity: CheckpointIdentity) -> Migrated:
    """Digest the rows as they are stored, which no memory has to hold."""
    rows = rows_of_checkpoint(spark, decide_checkpoint(checkpoint), identity.ops_partitions)
    return digest_of((f"{row.ops_partition} {row.map}", row.key, row.value) for row in rows)
