"""How large the tables are, and how they grow, by their logs and folders."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from stat import S_ISREG
from typing import TYPE_CHECKING

import msgspec

from connectors.delta.history_start import first_day_of
from connectors.delta.log.table_log import read_data_files
from connectors.delta.tables import TABLES, table_path

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["TableSize", "table_sizes"]


class TableSize(msgspec.Struct, frozen=True, kw_only=True):
    """The size of a table.

    Attributes:
        table: Its name.
        rows: Rows of its newest version.
        bytes: Bytes of the files with these rows.
        files: Their number.
        disk_bytes: Bytes of its folder, with its log and with files of earlier versions, which VACUUM deletes.
        yesterday_rows: Of `rows` those of the last whole date (UTC); None: the table has no dates.
        yesterday_bytes: Of `bytes` likewise.
        first_day: First date of which it has all rows; None: retention has deleted none.
    """

    table: str
    rows: int
    bytes: int
    files: int
    disk_bytes: int
    yesterday_rows: int | None = None
    yesterday_bytes: int | None = None
    first_day: date | None = None


def table_sizes(root: Path, now: datetime | None = None) -> list[TableSize]:
    """Return the sizes of the tables below `root`, as of their newest versions.

    Raises:
        Corrupt: A log cannot be read.
    """
    yesterday = ((now or datetime.now(UTC)).date() - timedelta(days=1)).isoformat()
    sizes = []
    for name, table in TABLES.items():
        path = table_path(root, name)
        found = read_data_files(path)
        if found is None:
            continue
        column = table.partitioned_by
        of_yesterday = [file for file in found.files if column and file.partition_values.get(column) == yesterday]
        sizes.append(
            TableSize(
                table=name,
                rows=sum(file.rows for file in found.files),
                bytes=sum(file.size for file in found.files),
                files=len(found.files),
                disk_bytes=sum(map(_bytes_of, path.rglob("*"))),
                yesterday_rows=sum(file.rows for file in of_yesterday) if column else None,
                yesterday_bytes=sum(file.size for file in of_yesterday) if column else None,
                first_day=first_day_of(found.txns),
            )
        )
    return sizes


def _bytes_of(path: Path) -> int:
    """Return the size of a file; 0 of a folder, and of a file that is gone since it was listed."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return 0
    return status.st_size if S_ISREG(status.st_mode) else 0
