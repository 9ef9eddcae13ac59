"""CPU time of a job that runs in this process: by its threads, its JVM and the broker beside it."""

import threading
from collections import defaultdict

import psutil

__all__ = ["CpuUse", "cpu_s", "is_spark"]


class CpuUse:
    """Measures from its construction on."""

    def __init__(self) -> None:
        self._began = _seconds()

    def us_per_record(self, records: int) -> dict[str, float]:
        """Return the microseconds of CPU a record until now, by thread and process, and their total.

        Threads that have ended, and those that Python did not start, count as `other_threads`.
        """
        used = {name: (seconds - self._began[name]) * 1e6 / records for name, seconds in _seconds().items()}
        most_first = sorted(used.items(), key=lambda each: -each[1])
        return {"total": round(sum(used.values()), 2), **{name: round(us, 2) for name, us in most_first if us > 0}}


def cpu_s(process: psutil.Process) -> float:
    """Return the seconds of CPU that a process has used, in user mode and in the system."""
    times = process.cpu_times()
    return float(times.user + times.system)


def is_spark(process: psutil.Process) -> bool:
    """Whether this is the JVM of a Spark session."""
    return process.name() == "java" and any("spark" in part for part in process.cmdline())


def _seconds() -> defaultdict[str, float]:
    own = psutil.Process()
    seconds: defaultdict[str, float] = defaultdict(float)
    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    seconds["other_threads"] = cpu_s(own)
    for thread in own.threads():
        if thread.id in names:
            seconds[names[thread.id]] += thread.user_time + thread.system_time
            seconds["other_threads"] -= thread.user_time + thread.system_time
    for child in own.children(recursive=True):
        if child.name() == "java":
            seconds["spark_jvm" if is_spark(child) else "kafka_jvm"] += cpu_s(child)
    return seconds
