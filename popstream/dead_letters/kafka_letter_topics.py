"""The topics of dead letters in Kafka."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from kafka import TopicPartition
from kafka.admin import KafkaAdminClient
from kafka.errors import KafkaError, TopicAuthorizationFailedError

from popstream.dead_letters.kafka_letter_writer import KafkaLetterWriter
from popstream.errors import Refused
from popstream.exchange.transport import Transport
from popstream.payload.shared_payloads import shared_payloads
from popstream.send.backfill import declare_queue, dispatch_records
from popstream.topics.access_rights import rights_refused
from popstream.topics.message_topics import TopicReader
from popstream.topics.queue_types import QueueTypes
from popstream.wire.base_errors import Invalid, Unavailable
from popstream.wire.queue_name import QueueName
from popstream.wire.reason import Reason

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from popstream.dead_letters.letter_topics import LogBounds
    from popstream.payload.payloads import Payloads
    from popstream.settings import ClientSettings
    from popstream.wire.answer import Answer
    from popstream.wire.command import QueueType, Redrive

__all__ = ["KafkaLetterTopics"]


class KafkaLetterTopics:
    """`LetterTopics` of Kafka. Not thread-safe.

    Args:
        settings: Where Kafka is, and the prefix.

    Raises:
        Unavailable: No broker accepts a connection.
        Invalid: An address cannot be parsed.
    """

    def __init__(self, settings: ClientSettings) -> None:
        settings.reach_kafka()
        self.dead_letters = f"{settings.prefix}.dead_letters"
        self.handled = f"{settings.prefix}.dead_letters_handled"
        self._settings = settings
        self._opened = contextlib.ExitStack()
        self.payloads: Payloads = self._opened.enter_context(contextlib.closing(shared_payloads(settings)))
        self._queue_types = QueueTypes(settings)
        self._opened.callback(self._queue_types.close)
        self._topics = TopicReader(settings.connection, client_id=f"{settings.client_id}-admin")
        self._opened.callback(self._topics.close)
        self._transport: Transport | None = None

    def bounds(self, topic: str) -> dict[int, LogBounds]:
        """See `LetterTopics.bounds`."""
        found = self._topics.read([topic]).get(topic)
        return {} if found is None else found.bounds()

    def type_of(self, topic: str) -> QueueType | None:
        """See `LetterTopics.type_of`."""
        return self._queue_types.of(topic)

    def writer(self) -> KafkaLetterWriter:
        """See `LetterTopics.writer`."""
        return KafkaLetterWriter(self._settings, self.handled)

    def declare(self, queues: Iterable[QueueName]) -> None:
        """See `LetterTopics.declare`."""
        for topic, queue_id in queues:
            with _admin_key_named():
                declare_queue(self._settings, self._connected(), topic, queue_id)

    def announce(self, redrives: Sequence[Redrive]) -> list[Answer]:
        """See `LetterTopics.announce`."""
        transport = self._connected()
        asked = [transport.submit(redrive) for redrive in redrives]
        answers = [answered.result() for answered in asked]
        for answer in answers:
            if answer.reason is Reason.NO_PERMISSION:
                raise _admin_key_wanted(Refused(answer))
        return answers

    def dispatch(self, sent: Mapping[QueueName, Sequence[tuple[int, int]]]) -> None:
        """See `LetterTopics.dispatch`."""
        for (topic, queue_id), ranges in sent.items():
            with _admin_key_named():
                dispatch_records(self._settings, self._connected(), topic, queue_id, ranges)

    def erase(self, ends: Mapping[int, int]) -> None:
        """See `LetterTopics.erase`."""
        places = {TopicPartition(self.dead_letters, partition): end for partition, end in ends.items()}
        try:
            admin = KafkaAdminClient(
                **{
                    "client_id": f"{self._settings.client_id}-eraser",
                    **self._settings.connection.for_kafka_python(),
                }
            )
            with contextlib.closing(admin):
                admin.delete_records(places)
        except TopicAuthorizationFailedError as error:
            raise rights_refused(self._settings.connection, {self.dead_letters: ["Delete"]}) from error
        except KafkaError as error:
            message = f"Kafka does not delete records of {self.dead_letters}: {error!r}"
            raise (Unavailable if error.retriable else Invalid)(message, subject=self.dead_letters) from error

    def close(self) -> None:
        """See `LetterTopics.close`."""
        self._opened.close()

    def _connected(self) -> Transport:
        if self._transport is None:
            self._transport = self._opened.enter_context(Transport(self._settings))
        return self._transport


@contextlib.contextmanager
def _admin_key_named() -> Iterator[None]:
    """Say what to do where the job refuses an operation that no admin key of it has signed."""
    try:
        yield
    except Refused as error:
        if error.reason is not Reason.NO_PERMISSION:
            raise
        raise _admin_key_wanted(error) from error


def _admin_key_wanted(refused: Refused) -> Invalid:
    message = f"{refused.message}: a redrive needs an admin key of the job, by --admin-key-file or admin_key="
    return Invalid(message, subject=refused.subject)
