"""Snapshots of a job's stores, in a folder or an object store: complete, verified and incremental.

```
<url>/manifests/20300131T120000Z-000000004711.json   the files of a snapshot; written last: its existence means complete
<url>/files/<sha256>                                 a file of RocksDB, shared by all snapshots that contain it
```

RocksDB never changes an SST file, so a new snapshot of a large state adds only the few new files.
"""

import hashlib
import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import msgspec
import structlog
from fsspec.implementations.local import LocalFileSystem

from checkpoints.applied import Applied
from checkpoints.snapshot_retention import SnapshotRetention
from popstream.wire.base_errors import Corrupt, Invalid, Unavailable
from popstream.wire.decode_errors import DECODE_ERRORS

__all__ = ["Snapshot", "SnapshotFile", "SnapshotStore"]

_log = structlog.get_logger(__name__)


class SnapshotFile(msgspec.Struct, frozen=True):
    """One file: its path in the snapshot, and its content."""

    path: str
    sha256: str
    size: int


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The manifest of a snapshot. `applied`: of its state; `taken_at_ms`: by the clock of the machine that took it."""

    id: str
    taken_at_ms: int
    applied: Applied
    files: list[SnapshotFile]
    version: int = 1

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)


class SnapshotStore:
    """The location of a job's snapshots. Only one job writes to it.

    Args:
        url: A path, or any URL that fsspec supports. The package of an object store must be installed.

    Raises:
        Invalid: fsspec does not support the URL.
    """

    def __init__(self, url: str) -> None:
        try:
            self._files: Any
            self._files, self._root = fsspec.core.url_to_fs(url)
        except (ValueError, ImportError) as error:
            message = f"snapshots cannot be kept at {url}: {error}"
            raise Invalid(message, subject=url) from error
        self.url = url

    def put(
        self, folder: Path, applied: Applied, taken_at_ms: int, verify: Callable[[Path], None] | None = None
    ) -> Snapshot:
        """Store every file below `folder` as a snapshot.

        Args:
            folder: Its files.
            applied: How far its state has decided the log.
            taken_at_ms: When it was taken.
            verify: Called with each file that is not stored yet, before any is stored.

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
            id=f"{stamp}-{applied.apply_seq:012d}", taken_at_ms=taken_at_ms, applied=applied, files=files
        )
        try:
            self._files.makedirs(f"{self._root}/files", exist_ok=True)
            self._files.makedirs(f"{self._root}/manifests", exist_ok=True)
            new = [file for file in files if not self._has(file)]
            if verify is not None:
                for file in new:
                    verify(folder / file.path)
            for file in new:
                self._files.put_file(str(folder / file.path), self._place(file))
                self._sync(self._place(file))
            self._files.pipe_file(self._manifest(snapshot.id), msgspec.json.encode(snapshot))
            self._sync(self._manifest(snapshot.id))
        except OSError as error:
            message = f"the snapshot cannot be kept at {self.url}: {error}"
            raise Unavailable(message, subject=self.url) from error
        return snapshot

    def list(self) -> list[Snapshot]:
        """Return the complete snapshots, the newest first. Unreadable manifests are skipped.

        Raises:
            Unavailable: The location cannot be read.
        """
        found = []
        try:
            names = self._files.ls(f"{self._root}/manifests", detail=False)
            for name in names:
                try:
                    snapshot = msgspec.json.decode(self._files.cat_file(name), type=Snapshot)
                    if name.rpartition("/")[2] == f"{snapshot.id}.json":
                        found.append(snapshot)
                    else:
                        _log.warning("manifest_unreadable", name=name, error=f"it is that of {snapshot.id}")
                except DECODE_ERRORS as error:
                    _log.warning("manifest_unreadable", name=name, error=str(error))
                except FileNotFoundError:
                    continue  # a running job has deleted it meanwhile
        except FileNotFoundError:
            return []
        except OSError as error:
            message = f"snapshots cannot be read from {self.url}: {error}"
            raise Unavailable(message, subject=self.url) from error
        return sorted(found, key=lambda snapshot: snapshot.id, reverse=True)

    def fetch(self, snapshot: Snapshot, folder: Path) -> None:
        """Copy the files of a snapshot to `folder`, and verify their hashes.

        Raises:
            Corrupt: A file is missing or damaged.
            Unavailable: The location cannot be read.
        """
        for file in snapshot.files:
            target = folder / file.path
            if Path(file.path).is_absolute() or ".." in Path(file.path).parts:
                message = (
                    f"snapshot {snapshot.id} is damaged: its manifest names {file.path!r}, outside of the snapshot"
                )
                raise Corrupt(message, subject=snapshot.id)
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                self._files.get_file(self._place(file), str(target))
            except FileNotFoundError as error:
                message = f"snapshot {snapshot.id} lacks {file.path}"
                raise Corrupt(message, subject=snapshot.id) from error
            except OSError as error:
                message = f"snapshot {snapshot.id} cannot be read from {self.url}: {error}"
                raise Unavailable(message, subject=self.url) from error
            if _sha256(target) != file.sha256:
                message = f"snapshot {snapshot.id} is damaged: {file.path} is not what it was"
                raise Corrupt(message, subject=snapshot.id)

    def prune(self, retention: SnapshotRetention) -> int:
        """Delete the snapshots that are not to be kept, with the files that only they use; return their number."""
        snapshots = self.list()
        times = retention.kept([snapshot.taken_at_ms for snapshot in snapshots])
        old = [snapshot for snapshot in snapshots if snapshot.taken_at_ms not in times]
        for snapshot in old:
            self._files.rm_file(self._manifest(snapshot.id))
        if old:
            kept = {file.sha256 for snapshot in snapshots if snapshot.taken_at_ms in times for file in snapshot.files}
            for name in self._unused(kept):
                self._files.rm_file(name)
        return len(old)

    def _unused(self, kept: Iterable[str]) -> Iterator[str]:
        names: Iterable[str] = self._files.ls(f"{self._root}/files", detail=False)
        return (name for name in names if name.rpartition("/")[2] not in kept)

    def _has(self, file: SnapshotFile) -> bool:
        try:
            return bool(self._files.info(self._place(file))["size"] == file.size)
        except FileNotFoundError:
            return False

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


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
