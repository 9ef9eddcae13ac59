"""Claim: what a start reads of a table's log does not grow with the commits: a checkpoint, and the commits after it.

Method: logs of about 100 and 10,000 commits that add a file each, none of which is deleted, with a checkpoint every 50
commits, as the job has them. Each read of a file is counted, with its bytes, and each listing of a folder. No file was
compacted, so the newest checkpoint names all of them: it may grow with the files of the table, by some bytes each.
What is done with it is bounded, too: cells that become values of Python, and calls of this project's functions. By them
a table with 10,000 commits opens in a fraction of a second (`make bench PART=long_log`).
"""

from __future__ import annotations

import random
import shutil
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from connectors.delta.log.commits import commit_file
from connectors.delta.log.table_log import DataFile, DataFiles, read_data_files
from connectors.delta.log.transactions import app_id
from connectors.delta.log.write_commit import add_action, commit_info, txn_action
from connectors.delta.store import TABLE_CHECKPOINT_INTERVAL
from connectors.delta.tables import AUDIT_TABLES, table_path
from tests.support.audit_tables import NOW_MS
from tests.support.counted_calls import Calls
from tests.support.delta_files import create_table
from tests.support.written_rows import FIRST, version_of, writer

if TYPE_CHECKING:
    from collections.abc import Callable

TABLE = AUDIT_TABLES["operations"]
SHORT, LONG = 2, 200
"""Checkpoints."""
SINCE_CHECKPOINT = 7
"""Commits that no checkpoint covers."""
OTHER_ACTIONS = 3
"""In each checkpoint: the metadata, the protocol and the transaction of the writer."""
BYTES_PER_FILE_MAX = 500
"""Of a checkpoint that delta-rs writes, for each file of the table."""

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
    last = checkpoints * TABLE_CHECKPOINT_INTERVAL
    write_commits(path, range(1, last + 1))
    DeltaTable(path).create_checkpoint()
    for number in range(1, checkpoints):  # what is in the older ones does not matter, as nobody reads them
        shutil.copy(checkpoint_file(path, 0), checkpoint_file(path, number * TABLE_CHECKPOINT_INTERVAL))
    write_commits(path, range(last + 1, newest(checkpoints) + 1))
    return root


def write_commits(path: Path, versions: range) -> None:
    app = app_id("pipeline", TABLE.name, "epoch")
    for version in versions:
        file = DataFile(
            path=f"op_date={FIRST}/part-{random.Random(version).randbytes(16).hex()}.zstd.parquet",
            size=10_000 + version,
            modification_ms=NOW_MS + version * 5_000,
            partition_values={"op_date": str(FIRST)},
            stats=msgspec.json.encode({"numRecords": version, "minValues": {"apply_seq": version}}).decode(),
        )
        actions = [commit_info(version - 1, "WRITE"), txn_action(app, version), add_action(file, data_change=True)]
        commit_file(path, version).write_bytes(b"\n".join(map(msgspec.json.encode, actions)))


def newest(checkpoints: int) -> int:
    return checkpoints * TABLE_CHECKPOINT_INTERVAL + SINCE_CHECKPOINT


def checkpoint_file(path: Path, version: int) -> Path:
    return commit_file(path, version).with_suffix(".checkpoint.parquet")


class Reads:
    """How often each file was read, and each folder listed, and how many bytes were read."""

    def __init__(self) -> None:
        self.times: Counter[Path] = Counter()
        self.size = 0


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    counted = Reads()

    def count(name: str) -> None:
        real: Callable[..., Any] = getattr(Path, name)

        def counting(path: Path, *given: Any) -> Any:
            found = real(path, *given)
            counted.times[path] += 1
            counted.size += len(found) if isinstance(found, bytes) else 0
            return found

        monkeypatch.setattr(Path, name, counting)

    for name in ("read_bytes", "iterdir", "glob"):
        count(name)
    return counted


@pytest.mark.parametrize("reader", READERS)
def test_a_checkpoint_and_the_commits_after_it_are_read(roots: dict[int, Path], reads: Reads, reader: str) -> None:
    times: dict[int, list[int]] = {}
    sizes: dict[int, int] = {}
    for checkpoints, root in roots.items():
        reads.times, reads.size = Counter(), 0
        path, end = table_path(root, TABLE.name), newest(checkpoints)
        assert READERS[reader](root) == end
        commits = [commit_file(path, version) for version in range(end - SINCE_CHECKPOINT + 1, end + 1)]
        assert {*reads.times} == {path / "_delta_log", checkpoint_file(path, end - SINCE_CHECKPOINT), *commits}
        times[checkpoints], sizes[checkpoints] = sorted(reads.times.values()), reads.size
    assert times[LONG] == times[SHORT]
    assert sizes[LONG] - sizes[SHORT] < BYTES_PER_FILE_MAX * (newest(LONG) - newest(SHORT))


def test_every_file_is_in_the_checkpoint_or_a_commit_after_it(roots: dict[int, Path]) -> None:
    for checkpoints, root in roots.items():
        found = some(read_data_files(table_path(root, TABLE.name)))
        assert sorted(file.rows for file in found.files) == list(range(1, newest(checkpoints) + 1))


@pytest.fixture
def cells(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many cells each read of a checkpoint has, nulls too: those within a struct count, and not the struct."""
    counted: list[int] = []
    real = pq.ParquetFile.read

    def counting(file: pq.ParquetFile, **options: Any) -> pa.Table:
        rows = real(file, **options)
        counted.append(sum(map(leaves, rows.schema.types)) * rows.num_rows)
        return rows

    monkeypatch.setattr(pq.ParquetFile, "read", counting)
    return counted


def leaves(of: pa.DataType) -> int:
    """Columns of a file that a type takes."""
    return sum(leaves(of.field(number).type) for number in range(of.num_fields)) or 1


@pytest.mark.parametrize(
    ("reader", "calls_max", "cells_max"),
    [("log", 63, 9), ("data files", 64, 16), ("start", 298, 27)],
)
def test_opening_takes_no_more_calls_for_more_files_and_few_cells_of_each(
    roots: dict[int, Path], cells: list[int], reader: str, calls_max: int, cells_max: int
) -> None:
    """Calls in all, a tenth above those of today; cells of a row of the checkpoint, of some 60 that it has."""
    found: dict[int, int] = {}
    for checkpoints, root in roots.items():
        cells.clear()
        calls = Calls()
        with calls.counted():
            READERS[reader](root)
        found[checkpoints] = calls.count
        files = checkpoints * TABLE_CHECKPOINT_INTERVAL
        assert 0 < sum(cells) <= cells_max * (files + OTHER_ACTIONS)
    assert found[LONG] == found[SHORT] <= calls_max
