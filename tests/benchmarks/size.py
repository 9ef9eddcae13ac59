"""What many leases, lanes and delivery times cost: rates beside few and many, bytes a lease, the time of a restart."""

import gc
import itertools
import random
import tempfile
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from broker_state.kernel.context.decision import Decision
from broker_state.kernel.fold import fold
from broker_state.store.overlay import Overlay
from broker_state.store.rocks_store import RocksStore
from checkpoints.layout import JobFolder
from connectors.kafka.embedded import EmbeddedKafka
from pipelines.decide_ops.order import TURN_RECORDS_MAX
from pipelines.job_settings import JobSettings
from pipelines.process.host import Host
from popstream import Transport
from popstream.settings import ClientSettings
from popstream.wire.command import Command, Tick
from tests.benchmarks.benchmark_options import QUEUES, BenchOptions
from tests.benchmarks.drain import drain, fill
from tests.benchmarks.kernel import Rate
from tests.benchmarks.measured_operations import (
    batch,
    declare_queue,
    op_records,
    ops_behind,
    put_off_ops,
    single_entry_ops,
    single_pops,
    whole_pop_ops,
)

__all__ = ["measure_restart", "measure_size"]

_TOPIC = "size"
_MESSAGES_A_POP = 100
_LEASES = (1_000, 10_000_000)
_LANES = (10, 100_000)
_PUT_OFF = (0, 1_000_000)
_RECORDS_A_WRITE = 20_000


def measure_size(options: BenchOptions) -> dict[str, dict[str, Rate]]:
    """Return operations a second of kernel and store, in turns as the job has, with a synced WriteBatch for 20,000."""
    gc.disable()  # as the job does while it decides
    return {
        name: _by_turns(measure, sizes, min(options.runs, 3))
        for name, measure, sizes in (
            ("leases", _beside_leases, _LEASES),
            ("lanes", _over_lanes, _LANES),
            ("put_off", _behind_put_off, _PUT_OFF),
        )
    }


def _by_turns(measure: Callable[[int], float], sizes: Sequence[int], runs: int) -> dict[str, Rate]:
    """Measure each of the sizes in each run, as a machine may be faster in one minute than in the next."""
    found = [[measure(size) for size in sizes] for _ in range(runs)]
    return {str(size): Rate.of("ops", list(rates)) for size, rates in zip(sizes, zip(*found, strict=True), strict=True)}


def _beside_leases(leases: int, messages: int = 100_000) -> float:
    """Pop and ack single messages of a lane that holds `leases`, anywhere among them; return operations a second."""
    with tempfile.TemporaryDirectory() as folder, RocksStore(Path(folder)) as store:
        overlay = Overlay(store)
        _apply(overlay, store, declare_queue(_TOPIC, 0, leases + messages))
        _apply(overlay, store, _large_pops(0, leases))
        return _rate(overlay, store, list(_scattered_ops(leases, messages)))


def _large_pops(queue_id: int, leases: int) -> Iterator[Command]:
    pops = leases // _MESSAGES_A_POP
    both = whole_pop_ops(_TOPIC, queue_id, "group", pops, _MESSAGES_A_POP, entry_offsets=_MESSAGES_A_POP)
    return itertools.islice(both, 0, None, 2)


