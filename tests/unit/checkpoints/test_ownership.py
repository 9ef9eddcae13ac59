"""Claim: one process owns a job, even if the lock is lost; a copy of the folder is not owned."""

from __future__ import annotations

import contextlib
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


@pytest.mark.parametrize("how", ["taken over", "replaced", "the folder is gone"])
def test_an_owner_that_was_replaced_notices_before_it_writes(tmp_path: Path, how: str) -> None:
    """Taken over: as on a file system where other hosts do not see an flock."""
    path = tmp_path / "job" / "lock"
    with contextlib.ExitStack() as stack:
        owner = stack.enter_context(Ownership(path))
        if how == "taken over":
            path.write_text("4711 0123456789abcdef")
        elif how == "replaced":
            path.unlink()
            stack.enter_context(Ownership(path))
            path.write_text("damaged then")
        else:
            shutil.rmtree(path.parent)
        match = {"taken over": "4711 has taken over", "replaced": "damaged has taken over"}.get(how, "cannot be read")
        with pytest.raises(Fenced, match=match):
            owner.require()


@pytest.mark.parametrize("harm", ["flip", "truncate", "remove", "swap"])
def test_a_lock_that_was_damaged_is_written_again(tmp_path: Path, harm: str, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "lock"
    with Ownership(path) as owner:
        name = path.read_bytes()
        if harm == "flip":
            path.write_bytes(bytes((name[0] ^ 0x40,)) + name[1:])
        elif harm == "truncate":
            path.write_bytes(name[:-3])
        elif harm == "remove":
            path.unlink()
        else:
            (tmp_path / "other").write_bytes(b"\x00\x01")
            (tmp_path / "other").replace(path)
        owner.require()
        owner.require()
        assert path.read_bytes() == name
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        with pytest.raises(Fenced):
            Ownership(path)
    Ownership(path).release()
