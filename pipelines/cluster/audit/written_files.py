"""The rows of entries as files of the tables, written by the tasks that have read the entries.

    entries ──> rows ──> waiting, until they are enough for a row group ──> a Parquet file for each table and date

A task returns what it has written, by table. The files belong to a table once the driver commits them. Those of a task
that was killed, or done twice, never do, and a VACUUM deletes them, as it does files of Spark's own tasks.
"""

import platform
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame

from connectors.delta.data_files import DataFilesWriter
from connectors.delta.log.table_log import DataFile
from connectors.delta.row_totals import Totals, sum_of, totals_by_day
from connectors.delta.rows import WaitingRows
from connectors.delta.tables import Table, table_path
from pipelines.cluster.audit.entry_rows import EntryRows
from pipelines.decide_ops.entry import LogPlace
from popstream.wire.base_errors import Unavailable

__all__ = ["AuditOffset", "Written", "rows_of_entries", "write_files"]

AuditOffset = tuple[int, int]
"""(partition of the audit topic, Kafka offset)."""

_SCHEMA = pa.schema({"table": pa.string(), "written": pa.binary()})


class Written(msgspec.Struct):
    """What a task has written of one table."""

    files: list[DataFile]
    totals: Totals


def write_files(
    slices: DataFrame, rows: EntryRows, partly: Mapping[AuditOffset, LogPlace], folder: Path
) -> dict[str, list[Written]]:
    """Write the rows of entries, and return what each task has written, by the name of the table.

    Args:
        slices: partition, offset, key and value of the entries.
        rows: Makes the rows of entries.
        partly: Of these entries the rows from a place on.
        folder: Where the tables are, on every node.

    Raises:
        PySparkException: A task has failed: an entry cannot be read, the disk is full, or a node lacks the folder.
    """

    def written(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        found = _written_by_task(rows_of_entries(rows, batches, partly), folder)
        yield pa.RecordBatch.from_pylist(
            [{"table": name, "written": msgspec.json.encode(each)} for name, each in found.items()], _SCHEMA
        )

    by_table = defaultdict[str, list[Written]](list)
    for each in slices.mapInArrow(written, "table string, written binary").toArrow().to_pylist():
        by_table[each["table"]].append(msgspec.json.decode(each["written"], type=Written))
    return by_table


def rows_of_entries(
    rows: EntryRows, batches: Iterable[pa.RecordBatch], partly: Mapping[AuditOffset, LogPlace]
) -> Iterator[tuple[Table, pa.Table]]:
    """Yield the rows of entries, and their table."""
    for batch in batches:
        entries = zip(*(column.to_pylist() for column in batch.columns), strict=True)
        yield from rows.of((key, value, partly.get((partition, at))) for partition, at, key, value in entries)


def _written_by_task(found: Iterable[tuple[Table, pa.Table]], folder: Path) -> dict[str, Written]:
    """Write rows to the files of their tables. An error leaves no file."""
    files: dict[str, _TableFiles] = {}
    with ExitStack() as stack:
        for table, rows in found:
            if table.name not in files:
                path = table_path(folder, table.name)
                _require_table(path)
                # Delta does not sync the commit either that adds them.
                writer = DataFilesWriter(path, table, durable=False)
                files[table.name] = _TableFiles(table, stack.enter_context(writer))
            files[table.name].add(rows)
        return {name: each.finish() for name, each in files.items()}


def _require_table(path: Path) -> None:
    """Refuse to make a folder beside the one that the nodes are to share."""
    if not (path / "_delta_log").is_dir():
        message = f"{path} is not a table on the node {platform.node()}: every node must have the same folder there"
        raise Unavailable(message, subject=path.name)


class _TableFiles:
    """The files of one task in one table."""

    def __init__(self, table: Table, writer: DataFilesWriter) -> None:
        self._day = table.day
        self._writer = writer
        self._waiting = WaitingRows()
        self._totals: list[Totals] = []

    def add(self, rows: pa.Table) -> None:
        for piece in self._waiting.add(rows):
            self._write(piece)

    def finish(self) -> Written:
        for piece in self._waiting.take():
            self._write(piece)
        return Written(self._writer.finish(), sum_of(self._totals))

    def _write(self, piece: pa.Table) -> None:
        self._totals.append(totals_by_day(piece, self._day))
        self._writer.write(piece)
