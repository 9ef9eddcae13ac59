"""`popstream what-if` on a long log: operations replayed a minute, and the memory that takes.

    python -m tests.benchmarks.what_if [operations] [folder of a Kafka]

Eight queues on four partitions, 4,000 operations a second by their times: each message is popped alone and acked alone,
the form that costs the most per message. One handler in a hundred takes 40 s, with leases of 30 s.
"""

from __future__ import annotations

import heapq
import json
import random
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from broker_state.kernel.context.decision import Decision, OpRecord
from broker_state.kernel.decide import decide
from broker_state.store.memory_kv import MemoryKv
from broker_state.store.overlay import Overlay
from connectors.jars.resolve import kafka_jars
from connectors.kafka.embedded import EmbeddedKafka
from connectors.kafka.topic_admin import NewTopic, open_admin
from popstream.exchange.partitioner import ops_key, partition_of
from popstream.kafka_connection import KafkaConnection
from popstream.wire.command import (
    Ack,
    AckEntry,
    Command,
    Declare,
    Dispatch,
    HandleRef,
    Pop,
    WrittenRange,
    encode_command,
)
from tests.benchmarks.record_writer import open_writer
from tests.support.processes.job_process import POPSTREAM

if TYPE_CHECKING:
    from collections.abc import Iterator

QUEUES, PARTITIONS = 8, 4
BEGAN_MS = 1_795_262_400_000
OPERATIONS_A_MS = 4
INVISIBLE_TIME_MS = 30_000


def operations(count: int, queue_id: int, seed: int) -> Iterator[tuple[int, Command]]:
    """Yield the operations of a queue with their times; the kernel says what each pop gets."""
    overlay, chance = Overlay(MemoryKv()), random.Random(seed)
    place: dict[str, Any] = {"v": 1, "topic": "orders", "queue_id": queue_id}
    due: list[tuple[int, int, str, int]] = []
    sent = 0

    def decided(at_ms: int, command: Command) -> Decision:
        nonlocal sent
        sent += 1
        decision = Decision()
        decide(overlay, OpRecord(0, sent, at_ms, command, b""), decision)
        return decision

    first: list[Command] = [
        Declare(**place, topic_id="t", op_id="declare"),
        Dispatch(**place, ranges=[WrittenRange(0, min(count, 1_000_000) - 1)]),
    ]
    for command in first:
        decided(BEGAN_MS, command)
        yield BEGAN_MS, command
    while sent < count:
        now_ms = BEGAN_MS + sent * QUEUES // OPERATIONS_A_MS
        while due and due[0][0] <= now_ms:
            _, _, handle, offset = heapq.heappop(due)
            ack = Ack(
                **place,
                op_id=f"a-{queue_id}-{sent}",
                reply_to=0,
                client_id="bench",
                handles=[HandleRef("billing", handle)],
                entries=[AckEntry(0, [(offset, offset)])],
            )
            decided(now_ms, ack)
            yield now_ms, ack
        pop = Pop(
            **place,
            op_id=f"p-{queue_id}-{sent}",
            reply_to=0,
            group="billing",
            max_messages=1,
            invisible_time_ms=INVISIBLE_TIME_MS,
            client_id=f"worker-{sent % 8}",
        )
        for row in decided(now_ms, pop).operations:
            if row.handle_after is not None and row.first_offset is not None:
                delay_ms = 40_000 if chance.random() < 0.01 else chance.randrange(5, 50)
                heapq.heappush(due, (now_ms + delay_ms, sent, row.handle_after, row.first_offset))
        yield now_ms, pop


def fill(servers: str, count: int) -> None:
    """Write the log: the queues take turns by their times."""
    streams = [
        ((at_ms, queue_id, number), command)
        for queue_id in range(QUEUES)
        for number, (at_ms, command) in enumerate(operations(count // QUEUES, queue_id, queue_id))
    ]
    streams.sort(key=lambda each: each[0])
    with open_writer(KafkaConnection(servers)) as writer:
        for (at_ms, queue_id, _), command in streams:
            key = ops_key("orders", queue_id)
            partition = partition_of(key, PARTITIONS)
            writer.send("bench.ops", encode_command(command), key=key, timestamp_ms=at_ms, partition=partition)


def measure(servers: str, folder: Path, *options: str) -> dict[str, Any]:
    """Run the command, and return operations a minute, CPU a record, and the memory of its largest process."""
    began, used = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [
            *(str(POPSTREAM), "what-if", "billing", *options, "--json", "--folder", str(folder / "job")),
            *("--bootstrap-servers", servers, "--prefix", "bench"),
        ],
        stdout=subprocess.PIPE,
        check=True,
    )
    took_s = time.perf_counter() - began
    now = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime
    found = json.loads(done.stdout)
    (group,) = found["groups"]
    return {
        "records": found["records"],
        "decided_again": found["decided_again"],
        "seconds": round(took_s, 1),
        "records_a_minute": round(found["records"] / took_s * 60),
        "cpu_us_a_record": round(cpu_s / found["records"] * 1e6, 1),
        "largest_process_mib": now.ru_maxrss // 1024,
        "redeliveries": [group["fact"]["redeliveries"], group["what_if"]["redeliveries"]],
        "blocked_ms": [group["fact"]["blocked_ms"], group["what_if"]["blocked_ms"]],
        "evidence": group["evidence"],
    }


def main(count: int, folder: Path) -> None:
    """Fill a Kafka where it is empty, measure, and print."""
    is_new = not folder.is_dir()
    with EmbeddedKafka(folder / "kafka", jars=kafka_jars(Path("var").absolute())) as kafka:
        if is_new:
            with open_admin(kafka.connection) as admin:
                admin.create([NewTopic("bench.ops", PARTITIONS, 1, {})])
            fill(kafka.bootstrap_servers, count)
        found = {
            "invisible_time_60s": measure(kafka.bootstrap_servers, folder, "--invisible-time", "60s"),
            "max_attempts_1": measure(kafka.bootstrap_servers, folder, "--max-attempts", "1"),
        }
    print(json.dumps({"operations": count, **found}, indent=1))


if __name__ == "__main__":
    main(
        int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000,
        Path(sys.argv[2]) if len(sys.argv) > 2 else Path("var/bench-what-if"),
    )
