"""Operations at a steady rate, from a process of its own: `python -m tests.soak.load SERVERS PREFIX`.

The first line of standard input is how many operations are sent at once, as fast as it goes; each later one is the rate
in operations a second from then on; the end of input is the end. Each message is popped alone and acked alone. One line
of standard output tells how many operations were sent at once, another one how many in all.
"""

from __future__ import annotations

import itertools
import sys
import threading
import time
from typing import TYPE_CHECKING

from kafka import KafkaProducer

from connectors.kafka.own_topics import Topics
from popstream.exchange.partitioner import ops_key, partition_of
from popstream.wire.command import Dispatch, Pop, WrittenRange, encode_command
from tests.benchmarks.measured_operations import declare_queue, single_entry_ops

if TYPE_CHECKING:
    from collections.abc import Iterator

    from popstream.wire.command import Command

__all__ = ["GROUP", "QUEUES", "TOPIC"]

TOPIC, GROUP, QUEUES = "soak", "steady", 4
AT_ONCE = 100_000
ENDLESS = 1 << 40
SLICE_S = 0.05


def operations(queue_id: int) -> Iterator[Command]:
    """A queue that is written to whenever its messages run out."""
    yield from declare_queue(TOPIC, queue_id, 0)
    for command in single_entry_ops(TOPIC, queue_id, GROUP, ENDLESS, reply_to=queue_id):
        if isinstance(command, Pop):
            number = int(command.op_id.rpartition(".")[2]) if command.op_id else 0
            if not number % AT_ONCE:
                written = [WrittenRange(number, number + AT_ONCE - 1)]
                yield Dispatch(topic=TOPIC, queue_id=queue_id, v=1, ranges=written)
        yield command


class Rate:
    """The latest rate that was asked for; 0 before the first, None at the end."""

    def __init__(self) -> None:
        self.value: float | None = 0.0
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in sys.stdin:
            self.value = float(line)
        self.value = None


def main(servers: str, prefix: str) -> None:
    """Send until standard input ends."""
    at_once, topics = int(sys.stdin.readline()), Topics.of(prefix)
    producer = KafkaProducer(
        bootstrap_servers=servers, acks="all", enable_idempotence=True, linger_ms=20, batch_size=256 * 1024
    )
    partitions = len(producer.partitions_for(topics.ops))
    sent, rate = 0, None
    streams = zip(*(operations(queue_id) for queue_id in range(QUEUES)), strict=True)
    due = time.monotonic()
    for command in itertools.chain.from_iterable(streams):
        if sent == at_once:
            producer.flush()
            print(sent, flush=True)
            rate = Rate()
        while rate is not None and rate.value == 0:
            time.sleep(SLICE_S)
        if rate is not None and rate.value is None:
            break
        key = ops_key(command.topic, command.queue_id)
        producer.send(topics.ops, encode_command(command), key, partition=partition_of(key, partitions))
        sent += 1
        if rate is not None and rate.value and sent % max(1, int(rate.value * SLICE_S)) == 0:
            due = max(due + SLICE_S, time.monotonic() - 1)  # what an outage held up is not made up for at once
            time.sleep(max(0.0, due - time.monotonic()))
    producer.flush()
    producer.close()
    print(sent)


if __name__ == "__main__":
    main(*sys.argv[1:])
