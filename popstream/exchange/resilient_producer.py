"""A KafkaProducer that lasts: what kafka-python 3.0.12 does not recover from, another one is made for.

* A batch that was tried, and whose time is over while Kafka is away, leaves an idempotent producer without a producer
  id for ever: it sends nothing more, and ends no record's time.
* A refused record is the end of the producer, and of what is on its way to other queues, written or not.
* A record that is refused at its second try may have been written at its first: Kafka looks at size, time and rights
  before it looks whether it knows the record.
* Closing one that cannot send what it has leaves it open, its thread running.
"""

from __future__ import annotations

import logging
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

from kafka import KafkaProducer
from kafka.errors import KafkaError, OutOfOrderSequenceNumberError

from popstream.wire.failures import Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    # kafka-python has no types.
    Kafka = Any

__all__ = ["LastingProducer", "close_producer"]

LOG = logging.getLogger(__name__)

BOOTSTRAP_TIMEOUT_MS = 5_000
AGAIN_S = 0.2
ABORT_S = 5.0


class LastingProducer:
    """One KafkaProducer at a time. Safe for use by many threads.

    Args:
        options: Of each.
        refusals: Errors of records that the broker refuses for what they are.
        on_connected: Called when one was made.
        kafka_producer: Use this one, and no other.
    """

    def __init__(
        self,
        options: Mapping[str, Any],
        *,
        refusals: tuple[type[Exception], ...],
        on_connected: Callable[[], None],
        kafka_producer: Kafka = None,
    ) -> None:
        self._options = options
        self._refusals = refusals
        self._on_connected = on_connected
        self._is_given = kafka_producer is not None
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._replacing: threading.Thread | None = None
        self.current: Any = kafka_producer
        """To send with; None: it is not made yet, or another one is being made."""
        if kafka_producer is not None:
            self._survive_refusals(kafka_producer)

    def open(self) -> None:
        """Make the first one, if it is not made.

        Raises:
            Unavailable: Kafka does not answer.
        """
        with self._lock:
            if self.current is None and self._replacing is None and not self._closing.is_set():
                self.current = self._connect(self._options)
                self._on_connected()

    def suspect(self, kafka: Kafka) -> None:
        """It owes an answer: send no more with it. What is on its way may still be answered."""
        with self._lock:
            if kafka is None or self.current is not kafka or self._is_given or self._closing.is_set():
                return
            replacing = threading.Thread(target=self._replace, args=[kafka], name="kafka-again", daemon=True)
            try:
                replacing.start()
            except RuntimeError as error:  # no more threads, as when the interpreter exits
                LOG.warning("%s: no other producer can take over: %s", self._options["client_id"], error)
                return
            self.current, self._replacing = None, replacing

    def close(self, timeout_s: float) -> None:
        """Wait for what is on its way, within the time, and disconnect."""
        self._closing.set()
        with self._lock:
            replacing = self._replacing
        if replacing is not None:
            replacing.join(timeout_s)
        with self._lock:
            kafka = self.current
        if kafka is not None:
            close_producer(kafka, timeout_s)

    def _replace(self, old: Kafka) -> None:
        LOG.warning("%s: Kafka owes answers; another producer takes over", self._options["client_id"])
        while not self._closing.is_set():
            try:
                made = self._connect({**self._options, "bootstrap_timeout_ms": BOOTSTRAP_TIMEOUT_MS})
            except Exception as error:  # noqa: BLE001 - whatever it is: without a producer nothing is ever sent
                LOG.info("no other producer yet: %r", error)
                self._closing.wait(AGAIN_S)
                continue
            with self._lock:
                self.current = made
            self._on_connected()
            break
        close_producer(old, self._options["delivery_timeout_ms"] / 1000)
        with self._lock:
            if self._replacing is threading.current_thread():
                self._replacing = None

    def _connect(self, options: Mapping[str, Any]) -> Kafka:
        try:
            kafka = KafkaProducer(**options)
        except KafkaError as error:
            message = f"Kafka does not answer: {error!r}"
            raise Unavailable(message, subject=",".join(options["bootstrap_servers"])) from error
        self._survive_refusals(kafka)
        return kafka

    def _survive_refusals(self, kafka: Kafka) -> None:
        """Go on after a refused record, with a new epoch: as after any other gap in the sequence numbers of a queue."""
        manager = getattr(kafka, "_transaction_manager", None)
        if manager is None:
            return
        classify = manager.classify_batch_error

        def classify_refusals(error: Kafka, batch: Kafka, log_start_offset: int = -1) -> Kafka:
            if isinstance(error, self._refusals):
                if batch.attempts:
                    batch.complete_exceptionally = partial(_complete_as_unknown, batch.complete_exceptionally)
                error = OutOfOrderSequenceNumberError()
            return classify(error, batch, log_start_offset=log_start_offset)

        manager.classify_batch_error = classify_refusals


def close_producer(kafka: Kafka, timeout_s: float) -> None:
    """Close a KafkaProducer; what it cannot send within the time is given up, so that it ends."""
    try:
        kafka.close(timeout=timeout_s)
    except KafkaError as error:
        LOG.warning("%s: what was on its way is given up: %r", kafka.config["client_id"], error)
        kafka._sender.force_close()  # noqa: SLF001 - see above
        kafka._sender.join(ABORT_S)  # noqa: SLF001


def _complete_as_unknown(complete: Callable[..., bool], error: Exception, _of_record: Kafka) -> bool:
    """End a batch whose earlier try may have been written; none of its records is to be taken for refused."""
    found = KafkaError(f"refused after another try: {error!r}")
    return complete(found, lambda _index: found)
