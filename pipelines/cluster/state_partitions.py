"""Into how many partitions Spark divides the state of a query: as many tasks decide at a time.

Spark notes the number with the plan of each micro-batch, and goes on with it whatever the session says. Only
`popstream rescale` changes it, by a micro-batch without records.
"""

from typing import NamedTuple

from pyspark.sql import SparkSession

from checkpoints.spark_progress import planned_partitions, with_partitions
from pipelines.cluster.committed import micro_batches_in
from pipelines.cluster.hadoop_file import HadoopFile
from popstream.wire.base_errors import Corrupt, Invalid

__all__ = ["StatePartitions", "plan_rescale", "require_rescaled", "state_partitions"]


class StatePartitions(NamedTuple):
    """What the checkpoint of a query says.

    Attributes:
        partitions: Those that the state has.
        committed: The last committed micro-batch; None: there is none.
        planned: The last planned one.
        rescaled_to: The partitions that the planned one, which is not committed, was to make; None: it does not.
    """

    partitions: int
    committed: int | None
    planned: int
    rescaled_to: int | None = None


def state_partitions(spark: SparkSession, query_checkpoint: str) -> StatePartitions | None:
    """Return what the checkpoint of a query says; None: the query has planned nothing.

    Raises:
        Corrupt: A plan is missing or cannot be read.
        Unavailable: The place cannot be reached.
    """
    planned = max(micro_batches_in(spark, f"{query_checkpoint}/offsets"), default=None)
    if planned is None:
        return None
    committed = max(micro_batches_in(spark, f"{query_checkpoint}/commits"), default=None)
    planned_count = _count(*_plan(spark, query_checkpoint, planned))
    if committed in {None, planned}:
        return StatePartitions(planned_count, committed, planned)
    assert committed is not None, "it is one of the two"
    count = _count(*_plan(spark, query_checkpoint, committed))
    return StatePartitions(count, committed, planned, None if planned_count == count else planned_count)


def require_rescaled(found: StatePartitions, checkpoint: str) -> None:
    """Refuse a state whose rescale was interrupted: Spark starts no query on it.

    Raises:
        Invalid: It was.
    """
    if found.rescaled_to is not None:
        message = (
            f"a rescale of {checkpoint} to {found.rescaled_to} partitions was interrupted: finish it with"
            f" `popstream rescale --partitions {found.rescaled_to}`"
        )
        raise Invalid(message, subject=checkpoint)


def plan_rescale(spark: SparkSession, query_checkpoint: str, found: StatePartitions, partitions: int) -> None:
    """Plan the micro-batch that rescales after one that is planned and not committed, as a crash or a stop leaves it.

    Spark takes it for an interrupted rescale, and finishes it from the committed state. The next query goes on behind
    that state, so it decides anew what the micro-batch in between had begun; what that has sent is known by its places
    in the log. Spark itself would commit the micro-batch in between without its state, and could not go on from there
    if it were interrupted.

    Raises:
        Corrupt: The plan of the committed micro-batch is missing or cannot be read.
        Unavailable: The place cannot be reached, or another process plans, too.
    """
    assert found.committed is not None, "there is a state"
    _, text = _plan(spark, query_checkpoint, found.committed)
    plan = HadoopFile(spark, f"{query_checkpoint}/offsets/{found.planned + 1}")
    plan.write(with_partitions(text, partitions).encode(), overwrite=False)


def _plan(spark: SparkSession, query_checkpoint: str, spark_batch_id: int) -> tuple[str, str]:
    """Return the URL and the content of a plan."""
    file = HadoopFile(spark, f"{query_checkpoint}/offsets/{spark_batch_id}")
    return file.url, (file.read() or b"").decode(errors="replace")


def _count(url: str, text: str) -> int:
    try:
        return planned_partitions(text)
    except ValueError as error:
        message = f"{url} cannot be read: {error}"
        raise Corrupt(message, subject=url) from error
