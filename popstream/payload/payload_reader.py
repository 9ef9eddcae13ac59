"""Where a fetcher reads the records of message topics: through kafka-python or through librdkafka."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from popstream.payload.partition_reader import PartitionReader
from popstream.wire.base_errors import Invalid
from popstream.wire.queue_name import QueueName

if TYPE_CHECKING:
    from popstream.payload.payload_block import PayloadBlock
    from popstream.settings import ClientSettings

__all__ = ["PayloadReader", "make_reader"]


class PayloadReader(Protocol):
    """Reads partitions in parallel, for one thread. It connects at the first read, also after `close`.

    Attributes:
        records_read: Number of records read so far, including those that were skipped.
    """

    records_read: int

    @property
    def is_connected(self) -> bool:
        """Whether it has a consumer."""

    @property
    def bytes_read(self) -> int:
        """Number of bytes received so far; see `FetchCounts`."""

    def is_at(self, queue: QueueName, offset: int) -> bool:
        """Tell whether it reads `offset` of a queue next."""

    def read(self, targets: dict[QueueName, int]) -> dict[QueueName, PayloadBlock]:
        """Read on towards the targets for a moment; return the block of each partition that moved.

        A partition that does not exist, or is not written that far, does not move.

        Raises:
            KafkaError: An error of kafka-python, whichever client reads. Of several targets it may be of any. The next
                call has to be `close`.
            Invalid: The installed client, or a setting of it, cannot be used.
        """

    def rest(self) -> None:
        """Do what has to be done while nobody wants to read."""

    def close(self) -> None:
        """Disconnect; the next read connects again."""


def make_reader(settings: ClientSettings) -> PayloadReader:
    """Return the reader that `fetch_client` names.

    Raises:
        Invalid: Its package is not installed, or it lacks one of the `kafka` settings.
    """
    if settings.fetch_client == "kafka-python":
        return PartitionReader(settings)
    try:
        from popstream.payload.librdkafka_reader import LibrdkafkaReader  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        if error.name != "confluent_kafka":
            raise
        message = "fetch_client='librdkafka' needs confluent-kafka: pip install 'popstream[librdkafka]'"
        raise Invalid(message, subject=settings.client_id) from error
    return LibrdkafkaReader(settings)
