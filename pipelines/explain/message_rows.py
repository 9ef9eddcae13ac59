"""The rows about one message, from the few files of the tables that may have them."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from broker_state.audit import CommitPositionRow, DeliveryRow, OperationRow
from connectors.delta.duckdb_errors import query_errors
from connectors.delta.duckdb_tables import MEMORY, DuckDbTables
from connectors.delta.snapshot import open_snapshot
from connectors.delta.tables import TABLES, table_path
from pipelines.explain.message_events import MessageRows, UnitRow, of_present_topic
from pipelines.explain.story import cut_text
from popstream.wire.base_errors import Invalid

if TYPE_CHECKING:
    from pathlib import Path

    from connectors.delta.snapshot import FileBounds, Snapshot

__all__ = ["read_message_rows", "require_known"]

Row = TypeVar("Row", bound=NamedTuple)

_ROW_TYPES: dict[str, type[NamedTuple]] = {
    "operations": OperationRow,
    "deliveries": DeliveryRow,
    "commit_positions": CommitPositionRow,
    "consume_queue": UnitRow,
}
_HAS_IT = {
    "operations": "first_offset <= $offset AND last_offset >= $offset",
    "deliveries": "first_offset <= $offset AND last_offset >= $offset",
    "commit_positions": "least(from_offset, to_offset) <= $offset AND greatest(from_offset, to_offset) > $offset",
    "consume_queue": "queue_offset = $offset",
}
"""By table: the condition of a row about a message, or of a position that moved across it."""

_IN_ORDER = "now_ms, kafka_offset, ordinal"


def read_message_rows(
    delta_root: Path, topic: str, queue_id: int, queue_offset: int, *, memory: str = MEMORY
) -> MessageRows:
    """Return the rows about a message. A table that does not exist has none.

    If the topic was recreated, they are those of the present topic. `memory` is the limit of DuckDB.

    Raises:
        Invalid: There are no tables, or one needs another reader.
        Corrupt: A file of a table is damaged or missing.
    """
    with (
        query_errors(_paths(delta_root)),
        DuckDbTables(_files_about(delta_root, topic, queue_id, queue_offset), memory=memory) as tables,
    ):
        found = {
            name: _rows(tables, name, topic, queue_id, _HAS_IT[name], offset=queue_offset)
            for name in _ROW_TYPES
            if name in tables.snapshots
        }
        first_days = {name: each.first_day for name, each in tables.snapshots.items() if each.first_day is not None}
    units = [UnitRow(*row) for row in found.get("consume_queue", [])]
    rows = MessageRows(
        topic=topic,
        queue_id=queue_id,
        queue_offset=queue_offset,
        unit=units[-1] if units else None,
        operations=[OperationRow(*row) for row in found.get("operations", [])],
        deliveries=[DeliveryRow(*row) for row in found.get("deliveries", [])],
        positions=[CommitPositionRow(*row) for row in found.get("commit_positions", [])],
        first_days=first_days,
    )
    is_recreated = len({unit.topic_id for unit in units}) > 1
    return of_present_topic(rows) if is_recreated else rows


def _paths(delta_root: Path) -> list[Path]:
    return [path for name in TABLES if (path := table_path(delta_root, name)).is_dir()]


def require_known(delta_root: Path, rows: MessageRows, group: str | None, *, memory: str = MEMORY) -> None:
    """Refuse a message that there never was, or of which the tables cannot tell. Reads more than the rows of a message.

    `memory` is the limit of DuckDB.

    Raises:
        Invalid: It says why there is nothing to tell.
    """
    name = f"{rows.topic}/{rows.queue_id}"
    with (
        query_errors(_paths(delta_root)),
        DuckDbTables(_of_queue(delta_root, rows.topic, rows.queue_id), memory=memory) as tables,
    ):
        lanes = _lanes(tables, rows.topic, rows.queue_id)
    if not lanes:
        message = f"the tables in {delta_root} have no queue {name}"
        raise Invalid(message, subject=rows.topic)
    queue = lanes.pop(None, None)
    if queue is not None and rows.queue_offset >= queue.end and rows.unit is None:
        message = f"{name} has no offset {rows.queue_offset:,} yet: it is written up to {queue.end - 1:,}"
        raise Invalid(message, subject=rows.topic)
    if group is not None and group not in lanes:
        known = ", ".join(sorted(str(each) for each in lanes)) or "none"
        message = f"the group {group} has never read {name}; groups that have: {known}"
        raise Invalid(message, subject=group)
    lane = lanes.get(group) if group is not None else None
    if lane is not None and rows.queue_offset < lane.start:
        message = f"the group {group} began at offset {lane.start:,} of {name}, behind the message"
        raise Invalid(message, subject=name)
    if lane is not None and rows.queue_offset < lane.known_from:
        since = lane.known_since
        message = (
            f"the tables know {name} of the group {group} only from {since:%Y-%m-%d %H:%M:%S} UTC, offset"
            f" {lane.known_from:,}, on: what came before was deleted"
        )
        raise Invalid(message, subject=name)
    if rows.unit is None and rows.first_days:
        message = f"of {name}/{rows.queue_offset:,} nothing is left: {cut_text(rows.first_days)}"
        raise Invalid(message, subject=name)


class _Lane(NamedTuple):
    start: int
    end: int
    known_from: int
    known_since: Any


def _lanes(tables: DuckDbTables, topic: str, queue_id: int) -> dict[str | None, _Lane]:
    sql = """
        SELECT "group", min(start_offset), max(to_offset), min(from_offset), min(to_timestamp(now_ms / 1000.0))
        FROM commit_positions WHERE topic = $topic AND queue_id = $queue_id GROUP BY ALL
    """
    lanes = {row[0]: _Lane(*row[1:]) for row in tables.rows(sql, {"topic": topic, "queue_id": queue_id})}
    sql = (
        'SELECT DISTINCT "group" FROM operations WHERE topic = $topic AND queue_id = $queue_id AND "group" IS NOT NULL'
    )
    for (group,) in tables.rows(sql, {"topic": topic, "queue_id": queue_id}):
        lanes.setdefault(group, _Lane(0, 0, 0, None))
    return lanes


def _rows(
    tables: DuckDbTables, name: str, topic: str, queue_id: int, condition: str, **values: object
) -> list[tuple[Any, ...]]:
    has = tables.snapshots[name].columns
    columns = ", ".join(f'"{field}"' if field in has else f'NULL AS "{field}"' for field in _ROW_TYPES[name]._fields)
    order = f"ORDER BY {_IN_ORDER if 'now_ms' in has else 'build_seq'}"
    sql = f"SELECT {columns} FROM {name} WHERE topic = $topic AND queue_id = $queue_id AND {condition} {order}"  # noqa: S608
    return list(tables.rows(sql, {"topic": topic, "queue_id": queue_id, **values}))


def _files_about(delta_root: Path, topic: str, queue_id: int, queue_offset: int) -> list[Snapshot]:
    def may_have(name: str, file: FileBounds) -> bool:
        if name == "consume_queue":
            return file.may_have("queue_offset", queue_offset, queue_offset)
        if name == "commit_positions":
            ends = (("from_offset", "to_offset"), ("to_offset", "from_offset"))  # forwards, and backwards by a reset
            return any(file.may_have(a, None, queue_offset) and file.may_have(b, queue_offset + 1) for a, b in ends)
        return file.may_have("first_offset", None, queue_offset) and file.may_have("last_offset", queue_offset)

    return [
        dataclasses.replace(snapshot, files=[file for file in snapshot.files if may_have(snapshot.path.name, file)])
        for snapshot in _of_queue(delta_root, topic, queue_id)
    ]


def _of_queue(delta_root: Path, topic: str, queue_id: int) -> list[Snapshot]:
    """Return the tables, with the files that may have rows of a queue."""
    paths = [table_path(delta_root, name) for name in _ROW_TYPES]
    found = [open_snapshot(path) for path in paths if (path / "_delta_log").is_dir()]
    if not found:
        message = f"there are no tables in {delta_root}: has the job run here?"
        raise Invalid(message, subject=str(delta_root))
    return [
        dataclasses.replace(
            snapshot,
            files=[
                file
                for file in snapshot.files
                if file.may_have("topic", topic, topic) and file.may_have("queue_id", queue_id, queue_id)
            ],
        )
        for snapshot in found
    ]
