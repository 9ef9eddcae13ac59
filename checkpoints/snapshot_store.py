"""Snapshots of a job's stores, in a folder or an object store: complete, verified and incremental.

```
<url>/manifests/20300131T120000Z-000000004711.json   the files of a snapshot; written last: its existence means complete
<url>/files/<sha256>                                 a file of RocksDB, shared by all snapshots that contain it
```

RocksDB never changes an SST file, so a new snapshot of a large state adds only the few new files. It trusts no stored
file for longer than a day: one that has changed since would spoil every snapshot that shares it, and is stored again.
"""

import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import fsspec
import msgspec
import structlog
from fsspec.implementations.local import LocalFileSystem

from checkpoints.applied import Applied
from checkpoints.snapshot_retention import SnapshotRetention
from checkpoints.storage_errors import is_of_one_file, storage_errors, supported
from popstream.wire.base_errors import Corrupt
from popstream.wire.decode_errors import DECODE_ERRORS

__all__ = ["DamagedSnapshot", "Snapshot", "SnapshotFile", "SnapshotStore"]

_log = structlog.get_logger(__name__)

_DAY_MS = 86_400_000
_WITH_CHECKSUM = 2
"""Version of the manifests that have one."""


class DamagedSnapshot(Corrupt):
    """A stored file is missing or damaged.

    Attributes:
        sha256: The content that it should have: other snapshots may share the file.
    """

    def __init__(self, message: str, snapshot_id: str, sha256: str) -> None:
        super().__init__(message, subject=snapshot_id)
        self.sha256 = sha256


