"""Claim: what a start reads of a table's log does not grow with the log: a checkpoint, and the commits after it.

Method: logs of about 100 and 10,000 commits, none of which is deleted, with a checkpoint every 50 commits, as the job
has them. Each read of a file is counted, and each listing of a folder.
"""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from deltalake import DeltaTable

from connectors.delta.log.commits import commit_file
from connectors.delta.log.table_log import DataFiles, read_data_files
from connectors.delta.log.transactions import app_id
from connectors.delta.log.write_commit import commit_info, txn_action
from connectors.delta.store import TABLE_CHECKPOINT_INTERVAL
from connectors.delta.tables import AUDIT_TABLES, table_path
from tests.support.delta_files import create_table
from tests.support.written_rows import version_of, writer

if TYPE_CHECKING:
    from collections.abc import Callable

TABLE = AUDIT_TABLES["operations"]
SHORT, LONG = 2, 200
"""Checkpoints."""
SINCE_CHECKPOINT = 7
"""Commits that no checkpoint covers."""

READERS: dict[str, Callable[[Path], int]] = {
    "log": lambda root: version_of(root, TABLE),
    "data files": lambda root: some(read_data_files(table_path(root, TABLE.name))).version,
    "start": lambda root: writer(root, TABLE).delivered,
}
"""Ways to read a log; each returns the newest version."""


def some(found: DataFiles | None) -> DataFiles:
    assert found is not None
    return found


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    return {checkpoints: written(tmp_path_factory.mktemp("tables"), checkpoints) for checkpoints in (SHORT, LONG)}


def written(root: Path, checkpoints: int) -> Path:
    path = create_table(root, TABLE.name)
    DeltaTable(path).create_checkpoint()
    for number in range(1, checkpoints + 1):
        shutil.copy(checkpoint_file(path, 0), checkpoint_file(path, number * TABLE_CHECKPOINT_INTERVAL))
    app = app_id("pipeline", TABLE.name, "epoch")
    for version in range(1, newest(checkpoints) + 1):
        actions = [commit_info(version - 1, "WRITE"), txn_action(app, version)]
        commit_file(path, version).write_bytes(b"\n".join(map(msgspec.json.encode, actions)))
    return root


def newest(checkpoints: int) -> int:
    return checkpoints * TABLE_CHECKPOINT_INTERVAL + SINCE_CHECKPOINT


def checkpoint_file(path: Path, version: int) -> Path:
    return commit_file(path, version).with_suffix(".checkpoint.parquet")


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Counter[Path]:
    """Count how often each file is read, and each folder is listed."""
    counted: Counter[Path] = Counter()

    def count(name: str) -> None:
        real: Callable[..., Any] = getattr(Path, name)

        def counting(path: Path, *given: Any) -> Any:
            found = real(path, *given)
            counted[path] += 1
            return found

        monkeypatch.setattr(Path, name, counting)

    for name in ("read_bytes", "iterdir", "glob"):
        count(name)
    return counted


@pytest.mark.parametrize("reader", READERS)
def test_a_checkpoint_and_the_commits_after_it_are_read(
    roots: dict[int, Path], read: Counter[Path], reader: str
) -> None:
    times: dict[int, list[int]] = {}
    for checkpoints, root in roots.items():
        read.clear()
        path, end = table_path(root, TABLE.name), newest(checkpoints)
        assert READERS[reader](root) == end
        commits = [commit_file(path, version) for version in range(end - SINCE_CHECKPOINT + 1, end + 1)]
        assert {*read} == {path / "_delta_log", checkpoint_file(path, end - SINCE_CHECKPOINT), *commits}
        times[checkpoints] = sorted(read.values())
    assert times[LONG] == times[SHORT]
