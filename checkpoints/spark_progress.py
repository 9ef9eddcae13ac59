"""What Spark's checkpoint says: the range of records that each micro-batch was planned to have.

A planned range, not the records that came, says how far a micro-batch reaches: offsets missing inside it are holes
(control records, aborted transactions). What cannot be read here ends the query and nothing else: the next start has a
checkpoint of its own.
"""

import functools
import json
import shutil
from pathlib import Path

from popstream.wire.failures import Unavailable

__all__ = ["SparkPlans", "fresh_checkpoint", "planned_end", "planned_ends", "query_id"]


class SparkPlans:
    """What one checkpoint says of the micro-batches of one topic, while its query runs.

    Args:
        checkpoint: Spark's.
        topic: The ops topic.
    """

    def __init__(self, checkpoint: Path, topic: str) -> None:
        self._checkpoint = checkpoint
        self._topic = topic

    @functools.cached_property
    def query_id(self) -> str:
        """Spark's id of the query; raises Unavailable when the checkpoint does not say."""
        return query_id(self._checkpoint)

    def end_of(self, batch_id: int) -> dict[int, int]:
        """See `planned_end`."""
        return planned_end(self._checkpoint, batch_id, self._topic)


def planned_end(checkpoint: Path, batch_id: int, topic: str) -> dict[int, int]:
    """The offset after the last of micro-batch `batch_id` of one topic, by partition; raises as `planned_ends`."""
    ends = planned_ends(checkpoint, batch_id).get(topic)
    if ends is None:
        raise _no_plan(checkpoint, batch_id)
    return ends


def planned_ends(checkpoint: Path, batch_id: int) -> dict[str, dict[int, int]]:
    """The offset after the last of micro-batch `batch_id`, by topic and partition.

    Raises:
        Unavailable: the checkpoint has no readable plan for it.
    """
    try:
        topics = json.loads((checkpoint / "offsets" / str(batch_id)).read_text().splitlines()[2])
        return {topic: {int(number): int(end) for number, end in ends.items()} for topic, ends in topics.items()}
    except (OSError, IndexError, AttributeError, ValueError) as error:
        raise _no_plan(checkpoint, batch_id) from error


def _no_plan(checkpoint: Path, batch_id: int) -> Unavailable:
    file = checkpoint / "offsets" / str(batch_id)
    message = f"Spark's plan of micro-batch {batch_id} cannot be read from {file}"
    return Unavailable(message, subject=str(file))


def query_id(checkpoint: Path) -> str:
    """Spark's id of the query that owns the checkpoint.

    Raises:
        Unavailable: the checkpoint does not say.
    """
    file = checkpoint / "metadata"
    try:
        return str(json.loads(file.read_text())["id"])
    except (OSError, KeyError, ValueError) as error:
        message = f"Spark's id of the query cannot be read from {file}"
        raise Unavailable(message, subject=str(file)) from error


def fresh_checkpoint(root: Path) -> Path:
    """A folder for the checkpoint of this start; those of earlier starts go.

    What an earlier one says is never needed: the state knows how far the log is decided, and better. So one that is
    lost, damaged, behind or ahead - Spark reads one micro-batch ahead of the state - is no case of its own.
    """
    root.mkdir(parents=True, exist_ok=True)
    numbers = [int(path.name) for path in root.iterdir() if path.name.isdigit()]
    for number in numbers:
        shutil.rmtree(root / str(number), ignore_errors=True)
    return root / str(max(numbers, default=0) + 1)
