"""A replica of the tables at a URL, for readers on other machines; the tables of the job stay where they are.

```
data files that a commit names ──> the commit ──> the next one ... ──> a checkpoint ──> `_last_checkpoint`
```

Commits are copied as they are, each after the files that it names, so that a reader of the replica sees one whole
version of a table after the other, and a job that dies in between goes on with the next commit. If a file of an earlier
commit is not here any more, as a week after a compaction, the replica goes on with a checkpoint of the newest version.

What maintenance and `popstream erase` have deleted here is deleted there when a job starts, and once an hour. A folder
in which something else lies, or another table, is refused: a file in it says of which table the replica is.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import fsspec
import msgspec
from deltalake import DeltaTable
from fsspec.implementations.local import LocalFileSystem

from checkpoints.storage_errors import storage_errors
from connectors.delta.damage import how_to_repair
from connectors.delta.log.commits import Commit, commit_file, read_commit, sync_commits
from connectors.delta.log.table_log import checkpoints_of, newest_version, read_data_files, require_readable
from connectors.delta.tables import TABLES, table_path
from pipelines.process.replica_place import PART, ReplicaPlace, shown_url
from popstream.wire.base_errors import Corrupt, Fenced, Invalid, PopstreamError, Unavailable
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
    """The replica of all tables of a job. Not thread-safe, but for `give_up`.

    Args:
        root: Folder of the tables.
        url: Where the replica is: a path, or a URL that fsspec supports. The package of an object store must be
            installed.
        write_checkpoint: Lets Delta write a checkpoint of a table's newest version.
        require_ownership: Raises when another job may write to the replica.

    Raises:
        Invalid: fsspec does not support the URL, or it is that of the tables.
    """

    def __init__(
        self,
        root: Path,
        url: str,
        write_checkpoint: Callable[[Path], None],
        require_ownership: Callable[[], None] = lambda: None,
    ) -> None:
        self._root = root
        self._url = url
        self._write_checkpoint = write_checkpoint
        self._require_ownership = require_ownership
        self._place: ReplicaPlace | None = None
        self._tables = {name: _Replicated() for name in TABLES}
        self._is_given_up = False
        self._caught_up_s = time.monotonic()
        try:
            protocol, path = fsspec.core.split_protocol(url)
            is_local = issubclass(fsspec.get_filesystem_class(protocol or "file"), LocalFileSystem)
        except (ValueError, ImportError) as error:
            message = f"tables cannot be copied to {shown_url(url)}: {error}"
            raise Invalid(message, subject=shown_url(url)) from error
        if is_local:
            there, here = Path(path).expanduser().resolve(), root.resolve()
            if there == here or there in here.parents or here in there.parents:
                message = f"tables_replica {shown_url(url)} is the folder of the tables, or one in or around it"
                raise Invalid(message, subject=shown_url(url))

    @property
    def lag_s(self) -> float:
        """Seconds since the replica had every commit, or since the job began."""
        return time.monotonic() - self._caught_up_s

    def give_up(self) -> None:
        """Let a copy in progress, in another thread, end with the file that it copies."""
        self._is_given_up = True

    def catch_up(self) -> None:
        """Copy the commits that are not there yet, and delete what is not here any more when that is due.

        An error in one table does not affect the others, and is raised at the end.

        Raises:
            Unavailable: The place does not answer or refuses; or it has another table, or a file here is damaged, which
                may be mended while the job runs.
            Fenced: Another job has taken the prefix.
        """
        failures: list[PopstreamError] = []
        for name, replicated in self._tables.items():
            try:
                # Without the file system: it may be what cannot be opened.
                with storage_errors(None, shown_url(self._url), f"{name} cannot be copied to {shown_url(self._url)}"):
                    self._replicate(name, table_path(self._root, name), replicated)
            except Fenced:
                raise
            except PopstreamError as error:
                failures.append(error)
                self._place = None  # connections are opened anew
        if failures:
            raise Unavailable("; ".join(error.message for error in failures), subject=shown_url(self._url))
        self._caught_up_s = time.monotonic()

    def _replicate(self, name: str, table: Path, replicated: "_Replicated") -> None:
        newest = replicated.newest_here(table)
        if newest < replicated.version:
            message = f"{table} has no version {replicated.version} any more: is its volume mounted?"
            raise Unavailable(message, subject=name)
        is_due = time.monotonic() - replicated.swept_s >= SWEEP_S
        if newest < 0 or (newest == replicated.version and not is_due):
            return
        place = self._opened()
        if not replicated.is_known:
            self._require_own(place, name, table)
            replicated.version = _equal_version(place, name, table, newest)
            replicated.is_known = True
        try:
            self._copy_commits(place, name, table, replicated, newest)
        except _FileGoneError:
            self._copy_newest(place, name, table, replicated)
        self._copy_last_checkpoint(place, name, table, replicated)
        if is_due:
            self._delete_unused(place, name, table, replicated)
            replicated.swept_s = time.monotonic()

    def _opened(self) -> ReplicaPlace:
        if self._place is None:
            files, base = fsspec.core.url_to_fs(self._url, skip_instance_cache=True)
            self._place = ReplicaPlace(files, str(base))
        return self._place

    def _require_may_change(self) -> None:
        if self._is_given_up:
            message = "the job stops"
            raise Unavailable(message)
        self._require_ownership()

    def _require_own(self, place: ReplicaPlace, name: str, table: Path) -> None:
        """Refuse a folder that is not that of this table's replica; one that is empty becomes it."""
        table_id = str(DeltaTable(table).metadata().id)
        marker = place.read(f"{name}/{MARKER}")
        if marker is None and not any(place.names(name)):
            self._require_may_change()
            place.write(f"{name}/{MARKER}", msgspec.json.encode({"table_id": table_id}))
            marker = place.read(f"{name}/{MARKER}")
        try:
            found = msgspec.json.decode(marker or b"{}", type=dict[str, Any]).get("table_id")
        except DECODE_ERRORS:
            found = None
        if found != table_id:
            what = "has other files" if marker is None else "is the replica of another table"
            message = (
                f"{shown_url(self._url)}/{name} {what}: delete that folder, or name another place in `tables_replica`"
            )
            raise Invalid(message, subject=name)

    def _copy_commits(
        self, place: ReplicaPlace, name: str, table: Path, replicated: "_Replicated", newest: int
    ) -> None:
        """Copy the commits that are not there, one after the other.

        Raises:
            _FileGoneError: One of them, or a file that it names, is not here any more.
        """
        for version in range(replicated.version + 1, newest + 1):
            commit = read_commit(table, version)
            if commit is None or not all((table / path).is_file() for path in commit.added_paths):
                raise _FileGoneError
            self._copy_commit(place, name, table, commit)
            replicated.version = version

    def _copy_commit(self, place: ReplicaPlace, name: str, table: Path, commit: Commit) -> None:
        if commit.changes_table and (found := read_data_files(table)) is not None:
            require_readable(table, found)
        # First: a commit that a loss of power takes back here would be one of another table there.
        sync_commits(table, [commit])
        for path in commit.added_paths:
            self._put(place, name, table, path)
        self._put(place, name, table, f"{LOG}/{commit_file(table, commit.version).name}")

    def _copy_newest(self, place: ReplicaPlace, name: str, table: Path, replicated: "_Replicated") -> None:
        """Go on with a checkpoint of the newest version, after all files that it needs."""
        self._write_checkpoint(table)
        checkpoints = checkpoints_of(table)
        version, files = checkpoints[-1] if checkpoints else (-1, [])
        commit = read_commit(table, version)
        if commit is None:
            message = f"the log of {name} is damaged: it has no checkpoint of its newest version: {how_to_repair(name)}"
            raise Corrupt(message, subject=name)
        sync_commits(table, [commit])
        there = place.sizes(name)
        for path in sorted(_needed(table, version)):
            size = (table / path).stat().st_size if (table / path).is_file() else None
            if size is None:
                message = f"{table / path} is missing: {how_to_repair(name)}"
                raise Corrupt(message, subject=name)
            if there.get(path) != size:
                self._put(place, name, table, path)
        for file in [*files, commit_file(table, version)]:
            self._put(place, name, table, f"{LOG}/{file.name}")
        replicated.version = version

    def _copy_last_checkpoint(self, place: ReplicaPlace, name: str, table: Path, replicated: "_Replicated") -> None:
        """Copy the checkpoint that readers begin with, and then the file that names it, as it was read."""
        file = table / LOG / LAST_CHECKPOINT
        hint = file.read_bytes() if file.is_file() else b""
        version = _version_in(hint)
        files = dict(checkpoints_of(table)).get(version, []) if hint != replicated.hint else []
        if files and version <= replicated.version:
            for each in files:
                self._put(place, name, table, f"{LOG}/{each.name}")
            self._require_may_change()
            place.write(f"{name}/{LOG}/{LAST_CHECKPOINT}", hint)
            replicated.hint = hint

    def _delete_unused(self, place: ReplicaPlace, name: str, table: Path, replicated: "_Replicated") -> None:
        """Delete data files, and files of the log before a checkpoint, that are not here any more."""
        needed = _needed(table, replicated.version)
        # Of the log what Delta has deleted here, too.
        oldest = min((version for version, _ in checkpoints_of(table)), default=0) if replicated.hint else 0
        for path in place.sizes(name):
            folder, _, file = path.rpartition("/")
            is_old = file[:20].isdigit() and int(file[:20]) < oldest if folder == LOG else file.endswith(".parquet")
            if (is_old or file.endswith(PART)) and path not in needed and not (table / path).exists():
                self._require_may_change()
                place.delete(f"{name}/{path}")

    def _put(self, place: ReplicaPlace, name: str, table: Path, path: str) -> None:
        self._require_may_change()
        place.put(table / path, f"{name}/{path}")


