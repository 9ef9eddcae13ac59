"""Claim: a job whose volume is full lives, says why it decides nothing, and goes on by itself once there is room.

Method: the folder of a real job is a volume of its own, of memory, which a mount namespace hides from everybody else.
While clients send, it is filled to the last byte and kept so; the job may write nowhere, be it state, tables, Spark's
checkpoint or logs. Then there is room again. In the end a fresh job decides the same log, and everything is compared.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

import pytest

from tests.crash.scene import OPS_PARTITIONS, PATIENCE_S, Scene
from tests.support.processes.job_process import POPSTREAM, ROOT, JobProcess
from tests.support.wire import wait_for
from tests.support.workload import Workload

if TYPE_CHECKING:
    from types import TracebackType

    from connectors.kafka.embedded import EmbeddedKafka

pytestmark = [pytest.mark.crash, pytest.mark.timeout(1_800)]

# A start wants 2 GiB.
VOLUME = "2200m"
PIECE_BYTES = 1 << 20
FULL_S = 30.0
"""Longer than a job may start again and again without deciding anything."""
TIMES = 3


class Volume:
    """A small file system that only processes begun by `command` see; it ends with the context."""

    def __init__(self, mount: Path) -> None:
        mount.mkdir()
        script = f"mount -t tmpfs -o size={VOLUME} none '{mount}' && echo there && exec cat"
        self._holder = subprocess.Popen(
            ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
        )
        self.seen_from_here = Path(f"/proc/{self._holder.pid}/root{mount}")
        self._fill = self.seen_from_here / "fill"

    @property
    def command(self) -> list[str]:
        """What to put before a command that shall see it."""
        return ["nsenter", f"--target={self._holder.pid}", "--user", "--mount", "--preserve-credentials", "--wd"]

    def keep_full(self, for_s: float) -> None:
        """Take every byte, also those that become free meanwhile."""
        deadline = time.monotonic() + for_s
        with self._fill.open("ab") as file:
            while time.monotonic() < deadline:
                for piece_bytes in (PIECE_BYTES, os.sysconf("SC_PAGE_SIZE")):
                    with contextlib.suppress(OSError):
                        while True:
                            os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, piece_bytes)
                time.sleep(0.1)

    def make_room(self) -> None:
        self._fill.unlink()

    def __enter__(self) -> Self:
        assert self._holder.stdout is not None
        if self._holder.stdout.readline() != b"there\n":
            self._end()
            pytest.skip("this system gives no mount namespace to this user")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        self._holder.communicate()


def test_the_volume_of_a_running_job_is_full_for_a_while(broker: EmbeddedKafka, tmp_path: Path) -> None:
    scene = Scene(broker.bootstrap_servers, "full.", tmp_path)
    with Volume(tmp_path / "volume") as volume:
        folder = str(tmp_path / "volume" / "job")
        settings = {**scene.settings, "folder": folder, "snapshot_interval_s": 5.0}
        clients = Workload(scene.servers, scene.topics, OPS_PARTITIONS, seed=11)
        with clients, JobProcess(scene.servers, settings, before=volume.command) as job:
            goes_on(clients, job)
            for _ in range(TIMES):
                assert said(volume, folder) == "popstream: ready\n"
                volume.keep_full(FULL_S)
                assert job.process.poll() is None, job.log_tail()
                assert "No space left on device" in said(volume, folder)
                volume.make_room()
                goes_on(clients, job)
            assert job.stop(PATIENCE_S) == 0, job.log_tail()
        shutil.copytree(volume.seen_from_here / "job", scene.folder)
    scene.compare([clients])


def said(volume: Volume, folder: str) -> str:
    """What a probe is told."""
    command = [*volume.command, str(POPSTREAM), "status", "--ready", "--folder", folder]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def goes_on(clients: Workload, job: JobProcess) -> None:
    """Operations that come from now on are answered."""
    now = time.time()

    def is_answered() -> bool:
        assert job.process.poll() is None, job.log_tail()
        return clients.first_answer_after(now) is not None

    wait_for(is_answered, patience_s=PATIENCE_S)
