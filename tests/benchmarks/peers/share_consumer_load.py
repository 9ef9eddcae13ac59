"""The load of `share_consumer`, in a process of its own; it does what ShareLoad.java does."""

from __future__ import annotations

import argparse
import json
import struct
import threading
import time
from collections.abc import Callable

from confluent_kafka import Producer, ShareConsumer
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic

from pipelines.cli.clients.perf.ledger import quantiles_of

POLL_S = 0.5
POLL_MAX = 500
IDLE_S = 5.0
"""A backlog that ends early is done when nothing came for this time."""
FIRST_LIMIT_S = 60.0
COMMIT_LIMIT_S = 30.0
_SENT_NS = struct.Struct(">q")


class Load:
    """Measures one broker.

    Args:
        options: The command line.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._servers = {"bootstrap.servers": options.bootstrap}
        self._admin = AdminClient({**self._servers})
        self._made = 0

    def run(self) -> None:
        """Fill a backlog, and print a line for each workload."""
        backlog = self._topic(self._options.queues)
        producer = Producer({**self._servers, "queue.buffering.max.messages": 1_000_000})
        value = bytes(self._options.message_bytes)
        for _ in range(self._options.messages):
            while True:
                try:
                    producer.produce(backlog, value)
                    break
                except BufferError:
                    producer.poll(0.1)
        producer.flush()
        self._consume("each", backlog, is_explicit=True)
        self._consume("together", backlog, is_explicit=False)
        self._latency()

    def _topic(self, partitions: int) -> str:
        self._made += 1
        name = f"topic-{self._made}"
        self._admin.create_topics([NewTopic(name, partitions, 1)])[name].result(COMMIT_LIMIT_S)
        return name

    def _consumer(self, *, is_explicit: bool) -> ShareConsumer:
        """A consumer of a new group, which starts at the first record; by default it is the last."""
        self._made += 1
        group = f"group-{self._made}"
        entry = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=[entry])
        for done in self._admin.incremental_alter_configs([resource]).values():
            done.result(COMMIT_LIMIT_S)
        return ShareConsumer(
            {
                **self._servers,
                "group.id": group,
                "share.acknowledgement.mode": "explicit" if is_explicit else "implicit",
                "max.poll.records": POLL_MAX,
            }
        )

    def _consume(self, workload: str, topic: str, *, is_explicit: bool) -> None:
        """Poll, acknowledge each message if that is asked for, and commit before the next poll."""
        acks_ms: list[float] = []
        taken, errors, last_error = 0, 0, ""
        with self._consumer(is_explicit=is_explicit) as consumer:
            consumer.subscribe([topic])
            first_s = last_s = window_s = 0.0
            taken_before = 0
            waiting_until_s = time.perf_counter() + FIRST_LIMIT_S
            while True:
                messages = consumer.poll(POLL_S)
                now_s = time.perf_counter()
                if not messages:
                    if now_s > (last_s + IDLE_S if last_s else waiting_until_s):
                        break
                    continue
                failed = [str(message.error()) for message in messages if message.error() is not None]
                if is_explicit:
                    for message in messages:
                        consumer.acknowledge(message)
                began_s = time.perf_counter()
                outcomes = consumer.commit_sync(COMMIT_LIMIT_S).values()
                last_s = time.perf_counter()
                acks_ms.append((last_s - began_s) * 1e3)
                failed += [str(error) for error in outcomes if error is not None]
                taken += len(messages)
                errors += len(failed)
                last_error = failed[-1] if failed else last_error
                first_s = first_s or last_s
                if not window_s and last_s - first_s >= self._options.warm_s:
                    window_s, taken_before = last_s, taken
                    acks_ms.clear()
                if taken >= self._options.messages or (window_s and last_s - window_s >= self._options.window_s):
                    break
        if window_s in {0.0, last_s}:
            # A backlog that is gone by now was measured from the first message on; its rate has the warm-up in it.
            window_s, taken_before = first_s, 0
        seconds = last_s - window_s
        _print(
            workload,
            messages=taken - taken_before,
            seconds=round(seconds, 4),
            messages_per_s=round((taken - taken_before) / seconds, 1) if seconds else 0.0,
            **_p50_p99("ack", acks_ms),
            errors=errors,
            last_error=last_error,
        )

    def _latency(self) -> None:
        """One message at a time: the consumer waits in poll, one message is produced, got and acknowledged."""
        topic = self._topic(1)
        acked = threading.Semaphore(0)
        delivery_ms: list[float] = []
        ack_ms: list[float] = []
        errors: list[str] = []
        stopping = threading.Event()

        def consume() -> None:
            with self._consumer(is_explicit=True) as consumer:
                consumer.subscribe([topic])
                while not stopping.is_set():
                    for message in consumer.poll(POLL_S):
                        got_ns = time.perf_counter_ns()
                        value = message.value()
                        consumer.acknowledge(message)
                        outcomes = consumer.commit_sync(COMMIT_LIMIT_S).values()
                        end_ns = time.perf_counter_ns()
                        errors.extend(str(error) for error in (message.error(), *outcomes) if error is not None)
                        assert isinstance(value, bytes)
                        delivery_ms.append((got_ns - _SENT_NS.unpack_from(value)[0]) / 1e6)
                        ack_ms.append((end_ns - got_ns) / 1e6)
                        acked.release()

        def cycle(seconds: Callable[[], float]) -> None:
            while seconds() > 0:
                time.sleep(0.005)
                value = _SENT_NS.pack(time.perf_counter_ns()).ljust(self._options.message_bytes, b".")
                producer.produce(topic, value)
                producer.flush()
                if not acked.acquire(timeout=COMMIT_LIMIT_S):
                    errors.append("a message did not come")
                    return

        def until(seconds: float) -> Callable[[], float]:
            end_s = time.perf_counter() + seconds
            return lambda: end_s - time.perf_counter()

        producer = Producer(self._servers)
        consuming = threading.Thread(target=consume, daemon=True)
        consuming.start()
        cycle(until(0.001))  # the first message waits until the consumer is a member
        cycle(until(self._options.warm_s))
        delivery_ms.clear()
        ack_ms.clear()
        began_s = time.perf_counter()
        cycle(until(self._options.window_s))
        seconds = time.perf_counter() - began_s
        stopping.set()
        consuming.join(COMMIT_LIMIT_S)
        _print(
            "latency",
            messages=len(ack_ms),
            seconds=round(seconds, 4),
            **_p50_p99("delivery", delivery_ms),
            **_p50_p99("ack", ack_ms),
            errors=len(errors),
            last_error=errors[-1] if errors else "",
        )


def _p50_p99(name: str, values_ms: list[float]) -> dict[str, float]:
    quantiles = quantiles_of(values_ms) or {}
    return {f"{name}_{each}_ms": quantiles[each] for each in ("p50", "p99") if each in quantiles}


def _print(workload: str, **fields: float | str) -> None:
    print(json.dumps({"workload": workload, **fields}), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.peers.share_consumer_load")
    parser.add_argument("--bootstrap", required=True)
    for name, kind in (("messages", int), ("queues", int), ("message-bytes", int), ("warm-s", float)):
        parser.add_argument(f"--{name}", type=kind, required=True)
    parser.add_argument("--window-s", type=float, required=True)
    Load(parser.parse_args()).run()
