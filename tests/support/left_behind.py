"""What a job left behind: the families of its state, the rows of its Delta tables, the records of its topics."""

from __future__ import annotations

import json
from collections import defaultdict
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow.parquet as pq
from kafka import KafkaConsumer, TopicPartition

from broker_state.store.overlay import DEADLINES, OPS, STATE
from broker_state.store.rocks_store import META, RocksStore
from checkpoints.applied import APPLIED_KEY, Applied
from connectors.delta.tables import AUDIT_TABLES, KEY_COLUMNS, table_path

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = [
    "DIFFERS_BY_RUN",
    "answers_of",
    "applied_of",
    "audit_rows",
    "damage",
    "end_offsets",
    "families_of",
    "live_files",
    "records_between",
    "table_rows",
]

DIFFERS_BY_RUN = ("apply_seq", "state_epoch")


class _RawFrame(msgspec.Struct):
    v: int
    answers: list[msgspec.Raw]


def families_of(state: Path) -> dict[str, dict[bytes, bytes]]:
    """Every key and value that the kernel decides, of a job that does not run."""
    with RocksStore(state, read_only=True) as store:
        return {family: dict(store.scan(family, b"")) for family in (STATE, OPS, DEADLINES)}


def applied_of(state: Path) -> Applied:
    """How far the log is decided."""
    with RocksStore(state, read_only=True) as store:
        stored = store.get(META, APPLIED_KEY)
    assert stored is not None
    return Applied.decode(stored)


def audit_rows(delta: Path, table: str) -> list[dict[str, Any]]:
    """All rows of an audit table, by key, without the columns that differ from run to run."""
    left_out = {*DIFFERS_BY_RUN, AUDIT_TABLES[table].partitioned_by}
    rows = [{name: value for name, value in row.items() if name not in left_out} for row in table_rows(delta, table)]
    return sorted(rows, key=lambda row: tuple(row[name] for name in KEY_COLUMNS))


def table_rows(delta: Path, table: str) -> list[dict[str, Any]]:
    """All rows of a table as its files have them, read without Spark."""
    files = live_files(table_path(delta, table))
    return [dict(row) for file in files for row in _rows_of(file, file.stat().st_mtime_ns)]


@lru_cache(maxsize=1_000)
def _rows_of(file: Path, _modified_ns: int) -> list[dict[str, Any]]:
    """Return the rows of a data file; tests that wait for a row ask for the same files again and again."""
    rows: list[dict[str, Any]] = pq.ParquetFile(file).read().to_pylist()
    return rows


def live_files(table: Path) -> set[Path]:
    """The data files of the newest version of a table, all of whose commits are there."""
    files: set[Path] = set()
    for commit in sorted((table / "_delta_log").glob("*.json")):
        added, removed = _changes_of(commit, commit.stat().st_mtime_ns)
        # Delta writes `=` in the name of a partition's folder as it is.
        files |= {table / path for path in added}
        files -= {table / path for path in removed}
    return files


@lru_cache(maxsize=10_000)
def _changes_of(commit: Path, _modified_ns: int) -> tuple[list[str], list[str]]:
    """Return the paths of the data files that a commit adds, and of those that it removes."""
    actions = [json.loads(line) for line in commit.read_text().splitlines()]
    added = [action["add"]["path"] for action in actions if "add" in action]
    return added, [action["remove"]["path"] for action in actions if "remove" in action]


def damage(file: Path, place: int) -> None:
    """Turn the bits of the byte at a place."""
    data = bytearray(file.read_bytes())
    data[place] ^= 0xFF
    file.write_bytes(bytes(data))


def end_offsets(servers: str, topic: str) -> dict[int, int]:
    """The offset after the last record of each partition."""
    consumer = KafkaConsumer(bootstrap_servers=servers)
    try:
        partitions = [TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic) or ()]
        return {partition.partition: offset for partition, offset in consumer.end_offsets(partitions).items()}
    finally:
        consumer.close()


def records_between(servers: str, topic: str, first: dict[int, int], end: dict[int, int]) -> Iterator[Any]:
    """Committed records of a topic from `first` to before `end`."""
    consumer = KafkaConsumer(bootstrap_servers=servers, isolation_level="read_committed")
    try:
        for number, last in end.items():
            partition = TopicPartition(topic, number)
            consumer.assign([partition])
            consumer.seek(partition, first.get(number, 0))
            while consumer.position(partition) < last:
                for record in consumer.poll(timeout_ms=1000).get(partition, []):
                    if record.offset < last:
                        yield record
    finally:
        consumer.close()


def answers_of(frames: Iterator[bytes]) -> dict[tuple[str, int], set[bytes]]:
    """The bytes of every answer by (op_id, part); more than one in a set is a contradiction."""
    answers: dict[tuple[str, int], set[bytes]] = defaultdict(set)
    for frame in frames:
        for raw in msgspec.json.decode(frame, type=_RawFrame).answers:
            answer = msgspec.json.decode(raw)
            answers[answer["op_id"], answer.get("part", 0)].add(bytes(raw))
    return dict(answers)
