"""What clients notice when many leases of one queue end at once."""

import itertools
import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from broker_state.store.rocks_store import RocksStore
from connectors.kafka.embedded import EmbeddedKafka
from pipelines.control.lane_views import queues_in
from pipelines.job_settings import JobSettings
from pipelines.process.host import Host
from popstream import Transport
from popstream.settings import ClientSettings
from popstream.wire.command import Tick
from tests.benchmarks.benchmark_options import BenchOptions
from tests.benchmarks.kernel import LEASES
from tests.benchmarks.latency import operation_latency
from tests.benchmarks.measured_operations import declare_queue, single_pops

__all__ = ["measure_lease_ends"]

_PREFIX = "leases"
_TOPIC = "many-leases"
_TICK = Tick(topic=_TOPIC, queue_id=0, v=1)
_LEASE_MS_MIN = 30_000
_POPS_A_SECOND_MIN = 3_300
"""The job decides more pops than this, so the last lease begins before the first one ends."""


def measure_lease_ends(options: BenchOptions, kafka: EmbeddedKafka) -> dict[str, Any]:
    """Return the milliseconds from send to answer on other queues; after a third of the time the leases end."""
    servers, leases = kafka.bootstrap_servers, min(LEASES, options.operations)
    # Without ticks of the job all leases end at records that are ours.
    settings = JobSettings(folder=options.work / _PREFIX, bootstrap_servers=servers, topic_prefix=_PREFIX, ticks=False)
    with (
        ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as clients,
        Host(settings, var=options.var) as host,
    ):
        ends_ms = lease_many(servers, _PREFIX, leases)
        granted = leased_in(host.job.store, _TOPIC)
        assert granted == leases, f"{granted:,} of {leases:,} leases were granted"
        time.sleep(max(0.0, ends_ms / 1000 - time.time()) + 1)
        others = clients.submit(operation_latency, servers, _PREFIX, rate=100, seconds=options.seconds)
        time.sleep(options.seconds / 3)
        with _transport(servers, _PREFIX) as transport:
            ticks = end_leases(lambda: transport.request(_TICK), lambda: leased_in(host.job.store, _TOPIC))
        return {"leases": granted, "ticks": ticks, "others": others.result()}


def lease_many(bootstrap_servers: str, prefix: str, leases: int) -> float:
    """Lease messages of one queue, each by a pop of its own; return when the last lease ends, in ms."""
    queue = (_TOPIC, 0)
    lease_ms = max(_LEASE_MS_MIN, 1000 * leases // _POPS_A_SECOND_MIN)
    with _transport(bootstrap_servers, prefix) as transport:
        for command in declare_queue(*queue, leases):
            transport.request(command)
        pops = single_pops(*queue, "group", leases, invisible_time_ms=lease_ms)
        for command in itertools.islice(pops, leases - 1):
            transport.post(command)
        granted = transport.request(next(pops), timeout_ms=lease_ms)
    return float(granted.now_ms + lease_ms)


def end_leases(tick: Callable[[], object], leased: Callable[[], int]) -> int:
    """Make all leases of `lease_many` end, which are due; return the records that this took.

    A record ends a part of them, and the job's next tick follows its answer: so do ours.
    """
    ticks, left = 0, leased()
    while left:
        before = left
        tick()
        ticks, left = ticks + 1, leased()
        assert left < before, f"{left:,} leases did not end"
    return ticks


def leased_in(store: RocksStore, topic: str) -> int:
    """Return how many messages of a topic are leased."""
    return sum(lane.leased for queue in queues_in(store) if queue.topic == topic for lane in queue.lanes)


def _transport(bootstrap_servers: str, prefix: str) -> Transport:
    return Transport(ClientSettings(bootstrap_servers=bootstrap_servers, client_id="bench", prefix=prefix))