class SnapshotFile(msgspec.Struct, frozen=True):
    """One file: its path in the snapshot, and its content."""

    path: str
    sha256: str
    size: int


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The manifest of a snapshot.

    Attributes:
        id: Its name.
        taken_at_ms: When it was taken, ms since 1970 by the clock of the machine that took it.
        applied: How far its state has decided the log.
        files: Its files.
        version: Of the manifest; the first one had no checksum.
        checksum: SHA-256 of the manifest without it.
    """

    id: str
    taken_at_ms: int
    applied: Applied
    files: list[SnapshotFile]
    version: int = 1
    checksum: str = ""

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

    def shares(self, sha256: str) -> bool:
        """Return whether a file with this content is one of its own."""
        return any(file.sha256 == sha256 for file in self.files)


class SnapshotStore:
    """The location of a job's snapshots. Only one job writes to it.

    Args:
        url: A path, or any URL that fsspec supports. The package of an object store must be installed.

    Raises:
        Invalid: fsspec does not support the URL.
    """

    def __init__(self, url: str) -> None:
        with supported(url, f"snapshots cannot be kept at {url}"):
            self._files: Any
            self._files, self._root = fsspec.core.url_to_fs(url)
        self.url = url

    def put(
        self,
        folder: Path,
        applied: Applied,
        taken_at_ms: int,
        verify: Callable[[Path], None] | None = None,
        *,
        reads_all: bool = True,
    ) -> Snapshot:
        """Store every file below `folder` as a snapshot.

        Args:
            folder: Its files.
            applied: How far its state has decided the log.
            taken_at_ms: When it was taken.
            verify: Called with each file that is not stored yet, or that is damaged there, before any is stored.
            reads_all: Read all stored files that it shares. Otherwise those whose turn it is since the last snapshot:
                each has one moment of the day, by its name, so that all are read within a day.

        Raises:
            Unavailable: The location cannot be written to. An incomplete snapshot is ignored later.
            Corrupt: Raised by `verify`.
        """
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(taken_at_ms / 1000))
        files = [
            SnapshotFile(str(path.relative_to(folder)), _sha256(path), path.stat().st_size)
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        ]
        snapshot = Snapshot(
            id=f"{stamp}-{applied.apply_seq:012d}",
            taken_at_ms=taken_at_ms,
            applied=applied,
            files=files,
            version=_WITH_CHECKSUM,
        )
        snapshot = msgspec.structs.replace(snapshot, checksum=_checksum(msgspec.json.encode(snapshot)))
        with storage_errors(self._files, self.url, f"the snapshot cannot be kept at {self.url}"):
            self._files.makedirs(f"{self._root}/files", exist_ok=True)
            self._files.makedirs(f"{self._root}/manifests", exist_ok=True)
            last_ms = 0 if reads_all else max((kept.taken_at_ms for kept in self.list()), default=0)
            new = [
                file for file in files if not self._has(file, is_read=reads_all or _is_due(file, last_ms, taken_at_ms))
            ]
            if verify is not None:
                for file in new:
                    verify(folder / file.path)
            for file in new:
                self._store(folder / file.path, self._place(file))
            self._files.pipe_file(self._manifest(snapshot.id), msgspec.json.encode(snapshot))
            self._sync(self._manifest(snapshot.id))
        return snapshot

    def list(self) -> list[Snapshot]:
        """Return the complete snapshots, the newest first. Unreadable manifests are skipped.

        Raises:
            Unavailable: The location cannot be read.
        """
        found = []
        with storage_errors(self._files, self.url, f"snapshots cannot be read from {self.url}"):
            for name in self._listed("manifests"):
                snapshot = self._read_manifest(name)
                if isinstance(snapshot, str):
                    _log.warning("manifest_unreadable", name=name, error=snapshot)
                elif snapshot is not None:
                    found.append(snapshot)
        return sorted(found, key=lambda snapshot: snapshot.id, reverse=True)

    def _listed(self, part: str) -> Iterable[str]:
        try:
            names: Iterable[str] = self._files.ls(f"{self._root}/{part}", detail=False)
        except FileNotFoundError:
            return ()
        return names

    def _read_manifest(self, name: str) -> Snapshot | str | None:
        """Return a snapshot, or why its manifest cannot be read; None: a running job has deleted it meanwhile."""
        try:
            stored = self._files.cat_file(name)
            snapshot = msgspec.json.decode(stored, type=Snapshot)
            if name.rpartition("/")[2] != f"{snapshot.id}.json":
                return f"it is that of {snapshot.id}"
            return "its checksum differs" if _has_changed(snapshot, stored) else snapshot
        except DECODE_ERRORS as error:
            return str(error)
        except FileNotFoundError:
            return None
        except OSError as error:
            if not is_of_one_file(error):
                raise
            return str(error)

    def fetch(self, snapshot: Snapshot, folder: Path) -> None:
        """Copy the files of a snapshot to `folder`, and verify their hashes.

        Raises:
            DamagedSnapshot: A file is missing or damaged.
            Unavailable: The location cannot be read.
        """
        for file in snapshot.files:
            target = folder / file.path
            if Path(file.path).is_absolute() or ".." in Path(file.path).parts:
                message = (
                    f"snapshot {snapshot.id} is damaged: its manifest names {file.path!r}, outside of the snapshot"
                )
                raise DamagedSnapshot(message, snapshot.id, file.sha256)
            target.parent.mkdir(parents=True, exist_ok=True)
            problem = None
            with storage_errors(self._files, self.url, f"snapshot {snapshot.id} cannot be read from {self.url}"):
                try:
                    self._files.get_file(self._place(file), str(target))
                    if not target.is_file() or _sha256(target) != file.sha256:
                        problem = f"is damaged: {file.path} is not what it was"
                except FileNotFoundError:
                    problem = f"lacks {file.path}"
                except OSError as error:
                    if not is_of_one_file(error):
                        raise
                    problem = f"is damaged: {file.path} cannot be read: {error}"
            if problem is not None:
                message = f"snapshot {snapshot.id} {problem}"
                raise DamagedSnapshot(message, snapshot.id, file.sha256)

    def prune(self, retention: SnapshotRetention) -> int:
        """Delete the snapshots that are not to be kept, with the files that only they use; return their number.

        Raises:
            Unavailable: The location cannot be read or changed.
        """
        snapshots = self.list()
        times = retention.kept([snapshot.taken_at_ms for snapshot in snapshots])
        old = [snapshot for snapshot in snapshots if snapshot.taken_at_ms not in times]
        kept = {file.sha256 for snapshot in snapshots if snapshot.taken_at_ms in times for file in snapshot.files}
        with storage_errors(self._files, self.url, f"old snapshots cannot be deleted from {self.url}"):
            for snapshot in old:
                self._files.rm_file(self._manifest(snapshot.id))
            for name in self._listed("files") if old else ():
                if name.rpartition("/")[2] not in kept:
                    self._files.rm_file(name)
        return len(old)

    def _has(self, file: SnapshotFile, *, is_read: bool) -> bool:
        """Return whether a file is stored: with its size, and if it `is_read`, with its content."""
        place = self._place(file)
        try:
            if self._files.info(place)["size"] != file.size:
                return False
            if not is_read:
                return True
            with self._files.open(place, "rb") as stored:
                is_same = hashlib.file_digest(stored, "sha256").hexdigest() == file.sha256
        except FileNotFoundError:
            return False
        except OSError as error:
            if not is_of_one_file(error):
                raise
            is_same = False
        if not is_same:
            _log.warning("stored_file_damaged", file=file.path, sha256=file.sha256, url=self.url)
        return is_same

    def _store(self, file: Path, place: str) -> None:
        """Store a file; on a local disk beside what is damaged there, whose sectors may take nothing any more."""
        if not isinstance(self._files, LocalFileSystem):
            self._files.put_file(str(file), place)
            return
        fresh = f"{place}.new"
        self._files.put_file(str(file), fresh)
        self._sync(fresh)
        if Path(place).is_dir():
            shutil.rmtree(place)
        Path(fresh).replace(place)
        self._sync(place)

    def _place(self, file: SnapshotFile) -> str:
        return f"{self._root}/files/{file.sha256}"

    def _manifest(self, snapshot_id: str) -> str:
        return f"{self._root}/manifests/{snapshot_id}.json"

    def _sync(self, name: str) -> None:
        """Make a file on a local disk survive a power loss."""
        if isinstance(self._files, LocalFileSystem):
            for path in (Path(name), Path(name).parent):
                descriptor = os.open(path, os.O_RDONLY)
                try:
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)


def _has_changed(snapshot: Snapshot, stored: bytes) -> bool:
    """Return whether a manifest is not as it was written. A wrong offset in it looks like a log without its end."""
    has_none = snapshot.version < _WITH_CHECKSUM and not snapshot.checksum
    return not has_none and snapshot.checksum != _checksum(stored)


def _checksum(manifest: bytes) -> str:
    """Return the checksum of everything else in a manifest, also of fields that only another version knows."""
    fields: dict[str, Any] = msgspec.json.decode(manifest)
    fields.pop("checksum", None)
    return hashlib.sha256(msgspec.json.encode(fields)).hexdigest()


def _is_due(file: SnapshotFile, last_ms: int, now_ms: int) -> bool:
    """Return whether the moment of the day at which a stored file is read lies after `last_ms`, up to `now_ms`.

    >>> noon = SnapshotFile("1.sst", "8" + "0" * 63, 1)
    >>> day = 86_400_000
    >>> [_is_due(noon, day // 4, day * 3 // 4), _is_due(noon, day * 3 // 4, day), _is_due(noon, day * 3 // 4, 2 * day)]
    [True, False, True]
    """
    moment_ms = int(file.sha256[:8], 16) * _DAY_MS >> 32
    return (last_ms - moment_ms) // _DAY_MS < (now_ms - moment_ms) // _DAY_MS


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
