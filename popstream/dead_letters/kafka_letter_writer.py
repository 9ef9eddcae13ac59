"""Writes redriven messages, and the records that say so, in Kafka transactions.

All writers of a prefix have the same transactional id. `open` aborts what an earlier one has not committed, and from
then on its commits fail. So a writer that has read, after `open`, what is recorded about letters knows all of it: no
letter is redriven twice, and a letter that is recorded as redriven has been sent, whenever a process was killed.
"""

from __future__ import annotations

import contextlib
import logging
import time
from typing import TYPE_CHECKING, Any, Self

import msgspec
from kafka import KafkaProducer
from kafka.errors import (
    AuthorizationError,
    KafkaError,
    PolicyViolationError,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailedError,
)

from popstream.dead_letters.letter_topics import LetterRefusedError
from popstream.deadline import left_s
from popstream.exchange.coalescer import ranges_of
from popstream.exchange.kafka_link import producer_options
from popstream.exchange.resilient_producer import close_producer
from popstream.exchange.transactions import abort, commit, is_fenced, require_bounded_transactions
from popstream.send.kafka_errors import REFUSED_BY_BATCH, REFUSED_WITH_BATCH
from popstream.topics.access_rights import access_refused, rights_refused
from popstream.wire.base_errors import Fenced, Invalid, Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from types import TracebackType

    from popstream.dead_letters.letter_topics import HandledLetter
    from popstream.settings import ClientSettings
    from popstream.wire.letter_handling import LetterHandling

__all__ = ["KafkaLetterWriter"]

LOG = logging.getLogger(__name__)

TRANSACTION_TIMEOUT_MS = 30_000
"""After a kill, readers of the queues that were sent to wait for this long, or until the next writer opens."""
BATCH_BYTES = 256 * 1024
CHUNK_LETTERS = 500
"""Letters whose offsets are waited for together. The messages of two chunks are in flight at a time."""
LINGER_MS = 5
CLOSE_S = 2.0
REFUSED = (*REFUSED_BY_BATCH, PolicyViolationError)
"""Errors that concern a record; the broker would refuse it again."""


