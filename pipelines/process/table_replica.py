"""The replica of one table: its commits, copied as they are, each after the files that it names.

```
data files that a commit names ──> the commit ──> the next one ... ──> a checkpoint ──> `_last_checkpoint`
```

So a reader of the replica sees one whole version of the table after the other, and a job that dies in between goes on
with the next commit. If a file of an earlier commit is not here any more, as a week after a compaction, the replica
goes on with a checkpoint of the newest version.

What maintenance and `popstream erase` have deleted here is deleted there when a job starts, and once an hour. A folder
in which something else lies, or another table, is refused: a file in it says of which table the replica is.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec
from deltalake import DeltaTable

from connectors.delta.damage import damaged_data_file, how_to_repair, size_problem
from connectors.delta.log.commits import Commit, commit_file, read_commit, sync_commits
from connectors.delta.log.table_log import DataFile, checkpoints_of, newest_version, read_data_files, require_readable
from pipelines.process.replica_place import PART, ReplicaPlace
from popstream.wire.base_errors import Corrupt, Invalid, Unavailable
from popstream.wire.decode_errors import DECODE_ERRORS

__all__ = ["TableReplica"]

SWEEP_S = 3_600.0
LOG: Final = "_delta_log"
LAST_CHECKPOINT: Final = "_last_checkpoint"
MARKER: Final = "_popstream_replica.json"
"""Names the table. Readers of Delta pass over files whose names begin so."""


class _FileGoneError(Exception):
    """A file that a commit names is not here any more."""


class TableReplica:
    """The replica of one table. Not thread-safe.

    Args:
        table: Folder of the table.
        write_checkpoint: Lets Delta write a checkpoint of its newest version.
        require_may_change: Raises when nothing may be changed there; called before each change.
    """

    def __init__(
        self, table: Path, write_checkpoint: Callable[[Path], None], require_may_change: Callable[[], None]
    ) -> None:
        self._table = table
        self._write_checkpoint = write_checkpoint
        self._require_may_change = require_may_change
        self._version = -1
        """The newest version there; -1: none."""
        self._is_known = False
        """The folder there was looked at, and is that of this table."""
        self._hint = b""
        """What `_last_checkpoint` has there."""
        self._swept_s = float("-inf")

    def catch_up(self, open_place: Callable[[], ReplicaPlace]) -> None:
        """Copy the commits that are not there yet, and delete what is not here any more when that is due.

        Args:
            open_place: Returns the folder of this replica. Not called when there is nothing to do.

        Raises:
            Invalid: The folder is not that of this table's replica.
            Corrupt: A file of the table is missing or damaged.
            Unavailable: There is no table any more. The file system raises errors of its own.
        """
        newest = self._newest_here()
        if newest < self._version:
            message = f"{self._table} has no version {self._version} any more: is its volume mounted?"
            raise Unavailable(message, subject=self._table.name)
        is_due = time.monotonic() - self._swept_s >= SWEEP_S
        if newest < 0 or (newest == self._version and not is_due):
            return
        place = open_place()
        if not self._is_known:
            self._require_own(place)
            self._version = self._equal_version(place, newest)
            self._is_known = True
        try:
            self._copy_commits(place, newest)
        except _FileGoneError:
            self._copy_newest(place)
        self._copy_last_checkpoint(place)
        if is_due:
            self._delete_unused(place)
            self._swept_s = time.monotonic()

    def _newest_here(self) -> int:
        """Return the newest version of the table; -1: there is none."""
        if not commit_file(self._table, self._version).is_file():  # also where Delta has deleted it meanwhile
            return newest_version(self._table)
        version = self._version
        while commit_file(self._table, version + 1).is_file():
            version += 1
        return version

    def _require_own(self, place: ReplicaPlace) -> None:
        """Refuse a folder that is not that of this table's replica; one that is empty becomes it."""
        table_id = str(DeltaTable(self._table).metadata().id)
        marker = place.read(MARKER)
        if marker is None and not place.names():
            self._require_may_change()
            place.write(MARKER, msgspec.json.encode({"table_id": table_id}))
            marker = place.read(MARKER)  # of two jobs that begin at once, one is refused
        try:
            found = msgspec.json.decode(marker or b"{}", type=dict[str, Any]).get("table_id")
        except DECODE_ERRORS:
            found = None
        if found != table_id:
            what = "has other files" if marker is None else "is the replica of another table"
            message = f"{place} {what}: delete that folder, or name another place in `tables_replica`"
            raise Invalid(message, subject=self._table.name)

    def _equal_version(self, place: ReplicaPlace, newest: int) -> int:
        """Return the newest version there that is the same here; -1: there is none."""
        names = [name.removesuffix(".json") for name in place.names(LOG) if name.endswith(".json")]
        version = max(map(int, filter(str.isdigit, names)), default=-1)
        if version > newest:
            message = f"{place} has version {version}, and the table {newest}: commits are lost here"
            raise Corrupt(message, subject=self._table.name)
        while version >= 0 and (file := commit_file(self._table, version)).is_file():
            if place.read(f"{LOG}/{file.name}") == file.read_bytes():
                break
            version -= 1  # a machine that loses its power may leave the beginning of a file
        return version

    def _copy_commits(self, place: ReplicaPlace, newest: int) -> None:
        """Copy the commits that are not there, one after the other.

        Raises:
            _FileGoneError: One of them, or a file that it names, is not here any more.
        """
        for version in range(self._version + 1, newest + 1):
            commit = read_commit(self._table, version)
            if commit is None or not all((self._table / path).is_file() for path in commit.added_paths):
                raise _FileGoneError
            self._copy_commit(place, commit)
            self._version = version

    def _copy_commit(self, place: ReplicaPlace, commit: Commit) -> None:
        if commit.changes_table and (found := read_data_files(self._table)) is not None:
            require_readable(self._table, found)
        # First: a commit that a loss of power takes back here would be one of another table there.
        sync_commits(self._table, [commit])
        for path in (*commit.added_paths, f"{LOG}/{commit_file(self._table, commit.version).name}"):
            self._put(place, path)

    def _copy_newest(self, place: ReplicaPlace) -> None:
        """Go on with a checkpoint of the newest version, after all files that it needs."""
        self._write_checkpoint(self._table)
        checkpoints = checkpoints_of(self._table)
        version, files = checkpoints[-1] if checkpoints else (-1, [])
        commit = read_commit(self._table, version)
        if commit is None:
            name = self._table.name
            message = f"the log of {name} is damaged: it has no checkpoint of its newest version: {how_to_repair(name)}"
            raise Corrupt(message, subject=name)
        sync_commits(self._table, [commit])
        there = place.sizes()
        for path, file in sorted(self._needed(version).items()):
            if (problem := size_problem(self._table / path, file.size)) is not None:
                raise damaged_data_file(self._table, self._table / path, problem)
            if there.get(path) != file.size:
                self._put(place, path)
        for each in [*files, commit_file(self._table, version)]:
            self._put(place, f"{LOG}/{each.name}")
        self._version = version

    def _copy_last_checkpoint(self, place: ReplicaPlace) -> None:
        """Copy the checkpoint that readers begin with, and then the file that names it, as it was read."""
        file = self._table / LOG / LAST_CHECKPOINT
        hint = file.read_bytes() if file.is_file() else b""
        version = _version_in(hint)
        files = dict(checkpoints_of(self._table)).get(version, []) if hint != self._hint else []
        if files and version <= self._version:
            for each in files:
                self._put(place, f"{LOG}/{each.name}")
            self._require_may_change()
            place.write(f"{LOG}/{LAST_CHECKPOINT}", hint)
            self._hint = hint

    def _delete_unused(self, place: ReplicaPlace) -> None:
        """Delete data files, and files of the log before a checkpoint, that are not here any more."""
        needed = self._needed(self._version)
        # Of the log what Delta has deleted here, too.
        oldest = min((version for version, _ in checkpoints_of(self._table)), default=0) if self._hint else 0
        for path in place.sizes():
            folder, _, file = path.rpartition("/")
            is_old = file[:20].isdigit() and int(file[:20]) < oldest if folder == LOG else file.endswith(".parquet")
            if (is_old or file.endswith(PART)) and path not in needed and not (self._table / path).exists():
                self._require_may_change()
                place.delete(path)

    def _needed(self, version: int) -> dict[str, DataFile]:
        """Return the files that a version of the table has rows in, by path.

        Raises:
            Unavailable: There is no table any more, for example because a volume is not mounted.
        """
        found = read_data_files(self._table, version)
        if found is None or found.version != version:
            message = f"{self._table} has no version {version}: is its volume mounted?"
            raise Unavailable(message, subject=self._table.name)
        require_readable(self._table, found)
        return {file.relative_path: file for file in found.files}

    def _put(self, place: ReplicaPlace, path: str) -> None:
        self._require_may_change()
        place.put(self._table / path, path)


def _version_in(hint: bytes) -> int:
    """Return the version of a checkpoint that the file `_last_checkpoint` names; -1: none.

    >>> _version_in(b'{"version":10,"size":7}'), _version_in(b"")
    (10, -1)
    """
    try:
        version: int = msgspec.json.decode(hint, type=dict[str, Any])["version"]
    except (*DECODE_ERRORS, KeyError):
        return -1
    return version
