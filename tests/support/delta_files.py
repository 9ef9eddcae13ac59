"""Delta tables of a test's own, made without Spark, with the files and commits that the job writes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, Schema

from connectors.delta.all_columns import with_all_columns
from connectors.delta.data_files import write_data_files
from connectors.delta.log.write_commit import add_action, commit_info, write_commit
from connectors.delta.rows import plain_rows
from connectors.delta.schemas import arrow_schema
from connectors.delta.tables import TABLES, table_path
from tests.support.audit_tables import NOW_MS, delivery

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from typing import Any, NamedTuple

__all__ = ["NO_SPARK", "append_audit_rows", "append_rows", "create_failed_deliveries", "create_table"]

NO_SPARK: Any = SimpleNamespace(sql=lambda _: None)
"""For writers of tables that exist: only comments and properties are missing, up to the first checkpoint of the log."""

_MS_PER_DAY = 86_400_000


def create_table(root: Path, name: str) -> Path:
    """Create a table without rows; return its folder."""
    table = TABLES[name]
    path = table_path(root, name)
    DeltaTable.create(
        path,
        schema=Schema.from_arrow(arrow_schema(table)),
        partition_by=[table.partitioned_by] if table.partitioned_by else None,
    )
    return path


def create_failed_deliveries(root: Path) -> None:
    """Create `deliveries` with three files of a row each, whose cause names alice."""
    create_table(root, "deliveries")
    for number in range(3):
        row = delivery(1, number, NOW_MS)._replace(cause="handler: ValueError: alice")
        append_audit_rows(root, "deliveries", [row])


def append_audit_rows(root: Path, name: str, rows: Sequence[NamedTuple], apply_seq: int = 1) -> int:
    """Append rows of the kernel in one commit, and return its version."""
    found = plain_rows(name, rows)
    added = {
        "apply_seq": pa.repeat(pa.scalar(apply_seq, pa.int64()), len(rows)),
        "state_epoch": pa.repeat("epoch-1", len(rows)),
        "ops_topic_id": pa.repeat("topic-1", len(rows)),
        "op_date": pc.divide(found["now_ms"], _MS_PER_DAY).cast(pa.int32()).cast(pa.date32()),
    }
    return append_rows(root, name, with_all_columns(TABLES[name], found, added))


def append_rows(root: Path, name: str, rows: pa.Table) -> int:
    """Append rows in one commit, and return its version."""
    path = table_path(root, name)
    version = DeltaTable(path).version()
    files = write_data_files(path, TABLES[name], [rows], durable=False)
    actions = [commit_info(version, "WRITE"), *(add_action(file, data_change=True) for file in files)]
    return write_commit(path, version, actions, lambda _: None, durable=False)
