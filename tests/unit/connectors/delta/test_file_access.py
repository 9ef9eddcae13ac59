"""Claim: what writes to tables beside the job gives its files the readers that the tables have.

Method: the shell's umask is another one, stricter or laxer.
"""

from __future__ import annotations

import contextlib
import os
import stat
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from checkpoints.layout import JobFolder
from connectors.delta.file_access import FOR_GROUP, FOR_USER, files_made_with, umask_of_tables
from expectations.report import ExpectationResult, QualityReport
from expectations.results import write_results
from expectations.scope import ALL_ROWS
from pipelines.cli.app import app
from pipelines.cli.tables import maintain as maintain_command
from pipelines.process import maintenance
from pipelines.process.maintenance import compacted_aside
from tests.support.delta_files import create_failed_deliveries

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def compacted_by_the_job(root: Path) -> None:
    """As in a thread of the job, whose process has the umask."""
    with files_made_with(umask_of_tables(root)):
        list(compacted_aside(root))


def maintained(root: Path) -> None:
    maintain_command.run_maintain(JobFolder(root.parent, root), {}, var=Path("var"), as_json=True)


def erased(root: Path) -> None:
    done = CliRunner().invoke(app, ["erase", "--text", "alice", "--tables", str(root), "--folder", str(root.parent)])
    assert done.exit_code == 0, done.output


def checked(root: Path) -> None:
    outcome = ExpectationResult(
        suite="deliveries",
        expectation="none",
        description="none",
        table_version=1,
        success=True,
        unexpected_count=0,
        sample=[],
    )
    write_results(root, QualityReport(datetime.now(UTC), {"deliveries": 1}, [outcome], ALL_ROWS, {}))


WRITERS: dict[str, Callable[[Path], None]] = {
    "compaction": compacted_by_the_job,
    "maintain": maintained,
    "erase": erased,
    "check": checked,
}


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Maintenance needs Spark for VACUUM alone, which writes nothing."""

    @contextlib.contextmanager
    def nothing(*_: Any, **__: Any) -> Iterator[None]:
        yield

    monkeypatch.setattr(maintain_command, "reading_session", nothing)
    monkeypatch.setattr(maintenance, "_vacuumed", lambda *_: 0)


@pytest.fixture(params=[0o022, 0o077], ids=["lax shell", "strict shell"])
def shell(request: pytest.FixtureRequest) -> Iterator[None]:
    with files_made_with(request.param):
        yield


def tables_of_a_job(tmp_path: Path, umask: int) -> Path:
    root = tmp_path / "tables"
    with files_made_with(umask):
        create_failed_deliveries(root)
    return root


def paths(root: Path) -> set[Path]:
    return {Path(folder, name) for folder, _, names in os.walk(root) for name in ["", *names]}


@pytest.mark.usefixtures("shell")
@pytest.mark.parametrize(("umask", "file", "folder"), [(FOR_USER, 0o600, 0o700), (FOR_GROUP, 0o640, 0o750)])
@pytest.mark.parametrize("writer", WRITERS)
def test_new_files_have_the_readers_of_the_tables(
    tmp_path: Path, writer: str, umask: int, file: int, folder: int
) -> None:
    root = tables_of_a_job(tmp_path, umask)
    before = paths(root)
    WRITERS[writer](root)
    assert len(paths(root) - before) >= 2, "a data file and a commit"
    for path in paths(root):
        assert stat.S_IMODE(path.stat().st_mode) == (folder if path.is_dir() else file), path


@pytest.mark.parametrize(
    ("modes", "umask"),
    [
        ((), 0o027),
        ((0o700,), 0o077),
        ((0o750,), 0o027),
        ((0o2770,), 0o027),
        ((0o755,), 0o022),
        ((0o700, 0o750), 0o027),
    ],
)
def test_the_folders_of_the_tables_say_who_may_read(tmp_path: Path, modes: tuple[int, ...], umask: int) -> None:
    for name, mode in zip(["operations", "deliveries"], modes, strict=False):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(mode)
    assert umask_of_tables(tmp_path, otherwise=FOR_GROUP) == umask