class KafkaLetterWriter:
    """A `LetterWriter` of Kafka. Not thread-safe.

    Args:
        settings: Where Kafka is.
        handled: The topic with what became of letters; its name is the transactional id.
    """

    def __init__(self, settings: ClientSettings, handled: str) -> None:
        self._settings = settings
        self._handled = handled
        self._timeout_s = settings.delivery_timeout_ms / 1000
        self._producer: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def open(self) -> None:
        """See `LetterWriter.open`."""
        self._close()
        with self._errors_translated():
            self._producer = KafkaProducer(
                **{
                    "client_id": self._settings.client_id,
                    "transactional_id": self._handled,
                    "transaction_timeout_ms": TRANSACTION_TIMEOUT_MS,
                    "batch_size": BATCH_BYTES,
                    "linger_ms": LINGER_MS,
                    **producer_options(self._settings),
                }
            )
            require_bounded_transactions(self._producer)
            self._producer.init_transactions()

    def write(self, batch: Sequence[HandledLetter]) -> list[LetterHandling]:
        """See `LetterWriter.write`."""
        with self._errors_translated():
            self._producer.begin_transaction()
            try:
                with self._errors_translated():  # before the abort, which forgets why the transaction has failed
                    handlings = self._written(batch)
            except BaseException:
                self._abandon()
                raise
            commit(self._producer, self._timeout_s)
        return handlings

    def _written(self, batch: Sequence[HandledLetter]) -> list[LetterHandling]:
        """Write the messages, and the records with their offsets; return what was recorded.

        While Kafka takes the messages of a chunk, those of the next one are sent.
        """
        chunks = [batch[first : first + CHUNK_LETTERS] for first in range(0, len(batch), CHUNK_LETTERS)]
        handlings: list[LetterHandling] = []
        recorded: list[Any] = []
        sent = self._sent(chunks[0])
        for number, chunk in enumerate(chunks, start=1):
            following = self._sent(chunks[number]) if number < len(chunks) else []
            handlings += self._with_offsets(chunk, sent)
            recorded += self._recorded(chunk, handlings[-len(chunk) :])
            sent = following
        self._wait(recorded)
        return handlings

    def _sent(self, chunk: Sequence[HandledLetter]) -> list[list[Any]]:
        """Send the messages of each letter, and return their futures."""
        return [
            [
                self._producer.send(
                    one.letter.topic,
                    key=record.key,
                    value=record.value,
                    headers=record.headers,
                    partition=one.letter.queue_id,
                )
                for record in one.records
            ]
            for one in chunk
        ]

    def _with_offsets(self, chunk: Sequence[HandledLetter], sent: Sequence[Sequence[Any]]) -> list[LetterHandling]:
        """Wait until the messages are written, and return what is to be recorded about them."""
        self._wait(future for futures in sent for future in futures)
        return [
            msgspec.structs.replace(one.handling, sent=ranges_of(future.value.offset for future in futures))
            for one, futures in zip(chunk, sent, strict=True)
        ]

    def _recorded(self, chunk: Sequence[HandledLetter], handlings: Sequence[LetterHandling]) -> list[Any]:
        return [
            self._producer.send(
                self._handled, key=one.letter.letter_id.encode(), value=msgspec.json.encode(handling), partition=0
            )
            for one, handling in zip(chunk, handlings, strict=True)
        ]

    def _wait(self, sent: Iterable[Any]) -> None:
        """Wait until records are written. Raises the error of the first one that is not."""
        deadline_s = time.monotonic() + self._timeout_s
        for future in sent:
            if not future.succeeded():
                future.get(left_s(deadline_s))

    def _abandon(self) -> None:
        try:
            abort(self._producer, CLOSE_S)
        except (KafkaError, TimeoutError) as error:
            LOG.info("the transaction is not aborted now, but by its time-out or the next writer: %r", error)

    def _close(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            close_producer(producer, CLOSE_S)

    @contextlib.contextmanager
    def _errors_translated(self) -> Iterator[None]:
        try:
            yield
        except (KafkaError, TimeoutError) as error:
            raise self._translated(error) from error

    def _translated(self, found: Exception) -> Exception:
        error = self._first_error(found)
        if is_fenced(self._producer, error):
            message = "another redrive or purge of these dead letters has begun, and this one has stopped"
            return Fenced(message, subject=self._handled)
        if isinstance(error, REFUSED) or REFUSED_WITH_BATCH in str(error):
            return LetterRefusedError(Invalid(f"Kafka refuses its message: {error!r}", subject=self._handled))
        if isinstance(error, TransactionalIdAuthorizationFailedError):
            return access_refused(self._settings.connection, f"Write on transactional id {self._handled}")
        if isinstance(error, TopicAuthorizationFailedError) and (topics := _topics_of(error)):
            return rights_refused(self._settings.connection, {topic: ["Write"] for topic in topics})
        if isinstance(error, AuthorizationError):
            message = f"Kafka does not allow writing to the topics: {error!r}"
            return Invalid(message, subject=self._handled)
        message = f"Kafka does not confirm what was written: {error!r}"
        return Unavailable(message, subject=self._settings.bootstrap_servers)

    def _first_error(self, error: Exception) -> Exception:
        """Return why the transaction has failed, if kafka-python says only that it has: what follows, it refuses."""
        first = self._producer._transaction_manager.last_error if type(error) is KafkaError else None  # noqa: SLF001
        return error if first is None else first


def _topics_of(error: TopicAuthorizationFailedError) -> set[str]:
    """Return the topics that kafka-python names where a transaction may not write to them."""
    return {topic for found in error.args if isinstance(found, set) for topic in found}
