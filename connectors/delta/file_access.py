"""Who may read the files of the tables: the umask of the process that writes them says it.

Spark (session.py) and the process that compacts have it from the process that starts them. The job sets it by its
settings. A command takes it from the folders of the tables: its shell has another one, and its settings may not be
those of the job.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Final

from connectors.delta.tables import TABLES, table_path

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["FOR_GROUP", "FOR_USER", "files_made_with", "umask_of_tables"]

FOR_USER: Final = 0o077
FOR_GROUP: Final = 0o027
"""Its group may read, too."""

_WRITE: Final = 0o022
_READ: Final = 0o055


def umask_of_tables(root: Path, otherwise: int = FOR_USER) -> int:
    """Return the umask with which new files are readable for those who may read the tables that are there.

    Args:
        root: Folder of the tables.
        otherwise: What is returned if there are none.
    """
    modes = [path.stat().st_mode for name in TABLES if (path := table_path(root, name)).is_dir()]
    readers = 0
    for mode in modes:
        readers |= mode & _READ
    return _WRITE | (_READ & ~readers) if modes else otherwise


@contextlib.contextmanager
def files_made_with(umask: int) -> Iterator[None]:
    """Let the process make files with a umask in the block. It holds for all of its threads."""
    before = os.umask(umask)
    try:
        yield
    finally:
        os.umask(before)
