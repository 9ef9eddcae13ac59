"""A KafkaProducer that outlives the failures which kafka-python 3.0.12 does not recover from.

* When a batch of an idempotent producer times out after an attempt, while Kafka is away, the producer never gets a
  producer id again: it sends nothing more, and its records do not time out. It is replaced by a new one.
* A record that the broker refuses is a fatal error of the producer, also for records to other queues in flight.
* A record that is refused at its second attempt may have been written at its first: the broker checks size, timestamp
  and authorization before it checks for a duplicate. Its outcome is unknown.
* `close` of a producer that cannot send its records leaves the producer open, with its thread running.
"""

from __future__ import annotations

import logging
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from kafka import KafkaProducer
from kafka.errors import KafkaError, OutOfOrderSequenceNumberError
from kafka.producer.producer_batch import ProducerBatch

from popstream.deadline import left_s
from popstream.kafka_internals import require_members
from popstream.wire.base_errors import Invalid, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    # kafka-python has no types.
    Kafka = Any

__all__ = ["ResilientProducer", "close_producer"]

LOG = logging.getLogger(__name__)

BOOTSTRAP_TIMEOUT_MS = 5_000
RECONNECT_PAUSE_S = 0.2
ABORT_TIMEOUT_S = 5.0


class ResilientProducer:
    """One KafkaProducer at a time. Safe for use by many threads.

    Args:
        options: Options of each KafkaProducer.
        refusals: Errors by which the broker refuses a single record, such as one that is too large.
        on_connected: Called after a KafkaProducer was made.
        kafka_producer: Use this one, and never replace it.

    Raises:
        Invalid: `kafka_producer` is of a release of kafka-python that is not supported.
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
        """The one to send with; None before `open`, and while another one is being made."""
        if isinstance(kafka_producer, KafkaProducer):
            self._survive_refusals(kafka_producer)

    def open(self) -> None:
        """Make the first KafkaProducer; more calls do nothing.

        Raises:
            Unavailable: Kafka does not answer.
            Invalid: The installed release of kafka-python is not supported.
        """
        with self._lock:
            if self.current is None and self._replacing is None and not self._closing.is_set():
                self.current = self._connect(self._options)
                self._on_connected()

    def replace(self, kafka: Kafka) -> None:
        """Send no more with a producer that owes answers, and make another one in the background.

        Records in flight may still be answered by the old one. Nothing happens when it is not the current one.
        """
        with self._lock:
            if kafka is None or self.current is not kafka or self._is_given or self._closing.is_set():
                return
            replacing = threading.Thread(target=self._replace, args=[kafka], name="kafka-reconnect", daemon=True)
            try:
                replacing.start()
            except RuntimeError as error:  # no more threads, as when the interpreter exits
                LOG.warning("%s: cannot replace the Kafka producer: %s", self._options["client_id"], error)
                return
            self.current, self._replacing = None, replacing

    def close(self, timeout_s: float) -> None:
        """Wait for records in flight, at most for the time-out, and disconnect."""
        deadline_s = time.monotonic() + timeout_s
        self._closing.set()
        with self._lock:
            replacing = self._replacing
        if replacing is not None:
            replacing.join(timeout_s)
        with self._lock:
            kafka = self.current
        if kafka is not None:
            close_producer(kafka, left_s(deadline_s))

    def _replace(self, old: Kafka) -> None:
        LOG.warning("%s: requests were not acknowledged; replacing the Kafka producer", self._options["client_id"])
        while not self._closing.is_set():
            try:
                made = self._connect({**self._options, "bootstrap_timeout_ms": BOOTSTRAP_TIMEOUT_MS})
            except Exception as error:  # noqa: BLE001 - without a producer nothing is ever sent, so any error is retried
                LOG.info("%s: no new Kafka producer yet: %r", self._options["client_id"], error)
                self._closing.wait(RECONNECT_PAUSE_S)
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
        try:
            self._survive_refusals(kafka)
        except Invalid:
            kafka.close(timeout=ABORT_TIMEOUT_S)
            raise
        return kafka

    def _survive_refusals(self, kafka: Kafka) -> None:
        """Treat a refused record as a gap in the sequence numbers: the producer goes on with a new epoch.

        Raises:
            Invalid: A private member that is patched, or that `close_producer` uses, does not exist.
        """
        require_members(kafka, "_transaction_manager", "_sender.force_close", "_sender.join")
        manager = kafka._transaction_manager  # noqa: SLF001 - checked above
        if manager is None:
            return  # not idempotent: a refused record fails alone
        require_members(manager, "classify_batch_error")
        # An empty one, as `attempts` is no member of the class.
        require_members(ProducerBatch(None, None), "attempts", "complete_exceptionally")
        classify = manager.classify_batch_error

        def classify_refusals(error: Kafka, batch: Kafka, log_start_offset: int = -1) -> Kafka:
            if isinstance(error, self._refusals):
                if batch.attempts:
                    batch.complete_exceptionally = partial(_complete_as_unknown, batch.complete_exceptionally)
                error = OutOfOrderSequenceNumberError()
            return classify(error, batch, log_start_offset=log_start_offset)

        manager.classify_batch_error = classify_refusals


def close_producer(kafka: Kafka, timeout_s: float) -> None:
    """Close a KafkaProducer; records that it cannot send within the time-out are abandoned."""
    try:
        kafka.close(timeout=timeout_s)
    except KafkaError as error:
        LOG.warning("%s: records in flight are abandoned: %r", kafka.config["client_id"], error)
        kafka._sender.force_close()  # noqa: SLF001 - `close` has left the producer open
        kafka._sender.join(ABORT_TIMEOUT_S)  # noqa: SLF001


def _complete_as_unknown(complete: Callable[..., bool], error: Exception, _of_record: Kafka) -> bool:
    """Complete a refused batch whose earlier attempt may have been written: none of its records counts as refused."""
    found = KafkaError(f"refused after another attempt: {error!r}")
    return complete(found, lambda _index: found)
