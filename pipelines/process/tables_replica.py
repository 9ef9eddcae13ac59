"""A replica of the tables at a URL, for readers on other machines; the tables of the job stay where they are."""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import fsspec
from fsspec.implementations.local import LocalFileSystem

from checkpoints.storage_errors import storage_errors, supported
from connectors.delta.tables import TABLES, table_path
from pipelines.process.replica_place import ReplicaPlace, shown_url
from pipelines.process.table_replica import TableReplica
from popstream.wire.base_errors import Fenced, Invalid, PopstreamError, Unavailable

__all__ = ["TablesReplica"]


class TablesReplica:
    """The replicas of all tables of a job. Not thread-safe, but for `give_up`.

    Args:
        root: Folder of the tables.
        url: Where the replicas are: a path, or a URL that fsspec supports. The package of an object store must be
            installed.
        write_checkpoint: Lets Delta write a checkpoint of a table's newest version.
        require_ownership: Raises when another job may write there.

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
        self._url = url
        self._shown_url = shown_url(url)
        self._require_ownership = require_ownership
        self._place: ReplicaPlace | None = None
        self._tables = {
            name: TableReplica(table_path(root, name), write_checkpoint, self._require_may_change) for name in TABLES
        }
        self._is_given_up = False
        self._caught_up_s = time.monotonic()
        protocol, path = fsspec.core.split_protocol(url)
        with supported(self._shown_url, f"tables cannot be copied to {self._shown_url}"):
            is_local = issubclass(fsspec.get_filesystem_class(protocol or "file"), LocalFileSystem)
        if is_local:
            there, here = Path(path).expanduser().resolve(), root.resolve()
            if there == here or there in here.parents or here in there.parents:
                message = f"tables_replica {self._shown_url} is the folder of the tables, or one in or around it"
                raise Invalid(message, subject=self._shown_url)

    @property
    def lag_s(self) -> float:
        """Seconds since the replicas had every commit, or since the job began."""
        return time.monotonic() - self._caught_up_s

    def give_up(self) -> None:
        """Let a copy in progress, in another thread, end with the file that it copies."""
        self._is_given_up = True

    def catch_up(self) -> None:
        """Let each replica catch up. An error in one table does not affect the others, and is raised at the end.

        Raises:
            Unavailable: The place does not answer or refuses; or it has another table, or a file here is damaged, which
                may be mended while the job runs.
            Fenced: Another job has taken the prefix.
        """
        failures: list[PopstreamError] = []
        for name, table in self._tables.items():
            try:
                # Without the file system: it may be what cannot be opened.
                with storage_errors(None, self._shown_url, f"{name} cannot be copied to {self._shown_url}"):
                    table.catch_up(partial(self._opened, name))
            except Fenced:
                raise
            except PopstreamError as error:
                failures.append(error)
                self._place = None  # connections are opened anew
        if failures:
            raise Unavailable("; ".join(error.message for error in failures), subject=self._shown_url)
        self._caught_up_s = time.monotonic()

    def _opened(self, name: str) -> ReplicaPlace:
        if self._place is None:
            files, root = fsspec.core.url_to_fs(self._url, skip_instance_cache=True)
            self._place = ReplicaPlace(files, str(root), self._shown_url)
        return self._place.below(name)

    def _require_may_change(self) -> None:
        if self._is_given_up:
            message = "the job stops"
            raise Unavailable(message)
        self._require_ownership()
