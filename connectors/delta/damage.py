"""What is said of a table with a damaged file, and how to repair it.

It imports neither Spark nor pyarrow, which take a part of a second: the first row of a query does not wait for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from popstream.wire.base_errors import Corrupt

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["damaged_data_file", "how_to_repair", "size_problem"]


def how_to_repair(table: str) -> str:
    """Return the advice for a table of which a file is damaged or missing.

    >>> how_to_repair("operations")
    'bring it back from a copy, or run `popstream restore --rebuild operations`'
    """
    return f"bring it back from a copy, or run `popstream restore --rebuild {table}`"


def size_problem(file: Path, size: int) -> str | None:
    """Return what is wrong with a data file that has `size` bytes by the log, without reading it; None: nothing."""
    try:
        found = file.stat().st_size
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return None if found == size else f"has {found} bytes, and {size} by the log"


def damaged_data_file(table: Path, file: Path, problem: str) -> Corrupt:
    """Return the error for a data file of the table in this folder; `problem` continues a sentence about the file."""
    message = f"a data file of {table.name} is damaged: {file} {problem}: {how_to_repair(table.name)}"
    return Corrupt(message, subject=table.name)
