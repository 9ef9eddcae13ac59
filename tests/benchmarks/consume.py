"""A consumer whose handler does nothing: CPU a message, and messages a second with a job."""

import asyncio
import itertools
import multiprocessing
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import msgspec

from connectors.kafka.embedded import EmbeddedKafka
from pipelines.job_settings import JobSettings
from pipelines.process.host import Host
from popstream import AsyncConsumer, Consumer, Message
from popstream.testing import MemoryJob
from tests.benchmarks.benchmark_options import QUEUES, BenchOptions
from tests.benchmarks.build import fill_topic

__all__ = ["measure_consume"]

_VALUE = b"m" * 100
_MEMORY_MESSAGES = 40_000
_SET_SIZE = 100
_TASKS = 50
_MANY_QUEUES = 256


def _run(consumer: Consumer, handled: Callable[[int], None]) -> None:
    consumer.run(lambda _: handled(1))


def _run_sets(consumer: Consumer, handled: Callable[[int], None]) -> None:
    def handle(messages: Sequence[Message]) -> None:
        handled(len(messages))

    consumer.run_sets(handle, set_size=_SET_SIZE)


def _run_tasks(consumer: Consumer, handled: Callable[[int], None]) -> None:
    async def handle(_: Message) -> None:
        handled(1)

    asyncio.run(AsyncConsumer.of(consumer).run(handle, tasks=_TASKS))


class _Way(msgspec.Struct, frozen=True, kw_only=True):
    """A way to consume, and from how many queues."""

    consume: Callable[[Consumer, Callable[[int], None]], None]
    queues: int = QUEUES
    order: bool = False

    @property
    def topic(self) -> str:
        return f"consume-{self.queues}"


_WAYS = {
    "run": _Way(consume=_run),
    f"run_sets_{_SET_SIZE}": _Way(consume=_run_sets),
    "orderly": _Way(consume=_run, order=True),
    f"orderly_{_MANY_QUEUES}": _Way(consume=_run, order=True, queues=_MANY_QUEUES),
    f"async_{_TASKS}_tasks": _Way(consume=_run_tasks),
}


def measure_consume(options: BenchOptions, kafka: EmbeddedKafka) -> dict[str, Any]:
    """Measure each way to consume: with the job in memory, and with a real one, in a process of its own."""
    messages = options.operations // 10
    servers, prefix = kafka.bootstrap_servers, "consume"
    queues_of = {way.topic: way.queues for way in _WAYS.values()}
    for topic, queues in queues_of.items():
        fill_topic(servers, topic, messages, queues, options.on_progress)
    settings = JobSettings(
        folder=options.work / prefix, bootstrap_servers=servers, topic_prefix=prefix, message_topics=",".join(queues_of)
    )
    # One process for each: a client must not share the interpreter lock of the job, nor the cache of another client.
    clients = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"), max_tasks_per_child=1)
    with clients, Host(settings, var=options.var):
        for way in ("run", f"orderly_{_MANY_QUEUES}"):  # while the builder works
            clients.submit(_from_job, servers, prefix, way, "warm", messages).result()
        real = {way: clients.submit(_from_job, servers, prefix, way, way, messages).result() for way in _WAYS}
    return {"in_memory": {way: _from_memory(way) for way in _WAYS}, "messages": messages, "job": real}


def _from_memory(name: str) -> dict[str, float]:
    job, way = MemoryJob(), _WAYS[name]
    messages = _MEMORY_MESSAGES // way.queues * way.queues
    for queue_id in range(way.queues):
        job.write(way.topic, queue_id, [_VALUE] * (messages // way.queues))
    with job.consumer("group", topics=[way.topic], order=way.order) as consumer:
        decided_s = job.cpu_s
        measured = _consume(consumer, way, messages)
        # The job decides in this process.
        cpu_us = measured["cpu_us"] - (job.cpu_s - decided_s) * 1e6 / messages
    return {"cpu_us": round(cpu_us, 1)}


def _from_job(bootstrap_servers: str, prefix: str, name: str, group: str, messages: int) -> dict[str, float]:
    way = _WAYS[name]
    with Consumer(bootstrap_servers, group=group, prefix=prefix, topics=[way.topic], order=way.order) as consumer:
        return _consume(consumer, way, messages)


def _consume(consumer: Consumer, way: _Way, messages: int) -> dict[str, float]:
    """Handle all messages; return the CPU of this process a message, and the rate over the last 80 % of them."""
    count, reached_s = itertools.count(1), {}

    def handled(number: int) -> None:
        for _ in range(number):
            if (seen := next(count)) in (messages // 5, messages):
                reached_s[seen] = time.perf_counter()
        if messages in reached_s:
            consumer.stop()

    began_s = time.process_time()
    way.consume(consumer, handled)
    consumer.flush()
    cpu_s = time.process_time() - began_s
    took_s = reached_s[messages] - reached_s[messages // 5]
    return {
        "cpu_us": round(cpu_s * 1e6 / messages, 1),
        "messages_a_second": round((messages - messages // 5) / took_s),
    }
