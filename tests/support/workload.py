"""Clients without manners: many operations of all kinds on a few queues, some sent twice, all answers recorded."""

from __future__ import annotations

import json
import random
import threading
import time
from typing import TYPE_CHECKING, Any, Self

from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from popstream.exchange.partitioner import ops_key, partition_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from connectors.kafka.own_topics import Topics

__all__ = ["Workload"]

QUEUES = (("orders", 0), ("orders", 1), ("parcels", 3))
GROUPS = ("billing", "search", "accounts")
ORDERLY = "accounts"


class Workload:
    """Sends until the context is left; `answers` has what came back, the raw frames in `frames`.

    `arrivals` has, for each answer, when it came (seconds since the epoch) and its time by the queue's clock (ms).

    Args:
        servers: The Kafka to work with.
        topics: The job's.
        ops_partitions: Of the ops topic.
        seed: Of its choices; what it sends also depends on the answers and so on time.
        pause_s: Between two operations.
        reply_to: The partition of the results topic that is for it alone.
    """

    def __init__(
        self, servers: str, topics: Topics, ops_partitions: int, *, seed: int, pause_s: float = 0.06, reply_to: int = 0
    ) -> None:
        self.answers: dict[str, dict[str, Any]] = {}
        self.frames: list[bytes] = []
        self.arrivals: list[tuple[float, int]] = []
        self.sent = 0
        self._servers, self._topics, self._partitions = servers, topics, ops_partitions
        self._random = random.Random(seed)
        self._pause_s = pause_s
        self._name = f"w{seed}"
        self._reply_to = reply_to
        self._written = dict.fromkeys(QUEUES, 0)
        self._popped: list[tuple[tuple[str, int], str, dict[str, Any]]] = []
        self._pops: dict[str, tuple[tuple[str, int], str]] = {}
        self._bytes: list[tuple[tuple[str, int], bytes]] = []
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._send_all), threading.Thread(target=self._receive_all)]

    def __enter__(self) -> Self:
        for queue in QUEUES:
            self._bytes.append((queue, b""))
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def first_answer_after(self, epoch_s: float) -> float | None:
        """When the first answer arrived to an operation that Kafka got after a moment, in seconds since the epoch."""
        return next((arrived for arrived, now_ms in self.arrivals if now_ms > epoch_s * 1_000), None)

    def _receive_all(self) -> None:
        consumer = KafkaConsumer(bootstrap_servers=self._servers, isolation_level="read_committed")
        partition = TopicPartition(self._topics.results, self._reply_to)
        consumer.assign([partition])
        consumer.seek_to_beginning(partition)
        while not self._stopping.is_set():
            for record in consumer.poll(timeout_ms=100).get(partition, []):
                self.frames.append(record.value)
                for answer in json.loads(record.value)["answers"]:
                    self._learn(answer)
        consumer.close()

    def _learn(self, answer: dict[str, Any]) -> None:
        is_new = answer["op_id"] not in self.answers
        self.arrivals.append((time.time(), answer["now_ms"]))
        self.answers[answer["op_id"]] = answer
        asked = self._pops.get(answer["op_id"])
        if asked and is_new and answer.get("messages"):
            self._popped.append((*asked, answer))

    def _send_all(self) -> None:
        producer = KafkaProducer(bootstrap_servers=self._servers, acks="all", enable_idempotence=True, linger_ms=0)
        for queue in QUEUES:
            self._send(producer, queue, "declare", topic_id="11111111-2222-4333-8444-555555555555")
            self._send(producer, queue, "policy", group="billing", max_attempts=3, back_off_ms=[200, 400])
        while not self._stopping.is_set():
            self._send_one(producer)
            time.sleep(self._pause_s)
        producer.flush()
        producer.close()

    def _send_one(self, producer: KafkaProducer) -> None:
        queue = self._random.choice(QUEUES)
        kinds: dict[Callable[[KafkaProducer, tuple[str, int]], None], int] = {
            self._dispatch: 22,
            self._pop: 33,
            self._answer_a_pop: 30,
            self._cancel: 5,
            self._return_client: 3,
            self._send_again: 4,
            self._reset: 1,
            self._forget: 1,
            self._announce_redrive: 1,
            self._send_unreadable: 1,
        }
        (send,) = self._random.choices(list(kinds), list(kinds.values()))
        send(producer, queue)

    def _dispatch(self, producer: KafkaProducer, queue: tuple[str, int]) -> None:
        chance = self._random
        first = self._written[queue] + chance.choice([0, 0, 0, 2])
        self._written[queue] = last = first + chance.randrange(1, 12)
        skip = [[first + 1, first + 1]] if chance.random() < 0.2 else []
        ranges = [{"first": first, "last": last - 1}]
        if first > 2:
            ranges.append({"first": first - 2, "last": first - 1})
        self._send(producer, queue, "dispatch", ranges=ranges, skip=skip)

    def _pop(self, producer: KafkaProducer, queue: tuple[str, int]) -> None:
        chance = self._random
        group = chance.choice(GROUPS)
        pop: dict[str, Any] = {
            "max_messages": chance.choice([1, 4, 16]),
            "invisible_time_ms": chance.choice([300, 1500, 60_000]),
        }
        if group == ORDERLY:
            pop |= {"order": True, "attempt_id": chance.choice(["a", "b", "c"])}
        op_id = self._send(producer, queue, "pop", group=group, **pop, poll_time_ms=chance.choice([0, 0, 800, 5000]))
        self._pops[op_id] = (queue, group)

    def _cancel(self, producer: KafkaProducer, queue: tuple[str, int]) -> None:
        if not self._pops:
            self._return_client(producer, queue)
            return
        target = self._random.choice(list(self._pops))
        self._send(producer, self._pops[target][0], "cancel", target_op_id=target)

    def _return_client(self, producer: KafkaProducer, queue: tuple[str, int]) -> None:
        self._send(producer, queue, "return_client", group=self._random.choice(GROUPS), client_id=self._name)

    def _send_again(self, producer: KafkaProducer, _queue: tuple[str, int]) -> None:
        again, value = self._random.choice(self._bytes[-200:])
        if value:
            self._write(producer, again, value)

    def _reset(self, producer: KafkaProducer, queue: tuple[str, int]) -> None:
        self._send(producer, queue, "reset_offset", group="search", queue_offset=self._written[queue] // 2)

    def _forget(self, producer: KafkaProducer, queue: tuple[str, int]) -> None:
        self._send(producer, queue, "forget_lane", group="search")

    def _announce_redrive(self, producer: KafkaProducer, queue: tuple[str, int]) -> None:
        self._send(producer, queue, "redrive", group="search", offsets=[[0, 3], [7, 7]], to="group", by=self._name)

    def _send_unreadable(self, producer: KafkaProducer, queue: tuple[str, int]) -> None:
        self._write(producer, queue, self._random.choice([b"", b"{nope"]))
        self._send(producer, queue, "pop", v=2)
        self._bytes.pop()  # what cannot be read is not remembered: sent again, it is answered at another time

    def _answer_a_pop(self, producer: KafkaProducer, queue: tuple[str, int]) -> None:
        if not self._popped:
            self._cancel(producer, queue)
            return
        chance = self._random
        queue, group, answer = self._popped[-1 - chance.randrange(min(8, len(self._popped)))]
        offsets = [[first, last] for first, last, _ in answer["messages"]]
        kind = chance.choice(["ack", "ack", "ack", "change_invisible", "reject"])
        entry: dict[str, Any] = {"handle": 0, "offsets": offsets if kind != "reject" else offsets[:1]}
        if kind == "change_invisible":
            entry["invisible_time_ms"] = chance.choice([0, 500, 30_000])
        handles = [{"group": group, "handle": answer["handle"]}]
        self._send(producer, queue, kind, handles=handles, entries=[entry])

    def _send(self, producer: KafkaProducer, queue: tuple[str, int], kind: str, **fields: Any) -> str:
        self.sent += 1
        op_id = f"{self._name}-{self.sent}"
        head = {"v": 1, "type": kind, "topic": queue[0], "queue_id": queue[1], "op_id": op_id}
        if kind == "pop":
            head["client_id"] = self._name
        value = json.dumps({**head, "reply_to": self._reply_to, **fields}).encode()
        self._bytes.append((queue, value))
        self._write(producer, queue, value)
        return op_id

    def _write(self, producer: KafkaProducer, queue: tuple[str, int], value: bytes) -> None:
        key = ops_key(*queue)
        producer.send(self._topics.ops, value, key, partition=partition_of(key, self._partitions))
