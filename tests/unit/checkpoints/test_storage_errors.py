"""Claim: a damaged file of the storage costs its own snapshot alone, and a storage that fails is told by a code.

Method: snapshots in a folder of which some reads fail, and in a file system of fsspec that raises what packages of
object stores let out.
"""

from __future__ import annotations

import errno
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Never

import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from checkpoints.applied import Applied
from checkpoints.snapshot_retention import SnapshotRetention
from checkpoints.snapshot_store import DamagedSnapshot, Snapshot, SnapshotStore
from pipelines.cli.tables.table_copy import copied_tables
from popstream.wire.base_errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable

MS = 1_900_000_000_000
HOUR_MS = 3_600_000


class NoCredentialsError(Exception):
    """Of an object store's package: no OSError."""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "1.sst").write_bytes(b"one")
    return tmp_path / "source"


@pytest.fixture
def store(tmp_path: Path) -> SnapshotStore:
    return SnapshotStore(str(tmp_path / "snapshots"))


def taken(store: SnapshotStore, source: Path, number: int, *, reads_all: bool = True) -> Snapshot:
    applied = Applied(state_epoch="e", ops_topic="ops", ops_topic_id="t", apply_seq=number, next_offset={0: number})
    return store.put(source, applied, MS + number * HOUR_MS, reads_all=reads_all)


def stored(store: SnapshotStore, snapshot: Snapshot) -> Path:
    return Path(store.url, "files", snapshot.files[0].sha256)


def unreadable(monkeypatch: pytest.MonkeyPatch, damaged: Path) -> None:
    """Let the disk fail at each read of a file."""
    real_open, real_copy = LocalFileSystem._open, shutil.copyfile

    def failing_open(self: LocalFileSystem, path: str, mode: str = "rb", **options: Any) -> Any:
        if "r" in mode and Path(path) == damaged:
            raise OSError(errno.EIO, "Input/output error", path)
        return real_open(self, path, mode, **options)

    def failing_copy(from_path: str, to_path: str, **options: Any) -> Any:
        if Path(from_path) == damaged:
            raise OSError(errno.EIO, "Input/output error", from_path)
        return real_copy(from_path, to_path, **options)

    monkeypatch.setattr(LocalFileSystem, "_open", failing_open)
    monkeypatch.setattr(shutil, "copyfile", failing_copy)


def test_an_unreadable_file_is_a_damaged_snapshot(
    store: SnapshotStore, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = taken(store, source, 1)
    unreadable(monkeypatch, stored(store, snapshot))
    with pytest.raises(DamagedSnapshot, match=r"is damaged: 1.sst cannot be read: .*Input/output error"):
        store.fetch(snapshot, tmp_path / "copy")


def test_an_unreadable_file_is_stored_anew_by_the_snapshot_that_reads_it(
    store: SnapshotStore, source: Path, tmp_path: Path
) -> None:
    snapshot = taken(store, source, 1)
    with pytest.MonkeyPatch.context() as patched:
        unreadable(patched, stored(store, snapshot))
        taken(store, source, 2)
    store.fetch(snapshot, tmp_path / "copy")
    assert (tmp_path / "copy" / "1.sst").read_bytes() == b"one"
    assert not list(Path(store.url, "files").glob("*.new"))


def test_a_folder_in_place_of_a_file_is_damage_that_the_next_snapshot_mends(
    store: SnapshotStore, source: Path, tmp_path: Path
) -> None:
    snapshot = taken(store, source, 1)
    stored(store, snapshot).unlink()
    stored(store, snapshot).mkdir()
    with pytest.raises(DamagedSnapshot, match=r"is damaged: 1.sst is not what it was"):
        store.fetch(snapshot, tmp_path / "copy")
    shutil.rmtree(tmp_path / "copy")
    store.fetch(taken(store, source, 2), tmp_path / "copy")


@pytest.mark.parametrize("how", ["unreadable", "folder"])
def test_one_bad_manifest_hides_no_other_snapshot(
    store: SnapshotStore, source: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    first, second = taken(store, source, 1), taken(store, source, 2)
    manifest = Path(store.url, "manifests", f"{second.id}.json")
    if how == "folder":
        manifest.unlink()
        manifest.mkdir()
    else:
        unreadable(monkeypatch, manifest)
    assert store.list() == [first]
    taken(store, source, 3)


@pytest.mark.parametrize("call", ["put", "list", "fetch", "prune", "tables"])
def test_what_the_package_of_an_object_store_raises_is_unavailable(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    store = SnapshotStore("memory://snapshots")
    snapshot = taken(store, source, 1)

    def refuse(*_: Any, **__: Any) -> Never:
        message = "Unable to locate credentials"
        raise NoCredentialsError(message)

    for name in ("ls", "cat_file", "get_file", "put_file", "pipe_file", "makedirs", "isdir", "info"):
        monkeypatch.setattr(MemoryFileSystem, name, refuse)
    calls: dict[str, Callable[[], object]] = {
        "put": lambda: taken(store, source, 2),
        "list": store.list,
        "fetch": lambda: store.fetch(snapshot, tmp_path / "copy"),
        "prune": lambda: store.prune(SnapshotRetention(newest=1)),
        "tables": copied_tables("memory://tables").__enter__,
    }
    with pytest.raises(Unavailable, match=r"memory://.*: NoCredentialsError: Unable to locate credentials$"):
        calls[call]()
    MemoryFileSystem.store.clear()
