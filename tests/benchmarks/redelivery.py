"""When a message comes: again after a kill of its consumer, and for the first time after its delivery time."""

import json
import signal
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from connectors.kafka.embedded import EmbeddedKafka
from connectors.kafka.topic_admin import create_message_topic
from pipelines.job_settings import JobSettings
from pipelines.process.host import Host
from popstream import Consumer, Message, Producer
from popstream.kafka_connection import KafkaConnection
from tests.benchmarks.benchmark_options import BenchOptions

__all__ = ["measure_redelivery"]

_TOPIC = "redelivery"
_PREFIX = "redelivery"
_INVISIBLE_TIME_MS = 10_000
_CONSUMERS = 6
_DELAYS_MS = range(5_000, 15_000, 250)
_HELD = "held"


def measure_redelivery(options: BenchOptions, kafka: EmbeddedKafka) -> dict[str, Any]:
    """Kill consumers in the middle of a handler, each of a group of its own, between 2 and 17 s after its pop.

    `after_kill_s` is from the kill to the next delivery of the message; `after_time_ms` from the delivery time of a
    message to its handler, by the clocks of one machine.
    """
    servers = kafka.bootstrap_servers
    create_message_topic(KafkaConnection(servers), _TOPIC, 1)
    settings = JobSettings(
        folder=options.work / _PREFIX, bootstrap_servers=servers, topic_prefix=_PREFIX, message_topics=_TOPIC
    )
    with Host(settings, var=options.var):
        with Producer(servers, prefix=_PREFIX) as producer:
            producer.send_and_wait(_TOPIC, b"held")
        waits_s = _wait_after_kills(servers)
        lateness_ms = _lateness_ms(servers)
    return {
        "invisible_time_ms": _INVISIBLE_TIME_MS,
        "after_kill_s": [round(wait_s, 1) for wait_s in sorted(waits_s)],
        "after_time_ms": [round(statistics.median(lateness_ms)), round(max(lateness_ms))],
    }


def _wait_after_kills(servers: str) -> list[float]:
    held = [_Holder(servers, f"group-{number}") for number in range(_CONSUMERS)]
    with ThreadPoolExecutor(_CONSUMERS) as threads:
        return list(threads.map(lambda each: each[1].wait_after_kill(servers, 2.0 + 3.0 * each[0]), enumerate(held)))


class _Holder:
    """A consumer in a process of its own, which holds the message of the topic for as long as it lives."""

    def __init__(self, servers: str, group: str) -> None:
        self._group = group
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.benchmarks.redelivery", servers, group], stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline().strip() == _HELD
        self._held_s = time.time()

    def wait_after_kill(self, servers: str, after_s: float) -> float:
        """Kill it when it has held the message for so long; return the seconds until a pop got the message again."""
        with Consumer(servers, group=self._group, prefix=_PREFIX) as consumer:
            time.sleep(max(0.0, self._held_s + after_s - time.time()))
            self._process.send_signal(signal.SIGKILL)
            killed_s = time.time()
            self._process.wait()
            (message,) = consumer.pop(_TOPIC, queue_id=0, poll_time_ms=60_000)
            assert message.attempt > 1, "the killed consumer had it"
            return message.pop_time_ms / 1000 - killed_s


def _lateness_ms(servers: str) -> list[int]:
    """Send messages to be delivered later, and return how late their handler got each."""
    late_ms: list[int] = []
    with (
        Producer(servers, prefix=_PREFIX) as producer,
        Consumer(servers, group="later", prefix=_PREFIX, topics=[_TOPIC]) as consumer,
    ):
        began_ms = int(time.time() * 1000)
        for delay_ms in _DELAYS_MS:
            producer.send(_TOPIC, json.dumps(began_ms + delay_ms).encode(), deliver_at=began_ms + delay_ms)
        producer.flush()

        def handle(message: Message) -> None:
            if message.deliver_at_ms:
                late_ms.append(int(time.time() * 1000) - message.deliver_at_ms)
            if len(late_ms) == len(_DELAYS_MS):
                consumer.stop()

        consumer.run(handle)
    return late_ms


def _hold(servers: str, group: str) -> None:
    with Consumer(
        servers, group=group, prefix=_PREFIX, topics=[_TOPIC], invisible_time_ms=_INVISIBLE_TIME_MS
    ) as consumer:

        def handle(_: Message) -> None:
            print(_HELD, flush=True)
            time.sleep(3_600)

        consumer.run(handle)


if __name__ == "__main__":
    _hold(*sys.argv[1:])
