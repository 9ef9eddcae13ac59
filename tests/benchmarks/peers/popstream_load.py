"""The load of popstream by its own client."""

from __future__ import annotations

import argparse
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future

from connectors.kafka.topic_admin import create_message_topic
from popstream import Consumer, Message, Outcome, Producer, SendResult
from popstream.kafka_connection import KafkaConnection
from tests.benchmarks.peers.load import TAKE_MAX, TIMEOUT_S, Ledger, load_parser, run_load

POLL_MS = 1_000
UNCONFIRMED_MAX = 20_000


class PopstreamLoad:
    """A consumer and a producer in this process.

    Args:
        options: The command line.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._servers: str = options.bootstrap
        self._producer = Producer(self._servers)
        self._unconfirmed: deque[Future[SendResult]] = deque()

    def create_topic(self, topic: str, queues: int) -> None:
        create_message_topic(KafkaConnection(self._servers), topic, queues)

    def send(self, topic: str, queue_id: int, value: bytes) -> None:
        self._unconfirmed.append(self._producer.send(topic, value, queue_id=queue_id))
        while len(self._unconfirmed) > UNCONFIRMED_MAX:
            self._unconfirmed.popleft().result(TIMEOUT_S)

    def flush(self) -> None:
        while self._unconfirmed:
            self._unconfirmed.popleft().result(TIMEOUT_S)

    def loop(self, topic: str, ledger: Ledger) -> None:
        with Consumer(self._servers, group="loop") as consumer:
            while not ledger.is_over():
                messages = consumer.pop(topic, None, TAKE_MAX, poll_time_ms=POLL_MS).messages
                if messages:
                    numbers = _received(messages, ledger)
                    outcomes = [message.ack() for message in messages]
                    for number, outcome in zip(numbers, outcomes, strict=True):
                        _note_acks([number], [outcome.result(TIMEOUT_S)], ledger)

    def bulk(self, topic: str, ledger: Ledger) -> None:
        with Consumer(self._servers, group="bulk", topics=[topic], prefetch=self._options.prefetch) as consumer:

            def handle(messages: Sequence[Message]) -> None:
                numbers = _received(messages, ledger)
                consumer.ack_async(messages).add_done_callback(
                    lambda outcomes: _note_acks(numbers, outcomes.result(), ledger)
                )

            self._stop_when_over(consumer, ledger)
            consumer.run_sets(handle, set_size=self._options.set_size)
            ledger.wait_for_acks()

    def each(self, topic: str, ledger: Ledger) -> None:
        with Consumer(self._servers, group="each", topics=[topic]) as consumer:

            def handle(message: Message) -> None:
                numbers = _received([message], ledger)
                message.ack().add_done_callback(lambda outcome: _note_acks(numbers, [outcome.result()], ledger))

            self._stop_when_over(consumer, ledger)
            consumer.run(handle)
            ledger.wait_for_acks()

    @staticmethod
    def _stop_when_over(consumer: Consumer, ledger: Ledger) -> None:
        def stop() -> None:
            ledger.wait()
            consumer.stop()

        threading.Thread(target=stop).start()


def _received(messages: Sequence[Message], ledger: Ledger) -> list[int]:
    return ledger.received([message.value or b"" for message in messages])


def _note_acks(numbers: Sequence[int], outcomes: Sequence[Outcome], ledger: Ledger) -> None:
    """Note the acks that were applied; the message of another one is redelivered."""
    ledger.acked([number for number, outcome in zip(numbers, outcomes, strict=True) if outcome.applied])


if __name__ == "__main__":
    parser = load_parser()
    for name in ("prefetch", "set-size"):
        parser.add_argument(f"--{name}", type=int, required=True)
    chosen = parser.parse_args()
    run_load(PopstreamLoad(chosen), chosen)
