"""The load of a Kafka share group by confluent-kafka; it does what ShareLoad.java does."""

from __future__ import annotations

import argparse

from confluent_kafka import KafkaError, Message, Producer, ShareConsumer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from tests.benchmarks.peers.load import TAKE_MAX, TIMEOUT_S, Ledger, load_parser, run_load

POLL_S = 0.2
FLUSH_LIMIT_S = 120.0


class ShareGroupsLoad:
    """A share consumer and a producer in this process.

    Args:
        options: The command line.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._servers = {"bootstrap.servers": options.bootstrap}
        self._admin = AdminClient({**self._servers})
        self._producer = Producer(self._servers)
        self._refused: KafkaError | None = None

    def create_topic(self, topic: str, queues: int) -> None:
        self._admin.create_topics([NewTopic(topic, queues, 1)])[topic].result(TIMEOUT_S)

    def send(self, topic: str, queue_id: int, value: bytes) -> None:
        while True:
            try:
                self._producer.produce(topic, value, partition=queue_id, on_delivery=self._note_delivery)
                break
            except BufferError:
                self._producer.poll(POLL_S)
        self._producer.poll(0)

    def flush(self) -> None:
        left = self._producer.flush(FLUSH_LIMIT_S)
        if left or self._refused is not None:
            message = f"{left} messages are not confirmed, {self._refused}"
            raise RuntimeError(message)

    def loop(self, topic: str, ledger: Ledger) -> None:
        # Unlike the Java client it has no share.acquire.mode: a poll may bring more.
        self._consume("loop", topic, ledger, {"share.acknowledgement.mode": "explicit", "max.poll.records": TAKE_MAX})

    def bulk(self, topic: str, ledger: Ledger) -> None:
        poll_max: int = self._options.poll_max
        self._consume("bulk", topic, ledger, {"share.acknowledgement.mode": "implicit", "max.poll.records": poll_max})

    def each(self, topic: str, ledger: Ledger) -> None:
        self._consume("each", topic, ledger, {"share.acknowledgement.mode": "explicit"})

    def _consume(self, group: str, topic: str, ledger: Ledger, settings: dict[str, str | int]) -> None:
        """Poll, acknowledge each record unless that is implicit, and wait for the commit before the next poll."""
        # By default a new group starts after the last record.
        entry = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ConfigResource.Type.GROUP, group, incremental_configs=[entry])
        for done in self._admin.incremental_alter_configs([resource]).values():
            done.result(TIMEOUT_S)
        is_explicit = settings["share.acknowledgement.mode"] == "explicit"
        with ShareConsumer({**self._servers, "group.id": group, **settings}) as consumer:
            consumer.subscribe([topic])
            while not ledger.is_over():
                messages = list(consumer.poll(POLL_S))
                if not messages:
                    continue
                for message in messages:
                    if message.error() is not None:
                        ledger.fail(message.error())
                        return
                numbers = ledger.received([message.value() or b"" for message in messages])
                if is_explicit:
                    for message in messages:
                        consumer.acknowledge(message)
                errors = [error for error in consumer.commit_sync(TIMEOUT_S).values() if error is not None]
                if errors:
                    ledger.fail(errors[0])
                    return
                ledger.acked(numbers)

    def _note_delivery(self, error: KafkaError | None, _message: Message) -> None:
        self._refused = error or self._refused


if __name__ == "__main__":
    parser = load_parser()
    parser.add_argument("--poll-max", type=int, required=True)
    chosen = parser.parse_args()
    run_load(ShareGroupsLoad(chosen), chosen)