class _Replicated:
    """What this process knows of the replica of a table.

    Attributes:
        version: The newest version there; -1: none.
        is_known: The folder there was looked at, and is that of this table.
        hint: What `_last_checkpoint` has there.
        swept_s: When files were deleted there.
    """

    def __init__(self) -> None:
        self.version = -1
        self.is_known = False
        self.hint = b""
        self.swept_s = float("-inf")

    def newest_here(self, table: Path) -> int:
        """Return the newest version of the table; -1: there is none."""
        if not commit_file(table, self.version).is_file():  # also where Delta has deleted it meanwhile
            return newest_version(table)
        version = self.version
        while commit_file(table, version + 1).is_file():
            version += 1
        return version


def _equal_version(place: ReplicaPlace, name: str, table: Path, newest: int) -> int:
    """Return the newest version there that is the same here; -1: there is none."""
    names = place.names(f"{name}/{LOG}")
    version = max((int(each[:-5]) for each in names if each.endswith(".json") and each[:-5].isdigit()), default=-1)
    if version > newest:
        message = f"the replica of {name} has version {version}, and the table {newest}: commits are lost here"
        raise Corrupt(message, subject=name)
    while version >= 0 and (file := commit_file(table, version)).is_file():
        there = place.read(f"{name}/{LOG}/{file.name}") or b""
        if there == file.read_bytes():
            break
        version -= 1  # a machine that loses its power may leave the beginning of a file
    return version


def _needed(table: Path, version: int) -> set[str]:
    """Return the files that a version of a table has rows in.

    Raises:
        Unavailable: There is no table any more, for example because a volume is not mounted.
    """
    found = read_data_files(table, version)
    if found is None or found.version != version:
        message = f"{table} has no version {version}: is its volume mounted?"
        raise Unavailable(message, subject=table.name)
    require_readable(table, found)
    return {unquote(file.path) for file in found.files}


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
