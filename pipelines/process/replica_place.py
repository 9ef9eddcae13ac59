"""The place of replicas: files in a folder or in an object store, each of which appears as a whole."""

import secrets
from collections.abc import Callable
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
    """A folder: in a file system of fsspec, by its path there, and as it is shown to people."""

    files: Any
    path: str
    shown: str

    def __str__(self) -> str:
        """Return it as it may be logged."""
        return self.shown

    def below(self, name: str) -> "ReplicaPlace":
        """Return a folder in it."""
        return ReplicaPlace(self.files, f"{self.path}/{name}", f"{self.shown}/{name}")

    def names(self, folder: str = "") -> list[str]:
        """Return the names in it or in a folder of it, which need not exist."""
        self.files.invalidate_cache()
        try:
            found = self.files.ls(f"{self.path}/{folder}".rstrip("/"), detail=False)
        except FileNotFoundError:
            return []
        return [str(each).rstrip("/").rpartition("/")[2] for each in found]

    def sizes(self) -> dict[str, int]:
        """Return the size of each file in it and in its folders, by path."""
        self.files.invalidate_cache()
        found: dict[str, dict[str, Any]] = self.files.find(f"{self.path}/", detail=True)
        return {path.removeprefix(f"{self.path}/"): facts["size"] for path, facts in found.items()}

    def read(self, path: str) -> bytes | None:
        """Return the content of a file; None: it is not there."""
        try:
            content: bytes = self.files.cat_file(f"{self.path}/{path}")
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
        self.files.rm_file(f"{self.path}/{path}")

    def _made_whole(self, path: str, make: Callable[[str], object]) -> None:
        target = f"{self.path}/{path}"
        protocol = self.files.protocol
        if not _OBJECT_STORES.isdisjoint([protocol] if isinstance(protocol, str) else protocol):
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
