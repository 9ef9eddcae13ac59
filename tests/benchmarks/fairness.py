"""What one client's flood costs the others: their latency while it lasts, by the partition of the ops topic."""

from __future__ import annotations

import itertools
import multiprocessing
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING, Any

from pipelines.job_settings import JobSettings
from pipelines.process.host import Host
from popstream import Transport
from popstream.exchange.partitioner import ops_key, partition_of
from popstream.settings import ClientSettings
from popstream.wire.command import Declare, Dispatch, Policy, Pop, ResetOffset, WrittenRange
from tests.benchmarks.latency import quantiles

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from connectors.kafka.embedded import EmbeddedKafka
    from popstream.wire.command import Command
    from tests.benchmarks.benchmark_options import BenchOptions

__all__ = ["measure_fairness"]

PREFIX = "fairness"
FLOODED = ("flooded", 0)
QUEUES = 16
RATE = 100
POPS, RESETS = 150_000, 2_000
WATCHED_S, FLOOD_AFTER_S = 25, 5


def measure_fairness(options: BenchOptions, kafka: EmbeddedKafka) -> dict[str, Any]:
    """Measure the latency of others beside a flood of pops, the same with a quota, and a flood of resets."""
    servers = kafka.bootstrap_servers
    settings = JobSettings(folder=options.work / PREFIX, bootstrap_servers=servers, topic_prefix=PREFIX)
    report: dict[str, Any] = {}
    clients = ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn"))
    with Host(settings, var=options.var), clients as pool:
        for name, flood, quota in (
            ("calm", None, 0),
            ("pops", send_pops, 0),
            ("pops_with_quota", send_pops, 100),
            ("resets", send_resets, 0),
        ):
            pool.submit(prepare, servers, quota).result()
            flooding = None if flood is None else pool.submit(flood, servers)
            report[name] = pool.submit(latency_of_others, servers, settings.ops_partitions).result()
            if flooding is not None:
                report[name]["flood_s"] = flooding.result()
    return report


def prepare(servers: str, quota: int) -> None:
    """Declare all queues, and set the quota of pops a second of a client in the flooded one."""
    with _transport(servers, "prepare") as transport:
        for topic, queue_id in (FLOODED, *_queues()):
            transport.request(Declare(topic=topic, queue_id=queue_id, v=1, topic_id="id"))
            transport.request(Dispatch(topic=topic, queue_id=queue_id, v=1, ranges=[WrittenRange(0, 999_999)]))
        transport.request(Policy(topic=FLOODED[0], queue_id=FLOODED[1], v=1, client_pops_per_s_max=quota))


def send_pops(servers: str) -> float:
    """Send 150,000 pops as fast as possible; return the seconds until the last one is answered."""
    pops = (
        Pop(
            topic=FLOODED[0],
            queue_id=FLOODED[1],
            v=1,
            group="flood",
            max_messages=1,
            invisible_time_ms=600_000,
            client_id="flood",
            op_id=f"flood-{time.time_ns()}",
            reply_to=0,
        )
        for _ in range(POPS)
    )
    return _flood(servers, pops)


def send_resets(servers: str) -> float:
    """Send 2,000 resets of one lane; return the seconds until the last one is answered."""
    resets = (
        ResetOffset(topic=FLOODED[0], queue_id=FLOODED[1], v=1, group="flood", queue_offset=number % 1_000)
        for number in range(RESETS)
    )
    return _flood(servers, resets)


def latency_of_others(servers: str, ops_partitions: int) -> dict[str, Any]:
    """Pop 100 times a second from other queues, for as long as a flood may last; return the milliseconds to answers."""
    waits: dict[str, list[float]] = {"same_partition": [], "other_partitions": []}
    with _transport(servers, "others") as transport:
        flooded = partition_of(ops_key(*FLOODED), ops_partitions)
        lock = threading.Lock()

        def answered(where: str, began_s: float) -> Callable[[Any], None]:
            def add(_: Any) -> None:
                with lock:
                    waits[where].append((time.perf_counter() - began_s) * 1000)

            return add

        began_s = time.perf_counter()
        queues = itertools.cycle(_queues())
        for number in range(RATE * WATCHED_S):
            time.sleep(max(0.0, began_s + number / RATE - time.perf_counter()))
            topic, queue_id = next(queues)
            is_same = partition_of(ops_key(topic, queue_id), ops_partitions) == flooded
            pop = Pop(topic=topic, queue_id=queue_id, v=1, group="g", max_messages=1, invisible_time_ms=600_000)
            where = "same_partition" if is_same else "other_partitions"
            transport.submit(pop).add_done_callback(answered(where, time.perf_counter()))
        while transport.waiting_count:
            time.sleep(0.05)
    return {where: quantiles(each) for where, each in waits.items()}


def _flood(servers: str, commands: Iterator[Command]) -> float:
    time.sleep(FLOOD_AFTER_S)
    with _transport(servers, "flood") as transport:
        began_s = time.perf_counter()
        last = None
        for command in commands:
            if last is not None:
                transport.post(last)
            last = command
        assert last is not None
        transport.request(last, timeout_ms=120_000)
        return round(time.perf_counter() - began_s, 1)


def _queues() -> list[tuple[str, int]]:
    return [("calm", number) for number in range(QUEUES)]


def _transport(servers: str, client_id: str) -> Transport:
    return Transport(ClientSettings(bootstrap_servers=servers, client_id=client_id, prefix=PREFIX))
