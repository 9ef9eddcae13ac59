"""Claim: an error after a commit deletes none of its files, of any writer; one before it leaves none.

Method: the folder of the log cannot be synced, which is the last thing that a commit does; or the disk is full when a
data file is opened, written or closed, or when the commit is written or synced.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from connectors.delta.compaction import compact
from connectors.delta.erasure import Wanted, erase
from connectors.delta.log.uncommitted_files import deleted_unless_committed
from connectors.delta.tables import TABLES, table_path
from tests.support.delta_files import create_failed_deliveries
from tests.support.written_rows import FIRST, rows_of, writer

if TYPE_CHECKING:
    from collections.abc import Callable

DELIVERIES = TABLES["deliveries"]


def flush(root: Path) -> None:
    writer(root, DELIVERIES).append([rows_of(DELIVERIES, FIRST)], 1)


WAYS: dict[str, Callable[[Path], object]] = {
    "compaction": lambda root: compact(root, DELIVERIES),
    "erasure": lambda root: erase(root, "deliveries", Wanted(text="alice")),
    "flush": flush,
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Three files with a row each."""
    create_failed_deliveries(tmp_path)
    return tmp_path


def on_disk(root: Path) -> set[str]:
    table = table_path(root, "deliveries")
    return {str(file.relative_to(table)) for file in table.rglob("*.parquet")}


@pytest.fixture
def failing_sync(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every fsync of the folder of the log fail once there is one more commit."""
    log = root / "deliveries" / "_delta_log"
    links: list[Any] = []
    link, fsync = os.link, os.fsync

    def noted_link(source: Path, target: Path) -> None:
        link(source, target)
        links.append(target)

    def fail(descriptor: int) -> None:
        if links and Path(f"/proc/self/fd/{descriptor}").readlink() == log:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        fsync(descriptor)

    monkeypatch.setattr(os, "link", noted_link)
    monkeypatch.setattr(os, "fsync", fail)


@pytest.mark.usefixtures("failing_sync")
@pytest.mark.parametrize("way", WAYS)
def test_a_commit_that_cannot_be_synced_keeps_its_files(root: Path, way: str) -> None:
    before = DeltaTable(root / "deliveries").version()
    with pytest.raises(OSError, match="Input/output error"):
        WAYS[way](root)
    table = DeltaTable(root / "deliveries")
    assert table.version() == before + 1
    assert table.to_pyarrow_table().num_rows == (3 if way != "flush" else 23)


@pytest.mark.usefixtures("failing_sync")
def test_old_files_are_deleted_once_the_commit_without_them_is_on_the_disk(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The erasure that made it has failed to sync it; the next one has nothing to commit."""
    with pytest.raises(OSError, match="Input/output error"):
        erase(root, "deliveries", Wanted(text="alice"))
    synced: set[Path] = set()
    synced_before: list[set[Path]] = []
    unlink = Path.unlink

    def noted_unlink(file: Path, *, missing_ok: bool = False) -> None:
        synced_before.append({*synced})
        unlink(file, missing_ok=missing_ok)

    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.add(Path(f"/proc/self/fd/{descriptor}").readlink()))
    monkeypatch.setattr(Path, "unlink", noted_unlink)
    assert erase(root, "deliveries", Wanted(text="alice")).old_files == 3
    log = root / "deliveries" / "_delta_log"
    version = DeltaTable(root / "deliveries").version()
    assert {log, log / f"{version:020d}.json"} <= synced_before[0]


@pytest.mark.parametrize("way", WAYS)
def test_a_commit_that_is_not_made_leaves_no_file(root: Path, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a signal, for example."""
    before = on_disk(root)

    def interrupt(*_: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "link", interrupt)
    with pytest.raises(KeyboardInterrupt):
        WAYS[way](root)
    assert on_disk(root) == before


@pytest.mark.parametrize("step", ["__init__", "write_table", "close"])
@pytest.mark.parametrize("way", WAYS)
def test_a_full_disk_leaves_no_file(root: Path, way: str, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor an empty one, whose first bytes it does not take: a flush is retried, with another file each time."""
    before = on_disk(root)
    real = getattr(pq.ParquetWriter, step)

    def refuse(writer: pq.ParquetWriter, *given: Any, **options: Any) -> None:
        real(writer, *given, **options)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(pq.ParquetWriter, step, refuse)
    with pytest.raises(OSError, match="No space left"):
        WAYS[way](root)
    assert on_disk(root) == before


@pytest.mark.parametrize("step", ["write", "sync"])
@pytest.mark.parametrize("way", WAYS)
def test_a_full_disk_at_the_commit_itself_changes_nothing(
    root: Path, way: str, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was written of the commit has no version yet. With free space it is made, once."""
    before, version = on_disk(root), DeltaTable(root / "deliveries").version()
    refused: list[Path] = []
    write_bytes, fsync = Path.write_bytes, os.fsync

    def refuse(file: Path) -> None:
        refused.append(file)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def write_half(file: Path, data: bytes) -> None:
        assert file.suffix == ".commit"
        write_bytes(file, data[: len(data) // 2])
        refuse(file)

    def fail(descriptor: int) -> None:
        file = Path(f"/proc/self/fd/{descriptor}").readlink()
        fsync(descriptor)
        if file.suffix == ".commit":
            refuse(file)

    with monkeypatch.context() as full:
        if step == "write":
            full.setattr(Path, "write_bytes", write_half)
        else:
            full.setattr(os, "fsync", fail)
        with pytest.raises(OSError, match="No space left"):
            WAYS[way](root)
    assert [file.exists() for file in refused] == [False]
    assert on_disk(root) == before
    table = DeltaTable(root / "deliveries")
    assert (table.version(), table.to_pyarrow_table().num_rows) == (version, 3)
    WAYS[way](root)
    table = DeltaTable(root / "deliveries")
    assert (table.version(), table.to_pyarrow_table().num_rows) == (version + 1, 23 if way == "flush" else 3)


def test_all_files_stay_if_the_log_cannot_be_read(root: Path) -> None:
    before = on_disk(root)
    (root / "deliveries" / "_delta_log" / f"{2:020d}.json").write_text("{")
    with pytest.raises(RuntimeError, match="of the block"), deleted_unless_committed(root / "deliveries", 0, before):
        raise RuntimeError("of the block")
    assert on_disk(root) == before
