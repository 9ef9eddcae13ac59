"""The cost of an idle job."""

import multiprocessing
import statistics
import time
from concurrent.futures import ProcessPoolExecutor

import psutil

from connectors.kafka.embedded import EmbeddedKafka
from pipelines.job_settings import JobSettings
from pipelines.process.host import Host
from tests.benchmarks.benchmark_options import BenchOptions
from tests.benchmarks.cpu_use import cpu_s, is_spark
from tests.benchmarks.latency import operation_latency

__all__ = ["measure_idle"]

_PREFIX = "idle"


def measure_idle(options: BenchOptions, kafka: EmbeddedKafka) -> dict[str, float]:
    """Return the CPU use of a job that has worked, and has nothing more to do."""
    servers = kafka.bootstrap_servers
    settings = JobSettings(folder=options.work / _PREFIX, bootstrap_servers=servers, topic_prefix=_PREFIX)
    with Host(settings, var=options.var):
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as clients:
            clients.submit(operation_latency, servers, _PREFIX, rate=100, seconds=30).result()
        return idle_shares(options.seconds)


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
