"""Spark's checkpoint: the planned range of offsets of each micro-batch.

The planned range says how far a micro-batch reaches; its records do not, because offsets may be holes (control records,
aborted transactions). An unreadable checkpoint ends only the query: the next start creates a new one.
"""

import functools
import json
import shutil
from pathlib import Path
from typing import Any

import msgspec

from popstream.wire.base_errors import Unavailable
from popstream.wire.decode_errors import DECODE_ERRORS

__all__ = [
    "SparkPlans",
    "committed_end",
    "fresh_checkpoint",
    "planned_end",
    "planned_ends",
    "planned_offsets",
    "planned_partitions",
    "query_id",
    "with_partitions",
]

_PARTITIONS = "spark.sql.shuffle.partitions"


class SparkPlans:
    """The planned micro-batches of one topic in one checkpoint, while its query runs.

    Args:
        checkpoint: Folder of Spark's checkpoint.
        topic: The ops topic.
    """

    def __init__(self, checkpoint: Path, topic: str) -> None:
        self._checkpoint = checkpoint
        self._topic = topic

    @functools.cached_property
    def query_id(self) -> str:
        """Spark's id of the query. Raises Unavailable if the checkpoint cannot be read."""
        return query_id(self._checkpoint)

    def end_of(self, spark_batch_id: int) -> dict[int, int]:
        """Return the end offsets of a micro-batch; see `planned_end`."""
        return planned_end(self._checkpoint, spark_batch_id, self._topic)


def planned_end(checkpoint: Path, spark_batch_id: int, topic: str) -> dict[int, int]:
    """Return the end offsets of micro-batch `spark_batch_id` of one topic, by partition. Raises like `planned_ends`."""
    ends = planned_ends(checkpoint, spark_batch_id).get(topic)
    if ends is None:
        raise _no_plan(checkpoint, spark_batch_id)
    return ends


def committed_end(checkpoint: Path, topic: str) -> dict[int, int]:
    """Return the end offsets of the last committed micro-batch of one topic; empty: none is committed.

    Raises:
        Unavailable: The checkpoint has no readable plan for it.
    """
    commits = checkpoint / "commits"
    committed = [int(path.name) for path in commits.iterdir() if path.name.isdigit()] if commits.is_dir() else []
    return planned_end(checkpoint, max(committed), topic) if committed else {}


def planned_ends(checkpoint: Path, spark_batch_id: int) -> dict[str, dict[int, int]]:
    """Return the end offsets of micro-batch `spark_batch_id`, by topic and partition.

    Raises:
        Unavailable: The checkpoint has no readable plan for it.
    """
    try:
        return planned_offsets((checkpoint / "offsets" / str(spark_batch_id)).read_text())
    except (OSError, ValueError) as error:
        raise _no_plan(checkpoint, spark_batch_id) from error


def planned_offsets(text: str) -> dict[str, dict[int, int]]:
    r"""Return the end offsets in a file of Spark's offset log, by topic and partition.

    Its lines are a version, what Spark has to know besides, and the offsets of each source; our queries have one.

    >>> planned_offsets('v1\n{"batchWatermarkMs":0}\n{"orders":{"0":7,"1":3}}')
    {'orders': {0: 7, 1: 3}}

    Raises:
        ValueError: It is none of a query on Kafka.
    """
    try:
        return msgspec.json.decode(text.splitlines()[2], type=dict[str, dict[int, int]])
    except (IndexError, *DECODE_ERRORS) as error:
        message = f"no offsets of Kafka: {error}"
        raise ValueError(message) from error


def planned_partitions(text: str) -> int:
    r"""Return into how many partitions the state of a query is divided, by a file of Spark's offset log.

    >>> planned_partitions('v1\n{"batchWatermarkMs":0,"conf":{"spark.sql.shuffle.partitions":"8"}}\n{}')
    8

    Raises:
        ValueError: It does not say so.
    """
    try:
        return int(_facts_of_plan(text)["conf"][_PARTITIONS])
    except (KeyError, TypeError) as error:
        message = f"no number of partitions: {error!r}"
        raise ValueError(message) from error


def with_partitions(text: str, partitions: int) -> str:
    r"""Return a file of Spark's offset log with another number of partitions.

    >>> with_partitions('v1\n{"conf":{"spark.sql.shuffle.partitions":"8"}}\n{"orders":{"0":7}}', 9).splitlines()
    ['v1', '{"conf":{"spark.sql.shuffle.partitions":"9"}}', '{"orders":{"0":7}}']

    Raises:
        ValueError: It is none.
    """
    facts = _facts_of_plan(text)
    lines = text.splitlines()
    lines[1] = msgspec.json.encode({**facts, "conf": {**facts["conf"], _PARTITIONS: str(partitions)}}).decode()
    return "\n".join(lines)


def _facts_of_plan(text: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text.splitlines()[1], type=dict[str, Any])
    except (IndexError, *DECODE_ERRORS) as error:
        message = f"no plan of Spark: {error}"
        raise ValueError(message) from error


def _no_plan(checkpoint: Path, spark_batch_id: int) -> Unavailable:
    file = checkpoint / "offsets" / str(spark_batch_id)
    message = f"Spark's plan of micro-batch {spark_batch_id} cannot be read from {file}"
    return Unavailable(message, subject=str(file))


def query_id(checkpoint: Path) -> str:
    """Return Spark's id of the query that owns the checkpoint.

    Raises:
        Unavailable: The checkpoint cannot be read.
    """
    file = checkpoint / "metadata"
    try:
        return str(json.loads(file.read_text())["id"])
    except (OSError, KeyError, ValueError) as error:
        message = f"Spark's id of the query cannot be read from {file}"
        raise Unavailable(message, subject=str(file)) from error


def fresh_checkpoint(root: Path) -> Path:
    """Return a new folder for the checkpoint of this start, and delete those of earlier starts.

    An earlier checkpoint is never needed, because the state stores how far the log is decided. So it does not matter
    whether it is lost, damaged, behind or, as Spark reads one micro-batch ahead, ahead of the state.
    """
    root.mkdir(parents=True, exist_ok=True)
    numbers = [int(path.name) for path in root.iterdir() if path.name.isdigit()]
    for number in numbers:
        shutil.rmtree(root / str(number), ignore_errors=True)
    return root / str(max(numbers, default=0) + 1)
