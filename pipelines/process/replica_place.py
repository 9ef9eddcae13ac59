"""The place of replicas: files in a folder or in an object store, each of which appears as a whole."""

import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from fsspec.implementations.local import LocalFileSystem

from connectors.delta.log.commits import sync

__all__ = ["PART", "ReplicaPlace", "shown_url"]

PART: Final = ".part"
_OBJECT_STORES: Final = frozenset(("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "oss", "oci", "memory"))
"""Where a file is there when all of it is. Elsewhere it is written under another name first."""


class ReplicaPlace(NamedTuple):
    """The folder of all replicas: a file system of fsspec, and a path in it."""

    files: Any
    base: str

    @property
    def is_object_store(self) -> bool:
        """Whether a file appears as a whole."""
        protocol = self.files.protocol
        return not _OBJECT_STORES.isdisjoint([protocol] if isinstance(protocol, str) else protocol)

    def names(self, folder: str) -> Iterator[str]:
        """Yield the names in a folder, which need not exist."""
        self.files.invalidate_cache()
        try:
            found = self.files.ls(f"{self.base}/{folder}", detail=False)
        except FileNotFoundError:
            return
        for each in found:
            yield str(each).rstrip("/").rpartition("/")[2]

    def sizes(self, name: str) -> dict[str, int]:
        """Return the size of each file in the folder of a table, by its path there."""
        self.files.invalidate_cache()
        folder = f"{self.base}/{name}/"
        found: dict[str, dict[str, Any]] = self.files.find(folder, detail=True)
        return {path.removeprefix(folder): facts["size"] for path, facts in found.items()}

    def read(self, path: str) -> bytes | None:
        """Return the content of a file; None: it is not there."""
        try:
            content: bytes = self.files.cat_file(f"{self.base}/{path}")
        except FileNotFoundError:
            return None
        return content

    def put(self, source: Path, path: str) -> None:
        """Copy a file there."""
        self._made_whole(path, lambda target: self.files.put_file(str(source), target))

    def write(self, path: str, content: bytes) -> None:
        """Write a small file there."""
        self._made_whole(path, lambda target: self.files.pipe_file(target, content))

    def delete(self, path: str) -> None:
        """Delete a file there."""
        self.files.rm_file(f"{self.base}/{path}")

    def _made_whole(self, path: str, make: Callable[[str], object]) -> None:
        target = f"{self.base}/{path}"
        if self.is_object_store:
            make(target)
            return
        folder = target.rpartition("/")[0]
        self.files.makedirs(folder, exist_ok=True)
        part = f"{target}.{secrets.token_hex(4)}{PART}"
        make(part)
        if isinstance(self.files, LocalFileSystem):
            sync(Path(part))
        self.files.mv(part, target)
        if isinstance(self.files, LocalFileSystem):
            sync(Path(folder))


def shown_url(url: str) -> str:
    """Return a URL as it may be logged: without a user's name and password.

    >>> shown_url("ftp://me:secret@host/tables"), shown_url("s3://bucket/tables"), shown_url("/data/tables")
    ('ftp://host/tables', 's3://bucket/tables', '/data/tables')
    """
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl() if "@" in parts.netloc else url
