"""Reading the rows of a data file. Whatever is wrong with the file is `Corrupt`, and names table and file.

Pages are checked by their checksums; nothing checks a footer (verified_parquet.py). A damaged one may name other
columns and types, so readers say by a schema what they need.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Self

import pyarrow as pa

from connectors.delta.damage import damaged_data_file, size_problem
from connectors.delta.verified_parquet import verified_parquet

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

    from connectors.delta.log.table_log import DataFile
    from popstream.wire.base_errors import Corrupt

__all__ = ["OpenedFile"]

_READ_ERRORS = (pa.ArrowException, OSError, ValueError, TypeError, KeyError)
"""What pyarrow raises for damaged files: not its own errors alone."""


class OpenedFile:
    """A data file that is read in the block of a `with`.

    Args:
        table: Folder of the table.
        path: The file, below the folder of the table.
        size: Its bytes by the log; None: they are not compared.

    Raises:
        Corrupt: Any method: the file is damaged or missing.
    """

    def __init__(self, table: Path, path: str, size: int | None = None) -> None:
        self._table, self._path = table, table / path
        if size is not None and (problem := size_problem(self._path, size)) is not None:
            raise damaged_data_file(table, self._path, problem)
        with self._damage_named():
            self._file = verified_parquet(self._path)

    @classmethod
    def of(cls, table: Path, file: DataFile) -> Self:
        """Open a file of the log; its size is compared."""
        return cls(table, file.relative_path, file.size)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    @property
    def row_groups(self) -> int:
        """The number of row groups."""
        return int(self._file.num_row_groups)

    def row_group(self, number: int, schema: pa.Schema | None = None, may_lack: Collection[str] = ()) -> pa.Table:
        """Return the rows of a row group.

        Args:
            number: Its number.
            schema: The columns to read, with their types; None: those of the file as they are.
            may_lack: Columns that are null if the file does not have them.
        """
        with self._damage_named():
            rows = self._file.read_row_group(number, columns=self._names(schema), use_threads=False)
            return _as_in(schema, rows, may_lack)

    def each_row_group(self, schema: pa.Schema | None = None, may_lack: Collection[str] = ()) -> Iterator[pa.Table]:
        """Yield the rows of each row group, as `row_group` returns them."""
        for number in range(self.row_groups):
            yield self.row_group(number, schema, may_lack)

    def in_parts(
        self, schema: pa.Schema | None = None, may_lack: Collection[str] = (), rows_at_once: int = 65_536
    ) -> Iterator[pa.Table]:
        """Yield all rows, at most `rows_at_once` at a time, as `row_group` returns them."""
        with self._damage_named():
            parts = self._file.iter_batches(rows_at_once, columns=self._names(schema), use_threads=False)
        while True:
            with self._damage_named():
                part = next(parts, None)
                rows = None if part is None else _as_in(schema, pa.Table.from_batches([part]), may_lack)
            if rows is None:
                return
            yield rows

    def require_no_other_columns(self, schema: pa.Schema) -> None:
        """Require that the file has no columns but those of `schema`: what is rewritten would lose them."""
        others = set(self._file.schema_arrow.names) - set(schema.names)
        if others:
            problem = f"has columns that the table does not have: {', '.join(map(repr, sorted(others)))}"
            raise damaged_data_file(self._table, self._path, problem)

    def _names(self, schema: pa.Schema | None) -> list[str] | None:
        return None if schema is None else schema.names

    @contextlib.contextmanager
    def _damage_named(self) -> Iterator[None]:
        try:
            yield
        except _READ_ERRORS as error:
            raise self._damaged(error) from error

    def _damaged(self, error: BaseException) -> Corrupt:
        first, *_ = str(error).splitlines() or [type(error).__name__]
        problem = "is missing" if isinstance(error, FileNotFoundError) else f"cannot be read: {first}"
        return damaged_data_file(self._table, self._path, problem)


def _as_in(schema: pa.Schema | None, rows: pa.Table, may_lack: Collection[str]) -> pa.Table:
    """Return rows of a file in the columns and types of a schema."""
    if schema is None:
        return rows
    for field in schema:
        if field.name not in rows.schema.names:
            if field.name not in may_lack:
                message = f"it has no column {field.name}"
                raise ValueError(message)
            rows = rows.append_column(field, pa.nulls(rows.num_rows, field.type))
    return rows.select(schema.names).cast(schema)
