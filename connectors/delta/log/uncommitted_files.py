"""Which data files of a table may be deleted after an error: those that no commit names.

An error may come after its commit, as when the folder of the log cannot be synced, or when a signal arrives. So neither
the kind of an error nor its place says whether the files belong to the table: only the log does.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING
from urllib.parse import unquote

from connectors.delta.log.commits import commits_after
from popstream.wire.base_errors import Corrupt

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

__all__ = ["deleted_unless_committed"]


@contextlib.contextmanager
def deleted_unless_committed(table: Path, read_version: int, names: Iterable[str]) -> Iterator[None]:
    """Delete files at the exit by an error, but for those that a commit after `read_version` names.

    All stay if the log cannot be read: VACUUM finds those that nobody needs.

    Args:
        table: Folder of the table.
        read_version: A version from before the files were written.
        names: Paths of the files below the folder, as a commit names them; read at the exit.
    """
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError, Corrupt):  # the error of the block counts
            committed = {path for commit in commits_after(table, read_version) for path in commit.added_paths}
            for name in map(unquote, names):
                if name not in committed:
                    (table / name).unlink(missing_ok=True)
        raise
