"""Kills the job, as a crash does, at one of its fail-points (pipelines/failpoints.py)."""

from __future__ import annotations

import os
import signal
import time

from pipelines.failpoints import arm
from pipelines.process.jvm import kill_jvm

__all__ = ["Killer", "kill_at"]


def kill_at(place: str) -> None:
    """Kill this process at `place`, with hits counted from now; see `Killer`."""
    arm(Killer(place))


class Killer:
    """A hook for `arm` that sends SIGKILL.

    Args:
        place: `<name>@<hit>`: the hit-th time, by default the first, that the fail-point `name` is passed. With `!` in
            front the whole process group is killed, with `jvm:` the JVM and not this process. With `+<ms>` behind it,
            other threads may finish requests in flight for so long first.
    """

    def __init__(self, place: str) -> None:
        self._is_group = place.startswith("!")
        self._is_jvm = place.startswith("jvm:")
        hits, _, linger_ms = place.removeprefix("!").removeprefix("jvm:").partition("+")
        name, _, hit = hits.partition("@")
        self._name = name
        self._hits_left = int(hit or 1)
        self._linger_s = int(linger_ms or 0) / 1000

    def __call__(self, name: str) -> None:
        if name != self._name:
            return
        self._hits_left -= 1
        if self._hits_left:
            return
        time.sleep(self._linger_s)
        if self._is_jvm:
            kill_jvm()
        elif self._is_group:
            os.killpg(os.getpgid(0), signal.SIGKILL)
        else:
            os.kill(os.getpid(), signal.SIGKILL)
