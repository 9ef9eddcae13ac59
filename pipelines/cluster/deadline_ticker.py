"""Ticks for a cluster: learns the deadlines of shards from their topic, and sends ticks to the ops topic.

Timers of Spark would let results depend on when a micro-batch runs; a tick is a record like any other.
"""

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

import msgspec
from kafka import KafkaProducer

from broker_state.store.keys import NEVER_MS
from connectors.kafka.cluster_topics import ClusterTopics
from connectors.kafka.kafka_errors import kafka_errors
from pipelines.apply_ops.tick_producer import TickProducer
from pipelines.apply_ops.ticker import Ticker
from pipelines.cluster.decide.outgoing import Deadlines, deadlines_record
from pipelines.cluster.decide.shard import QueueDeadline
from pipelines.cluster.keyed_log import KeyedLog
from popstream.exchange.resilient_producer import close_producer
from popstream.kafka_connection import KafkaConnection
from popstream.wire.queue_name import QueueName

__all__ = ["DeadlineTicker", "newest_deadlines", "publish_deadlines"]

_POLL_MS = 200
_TIMEOUT_S = 60.0
_decode = msgspec.msgpack.Decoder(Deadlines).decode
_decode_newest_ms = msgspec.msgpack.Decoder(tuple[int, msgspec.Raw]).decode


def publish_deadlines(
    connection: KafkaConnection, internal: ClusterTopics, by_shard: Mapping[int, list[QueueDeadline]], now_ms: int
) -> None:
    """Tell the ticker of deadlines before their shards do: each does so only when it decides a record.

    Args:
        connection: The Kafka.
        internal: The topics of a job on a cluster.
        by_shard: By partition of the ops topic, the queues that are due next, in order.
        now_ms: The time, about: a tick that is sent too early changes nothing.

    Raises:
        Unavailable: Kafka does not take them.
    """
    with kafka_errors(f"{internal.deadlines} cannot be written", internal.deadlines):
        producer = KafkaProducer(**connection.for_kafka_python(), acks="all")
        try:
            records = [deadlines_record(queues, now_ms, shard, internal) for shard, queues in by_shard.items()]
            sent = [
                producer.send(each.topic, key=each.key, value=each.value, partition=each.partition) for each in records
            ]
            for one in sent:
                one.get(_TIMEOUT_S)
        finally:
            close_producer(producer, _TIMEOUT_S)


def newest_deadlines(records: Iterable[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, Deadlines]]:
    """Yield the last deadlines of each shard, with the newest timestamp that any of its records has.

    The clocks of brokers differ, so the last one need not have it; but what it says was decided is.
    """
    last: dict[bytes, bytes] = {}
    newest_ms: dict[bytes, int] = {}
    for shard, value in records:
        last[shard] = value
        newest_ms[shard] = max(newest_ms.get(shard, 0), _decode_newest_ms(value)[0])
    for shard, value in last.items():
        deadlines = _decode(value)
        yield shard, Deadlines(newest_ms[shard], deadlines.queues)


class DeadlineTicker:
    """Reads the deadlines topic from its beginning, and then as it grows.

    Args:
        connection: The Kafka.
        deadlines_topic: Name of the topic with the deadlines.
        ops_topic: Name of the ops topic.
        ops_partitions: Its partitions.
        behind: Returns the shards of which the last micro-batch has left records unread: they get no ticks, as a record
            of the queue may follow.
        on_failure: Called with the error that ended a thread.
    """

    def __init__(
        self,
        connection: KafkaConnection,
        deadlines_topic: str,
        ops_topic: str,
        ops_partitions: int,
        behind: Callable[[], Collection[int]],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._connection = connection
        self._behind = behind
        self._topic = deadlines_topic
        self._ops_topic = ops_topic
        self._ops_partitions = ops_partitions
        self._on_failure = on_failure
        self._ticker = Ticker(self._send, on_failure)
        self._named: dict[bytes, set[QueueName]] = {}
        """The queues that the last record of each shard named."""
        self._held_back: dict[bytes, Deadlines] = {}
        """The last records of shards that are behind."""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._read, name="deadlines", daemon=True)
        self._ticks: TickProducer | None = None

    def start(self) -> None:
        """Start to read and to tick.

        Raises:
            Unavailable: Kafka does not answer.
        """
        with kafka_errors(f"{self._ops_topic} cannot be written", self._ops_topic):
            self._ticks = TickProducer(self._connection, self._ops_topic, self._ops_partitions)
        self._thread.start()
        self._ticker.start()

    def stop(self) -> None:
        """Stop both threads."""
        self._stopping.set()
        self._ticker.stop()
        if self._thread.is_alive():
            self._thread.join()
        if self._ticks is not None:
            self._ticks.close()

    def learn(self, shard: bytes, deadlines: Deadlines) -> None:
        """Take over the deadlines of a shard, or keep them until it is no longer behind."""
        due = {(each.topic, each.queue_id): each.deadline_ms for each in deadlines.queues}
        no_more = self._named.get(shard, set()) - due.keys()
        self._named[shard] = {*due}
        self._held_back.pop(shard, None)
        if int(shard) in self._behind():
            self._held_back[shard] = deadlines
            due = dict.fromkeys(due, NEVER_MS)
        self._ticker.learn({**dict.fromkeys(no_more, NEVER_MS), **due}, deadlines.newest_ms, behind=False)

    def look_again(self) -> None:
        """Take over the deadlines of shards that are no longer behind."""
        behind = self._behind() if self._held_back else ()
        for shard, deadlines in list(self._held_back.items()):
            if int(shard) not in behind:
                self.learn(shard, deadlines)

    def _read(self) -> None:
        try:
            with KeyedLog(self._connection, self._topic) as log:
                while not self._stopping.is_set():
                    for shard, deadlines in newest_deadlines(log.next(_POLL_MS)):
                        self.learn(shard, deadlines)
                    self.look_again()
        except Exception as error:  # noqa: BLE001 - any error ends the job, which reports it
            self._on_failure(error)

    def _send(self, queue: QueueName, value: bytes, answered: Callable[[int | None], None]) -> None:
        assert self._ticks is not None, "it has been started"
        self._ticks.send(queue, value, answered)
