"""Claim: one process owns a job, even if the lock is lost; a copy of the folder is not owned."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from checkpoints.ownership import Ownership
from popstream.wire.base_errors import Fenced

if TYPE_CHECKING:
    from pathlib import Path


def test_two_drivers_on_one_host(tmp_path: Path) -> None:
    with Ownership(tmp_path / "lock") as owner:
        with pytest.raises(Fenced, match=r"process \d+ runs the job"):
            Ownership(tmp_path / "lock")
        owner.require()
    Ownership(tmp_path / "lock").release()


def test_reading_and_copying_the_folder_keeps_the_lock(tmp_path: Path) -> None:
    """RocksDB's own lock is lost when its owner opens and closes the file."""
    with Ownership(tmp_path / "job" / "lock"):
        (tmp_path / "job" / "lock").read_text()
        shutil.copytree(tmp_path / "job", tmp_path / "copy")
        with pytest.raises(Fenced):
            Ownership(tmp_path / "job" / "lock")


@pytest.mark.parametrize("how", ["taken over", "gone"])
def test_an_owner_that_was_replaced_notices_before_it_writes(tmp_path: Path, how: str) -> None:
    """As on a file system where other hosts do not see an flock."""
    with Ownership(tmp_path / "lock") as owner:
        if how == "gone":
            (tmp_path / "lock").unlink()
        else:
            (tmp_path / "lock").write_text("4711 other")
        with pytest.raises(Fenced, match="4711" if how == "taken over" else "cannot be read"):
            owner.require()
