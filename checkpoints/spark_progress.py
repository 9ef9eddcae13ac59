"""What Spark's checkpoint says: the range of records that each micro-batch was planned to have.

A planned range, not the records that came, says how far a micro-batch reaches: offsets missing inside it are holes
(control records, aborted transactions).
"""

import json
import shutil
from pathlib import Path

from broker_state.errors import Corrupt

__all__ = ["planned_end", "planned_ends", "query_id", "usable_checkpoint"]


def planned_end(checkpoint: Path, batch_id: int, topic: str) -> dict[int, int]:
    """The offset after the last of micro-batch `batch_id` of one topic, by partition; raises as `planned_ends`."""
    ends = planned_ends(checkpoint, batch_id).get(topic)
    if ends is None:
        raise _no_plan(checkpoint, batch_id)
    return ends


def planned_ends(checkpoint: Path, batch_id: int) -> dict[str, dict[int, int]]:
    """The offset after the last of micro-batch `batch_id`, by topic and partition.

    Raises:
        Corrupt: the checkpoint has no readable plan for it.
    """
    try:
        topics = json.loads((checkpoint / "offsets" / str(batch_id)).read_text().splitlines()[2])
        return {topic: {int(number): int(end) for number, end in ends.items()} for topic, ends in topics.items()}
    except (OSError, IndexError, AttributeError, ValueError) as error:
        raise _no_plan(checkpoint, batch_id) from error


def _no_plan(checkpoint: Path, batch_id: int) -> Corrupt:
    file = checkpoint / "offsets" / str(batch_id)
    message = f"Spark's plan of micro-batch {batch_id} cannot be read from {file}: remove the checkpoint, it is rebuilt"
    return Corrupt(message, subject=str(file))


def query_id(checkpoint: Path) -> str:
    """Spark's id of the query that owns the checkpoint.

    Raises:
        Corrupt: the checkpoint does not say.
    """
    file = checkpoint / "metadata"
    try:
        return str(json.loads(file.read_text())["id"])
    except (OSError, KeyError, ValueError) as error:
        message = f"Spark's id of the query cannot be read from {file}: remove the checkpoint, it is rebuilt"
        raise Corrupt(message, subject=str(file)) from error


def usable_checkpoint(root: Path, applied_next: dict[int, int], topic: str) -> Path:
    """The checkpoint to go on with: the newest one if it agrees with the state, else a new folder.

    It agrees when its last plan starts where, or before where, the state ends: the plan is then run again and what the
    state covers of it is dropped. Otherwise (it is lost, damaged, or ahead: the job was killed while it read ahead, or
    the state was restored) the query starts from the state's own positions. Checkpoints that are passed over go.
    """
    root.mkdir(parents=True, exist_ok=True)
    numbers = sorted(_numbers(root))
    newest = numbers[-1] if numbers else 0
    if not _agrees(root / str(newest), applied_next, topic):
        newest += 1
    for number in numbers:
        if number < newest:
            shutil.rmtree(root / str(number), ignore_errors=True)
    return root / str(newest)


def _agrees(checkpoint: Path, applied_next: dict[int, int], topic: str) -> bool:
    committed = _numbers(checkpoint / "commits")
    if not committed:
        return False
    try:
        planned_end(checkpoint, max(_numbers(checkpoint / "offsets"), default=-1), topic)
        decided = planned_end(checkpoint, max(committed), topic)
    except Corrupt:
        return False
    return all(applied_next.get(partition, 0) >= offset for partition, offset in decided.items())


def _numbers(folder: Path) -> set[int]:
    return {int(path.name) for path in folder.iterdir() if path.name.isdigit()} if folder.is_dir() else set()
