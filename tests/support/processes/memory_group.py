"""A limit to the memory of some processes, beyond which the kernel ends one of them, as in a container."""

from __future__ import annotations

import contextlib
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.wire import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["MemoryGroup", "memory_group"]

_CONTROLLER = Path("/sys/fs/cgroup/memory")
_PROCESSES = "cgroup.procs"


class MemoryGroup:
    """The group. What its processes have when they are added does not count, only what they take from then on."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def add(self, pids: Iterable[int]) -> None:
        for pid in pids:
            (self._folder / _PROCESSES).write_text(str(pid))

    def pids(self) -> list[int]:
        return [int(pid) for pid in (self._folder / _PROCESSES).read_text().split()]

    def ended(self) -> int:
        """How many processes of the group the kernel has ended."""
        facts = dict(line.split() for line in (self._folder / "memory.oom_control").read_text().splitlines())
        return int(facts["oom_kill"])


@contextlib.contextmanager
def memory_group(bytes_max: int) -> Iterator[MemoryGroup]:
    """Make the group, and remove it once its processes have ended. Skips the test where this user may make none."""
    folder = _CONTROLLER / f"popstream-test-{secrets.token_hex(4)}"
    try:
        folder.mkdir()
        (folder / "memory.limit_in_bytes").write_text(str(bytes_max))
    except OSError as error:
        pytest.skip(f"it takes root, and the memory controller of Linux's cgroups, version 1: {error}")
    group = MemoryGroup(folder)
    try:
        yield group
    finally:
        wait_for(lambda: not group.pids())
        folder.rmdir()
