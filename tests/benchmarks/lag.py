"""How soon messages are in the lag of their groups, and how fast the endpoint answers, by the number of lanes."""

from __future__ import annotations

import multiprocessing
import statistics
import time
import urllib.request
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING, Any

from connectors.local_servers.loopback import free_port
from pipelines.control.lane_watch import REST_S_MAX
from pipelines.control.metric_definitions import Metric
from pipelines.job_settings import JobSettings
from pipelines.process.host import Host
from popstream import Transport
from popstream.settings import ClientSettings
from popstream.wire.command import Dispatch, WrittenRange
from tests.benchmarks.measured_operations import declare_queue, single_pops

if TYPE_CHECKING:
    from collections.abc import Callable

    from connectors.kafka.embedded import EmbeddedKafka
    from tests.benchmarks.benchmark_options import BenchOptions

__all__ = ["Endpoint", "measure_lag", "time_lags"]

PREFIX = TOPIC = "lag"
QUEUES = 100
LANES_MAX = 100_000
OPERATIONS_A_LANE = 20
"""Of those that are to be drained: the default measures 100,000 lanes."""
TRIES = 12
SCRAPE_S = 0.1


class Endpoint:
    """The metrics of a job.

    Attributes:
        answered_ms: How long each scrape took.
        scraped_bytes: Of the last one.
    """

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/metrics"
        self.answered_ms: list[float] = []
        self.scraped_bytes = 0

    def lags(self) -> list[float]:
        """Return the lag of each group."""
        began_s = time.perf_counter()
        with urllib.request.urlopen(self._url, timeout=60) as answer:  # noqa: S310 - it is HTTP
            content = answer.read()
        self.answered_ms.append((time.perf_counter() - began_s) * 1000)
        self.scraped_bytes = len(content)
        named = f"{Metric.LANE_LAG.value.name}{{"
        return [float(line.rpartition(" ")[2]) for line in content.decode().splitlines() if line.startswith(named)]

    def wait_for(self, groups: int, lag: int) -> None:
        """Scrape until as many groups lag by as much."""
        while sum(each >= lag for each in self.lags()) < groups:
            time.sleep(SCRAPE_S)


def measure_lag(options: BenchOptions, kafka: EmbeddedKafka) -> dict[str, Any]:
    """Lease a message in each lane, and dispatch one more to each queue again and again."""
    groups = max(1, min(LANES_MAX, options.operations // OPERATIONS_A_LANE) // QUEUES)
    settings = JobSettings(
        folder=options.work / PREFIX,
        bootstrap_servers=kafka.bootstrap_servers,
        topic_prefix=PREFIX,
        metrics_port=free_port(),
        metrics_groups_max=groups,
    )
    clients = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))
    with Host(settings, var=options.var), clients as pool:
        return pool.submit(watch_lag, kafka.bootstrap_servers, settings.metrics_port, groups).result()


def watch_lag(servers: str, port: int, groups: int) -> dict[str, Any]:
    """Do so, in a process of its own."""
    with Transport(ClientSettings(bootstrap_servers=servers, client_id="bench", prefix=PREFIX)) as transport:
        for queue_id in range(QUEUES):
            for command in declare_queue(TOPIC, queue_id, 1):
                transport.post(command)
            for number in range(groups):
                for pop in single_pops(TOPIC, queue_id, f"group-{number}", 1):
                    transport.post(pop)

        def dispatch(queue_offset: int) -> None:
            for queue_id in range(QUEUES):
                written = [WrittenRange(queue_offset, queue_offset)]
                transport.post(Dispatch(topic=TOPIC, queue_id=queue_id, v=1, ranges=written))

        figures = time_lags(Endpoint(port), dispatch, queues=QUEUES, groups=groups, tries=TRIES, rest_s=REST_S_MAX)
    return {"lanes": QUEUES * groups, **figures}


def time_lags(
    endpoint: Endpoint, dispatch: Callable[[int], None], *, queues: int, groups: int, tries: int, rest_s: float
) -> dict[str, Any]:
    """Return the seconds until all groups lag by each dispatch, and the milliseconds of scrapes meanwhile.

    Args:
        endpoint: The metrics of a job in which each group has a lane in each queue, and lags by one message there.
        dispatch: Dispatches an offset of all queues; the first one is 1.
        queues: How many there are.
        groups: How many there are.
        tries: Dispatches.
        rest_s: How long figures rest at most after they were read: dispatches come at other moments of it each time.
    """
    endpoint.wait_for(groups, queues)
    endpoint.answered_ms.clear()
    visible_s = []
    for number in range(1, tries + 1):
        time.sleep(rest_s * number / tries)
        began_s = time.perf_counter()
        dispatch(number)
        endpoint.wait_for(groups, queues * (number + 1))
        visible_s.append(time.perf_counter() - began_s)
    return {
        "visible_s": [round(statistics.median(visible_s), 2), round(max(visible_s), 2)],
        "scrape_ms": [round(statistics.median(endpoint.answered_ms), 1), round(max(endpoint.answered_ms), 1)],
        "scrapes": len(endpoint.answered_ms),
        "scraped_bytes": endpoint.scraped_bytes,
    }
