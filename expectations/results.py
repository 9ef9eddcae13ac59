"""Writes `quality_results`: the history of validations."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from deltalake import DeltaTable, Field, Schema
from deltalake.exceptions import CommitFailedError

from connectors.delta.file_access import files_made_with, umask_of_tables
from connectors.delta.log.table_log import read_table_log
from connectors.delta.schemas import arrow_schema
from connectors.delta.tables import TABLES, table_path
from expectations.scope import ALL_ROWS

if TYPE_CHECKING:
    from pathlib import Path

    from expectations.report import QualityReport

__all__ = ["write_results"]

_TABLE: Final = TABLES["quality_results"]
_TRIES: Final = 10
# Some rules read several tables, so a result belongs to all pinned versions; and to the rows that were judged.
_KEY: Final = ("suite", "expectation", "table", "table_version", "pinned_versions", "scope")


def write_results(root: Path, report: QualityReport) -> None:
    """Write the outcomes of a run. A repeated check of the same table versions replaces its rows.

    Raises:
        Corrupt: The log of the table cannot be read.
        DeltaError: The table cannot be written, also after some tries beside other checks.
    """
    with files_made_with(umask_of_tables(root)):
        for left in reversed(range(_TRIES)):
            try:
                _write(table_path(root, _TABLE.name), report)
            except CommitFailedError:  # another check was faster
                if not left:
                    raise
            else:
                return


def _write(path: Path, report: QualityReport) -> None:
    if read_table_log(path) is None:
        fields = Schema.from_arrow(arrow_schema(_TABLE)).fields
        comments = [column.comment for column in _TABLE.columns]
        columns = [
            Field(field.name, field.type, metadata={"comment": comment})
            for field, comment in zip(fields, comments, strict=True)
        ]
        DeltaTable.create(path, Schema(columns), description=_TABLE.comment)
    pinned = ",".join(f"{table}={version}" for table, version in sorted(report.versions.items()))
    rows = [
        {
            "suite": outcome.suite,
            "expectation": outcome.expectation,
            "table": outcome.suite,
            "table_version": outcome.table_version,
            "pinned_versions": pinned,
            "scope": report.scope.name,
            "success": outcome.success,
            "observed": outcome.error or json.dumps(outcome.sample, sort_keys=True),
            "unexpected_count": outcome.unexpected_count,
            "run_at": report.run_at,
        }
        for outcome in report.outcomes
    ]
    same = " AND ".join(
        f"coalesce(kept.{name}, '{ALL_ROWS.name}') = found.{name}" if name == "scope" else f"kept.{name} = found.{name}"
        for name in _KEY
    )
    merge = DeltaTable(path).merge(
        pa.Table.from_pylist(rows, arrow_schema(_TABLE)),
        same,
        source_alias="found",
        target_alias="kept",
        merge_schema=True,
    )
    merge.when_matched_update_all().when_not_matched_insert_all().execute()
