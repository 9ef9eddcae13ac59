"""The rows of a query, and the ways to print them."""

import csv
import itertools
import os
import secrets
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from rich.cells import cell_len
from rich.table import Table

from pipelines.cli.control_characters import escape_controls
from pipelines.cli.exits import say
from pipelines.cli.printing import new_console
from pipelines.cli.tables.query_options import Output
from popstream.wire.base_errors import Invalid

__all__ = ["QueryResult", "print_result", "write_parquet"]

EDGES_PER_COLUMN = 3
"""Characters beside the text of each column of a table."""


@dataclass(frozen=True)
class QueryResult:
    """The rows of a query, which can be taken once.

    Attributes:
        columns: Names of the columns.
        rows: The rows, as they come.
        tables: Names of the tables and views that there are.
        arrow: Returns the rows as a `pyarrow.RecordBatchReader`, instead of `rows`.
    """

    columns: Sequence[str]
    rows: Iterator[Sequence[Any]]
    tables: Sequence[str]
    arrow: Callable[[], Any]


def print_result(result: QueryResult, output: Output, *, rows_max: int) -> None:
    """Print the first rows, as they come where the format allows; `rows_max` 0: all of them.

    Raises:
        Invalid: JSON is asked for, and two columns have one name.
    """
    count = 0

    def counted() -> Iterator[Sequence[Any]]:
        nonlocal count
        for row in itertools.islice(result.rows, rows_max or None):
            count += 1
            yield row

    if output is Output.JSON:
        if len(set(result.columns)) < len(result.columns):
            message = "two columns have one name, which JSON cannot tell apart: name one of them with AS"
            raise Invalid(message)
        for row in counted():
            print(msgspec.json.encode(dict(zip(result.columns, row, strict=True)), enc_hook=str).decode())
    elif output is Output.CSV:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerows(itertools.chain([result.columns], (map(_text, row) for row in counted())))
    elif output is Output.VERTICAL:
        _print_vertically(result.columns, (list(map(_text, row)) for row in counted()))
    else:
        _print_table(result.columns, [list(map(_text, row)) for row in counted()])
    if rows_max and next(result.rows, None) is not None:
        say(f"only the first {rows_max} rows are shown; --max-rows 0 shows all")
    if not count:
        say(f"no rows; there are {', '.join(result.tables)}")


def write_parquet(result: QueryResult, file: Path) -> int:
    """Write all rows to a new file, and return their number. An error leaves no file behind.

    Raises:
        Invalid: The file exists or its folder does not, or a column has a type that Parquet does not know.
    """
    import pyarrow as pa  # noqa: PLC0415 - takes 0.1 s
    import pyarrow.parquet as pq  # noqa: PLC0415

    if not file.parent.is_dir():
        message = f"there is no folder {file.parent}"
        raise Invalid(message, subject=str(file))
    rows = 0
    made = file.with_name(f".{file.name}.{secrets.token_hex(8)}")
    try:
        with result.arrow() as reader, pq.ParquetWriter(made, reader.schema, compression="zstd") as writer:
            for batch in reader:
                writer.write_batch(batch)
                rows += batch.num_rows
        _give_name(made, file)
    except pa.ArrowNotImplementedError as error:
        message = f"a column has a type that Parquet does not know: cast it in the query ({error})"
        raise Invalid(message, subject=str(file)) from error
    except FileExistsError as error:
        message = f"{file} exists: name another file"
        raise Invalid(message, subject=str(file)) from error
    finally:
        made.unlink(missing_ok=True)
    return rows


def _give_name(made: Path, file: Path) -> None:
    """Rename a file. Raises FileExistsError if there is one of the new name."""
    try:
        os.link(made, file)
    except FileExistsError:
        raise
    except OSError:  # a file system without links
        with file.open("xb"):
            made.replace(file)


def _print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    console = new_console(markup=False)
    widths = [max(map(cell_len, cells)) + EDGES_PER_COLUMN for cells in zip(columns, *rows, strict=True)]
    if console.is_terminal and sum(widths) >= console.width:
        _print_vertically(columns, rows)
        return
    table = Table(*columns)
    for row in rows:
        table.add_row(*row)
    # In a file or pipe, lines are not wrapped: a pager shows whole rows.
    console.print(table, soft_wrap=not console.is_terminal)


def _print_vertically(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    width = max(map(cell_len, columns), default=0)
    for number, row in enumerate(rows, 1):
        print(f"── row {number:,} ".ljust(width + 2, "─"))
        for name, value in zip(columns, row, strict=True):
            print(escape_controls(f"{name:<{width}}  {value}".rstrip(), kept="\n\t"))


def _text(value: Any) -> str:  # noqa: ANN401 - any value of an engine
    if value is None:
        return ""
    return bytes(value).hex() if isinstance(value, bytes | bytearray) else str(value)
