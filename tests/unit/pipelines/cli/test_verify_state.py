"""Claim: a verification that cannot copy the state of the running job says so, and leaves no copy (verify_state.py)."""

from __future__ import annotations

import errno
import shutil
from typing import TYPE_CHECKING, Any, cast

import pytest

from pipelines.cli.state import verify_state
from pipelines.control.messages import Image
from pipelines.recovery.verify.work_folder import WorkFolder
from popstream.wire.base_errors import Unavailable

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Image:
    found = Image(folder=str(tmp_path / "scratch/state"), queues=str(tmp_path / "scratch/queues"))
    for name in ("state", "queues"):
        (tmp_path / "scratch" / name).mkdir(parents=True)
        (tmp_path / "scratch" / name / "000001.sst").write_text(name)
    monkeypatch.setattr(verify_state, "ask", lambda *_, **__: found)
    return found


def copied(tmp_path: Path) -> tuple[Path, Path | None]:
    work = WorkFolder(tmp_path / "work")
    work.root.mkdir()
    return verify_state._copied(cast("Any", None), work)


@pytest.mark.usefixtures("image")
def test_the_copies_of_the_job_become_those_of_the_verification(tmp_path: Path) -> None:
    state, queues = copied(tmp_path)
    assert queues is not None
    assert [(each / "000001.sst").read_text() for each in (state, queues)] == ["state", "queues"]
    assert not list((tmp_path / "scratch").iterdir())


@pytest.mark.usefixtures("image")
def test_a_full_disk_is_said_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    move = shutil.move

    def fill(source: str, target: Path) -> None:
        if source.endswith("queues"):
            target.mkdir()
            raise shutil.Error([(source, str(target), OSError(errno.ENOSPC, "No space left on device"))])
        move(source, target)

    monkeypatch.setattr(shutil, "move", fill)
    with pytest.raises(Unavailable, match=r"a copy of the state cannot be written to .*is the disk full\?"):
        copied(tmp_path)
    assert not list((tmp_path / "scratch").iterdir())
    assert not (tmp_path / "work" / "incoming").exists()
