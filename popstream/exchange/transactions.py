"""Transactions of a KafkaProducer that end in bounded time, and recognise another producer with the same id.

kafka-python's `commit_transaction` and `abort_transaction` wait without limit while Kafka does not answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafka.errors import InvalidProducerEpochError, ProducerFencedError

from popstream.kafka_internals import require_members

if TYPE_CHECKING:
    from typing import Any

    # kafka-python has no types.
    Kafka = Any

__all__ = ["abort", "commit", "is_fenced", "require_bounded_transactions"]

FENCED = (ProducerFencedError, InvalidProducerEpochError)


def require_bounded_transactions(kafka: Kafka) -> None:
    """Check that a KafkaProducer has the private members that the functions below use. Raises Invalid."""
    require_members(kafka, "_transaction_manager.begin_commit", "_transaction_manager.begin_abort")
    require_members(kafka, "_transaction_manager.last_error", "_sender.wakeup")
    require_members(kafka, "_sender.force_close", "_sender.join")  # of `close_producer`


def commit(kafka: Kafka, timeout_s: float) -> None:
    """Commit the transaction.

    Raises:
        TimeoutError: Kafka does not answer: it may be committed or not.
        KafkaError: It is not committed.
    """
    _end(kafka, kafka._transaction_manager.begin_commit, timeout_s)  # noqa: SLF001 - checked when it was made


def abort(kafka: Kafka, timeout_s: float) -> None:
    """Abort the transaction, so that readers need not wait for its time-out. Raises the errors of `commit`."""
    _end(kafka, kafka._transaction_manager.begin_abort, timeout_s)  # noqa: SLF001


def is_fenced(kafka: Kafka, error: Exception) -> bool:
    """Tell whether a call failed because another producer has the same transactional id since.

    It may fail because of an error that the network thread met before.
    """
    manager = getattr(kafka, "_transaction_manager", None)
    return isinstance(error, FENCED) or isinstance(getattr(manager, "last_error", None), FENCED)


def _end(kafka: Kafka, begin: Kafka, timeout_s: float) -> None:
    ended = begin()
    kafka._sender.wakeup()  # noqa: SLF001
    if not ended.wait(timeout_ms=int(timeout_s * 1000)):
        message = f"no answer within {timeout_s:.0f} s"
        raise TimeoutError(message)