def _scattered_ops(leases: int, messages: int) -> Iterator[Command]:
    """Yield a pop of one message and an ack of any one that is leased, by turns, after `_large_pops`."""
    held = array("q", range(leases))
    chance = random.Random(0)
    pops = leases // _MESSAGES_A_POP
    for number, pop in enumerate(single_pops(_TOPIC, 0, "group", messages)):
        yield pop
        held.append(leases + number)
        place = chance.randrange(len(held))
        held[place], held[-1] = held[-1], held[place]
        acked = held.pop()
        of_large, first = acked < leases, acked - acked % _MESSAGES_A_POP
        delivered = (acked // _MESSAGES_A_POP + 1, first) if of_large else (pops + acked - leases + 1, acked)
        yield batch(_TOPIC, 0, "group", f"A{number}", [delivered], [(0, acked, acked)])


def _over_lanes(lanes: int, operations: int = 200_000) -> float:
    """Pop and ack single messages in `lanes` lanes by turns; return operations a second, once all lanes are made."""
    with tempfile.TemporaryDirectory() as folder, RocksStore(Path(folder)) as store:
        overlay = Overlay(store)
        messages = operations // 2 // lanes
        _apply(overlay, store, declare_queue(_TOPIC, 0, messages + 1))
        streams = [single_entry_ops(_TOPIC, 0, f"g{number}", messages + 1, held=1) for number in range(lanes)]
        _apply(overlay, store, [next(stream) for stream in streams])
        in_turn = itertools.chain.from_iterable(zip(*streams, strict=True))
        return _rate(overlay, store, list(itertools.islice(in_turn, operations)))


def _behind_put_off(put_off: int, messages: int = 100_000) -> float:
    """Pop and ack single messages behind others, each with a delivery time of its own to come; operations a second."""
    with tempfile.TemporaryDirectory() as folder, RocksStore(Path(folder)) as store:
        overlay = Overlay(store)
        _apply(overlay, store, declare_queue(_TOPIC, 0, 0))
        for command in put_off_ops(_TOPIC, 0, "group", put_off):
            _apply(overlay, store, [command])
        dispatch, *commands = ops_behind(_TOPIC, 0, "group", put_off, messages)
        _apply(overlay, store, [dispatch])
        return _rate(overlay, store, commands)


def _rate(overlay: Overlay, store: RocksStore, commands: list[Command]) -> float:
    began_s = time.perf_counter()
    refused = _apply(overlay, store, commands)
    assert not refused, f"{refused} operations of the workload were refused"
    return len(commands) / (time.perf_counter() - began_s)


def _apply(overlay: Overlay, store: RocksStore, commands: Iterable[Command]) -> int:
    """Decide and write `commands`; return how many of their rows have an error code."""
    refused = 0
    to_come = iter(commands)
    while records := op_records(itertools.islice(to_come, _RECORDS_A_WRITE)):
        decision = Decision()
        for first in range(0, len(records), TURN_RECORDS_MAX):
            fold(overlay, records[first : first + TURN_RECORDS_MAX], decision)
        store.write(overlay)
        refused += sum(1 for row in decision.operations if row.code)
    return refused


def measure_restart(options: BenchOptions, kafka: EmbeddedKafka) -> dict[str, Any]:
    """Let a job grant 10,000,000 leases and start it again; return bytes a lease, and seconds to the first answer."""
    prefix, folder = "restart", options.work / "restart"
    pops = _LEASES[-1] // _MESSAGES_A_POP // QUEUES
    messages = pops * _MESSAGES_A_POP
    streams = [_large_pops(queue_id, messages) for queue_id in range(QUEUES)]
    records = fill(kafka, prefix, _TOPIC, messages, streams, options.on_progress)
    drain(kafka, prefix, folder, options.var, records, flush_interval_s=5.0)
    state_bytes = sum(file.stat().st_size for file in JobFolder(folder).state.iterdir())
    settings = JobSettings(folder=folder, bootstrap_servers=kafka.bootstrap_servers, topic_prefix=prefix)
    began_s = time.perf_counter()
    with (
        Host(settings, var=options.var),
        Transport(
            ClientSettings(bootstrap_servers=kafka.bootstrap_servers, client_id="bench", prefix=prefix)
        ) as client,
    ):
        client.request(Tick(topic=_TOPIC, queue_id=0, v=1))
        first_answer_s = time.perf_counter() - began_s
    return {
        "leases": messages * QUEUES,
        "bytes_a_lease": round(state_bytes / (messages * QUEUES), 2),
        "first_answer_s": round(first_answer_s, 1),
    }
