"""How much CPU a load, its servers and everything else on the machine use, sampled while the load runs."""

from __future__ import annotations

import time

import numpy as np
import psutil

from tests.benchmarks.cpu_use import cpu_s

__all__ = ["CpuSamples"]


class CpuSamples:
    """Samples of the descendants of this process, which itself counts as neither.

    Args:
        load_pid: The load; the other descendants are servers.
    """

    def __init__(self, load_pid: int) -> None:
        self._load_pid = load_pid
        self._own = psutil.Process()
        self._used_s: dict[int, float] = {}
        """By process; one that has ended keeps its last value."""
        self._samples: list[tuple[int, float, float, float]] = []

    def take(self) -> None:
        """Take a sample."""
        for process in self._own.children(recursive=True):
            try:
                self._used_s[process.pid] = cpu_s(process)
            except psutil.NoSuchProcess:
                continue
        load_s = self._used_s.get(self._load_pid, 0.0)
        servers_s = sum(self._used_s.values()) - load_s
        all_of_them = psutil.cpu_times()
        # On Linux the time of guests is part of `user`.
        busy_s = sum(all_of_them) - sum(
            getattr(all_of_them, name, 0.0) for name in ("idle", "iowait", "guest", "guest_nice")
        )
        other_s = busy_s - load_s - servers_s - cpu_s(self._own)
        self._samples.append((time.monotonic_ns(), load_s, servers_s, other_s))

    def between(self, begin_ns: int, end_ns: int) -> dict[str, float]:
        """Seconds that `load`, `servers` and `other` used between two times, interpolated between samples."""
        times_ns, *columns = (np.array(column) for column in zip(*self._samples, strict=True))
        return {
            name: float(np.diff(np.interp([begin_ns, end_ns], times_ns, used_s))[0])
            for name, used_s in zip(("load", "servers", "other"), columns, strict=True)
        }
