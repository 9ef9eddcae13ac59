"""The cost of an idle job."""

import statistics
import time

import psutil

from tests.benchmarks.cpu_use import cpu_s, is_spark

__all__ = ["idle_shares"]


def idle_shares(seconds: int) -> dict[str, float]:
    """Return the CPU use of this process and its JVM as shares of one core, by a sample a second."""
    own = psutil.Process()
    jvm = next(child for child in own.children(recursive=True) if is_spark(child))
    time.sleep(5)
    shares = []
    for _ in range(seconds):
        before = cpu_s(own) + cpu_s(jvm)
        began = time.perf_counter()
        time.sleep(1)
        shares.append((cpu_s(own) + cpu_s(jvm) - before) / (time.perf_counter() - began))
    return {"median": round(statistics.median(shares), 3), "max": round(max(shares), 3)}
