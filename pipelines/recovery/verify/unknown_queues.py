"""Rows of `consume_queue` whose queue the builder's store does not have: nothing says which of them there should be."""

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from broker_state.consume_queue import ConsumeQueue
from connectors.delta.pieces import read_piece
from connectors.delta.row_comparison import EXAMPLES_MAX, Comparison
from connectors.delta.schemas import columns_of
from connectors.delta.tables import CONSUME_QUEUE, table_path
from pipelines.build_consume_queue.builder_records import Built
from pipelines.recovery.verify.plan import VerifyPlan, unit_source
from popstream.wire.queue_name import QueueName

__all__ = ["UnknownRows", "unknown_rows"]

_LINES_MAX = 10
_NO_STORE = "the builder's store is missing or empty"
_OLD_TOPIC = "the topic was made again since"
_NO_TOPIC = "the builder's store does not know the topic"

_SCHEMA = columns_of(CONSUME_QUEUE, ("topic", "queue_id", "topic_id", "build_seq", "state_epoch"))
_Source = tuple[str, int, str]
"""Topic, queue and topic id."""


class UnknownRows(NamedTuple):
    """The rows of unknown queues.

    Attributes:
        not_compared: A line for each topic with rows that may be right, as the store was lost once, or the topic was
            made again: how many, and why they are not compared.
        extra: Rows of queues that a topic of the store never had: it loses no partition.
    """

    not_compared: list[str]
    extra: Comparison


def unknown_rows(plan: VerifyPlan, queues: Mapping[QueueName, ConsumeQueue], built: Built | None) -> UnknownRows:
    """Count the rows of queues that are not among `queues`.

    Args:
        plan: The verification.
        queues: Those of the builder's store.
        built: How far that store is: a running job may have written rows since it was copied. None: nothing was built.

    Raises:
        Corrupt: A file of the table is damaged.
    """
    topic_ids: dict[str, set[str]] = {}
    for (topic, _), record in queues.items():
        topic_ids.setdefault(topic, set()).add(record.topic_id)
    rows, queue_ids = Counter[tuple[str, str]](), dict[tuple[str, str], set[int]]()
    extra, examples = 0, []
    for (topic, queue_id, topic_id), count in sorted(_counted(plan, queues, built).items()):
        if (topic, queue_id) not in queues and topic_id in topic_ids.get(topic, ()):
            extra += count
            examples.append(f"{topic}/{queue_id}: {count:,} are too many, the builder's store has no such queue")
        else:
            rows[topic, topic_id] += count
            queue_ids.setdefault((topic, topic_id), set()).add(queue_id)
    lines = []
    for (topic, topic_id), count in rows.items():
        why = _NO_STORE if not queues else _OLD_TOPIC if topic in topic_ids else _NO_TOPIC
        of = len(queue_ids[topic, topic_id])
        where = f"{of:,} queue{'' if of == 1 else 's'} of {topic} (topic id {topic_id})"
        lines.append(f"{count:,} rows of {CONSUME_QUEUE.name}, of {where}: {why}")
    if more := lines[_LINES_MAX:]:
        left = sum([*rows.values()][_LINES_MAX:])
        lines = [*lines[:_LINES_MAX], f"{left:,} rows of {CONSUME_QUEUE.name}, of {len(more):,} more topics"]
    return UnknownRows(lines, Comparison(extra=extra, examples=examples[:EXAMPLES_MAX]))


def _counted(plan: VerifyPlan, queues: Mapping[QueueName, ConsumeQueue], built: Built | None) -> Counter[_Source]:
    known = {unit_source(*queue, record.topic_id) for queue, record in queues.items()}
    path = table_path(Path(plan.delta), CONSUME_QUEUE.name)
    found = Counter[_Source]()
    for piece in plan.units.pieces:
        if known.issuperset(piece.spans):
            continue
        rows = read_piece(path, piece, _SCHEMA, may_lack=CONSUME_QUEUE.optional_columns)
        if built is not None:
            is_ours, seq = pc.equal(rows["state_epoch"], built.state_epoch), rows["build_seq"]
            rows = rows.filter(pc.invert(pc.and_(is_ours, pc.greater(seq, built.build_seq))))
        found.update({source: count for source, count in _by_source(rows) if unit_source(*source) not in known})
    return found


def _by_source(rows: pa.Table) -> Iterator[tuple[_Source, int]]:
    for row in rows.group_by(["topic", "queue_id", "topic_id"]).aggregate([([], "count_all")]).to_pylist():
        yield (row["topic"], row["queue_id"], row["topic_id"]), row["count_all"]
