"""A replica of the tables at a URL, for readers on other machines; the tables of the job stay where they are.

Each commit is copied as it is, after the files that it names, so that a reader of the replica sees one whole version of
a table after the other. A job that dies in between goes on with the next commit. Nothing is ever changed there: a
replica whose commits are not those of the tables is refused. What maintenance and `popstream erase` have deleted here
is deleted there when a job starts, and once an hour.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import fsspec
import msgspec

from checkpoints.storage_errors import storage_errors
from connectors.delta.damage import how_to_repair
from connectors.delta.log.commits import commit_file, read_commit, sync_commits
from connectors.delta.log.table_log import checkpoints_of, newest_version, read_data_files
from connectors.delta.tables import TABLES, table_path
from popstream.wire.base_errors import Corrupt, Invalid
from popstream.wire.decode_errors import DECODE_ERRORS

__all__ = ["TableReplica"]

SWEEP_S = 3_600.0
LOG = "_delta_log"
LAST_CHECKPOINT = "_last_checkpoint"
_PART: Final = ".part"
_OBJECT_STORES: Final = frozenset(("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "oss", "oci", "memory"))
"""Where a file is there when all of it is. Elsewhere it is written under another name first."""


class TableReplica:
    """The replica of all tables of a job. Not thread-safe.

    Args:
        root: Folder of the tables.
        url: Where the replica is: a path, or a URL that fsspec supports. The package of an object store must be
            installed.
        require_ownership: Raises when another job may write to the replica.

    Raises:
        Invalid: fsspec does not support the URL.
    """

    def __init__(self, root: Path, url: str, require_ownership: Callable[[], None] = lambda: None) -> None:
        self._root = root
        self._url = url
        self._require_ownership = require_ownership
        self._versions: dict[str, int] = {}
        """The newest version there, by table, since this process has looked."""
        self._hints: dict[str, bytes] = {}
        """What `_last_checkpoint` of a table has there."""
        self._swept_s = float("-inf")
        self._caught_up_s = time.monotonic()
        try:
            self._files: Any
            self._files, self._base = fsspec.core.url_to_fs(url)
        except (ValueError, ImportError) as error:
            message = f"tables cannot be copied to {url}: {error}"
            raise Invalid(message, subject=url) from error
        protocols = self._files.protocol
        self._is_object_store = not _OBJECT_STORES.isdisjoint([protocols] if isinstance(protocols, str) else protocols)

    def catch_up(self) -> None:
        """Copy the commits that are not there yet, and at first and once an hour delete what is not here any more.

        Raises:
            Invalid: The replica has other commits: it is that of other tables.
            Corrupt: A file of the tables is missing or damaged.
            Unavailable: The place does not answer, or refuses.
            Fenced: Another job has taken the prefix.
        """
        is_due = time.monotonic() - self._swept_s >= SWEEP_S
        with storage_errors(self._files, self._url, f"the tables cannot be copied to {self._url}"):
            for name in TABLES:
                if self._newest(name) >= 0:
                    self._copy_commits(name)
                    self._copy_last_checkpoint(name)
                    if is_due:
                        self._delete_unused(name)
        self._caught_up_s = time.monotonic()
        if is_due:
            self._swept_s = self._caught_up_s

    @property
    def lag_s(self) -> float:
        """Seconds since the replica had every commit, or since the job began."""
        return time.monotonic() - self._caught_up_s

    def _newest(self, name: str) -> int:
        """Return the newest version of a table here; -1: there is no table."""
        table = table_path(self._root, name)
        version = self._versions.get(name)
        if version is None:
            return newest_version(table)
        while commit_file(table, version + 1).is_file():
            version += 1
        return version

    def _copy_commits(self, name: str) -> None:
        """Copy the commits of a table that are not there, after the files that they name."""
        table, newest = table_path(self._root, name), self._newest(name)
        versions = range(self._version_there(name, newest) + 1, newest + 1)
        commits = [read_commit(table, version) for version in versions]
        if None in commits:  # those of that time are deleted: begin with a checkpoint
            versions = self._copy_base(name, newest)
        found = [commit for commit in commits if commit is not None]
        # First: a commit that a loss of power takes back here would be one of another table there.
        sync_commits(table, found)
        for path in sorted({path for commit in found for path in commit.added_paths}):
            # A file that was compacted since, a week ago, may be gone.
            if not self._put(name, path) and path in _needed(table):
                message = f"{table / path} is missing: {how_to_repair(name)}"
                raise Corrupt(message, subject=name)
        for version in versions:
            self._require_ownership()
            self._put(name, f"{LOG}/{commit_file(table, version).name}")
            self._versions[name] = version

    def _copy_base(self, name: str, newest: int) -> range:
        """Copy the newest checkpoint of a table with all that it needs, and return the versions from it on."""
        table = table_path(self._root, name)
        checkpoints = checkpoints_of(table)
        if not checkpoints:
            message = f"the log of {name} lacks commits, and has no checkpoint of them: {how_to_repair(name)}"
            raise Corrupt(message, subject=name)
        version, files = checkpoints[-1]
        self._files.invalidate_cache()
        there = {str(found).removeprefix(f"{self._base}/{name}/") for found in self._files.find(f"{self._base}/{name}")}
        for path in sorted(_needed(table) - there):
            self._put(name, path)
        self._require_ownership()
        for file in files:
            self._put(name, f"{LOG}/{file.name}")
        return range(version, newest + 1)

    def _copy_last_checkpoint(self, name: str) -> None:
        """Copy the checkpoint that readers begin with, and then the file that names it."""
        table = table_path(self._root, name)
        hint = table / LOG / LAST_CHECKPOINT
        content = hint.read_bytes() if hint.is_file() else b""
        if content == self._hints.get(name, b""):
            return
        files = dict(checkpoints_of(table)).get(_version_in(content), [])
        if files and _version_in(content) <= self._versions[name]:
            for file in files:
                self._put(name, f"{LOG}/{file.name}")
            self._put(name, f"{LOG}/{LAST_CHECKPOINT}")
            self._hints[name] = content

    def _version_there(self, name: str, newest: int) -> int:
        """Return the newest version of a table that is there and is the same here; -1: there is none."""
        if name in self._versions:
            return self._versions[name]
        log = f"{self._base}/{name}/{LOG}"
        found = [int(each[:-5]) for each in self._names(log) if each.endswith(".json") and each[:-5].isdigit()]
        version = max(found, default=-1)
        if version > newest:
            raise self._of_others(name, f"has version {version}, and the table {newest}")
        file = commit_file(table_path(self._root, name), max(version, 0))
        if version >= 0 and file.is_file():
            there, here = self._files.cat_file(f"{log}/{file.name}"), file.read_bytes()
            if not here.startswith(there):
                raise self._of_others(name, f"has another version {version}")
            if there != here:  # a machine that loses its power may leave the beginning of a file
                version -= 1
        self._versions[name] = version
        return version

    def _of_others(self, name: str, why: str) -> Invalid:
        message = (
            f"{self._url}/{name} is the replica of another table: it {why}. Delete it there, or name another place in"
            " `tables_replica`"
        )
        return Invalid(message, subject=name)

    def _delete_unused(self, name: str) -> None:
        """Delete files of a table that are not here any more, but none that the newest version needs."""
        table = table_path(self._root, name)
        base, needed = f"{self._base}/{name}", _needed(table)
        # Of the log what Delta has deleted here, too: what is before a checkpoint.
        oldest = min((version for version, _ in checkpoints_of(table)), default=0) if self._hints.get(name) else 0
        self._files.invalidate_cache()
        for found in self._files.find(base):
            path = str(found).removeprefix(f"{base}/")
            folder, _, file = path.rpartition("/")
            is_log = folder == LOG
            is_old = not is_log or (file[:20].isdigit() and int(file[:20]) < oldest)
            if is_old and path not in needed and not (table / path).exists():
                self._files.rm_file(found)

    def _put(self, name: str, path: str) -> bool:
        """Copy a file of a table. False: it is not here."""
        source = table_path(self._root, name) / path
        target = f"{self._base}/{name}/{path}"
        if not source.is_file():
            return False
        if self._is_object_store:
            self._files.put_file(str(source), target)
            return True
        self._files.makedirs(target.rpartition("/")[0], exist_ok=True)
        self._files.put_file(str(source), target + _PART)
        self._files.mv(target + _PART, target)
        return True

    def _names(self, folder: str) -> Iterator[str]:
        try:
            found: Iterable[str] = self._files.ls(folder, detail=False)
        except FileNotFoundError:
            return
        for each in found:
            yield each.rpartition("/")[2]


def _needed(table: Path) -> set[str]:
    """Return the files that the newest version of a table has rows in."""
    found = read_data_files(table)
    return set() if found is None else {unquote(file.path) for file in found.files}


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
